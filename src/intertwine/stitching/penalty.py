"""Penalty and drift: what the stitched network loses, as a fraction of accuracy, and how far its features go."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._progress import track
from ..features.batches import check_repeatable, labels_in, length, repeatable
from ..features.evaluate import correct, known
from ..programs import Part, check_path, flat_inputs
from .closed_form import Moments, pseudo_inverse
from .pair import Pair
from .stitched import Stitched, by_trunk

__all__ = ["Evaluation", "accuracies", "evaluate", "penalty", "Drift", "drift"]


def labels_of(batch: Any, classes: int | None = None) -> Tensor:
    """Class labels ``(N,)`` of a batch, below ``classes`` where it is given, or -100 where they are ignored."""
    found = labels_in(batch)
    if found is None or found.ndim != 1 or found.is_floating_point():
        got = "none" if found is None else f"{found.dtype} of shape {tuple(found.shape)}"
        raise ValueError(
            f"batches must be (inputs, labels, ...) or a dict with 'labels', labels (N,) of whole numbers. Got {got}."
        )
    if classes is not None and len(outside := found[known(found) & ((found < 0) | (found >= classes))]):
        raise ValueError(
            f"labels must be from 0 to {classes - 1}, B's {classes} outputs, or -100 where they are ignored. "
            f"Got {int(outside[0])}."
        )
    return found


@dataclass(frozen=True)
class Evaluation:
    """Accuracies of two models and of networks stitched from them."""

    accuracy_a: float  # Of A, 0 to 1
    accuracy_b: float  # Of B
    accuracies: tuple[float, ...]  # Of the stitched networks
    errors: tuple[float, ...]  # Standard errors of their penalties over examples, all three networks on the same ones
    examples: int  # How many examples, those whose labels are ignored (-100) left out

    @property
    def penalties(self) -> tuple[float, ...]:
        """Eq. 4.3 for each."""
        return tuple(penalty(self.accuracy_a, self.accuracy_b, stitched) for stitched in self.accuracies)


def penalty(accuracy_a: float, accuracy_b: float, stitched: float) -> float:
    """``(Acc f + Acc f~) / 2 - Acc S(f, f~, l, phi)`` (paper 1, eq. 4.3), as a fraction: 0.01 is one point.

    Of accuracies from 0 to 1; negative where the stitched network is better than both on average.

    Examples:
        >>> round(penalty(0.90, 0.92, 0.88), 4)
        0.03
    """
    return (accuracy_a + accuracy_b) / 2 - stitched


def accuracies(networks: Sequence[Stitched], loader: Iterable[Any], *, progress: bool | None = None) -> list[float]:
    """Accuracy of stitched networks, each trunk run once per batch.

    Args:
        networks: Evaluated with the rounded maps, batch norm in evaluation mode; their own modes do not matter.
        loader: Batches ``(inputs, labels, ...)``.
        progress: Whether to show progress.

    Raises:
        ValueError: If the loader is empty.
    """  # noqa: DOC502 - raised by the count
    check_repeatable(loader)
    device = next((t.device for net in networks for t in net.tail.buffers()), None)
    rights = _hits(_together(networks), loader, device, networks[0].classes, progress)
    return [int(right.sum()) / len(right) for right in rights]


def evaluate(
    pair: Pair, networks: Sequence[Stitched], loader: Iterable[Any], *, progress: bool | None = None
) -> Evaluation:
    """Accuracy of A, of B and of stitched networks in one pass over the data: whole models and trunks run once a batch.

    Args:
        pair: The models.
        networks: Stitched from them, at any layers; evaluated as by :func:`accuracies`.
        loader: Batches ``(inputs, labels, ...)``.
        progress: Whether to show progress.

    Raises:
        ValueError: If the loader is empty.
        RuntimeError: If a model whose control flow depends on data took another path than in its recorded run.
    """  # noqa: DOC502 - raised by what it calls
    check_repeatable(loader)
    programs = pair.a, pair.b
    whole = [Part(program, outputs=program.outputs[:1]) for program in programs]
    stitched = _together(networks)

    def run(inputs: tuple[Tensor, ...], batch: Any) -> list[Tensor]:
        outputs = [part(*inputs)[0] for part in whole]
        for model, program, output, name in zip(pair.models, programs, outputs, "AB"):
            check_path(model, program, batch, output, name)
        return [*outputs, *stitched(inputs, batch)]

    right_a, right_b, *rights = _hits(run, loader, pair.device, pair.classes, progress)
    lost = [(right_a.double() + right_b.double()) / 2 - right.double() for right in rights]
    errors = [float(x.std(unbiased=True) / len(x) ** 0.5) if len(x) > 1 else float("nan") for x in lost]
    share = lambda right: int(right.sum()) / len(right)
    return Evaluation(share(right_a), share(right_b), tuple(map(share, rights)), tuple(errors), len(right_a))


def _together(networks: Sequence[Stitched]) -> Callable[[tuple[Tensor, ...], Any], list[Tensor]]:
    """All networks as they are evaluated, each trunk run once."""
    tails = {id(net): net.tail.fork().eval() for net in networks}
    maps = {id(net): net.evaluated() for net in networks}
    groups = by_trunk(networks)

    def run(inputs: tuple[Tensor, ...], _: Any) -> list[Tensor]:
        found: dict[int, Tensor] = {}
        for group in groups:
            crossing = group[0].trunk(*inputs)
            found |= {id(net): tails[id(net)](*maps[id(net)](crossing))[0] for net in group}
        return [found[id(net)] for net in networks]

    return run


@torch.no_grad()
def _hits(
    run: Callable[[tuple[Tensor, ...], Any], list[Tensor]],
    loader: Iterable[Any],
    device: torch.device | None,
    classes: int,
    progress: bool | None,
) -> list[Tensor]:
    """For every network, which examples it gets right, those whose labels are ignored left out."""
    rights: list[list[Tensor]] = []
    for batch in track(repeatable(loader), "Evaluating", length(loader), progress):
        labels = labels_of(batch, classes).to(device)
        rights.append([correct(logits, labels).cpu() for logits in run(flat_inputs(batch, device), batch)])
    if not rights or not sum(len(batch[0]) for batch in rights):
        raise ValueError("loader must yield at least one example with a label. Got none.")
    return [torch.cat(parts) for parts in zip(*rights)]


@dataclass(frozen=True)
class Drift:
    """Distance of ``phi(f_{<=l}(x))`` to B's own features ``y`` at the tap, on the same inputs.

    Every number is computed from second moments over examples and positions.
    """

    residual: float  # ``sum |phi(x) - y|^2 / sum |y|^2``: 0 where the stitch reproduces B's features
    shift: float  # Root mean square over live channels of (mean of phi(x) - mean of y) / (standard deviation of y)
    # Fréchet distance between Gaussians of these moments, divided by the variance of ``y``: 0 for equal distributions,
    # even where single inputs are swapped
    frechet: float
    # Mean squared Mahalanobis distance of phi(x) to the distribution of ``y``, per dimension: 1 in distribution, larger
    # outside
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
