"""Distance of stitched features from the tail's own: task-loss stitches drift out of distribution."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .closed_form import pseudo_inverse
from .moments import Moments

__all__ = ["Drift", "drift"]


@dataclass(frozen=True)
class Drift:
    """Distance of ``phi(f_{<=l}(x))`` to B's own features ``y`` at the tap, on the same inputs.

    Every number is computed from second moments over examples and positions.

    Attributes:
        residual: ``sum |phi(x) - y|^2 / sum |y|^2``: 0 where the stitch reproduces B's features.
        shift: Root mean square over live channels of (mean of phi(x) - mean of y) / (standard deviation of y).
        frechet: Fréchet distance between Gaussians of these moments, divided by the variance of ``y``: 0 for equal
            distributions, even where single inputs are swapped.
        mahalanobis: Mean squared Mahalanobis distance of phi(x) to the distribution of ``y``, per dimension: 1 in
            distribution, larger outside.
    """

    residual: float
    shift: float
    frechet: float
    mahalanobis: float


def drift(moments: Moments, matrix: Tensor, bias: Tensor | None = None) -> Drift:
    """Measure how far a stitching layer carries A's features from what B's tail was trained on.

    A layer trained on the task loss may reach a good accuracy with features that B never makes; the penalty does not
    show that, these distances do. A closed-form layer is what they should be compared with.

    Args:
        moments: Of both taps, best on data that the layer was not fitted to.
        matrix: ``(C_out, C_in)``, as evaluated.
        bias: ``(C_out,)`` or ``None``.

    Raises:
        ValueError: If B's features do not vary.

    Examples:
        >>> from intertwine.features.moments import CrossMoments
        >>> sums, x = CrossMoments(within=True), torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
        >>> sums.add(x, x)
        >>> found = drift(Moments.of(sums), torch.eye(3))
        >>> round(found.residual, 6), round(found.frechet, 6), round(found.mahalanobis, 6)
        (0.0, 0.0, 1.0)
    """
    a = matrix.detach().to(moments.xx)
    b = torch.zeros_like(moments.sum_y) if bias is None else bias.detach().to(moments.xx)
    centred = moments.centred()
    cov_y = centred.yy / moments.count
    cov_s = a @ (centred.xx / moments.count) @ a.T
    gap = a @ moments.sum_x / moments.count + b - moments.sum_y / moments.count
    variance = cov_y.diagonal()
    live = variance > 1e-12 * variance.max()
    if not bool(live.any()):
        raise ValueError("B's features must vary at the layer. Got constant ones on this data.")
    inverse = pseudo_inverse(cov_y)
    rank = torch.linalg.matrix_rank(inverse @ cov_y).clamp_min(1)
    away = ((inverse * cov_s).sum() + gap @ inverse @ gap) / rank
    return Drift(
        residual=moments.residual(a, b),
        shift=float((gap[live].square() / variance[live]).mean().sqrt()),
        frechet=max(0.0, float(_frechet(cov_s, cov_y, gap) / cov_y.trace())),
        mahalanobis=float(away),
    )


def _frechet(p: Tensor, q: Tensor, gap: Tensor) -> Tensor:
    """``|gap|^2 + tr(P + Q - 2 (Q^1/2 P Q^1/2)^1/2)``."""
    values, vectors = torch.linalg.eigh(q)
    root = (vectors * values.clamp_min(0).sqrt()) @ vectors.T
    between = torch.linalg.eigvalsh(root @ p @ root).clamp_min(0).sqrt().sum()
    return gap @ gap + p.trace() + q.trace() - 2 * between
