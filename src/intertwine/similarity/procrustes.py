"""Procrustes similarities: how close one side comes to the other when a group may move its channels."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import Any, Self

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from ._features import (
    Moments,
    channels_first,
    check_distinct,
    check_same_examples,
    double,
    example_blocks,
    moments,
)
from .base import Measure

__all__ = ["Procrustes", "ProcrustesSide", "procrustes"]


@dataclass(frozen=True)
class _Kind:
    """A group of channel maps: what is optimised over, and what is divided out beforehand."""

    search: str  # "orthogonal", "permutation", "signed_permutation" or "trivial"
    per_channel: bool  # divide every channel by its norm, or the whole matrix by its Frobenius norm
    words: str


_KINDS = {
    "orthogonal": _Kind("orthogonal", False, "orthogonal maps times isotropic scales"),
    "g_relu": _Kind("permutation", True, "positive monomial maps (permutations times positive scales per channel)"),
    "monomial": _Kind("signed_permutation", True, "monomial maps (permutations times nonzero scales per channel)"),
    "permutation": _Kind("permutation", False, "permutations times positive isotropic scales"),
    "signed_permutation": _Kind("signed_permutation", False, "signed permutations times isotropic scales"),
    "trivial": _Kind("trivial", False, "positive isotropic scales"),
}
_KINDS["positive_monomial"] = _KINDS["g_relu"]


@dataclass(frozen=True)
class ProcrustesSide:
    """One side of a Procrustes comparison: the features, which examples of them, and their channels' moments."""

    features: Tensor = field(repr=False)
    moments: Moments = field(repr=False)
    kept: Tensor = field(repr=False)
    rows: Tensor | None = field(default=None, repr=False)

    @property
    def n(self) -> int:
        """Number of examples."""
        return len(self.features) if self.rows is None else len(self.rows)

    @property
    def channels(self) -> int:
        """Number of channels, dead ones included."""
        return self.features.shape[1]

    @property
    def dead(self) -> int:
        """Number of channels left out: zero everywhere, or constant where channels are centred."""
        return self.channels - int(self.kept.sum())

    @property
    def details(self) -> Mapping[str, Any]:
        """Nothing: this measure chooses nothing by itself."""
        return {}

    def take(self, index: Tensor) -> Self:
        """Return the side with the examples ``index``; their norms are taken anew."""
        index = index.to(self.features.device)
        rows = index if self.rows is None else self.rows[index]
        if check_distinct(index, self.n):
            return type(self)(self.features, self.moments, self.kept, rows)
        return type(self)(self.features, moments(self.features[rows]), self.kept, rows)

    def block(self, b: slice, center: bool) -> Tensor:
        """Examples ``b`` with the kept channels as columns: ``(n P, C)`` in float64."""
        x = self.features[b] if self.rows is None else self.features[self.rows[b]]
        x = double(x).movedim(1, -1).flatten(0, -2)
        return (x - self.moments.mean if center else x)[:, self.kept]


@dataclass(frozen=True)
class Procrustes(Measure[ProcrustesSide]):
    """Procrustes similarity under a group of channel maps (paper 1, definition 5.2 and section D.7.1).

    Differs from the paper where it is silent or cannot hold: features are *not* centred unless asked, as in the paper's
    own figures, so translations change the score; dead channels are left out on each side; the narrower side is padded
    with zero channels; the orthogonal kind divides by the global norm. Scores of different kinds have different scales:
    none bounds another.

    ``mu(X, Y) = 1 - delta / 2`` with ``delta = min_g |X/|X| - (Y/|Y|) g|`` over the group, Frobenius norms; or, where
    the group holds scales per channel, ``mu(X, Y) = 1 - delta / (2 sqrt(max(d, d')))`` with each of the ``d`` and
    ``d'`` channels divided by its norm first.

    For ``"g_relu"`` the permutation maximises the sum of cosines (the paper). ``groups.PositiveMonomial.procrustes``
    fits the scales as well and so maximises the sum of squared positive cosines; the two may choose different
    permutations.

    Args:
        kind: ``"orthogonal"``, ``"g_relu"`` (``"positive_monomial"``), ``"monomial"``, ``"permutation"``,
            ``"signed_permutation"`` or ``"trivial"`` (no alignment).
        center: Subtract each channel's mean over examples and space first.

    Raises:
        ValueError: If the kind is unknown.
    """

    kind: str = "orthogonal"
    center: bool = False

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ValueError(f"group must be one of {', '.join(map(repr, _KINDS))}. Got {self.kind!r}.")
        if self.kind == "positive_monomial":
            object.__setattr__(self, "kind", "g_relu")

    @property
    def name(self) -> str:
        """``<kind>_procrustes``, with ``_centered`` where channels are centred."""
        return f"{self.kind}_procrustes" + ("_centered" if self.center else "")

    @property
    def group(self) -> str:
        """The exact invariance group, in words."""
        return _KINDS[self.kind].words + (", and translations" if self.center else "")

    @property
    def range(self) -> tuple[float, float]:
        """``1 - 1/sqrt(2)`` to 1 where signs can be chosen, 0 to 1 elsewhere."""
        signed = _KINDS[self.kind].search in ("orthogonal", "signed_permutation")
        return (1 - sqrt(0.5) if signed else 0.0), 1.0

    def floor(self, a: ProcrustesSide, b: ProcrustesSide) -> float:
        """Lowest score for features of these widths and signs: a score at the floor means no agreement at all."""
        kind = _KINDS[self.kind]
        free = kind.search in ("orthogonal", "signed_permutation")
        non_negative = not (self.center or a.moments.negative or b.moments.negative)
        worst = 0.0 if free or non_negative else -1.0
        if not kind.per_channel:
            return 1 - sqrt(2 - 2 * worst) / 2
        d, e = int(a.kept.sum()), int(b.kept.sum())
        return 1 - sqrt(d + e - 2 * worst * min(d, e)) / (2 * sqrt(max(d, e)))

    def prepare(self, x: Tensor, channel_dim: int = 1) -> ProcrustesSide:
        """Check the features and take their moments.

        Args:
            x: Features ``(N, C, *S)``, or with the channels at ``channel_dim``. They are kept, not copied.
            channel_dim: Axis of the channels.

        Raises:
            ValueError: If no channel is alive.
        """
        x = channels_first(x, channel_dim)
        m = moments(x)
        kept = ~(m.constant if self.center else m.dead)
        if not kept.any():
            what = "constant" if self.center else "zero"
            raise ValueError(f"features must have a living channel. Got {x.shape[1]} channels, all of them {what}.")
        return ProcrustesSide(x, m, kept)

    def score(self, a: ProcrustesSide, b: ProcrustesSide) -> float:
        """Similarity of two sides over the same examples.

        Raises:
            ValueError: If examples or spatial sizes differ, or a subsample has no living channel.
        """
        check_same_examples(a.n, b.n)
        if a.features.shape[2:] != b.features.shape[2:]:
            raise ValueError(
                f"x and y must have the same spatial size. Got {tuple(a.features.shape[2:])} and "
                f"{tuple(b.features.shape[2:])}. Pool the finer one first, for example with "
                "torch.nn.functional.adaptive_avg_pool2d, or use a CKA, which compares any two sizes."
            )
        kind = _KINDS[self.kind]
        norm_a, norm_b = self._norms(a), self._norms(b)
        cross = _cross(a, b, self.center)
        if kind.per_channel:
            alive_a, alive_b = norm_a > 0, norm_b > 0
            cosines = cross[alive_a][:, alive_b] / torch.outer(norm_a[alive_a], norm_b[alive_b])
            d, e = cosines.shape
            return 1 - sqrt(max(0.0, d + e - 2 * _best_trace(cosines, kind.search))) / (2 * sqrt(max(d, e)))
        cosines = cross / (norm_a.norm() * norm_b.norm())
        return 1 - sqrt(max(0.0, 2 - 2 * _best_trace(cosines, kind.search))) / 2

    def _norms(self, side: ProcrustesSide) -> Tensor:
        norm = (side.moments.spread if self.center else side.moments.norm)[side.kept]
        if not (norm > 0).any():
            raise ValueError("features must have a living channel. Got a subsample in which all of them are constant.")
        return norm


def procrustes(x: Tensor, y: Tensor, group: str = "orthogonal", *, center: bool = False, channel_dim: int = 1) -> float:
    """Procrustes similarity of two sets of features, as :class:`Procrustes` defines it.

    Args:
        x: Features ``(N, C, *S)``.
        y: Features ``(N, C', *S)`` of the same examples.
        group: ``"orthogonal"``, ``"g_relu"``, ``"monomial"``, ``"permutation"``, ``"signed_permutation"`` or
            ``"trivial"``.
        center: Subtract each channel's mean first.
        channel_dim: Axis of the channels in both.

    Returns:
        1 where an element of the group makes the two equal, less elsewhere; not 0 at chance (see
        ``similarity.inference``).

    Example:
        >>> import torch
        >>> from intertwine.similarity import procrustes
        >>> x = torch.randn(100, 10, generator=torch.Generator().manual_seed(0)).relu()
        >>> round(procrustes(x, 2 * x.flip(1), group="g_relu"), 6)
        1.0
        >>> round(procrustes(x, x[:, :6], group="g_relu"), 3)  # six of the ten channels
        0.684
    """
    return Procrustes(group, center)(x, y, channel_dim)


def _cross(a: ProcrustesSide, b: ProcrustesSide, center: bool) -> Tensor:
    """``sum over n, s of x[n, c, s] y[n, c', s]`` (v2 D.2, v1 D.1) in float64, a block of examples at a time."""
    wider = a.features if a.features[0].numel() > b.features[0].numel() else b.features
    return sum(a.block(rows, center).T @ b.block(rows, center) for rows in example_blocks(wider[: a.n]))  # type: ignore[return-value]


def _best_trace(cross: Tensor, search: str) -> float:
    """``max over g of tr(g^T cross)``, the narrower side padded with zero channels."""
    if search == "orthogonal":
        return float(torch.linalg.svdvals(cross).sum())
    if search == "trivial":
        return float(cross.diagonal().sum())
    gain = cross.abs() if search == "signed_permutation" else cross
    rows, columns = linear_sum_assignment(gain.cpu().numpy(), maximize=True)
    return float(gain[torch.as_tensor(rows, device=gain.device), torch.as_tensor(columns, device=gain.device)].sum())
