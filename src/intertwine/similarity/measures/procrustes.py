"""Similarities of aligned or matched channels: Procrustes under a group, and soft matching of any two widths."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import lcm, sqrt

import torch
from torch import Tensor

from ... import groups
from ..._words import near
from ...groups import Group, SpaceGroup, assign, canonical_name, name_of
from ...groups.assignment import couple
from .._features import double
from .._linalg import eigen, quick_nuclear_norm, rounding, singular, singular_values
from ..base import FeatureSide, Measure, cross_moments, feature_side, placed

LARGE = 256  # channels from which on it pays to avoid singular values
_FEW, _WIDE = 8, 96  # channels from which on quick values, and maps, do not use a singular value decomposition
_NULL = 7  # square roots of the precision: share of the largest singular value below which a direction is rounding
_LOOSE = 0.05  # share of a trace that bounds its error, a thousand times as large as actual errors
_COPIES = 4  # of each unit of the wider side, up to which an assignment is cheaper than a linear program
_ERROR = 2 * sqrt(2) * 1e-7  # of a trace ``t``, times ``sqrt(1 - t)``: an error of 1e-7 in ``1 - sqrt(2 - 2 t) / 2``

_ROTATIONS = groups.Semidirect(groups.Orthogonal(2), groups.SignedPermutation(2))
_PER_CHANNEL = "monomial maps (permutations times {} scales per channel)"
KINDS: dict[str, tuple[SpaceGroup, str]] = {  # the group searched, on two channels as on any; and the invariance
    "orthogonal": (_ROTATIONS, "orthogonal maps times isotropic scales"),
    "positive_monomial": (groups.PositiveMonomial(2), "positive " + _PER_CHANNEL.format("positive")),
    "monomial": (groups.Monomial(2), _PER_CHANNEL.format("nonzero")),
    "permutation": (groups.Permutation(2), "permutations times positive isotropic scales"),
    "signed_permutation": (groups.SignedPermutation(2), "signed permutations times isotropic scales"),
    "trivial": (groups.Trivial(2), "positive isotropic scales"),
    "size_and_shape": (_ROTATIONS, "orthogonal maps"),
}
_PAPER = {"positive_monomial": "g_relu"}  # the name of a group in papers and measures


@dataclass(frozen=True)
class Procrustes(Measure[FeatureSide]):
    """Procrustes similarity under a group of channel maps (paper 1, definition 5.2 and section D.7.1).

    Differs from the paper where it is silent or cannot hold: features are *not* centred unless asked, as in the paper's
    own figures, so translations change the score (:func:`intertwine.compare` asks for centring); dead channels are left
    out on each side (``"trivial"``, which compares by position, keeps them in place); the narrower side is padded with
    zero channels; the orthogonal kind divides by the global norm. Scores of different kinds are on different scales.

    ``mu(X, Y) = 1 - delta / 2`` with ``delta = min_g |X/|X| - (Y/|Y|) g|`` over the group, in Frobenius norms. If the
    group has scales per channel, ``mu(X, Y) = 1 - delta / (2 sqrt(max(d, d')))`` with each of the ``d`` and ``d'``
    channels divided by its norm first. ``X`` has a row for every example and position and a column for every channel;
    with ``center`` it is ``X - 1 m^T`` before anything else, with ``m`` the mean row.

    ``"size_and_shape"`` keeps the sizes: ``X`` and ``Y`` are both divided by ``sqrt((|X|^2 + |Y|^2) / 2)``, so the
    score equals that of ``"orthogonal"`` for sides of one size and is lower elsewhere (Dryden and Mardia, "Statistical
    shape analysis", 1998; the distance ``min over Q of |X - Y Q|`` of Williams et al., "Generalized shape metrics on
    neural representations", NeurIPS 2021, is ``delta`` times that size).

    For G_ReLU the permutation maximises the sum of cosines, as in the paper. ``groups.PositiveMonomial.procrustes``
    fits the scales as well, and so maximises the sum of squared positive cosines; the two may choose different
    permutations.

    Raises:
        ValueError: If the kind is unknown.
    """

    # A group of ``intertwine.groups`` of any number of channels, or its name: ``"orthogonal"``, ``"positive_monomial"``
    # (``"g_relu"``), ``"monomial"``, ``"permutation"``, ``"signed_permutation"`` or ``"trivial"`` (no alignment); or
    # ``"size_and_shape"`` (orthogonal maps, no scales)
    kind: str | Group = "orthogonal"
    # Whether to subtract each channel's mean over examples and positions first. The next layer's bias absorbs a
    # translation, so a comparison of networks should not see it (paper 1, section 5, asks this of a measure)
    center: bool = False
    permutes: bool = field(init=False, repr=False, compare=False)  # Whether channels may take each other's places
    scales: bool = field(init=False, repr=False, compare=False)  # Whether every channel has its own scale
    sized: bool = field(init=False, repr=False, compare=False)  # Whether the score depends on the sizes of the sides
    _group: SpaceGroup = field(init=False, repr=False, compare=False)

    metric = True

    def __post_init__(self) -> None:
        name = name_of(self.kind) if isinstance(self.kind, Group) else canonical_name(self.kind)
        if name not in KINDS:
            known = (*KINDS, *_PAPER.values())
            raise ValueError(
                f"group must be one of {', '.join(map(repr, known))}. Got {self.kind!r}.{near(str(self.kind), known)}"
            )
        found, group = KINDS[name]
        least = 1 - sqrt(0.5) if found.signs else 0.0  # where signs can be chosen
        forgiven = group + (", and translations" if self.center else "")
        vars(self).update(kind=name, group=forgiven, range=(least, 1.0), sized=name == "size_and_shape", _group=found)
        vars(self).update(permutes=found.permutes, scales=bool(found.scales))

    @property
    def name(self) -> str:
        """``<kind>_procrustes``, with ``_centered`` where channels are centred."""
        kind = str(self.kind)
        return f"{_PAPER.get(kind, kind)}_procrustes" + ("_centered" if self.center else "")

    def floor(self, a: FeatureSide, b: FeatureSide) -> float:
        """Lowest score for features of these widths and signs: a score at this floor means no agreement at all."""
        return self.lowest(int(a.kept.sum()), int(b.kept.sum()), not (a.moments.negative or b.moments.negative))

    def lowest(self, d: int, e: int, non_negative: bool) -> float:
        """Lowest score for ``d`` and ``e`` living channels, given whether all features are non-negative."""
        worst = 0.0 if self._group.signs or (non_negative and not self.center) else -1.0
        d, e = (d, e) if self.scales else (1, 1)
        return 1 - sqrt(d + e - 2 * worst * min(d, e)) / (2 * sqrt(max(d, e)))

    def prepare(self, x: Tensor, channel_dim: int = 1) -> FeatureSide:
        """Check the features and compute their moments."""
        return feature_side(x, channel_dim, self.center)

    def _compared(self, a: FeatureSide, b: FeatureSide) -> float:
        ratio = a.unit / b.unit if self.sized else 1.0
        gains = self.gains(placed(cross_moments(a, b), a.kept, b.kept), a.norms, b.norms)
        trace = a.norms.new_tensor(self.best_trace(gains))
        return float(self.score_trace(trace, a.norms, b.norms, ratio))

    def obeys_triangle(self, sides: Sequence[FeatureSide]) -> bool:
        """True for rotations and comparison by position; for assigned channels at equal numbers of living ones."""
        return self._group.mixes or not self.permutes or len({int(s.kept.sum()) for s in sides}) == 1

    def to_distance(self, score: float, a: FeatureSide, b: FeatureSide) -> float:
        """``delta``, the least distance over the group; for ``"size_and_shape"`` in units of the features.

        ``delta / sqrt(max(d, d'))`` where channels are scaled one by one, so that widths do not matter. A metric
        between sides of one width, since groups act by isometries on what is compared.
        """
        delta = 2 * (1 - score)
        if not self.sized:
            return delta
        x, y = (float(side.norms.norm()) / side.unit for side in (a, b))
        return delta * sqrt((x**2 + y**2) / 2)

    def places(self, norms: Tensor) -> Tensor:
        """Indices ``(..., c)`` of the channels compared, from norms ``(..., C)``: those not 0 if permuted, else all."""
        kept = norms > 0 if self.permutes else torch.ones_like(norms, dtype=torch.bool)
        return kept.nonzero()[:, -1].view(*norms.shape[:-1], -1)

    def gains(self, cross: Tensor, norm_a: Tensor, norm_b: Tensor) -> Tensor:
        """Gain of matching each channel of one side, at its :meth:`places`, with each of the other, by products."""
        rows, columns = self.places(norm_a), self.places(norm_b)
        if rows.shape != norm_a.shape or columns.shape != norm_b.shape:
            cross = cross.take_along_dim(rows[..., :, None], -2).take_along_dim(columns[..., None, :], -1)
            norm_a, norm_b = norm_a.take_along_dim(rows, -1), norm_b.take_along_dim(columns, -1)
        if not self.scales:
            norm_a, norm_b = (norm.norm(dim=-1, keepdim=True) for norm in (norm_a, norm_b))
        return cross / (norm_a[..., :, None] * norm_b[..., None, :])

    def best_trace(self, gains: Tensor) -> float:
        """``max over g of tr(g^T gains)``, the narrower side padded with zero channels; precise to 1e-7 of a score."""
        if not self._group.mixes:
            return float(self.best_traces(gains))
        if min(gains.shape) >= LARGE:
            found, error = quick_nuclear_norm(gains.double())
            if error < _ERROR * sqrt(max(0.0, 1 - float(found))):
                return float(found)
        return float(singular_values(gains).sum())

    def best_traces(self, gains: Tensor, quick: bool = True) -> Tensor:
        """The same for matrices ``(..., c, c')``, precise far from 1; not ``quick`` where many values are 0."""
        if not self._group.mixes:
            return self.best(gains)[0]
        if (least := min(gains.shape[-2:])) < _FEW:
            return double(singular_values(gains).sum(-1))
        if quick and least >= LARGE:  # float32 mostly suffices
            found, error = quick_nuclear_norm(gains.float())
            if (error < _LOOSE * found).all():
                return found.double()
        return double(quick_nuclear_norm(gains.double())[0])

    def best(self, gains: Tensor, quick: bool = False, sure: bool = False) -> tuple[Tensor, Tensor]:
        """The best traces ``(...)`` in float64 and the elements ``(..., c, c')`` that attain them (:func:`polar`)."""
        if self._group.mixes:
            return polar(gains, quick, sure)
        chosen = torch.zeros_like(gains)
        if self.permutes:
            worth = gains.abs() if self._group.signs else gains
            worth, placed = (worth, chosen) if gains.shape[-2] <= gains.shape[-1] else (worth.mT, chosen.mT)
            placed.scatter_(-1, assign(worth)[..., None], 1.0)
            chosen = chosen * gains.sign() if self._group.signs else chosen
        else:
            chosen.diagonal(dim1=-2, dim2=-1).fill_(1)
        return double(chosen * gains).sum((-2, -1)), chosen

    def score_trace(self, trace: Tensor, norm_a: Tensor, norm_b: Tensor, ratio: Tensor | float = 1.0) -> Tensor:
        """Scores of traces ``(...)``, from the norms of both sides ``(..., C)`` and the ``ratio`` of their units."""
        if self.sized:
            size = norm_a.norm(dim=-1) / norm_b.norm(dim=-1) / ratio  # of the first side over the second: may be any
            trace = trace * 2 / (size + 1 / size)
        d, e = ((n > 0).sum(-1).to(trace) if self.scales else torch.ones_like(trace) for n in (norm_a, norm_b))
        score = 1 - (d + e - 2 * trace).clamp(min=0).sqrt() / (2 * torch.maximum(d, e).sqrt())
        return score.clamp(*self.range)


def procrustes(
    x: Tensor, y: Tensor, group: str | Group = "orthogonal", *, center: bool = False, channel_dim: int = 1
) -> float:
    """Procrustes similarity of two sets of features ``(N, C, *S)`` and ``(N, C', *S)`` of the same examples.

    It is 1 where an element of the group, a kind of :class:`Procrustes`, makes the two equal. At chance it is not 0.

    Raises:
        TypeError: If ``x`` or ``y`` is not a dense floating-point tensor.
        ValueError: If they hold NaN or infinities, fewer than 4 examples, different numbers of examples, different
            spatial sizes, or nothing that tells examples apart; or if the group is unknown.

    Examples:
        >>> import torch
        >>> from intertwine.similarity import procrustes
        >>> x = torch.randn(100, 10, generator=torch.Generator().manual_seed(0)).relu()
        >>> round(procrustes(x, 2 * x.flip(1), group="g_relu"), 6)
        1.0
        >>> round(procrustes(x, x[:, :6], group="g_relu"), 3)  # six of the ten channels
        0.684
    """  # noqa: DOC502 - raised by the checks of the measure
    return Procrustes(group, center)(x, y, channel_dim)


@dataclass(frozen=True)
class SoftMatching(Measure[FeatureSide]):
    """Best mean correlation of matched units, where a unit may be matched in parts to several others.

    With centred channels of norm 1, ``max over T of sum_ij T_ij <x_i, y_j>`` over all ``T >= 0`` whose ``C`` rows sum
    to ``1/C`` each and whose ``C'`` columns sum to ``1/C'`` each. For equal widths the best ``T`` is a permutation over
    ``C``; for others every unit still has a partner, so a layer scores 1 against itself with doubled units. The *soft
    matching distance* of the normalised units is ``sqrt(2 - 2 score)``, a metric.

    References:
        Khosla, Williams, "Soft matching distance: a metric on neural representations that captures single-neuron
        tuning", UniReps 2023.
    """

    stem = "soft_matching"
    group = "positive monomial maps (permutations times positive scales per channel), and translations"
    range = (-1.0, 1.0)
    metric = True

    def prepare(self, x: Tensor, channel_dim: int = 1) -> FeatureSide:
        """Check the features and compute their moments."""
        return feature_side(x, channel_dim, center=True)

    def _compared(self, a: FeatureSide, b: FeatureSide) -> float:
        return transport(cross_moments(a, b) / torch.outer(a.norms[a.kept], b.norms[b.kept]))

    def to_distance(self, score: float, a: FeatureSide, b: FeatureSide) -> float:
        """``sqrt(2 - 2 score)``, the soft matching distance of normalised units."""
        return max(0.0, 2 - 2 * score) ** 0.5


def polar(gains: Tensor, quick: bool = False, sure: bool = False) -> tuple[Tensor, Tensor]:
    """Sums of singular values, and orthogonal factors to limited precision; 0 in directions that are rounding.

    Wide matrices use eigenvalues of the smaller product, unless ``sure``: small singular values lose digits. ``quick``
    works in float32 where that suffices.
    """
    if sure or min(gains.shape[-2:]) < _WIDE:
        u, s, v = singular(gains)
        return double(s.sum(-1)), u @ v
    own = gains.float() if quick else gains
    short = own if own.shape[-2] <= own.shape[-1] else own.mT
    values, vectors = eigen(short @ short.mT)
    sizes = values.clamp(min=0).sqrt()
    if quick and (rounding(sizes) > _LOOSE * sizes.sum(-1)).any():
        return polar(gains.double())
    least = _NULL * sqrt(torch.finfo(sizes.dtype).eps) * sizes[..., :1]
    lifted = torch.where(sizes > least, 1 / sizes.clamp(min=1e-30), 0.0)
    found = vectors @ ((vectors * lifted[..., None, :]).mT @ short)
    return double(sizes.sum(-1)), found if short is own else found.mT


def transport(gain: Tensor) -> float:
    """``max over T of sum_ij T_ij gain_ij`` with rows that sum to ``1/n`` each and columns to ``1/m``, exactly.

    An assignment where ``n = m``, or where few copies of both sides make the widths equal (``lcm(n, m)``); elsewhere a
    linear program, which takes seconds for 500 units and minutes for 1,000.
    """
    few = lcm(*gain.shape) <= _COPIES * max(gain.shape)
    return float((couple(gain) * gain).sum()) if few else _by_program(gain)


def _by_program(gain: Tensor) -> float:
    import numpy as np
    from scipy.optimize import linprog
    from scipy.sparse import eye_array, kron, vstack

    n, m = gain.shape
    rows = kron(eye_array(n), np.ones((1, m)))
    columns = kron(np.ones((1, n)), eye_array(m))
    sums = np.concatenate([np.full(n, float(m)), np.full(m, float(n))])  # times n m: whole numbers
    found = linprog(-gain.detach().cpu().numpy().ravel(), A_eq=vstack([rows, columns]), b_eq=sums, method="highs")
    return float(-found.fun) / (n * m)
