"""Exact test of independence in place: unit i of one network against unit i of the other.

Weights sorted by a norm, decays and frequencies that start as a function of the number of the unit, units sorted by the
class that they serve, or a layer that starts as the identity: there units are not alike before training, and the null
of permuted units does not hold. Nor does it where units stand there several times over, as widening leaves them: where
one agrees, its copies do. It fails only where both networks have such an order, so it is enough to look at one;
and a choice that depends on that one alone leaves the null exact.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..symmetry import Symmetry
from .p_values import combined, log_tail, ranks, spearman
from .units import View, ordered_spaces, similarity, views

_LIMIT = 4.5  # standard deviations: a p-value of 7e-6, for a space may have many tensors
_SORTED = 0.999  # rank correlation that tells small spaces are sorted
_FEWEST = 5  # units that can be seen to be sorted
_COPIED = 0.99  # cosine of a unit with its copy
_LONG = 8  # weights of a unit from which on none is so like another by chance
_SAMPLE = 256  # units whose neighbours are looked at: the first ones, and as many spread over all of them


@dataclass
class Order:
    """Signs of an order among the units of one space, collected from tensor after tensor of one network.

    Attributes:
        reason: What shows that the units stand in an order, or an empty string.
        sizes: Sums of ``|w|^1.5`` by unit over all tensors, by which canonical forms and pruning sort.
    """

    found: str = ""
    sizes: list[Tensor] = field(default_factory=list)

    def add(self, rows: Tensor, square: Tensor | None, tensor: str) -> bool:
        """Look at one tensor.

        Args:
            rows: Features ``(P, n, d)`` of its units.
            square: A matrix whose diagonal would stand out if the tensor started as the identity, or ``None``.
            tensor: Its name.

        Returns:
            Whether the tensor may be read; a diagonal rules out this tensor, sorted units the space.
        """
        size = rows.float().abs().pow(1.5).sum(-1)
        self.sizes.append(size)
        if not self.found and _sorted(size):
            self.found = f"units of a are sorted by their weights in {tensor}"
        if not self.found and (_serial(size[..., None]) or _serial(rows)):
            self.found = f"units of a stand in an order: neighbours are alike in {tensor}"
        if not self.found and _copied(rows):
            self.found = f"most units of a stand there several times over in {tensor}"
        return square is None or not _diagonal(square)

    @property
    def reason(self) -> str:
        """What shows that the units stand in an order, or an empty string."""
        if not self.found and self.sizes and _sorted(torch.stack(self.sizes).sum(0)):
            return "units of a are sorted by the size of all their weights"
        return self.found


def _sorted(size: Tensor) -> bool:
    """Whether sizes ``(P, n)`` rise or fall with the index by more than chance."""
    n = size.shape[-1]
    if n < _FEWEST or bool((size == size[..., :1]).all()):
        return False
    ranks = size.argsort(-1).argsort(-1).double()
    index = torch.arange(n, dtype=torch.float64)
    rho = (((ranks - (n - 1) / 2) * (index - (n - 1) / 2)).sum(-1) * 12 / (n * (n * n - 1))).mean()
    return abs(float(rho)) * (len(size) * (n - 1)) ** 0.5 > _LIMIT or abs(float(rho)) > _SORTED


def _serial(rows: Tensor) -> bool:
    """Whether units ``(P, n, d)`` are more alike at some distance in number than any two of them.

    Among the likenesses of one unit to all others, that to a certain one has a uniform rank where units stand in no
    order.
    """
    n = rows.shape[-2]
    for index in {range(min(n, _SAMPLE)), range(0, n, -(-n // _SAMPLE))}:
        alike = similarity(*[rows[..., list(index), :]] * 2)
        if not bool(alike.any()):
            continue
        alike.diagonal(dim1=-2, dim2=-1).fill_(torch.nan)
        for lag in (2**k for k in range(len(index).bit_length() - 1)):
            those, this = alike[..., :-lag, :], alike.diagonal(lag, -2, -1)[..., None]
            rank = ((those < this).sum(-1) + (those == this).sum(-1) / 2) / (len(index) - 1)
            if float(rank.mean() - 0.5) * (12 * rank.numel()) ** 0.5 > _LIMIT:
                return True
    return False


def _copied(rows: Tensor) -> bool:
    """Whether most units ``(P, n, d)`` have a copy among the others."""
    n, d = rows.shape[-2:]
    if n < _FEWEST or d < _LONG:
        return False
    units = torch.nn.functional.normalize(rows.float(), dim=-1)
    cosines = (units[..., : 2 * _SAMPLE, :] @ units.mT).abs()
    cosines.diagonal(dim1=-2, dim2=-1).fill_(0.0)
    return 2 * int((cosines.amax(-1) > _COPIED).sum()) > cosines[..., 0].numel()


def _diagonal(x: Tensor) -> bool:
    """Whether the diagonal of a matrix of sizes stands out."""
    gap = x.diagonal().mean() - x.mean()
    return float(gap) > _LIMIT * float(x.std()) / len(x) ** 0.5


_PIECE = 1 << 20  # entries that are summed at once
_CHUNK = 256  # units that are ordered among themselves: any subgroup of the permutations gives an exact null


@dataclass(frozen=True)
class SpaceAgreement:
    """Agreement of the units of one space."""

    space: str  # Its title
    units: int  # Number of units, those inside units of other spaces counted each
    agreeing: float  # Share of them that are most like the unit in the same place
    log_p: float | None  # Natural logarithm of the p-value, or ``None`` where the space was not tested
    spearman: float  # Rank correlation of the best assignment with the identity
    spearman_log_p: float  # Logarithm of its p-value
    note: str = ""  # Why the space was not tested, or an empty string


@dataclass(frozen=True)
class TensorAgreement:
    """Agreement of one tensor by itself."""

    tensor: str  # Its name
    cosine: float  # Of the tensors as they stand
    equal: bool  # Whether all its numbers are the same in both networks, and not all of them one number
    # Natural logarithm of the p-value of its units alone, or ``None`` where it tells nothing of units
    log_p: float | None


@dataclass(frozen=True)
class InPlace:
    """What the exact test found."""

    spaces: tuple[SpaceAgreement, ...]  # In the order in which they were tested
    tensors: tuple[TensorAgreement, ...]  # Those that both networks have in one shape
    log_p: float | None  # Natural logarithm of the p-value over all spaces, or ``None`` where none was tested

    @property
    def scattered(self) -> bool:
        """Whether in some space most units are not like the unit in the same place, as where they were moved."""
        return any(s.log_p is not None and s.agreeing < 0.5 for s in self.spaces)


@dataclass
class _Sums:
    """Similarities of one space, summed over tensors, for each group of units that are ordered among themselves."""

    pieces: list[Tensor] = field(default_factory=list)
    order: Order = field(default_factory=Order)

    @property
    def told(self) -> list[Tensor]:
        """Those that tell units apart."""
        return [s for s in self.pieces if bool(s.any())]

    def add(self, found: list[Tensor]) -> None:
        self.pieces = [old + new for old, new in zip(self.pieces, found)] if self.pieces else found


def in_place(sym: Symmetry, a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> InPlace:
    """Test, space by space, whether ``b`` is independent of ``a``, reading one tensor of each at a time.

    The p-values are exact, and independent of each other, if ``b`` is independent of ``a`` and its law does not change
    when the units of a space are permuted: as for weights drawn unit by unit from one law and trained by a rule that
    treats all units alike.

    Args:
        sym: The symmetry of the architecture.
        a: Tensors of one network, in memory or read when asked for; those missing in either are left out.
        b: Those of the other; tensors of other shapes are left out too.

    Raises:
        ValueError: If a tensor is quantised or holds NaN or infinity.
    """  # noqa: DOC502 - the check raises
    spaces = ordered_spaces(sym)
    order = [s.name for s in spaces]
    sums = {name: _Sums() for name in order}
    tensors: list[TensorAgreement] = []
    shown: list[str | None] = []  # the space whose units each tensor was judged by
    for name in sym.layouts:
        if name not in a or name not in b:
            continue
        x, y = checked(a[name], name, "a"), checked(b[name], name, "b")
        if x.shape != y.shape:
            continue
        alone, space = None, None
        for view in views(sym, name, order):
            found, readable = _seen(view, x, y, sums[view.space].order, name)
            if not readable:
                continue
            sums[view.space].add(found)
            if alone is None and any(bool(s.any()) for s in found):
                alone, space = log_tail([ranks(s) for s in found]), view.space
        shown.append(space)
        tensors.append(TensorAgreement(name, cosine(x, y), equal(x, y), alone))
    judged = tuple(_judged(sym.titles[s.name], sums[s.name]) for s in spaces)
    ordered = {s.name for s, found in zip(spaces, judged) if found.log_p is None}
    told = [replace(t, log_p=None) if space in ordered else t for t, space in zip(tensors, shown)]
    places = [[ranks(x) for x in sums[s.name].told] for s in spaces if s.name not in ordered]
    return InPlace(judged, tuple(told), combined(places) if places else None)


def checked(x: Tensor, name: str, side: str) -> Tensor:
    """A tensor that holds finite real numbers."""
    if x.is_meta or x.layout != torch.strided or x.is_quantized:
        kind = "no numbers (meta)" if x.is_meta else "quantised or sparse numbers"
        raise ValueError(
            f"weights must be dense and not quantised. Got {kind} in {name!r} of {side}: dequantise first."
        )
    if not x.is_floating_point() and x.ndim > 1:
        raise ValueError(f"weights must be real numbers. Got integers in {name!r} of {side}: dequantise first.")
    if not bool(torch.isfinite(x).all()):
        raise ValueError(f"weights must be finite. Got NaN or infinity in {name!r} of {side}.")
    return x


def _seen(view: View, x: Tensor, y: Tensor, order: Order, name: str) -> tuple[list[Tensor], bool]:
    """Similarities of the units of a view, group by group; ``False`` where ``x`` itself shows an order of its units."""
    ours, theirs = view.rows(x), view.rows(y)
    if not order.add(ours, view.trace(x), name):
        return [], False
    count = -(-ours.shape[-2] // _CHUNK)
    pairs = zip(ours.tensor_split(count, dim=-2), theirs.tensor_split(count, dim=-2))
    return [similarity(*pair) for pair in pairs], True


def _judged(title: str, sums: _Sums) -> SpaceAgreement:
    units = sum(s.shape[:-1].numel() for s in sums.pieces)
    told = sums.told
    why = sums.order.reason or ("" if told else "no tensor of both networks tells its units apart")
    if not told:
        return SpaceAgreement(title, units, 0.0, None, 0.0, 0.0, why)
    place = sum(float((s.argmax(-1) == torch.arange(s.shape[-1])).sum()) for s in told)
    rho, log_p = spearman(told)
    tail = None if why else log_tail([ranks(s) for s in told])
    return SpaceAgreement(title, units, place / units, tail, rho, log_p, why)


def equal(x: Tensor, y: Tensor) -> bool:
    """Whether all numbers are the same, and not all of them one number."""
    return x.is_floating_point() and torch.equal(x, y) and bool((x != x.flatten()[:1]).any())


def cosine(x: Tensor, y: Tensor) -> float:
    """Cosine of two tensors, summed in float64 piece by piece."""
    sums = torch.zeros(3, dtype=torch.float64)
    for u, v in zip(x.flatten().split(_PIECE), y.flatten().split(_PIECE)):
        u, v = u.double(), v.double()
        sums += torch.stack([u @ v, u @ u, v @ v])
    inner, ours, theirs = sums.tolist()
    return float(inner / (ours * theirs) ** 0.5) if ours * theirs > 0 else float(torch.equal(x, y))
