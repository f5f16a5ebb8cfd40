"""Exact test of independence in place: unit i of one network against unit i of the other.

The null of permuted units does not hold if units are not exchangeable before training: weights sorted by a norm, decays
and frequencies that start as a function of the unit's number, units sorted by the class that they serve, or a layer
that starts as the identity. Nor does it hold for duplicated units, as after widening: if one agrees, its copies do. It
fails only if both networks have such an order, so it is enough to examine one; and a choice that depends on that one
alone leaves the null exact.

Also the agreement of each block.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import log

import torch
from torch import Tensor
from torch.nn.functional import normalize

from .._io.lazy import State
from .._nested import by_key
from ..matching.judgement.deviation import pieces
from ..matching.judgement.layers import with_layer
from ..symmetry import Symmetry
from ..symmetry.gauge.canonical import comparable
from .changes.layers import block_of, runs
from .p_values import combined, log_tail, rank_correlation, ranks, spearman
from .units import View, ordered_spaces, similarity, views

_LIMIT = 4.5  # standard deviations: a p-value of 7e-6, since a space may have many tensors
_SORTED = 0.999  # rank correlation from which small spaces count as sorted
_FEWEST = 5  # fewest units whose sorting can be seen
_FEW = 16  # units up to which an order is sought in every parent
_COPIED = 0.99  # cosine of a unit with its copy
_LONG = 8  # weights per unit from which none is so similar to another by chance
_FIRST = 64  # units, and weights of each, by which copied layers are found
_SAMPLE = 256  # units whose neighbours are examined: the first ones, and as many spread over all


@dataclass
class _Seen:
    """Evidence on one space, gathered tensor by tensor: similarities of units in place, and signs of an order in a."""

    # Similarities summed over tensors, for each group of units that are ordered separately
    pieces: list[Tensor] = field(default_factory=list)
    order: str = ""  # Evidence that the units of the first network are in an order, or an empty string
    size: Tensor | None = None  # Sum of ``|w|^1.5`` by unit over all tensors, by which canonical forms and pruning sort

    # Whether units of the parents, such as experts made from one MLP, share an order in a: they are then ordered as one
    joint: bool = False
    # Numbers of units of a in the first tensor, ``(P, n, d)``, and its name in layer 0, to find copied layers
    rows: Tensor = field(default_factory=lambda: torch.empty(0))
    kind: str = ""

    @property
    def told(self) -> list[Tensor]:
        """Similarities that distinguish units."""
        return [s for s in self.pieces if bool(s.any())]

    @property
    def form(self) -> object:
        """What spaces of copied layers have in common."""
        return self.kind, self.rows.shape, [s.shape for s in self.pieces]

    @property
    def untested(self) -> str:
        """The reason why the space cannot be tested, or an empty string."""
        if not self.order and self.size is not None and _sorted(self.size):
            return "units of a are sorted by the size of all their weights"
        return self.order or ("" if self.told else "no tensor of both networks tells its units apart")

    def look(self, view: View, x: Tensor, y: Tensor, tensor: str) -> list[Tensor]:
        """Similarities of one tensor, group by group, which are added to those of others.

        There are none if the tensor itself started as the identity: its diagonal stands out, which rules out this
        tensor, whereas sorted units rule out the space.
        """
        rows, theirs = view.rows(x), view.rows(y)
        if not self.joint and _repeated(rows):
            self.joint, self.pieces = True, [s.sum(0, keepdim=True) for s in self.pieces]
            self.size = None if self.size is None else self.size.sum(0, keepdim=True)
        each = rows
        if self.joint:
            rows, theirs = (t.movedim(0, 1).flatten(1)[None] for t in (rows, theirs))
            each = rows if rows.shape[1] > _FEW else each  # one order of few units shows too little
        if not self.kind:
            self.rows, self.kind = rows[:, :_FIRST, :_FIRST].float(), with_layer(tensor, 0)
        size = rows.float().abs().pow(1.5).sum(-1)
        self.size = size if self.size is None else self.size + size
        if not self.order and _sorted(size):
            self.order = f"units of a are sorted by their weights in {tensor}"
        if not self.order and (_serial(size[..., None]) or _serial(each)):
            self.order = f"units of a stand in an order: neighbours are alike in {tensor}"
        if not self.order and _copied(rows):
            self.order = f"most units of a stand there several times over in {tensor}"
        square = view.trace(x)
        if square is not None:
            gap = float(square.diagonal().mean() - square.mean())
            if gap > _LIMIT * float(square.std()) / len(square) ** 0.5:
                return []
        count = -(-rows.shape[-2] // _CHUNK)
        found = [similarity(*pair) for pair in zip(*(t.tensor_split(count, dim=-2) for t in (rows, theirs)))]
        self.pieces = [old + new for old, new in zip(self.pieces, found)] if self.pieces else found
        return found


def _sorted(size: Tensor) -> bool:
    """Whether sizes ``(P, n)`` rise or fall with the index more than by chance."""
    n = size.shape[-1]
    if n < _FEWEST or bool((size == size[..., :1]).all()):
        return False
    rho = abs(float(rank_correlation(size.argsort(-1).argsort(-1)).mean()))
    return rho * (len(size) * (n - 1)) ** 0.5 > _LIMIT or rho > _SORTED


def _serial(rows: Tensor) -> bool:
    """Whether units ``(P, n, d)`` at some distance in number are more similar than arbitrary pairs.

    Among the similarities of one unit to all others, that to a given one has a uniform rank if units are in no order.
    """
    n = rows.shape[-2]
    for index in {range(min(n, _SAMPLE)), range(0, n, -(-n // _SAMPLE))}:
        alike = similarity(*[rows[..., list(index), :]] * 2)
        if not bool(alike.any()):
            continue
        alike.diagonal(dim1=-2, dim2=-1).fill_(torch.nan)
        for lag in (2**k for k in range(len(index).bit_length() - 1)):
            if _high(alike[..., :-lag, :], alike.diagonal(lag, -2, -1), len(index) - 1):
                return True
    return False


def _high(those: Tensor, this: Tensor, count: int) -> bool:
    """Whether each of ``this`` is higher among a row of ``those``, of ``count`` numbers, than by chance."""
    this = this[..., None]
    rank = ((those < this).sum(-1) + (those == this).sum(-1) / 2) / count
    return float(rank.mean() - 0.5) * (12 * rank.numel()) ** 0.5 > _LIMIT


def _repeated(rows: Tensor) -> bool:
    """Whether units ``(P, n, d)`` resemble those with the same number in the next of ``P`` parents more than others."""
    return len(rows) > 1 and _in_step(rows[:, :_SAMPLE], rows[:, :_SAMPLE].roll(1, 0))


def _in_step(x: Tensor, y: Tensor) -> bool:
    """Whether units ``(P, n, d)`` resemble those with the same number more than others.

    As in ``_serial``, the similarity to that one has a uniform rank if both sides are in unrelated orders.
    """
    alike = similarity(x, y)
    return bool(alike.any()) and _high(alike, alike.diagonal(dim1=-2, dim2=-1), alike.shape[-1])


def _together(seen: Mapping[str, _Seen]) -> Iterator[list[Tensor]]:
    """Similarities of units that are ordered together: of each space, or of all that copied layers of a have.

    In a network that was made deeper by repeating layers, units of the copies share one order, and ranks repeat each
    other. Those of two unrelated networks made so would count several times. An order of all copies at once is exact,
    whatever the layers of b.
    """
    groups: list[list[_Seen]] = []
    for some in seen.values():
        of = next((g for g in groups if g[0].form == some.form and _in_step(g[0].rows, some.rows)), None)
        groups.append([some]) if of is None else of.append(some)
    return ([sum(pieces[1:], pieces[0]) for pieces in zip(*(one.pieces for one in group))] for group in groups)


def _copied(rows: Tensor) -> bool:
    """Whether most units ``(P, n, d)`` have a duplicate among the others.

    Norms of weights, to which kernels reduce their rows, are all positive: there the part that units share is removed.
    """
    n, d = rows.shape[-2:]
    if n < _FEWEST or d < _LONG:
        return False
    units = normalize(rows.float(), dim=-1)
    if bool((rows >= 0).all()):
        units = normalize(units - units.mean(-2, keepdim=True), dim=-1)
    cosines = (units[..., : 2 * _SAMPLE, :] @ units.mT).abs()
    cosines.diagonal(dim1=-2, dim2=-1).fill_(0.0)
    return 2 * int((cosines.amax(-1) > _COPIED).sum()) > cosines[..., 0].numel()


_CHUNK = 256  # units per separately ordered group: any subgroup of the permutations gives an exact null


@dataclass(frozen=True)
class SpaceAgreement:
    """Agreement of the units of one space."""

    space: str  # Its title
    units: int  # Number of units, counted in every unit of the parent spaces
    agreeing: float  # Share of units that are most similar to the unit in the same place
    log_p: float | None  # Natural logarithm of the p-value, or ``None`` if the space was not tested
    spearman: float  # Rank correlation of the best assignment with the identity
    spearman_log_p: float  # Logarithm of its p-value
    note: str = ""  # Why the space was not tested, or an empty string


@dataclass(frozen=True)
class TensorAgreement:
    """Agreement of a single tensor."""

    tensor: str  # Its name
    cosine: float  # Cosine of the tensors in place
    equal: bool  # Whether all its numbers agree in both networks, and are not all the same number
    # Natural logarithm of the p-value of its units alone, or ``None`` if it reveals nothing about units
    log_p: float | None


@dataclass(frozen=True)
class InPlace:
    """The result of the exact test."""

    spaces: tuple[SpaceAgreement, ...]  # Spaces in the order of testing
    tensors: tuple[TensorAgreement, ...]  # Tensors that both networks have in one shape
    log_p: float | None  # Natural logarithm of the p-value over all spaces, or ``None`` if none was tested

    @property
    def scattered(self) -> bool:
        """Whether in some space most units differ from the unit in the same place, as if they were moved."""
        return any(s.log_p is not None and s.agreeing < 0.5 for s in self.spaces)


def in_place(sym: Symmetry, a: State, b: State) -> InPlace:
    """Test, space by space, whether ``b`` is independent of ``a``, reading one tensor of each at a time.

    The p-values are exact, and independent of each other, if ``b`` is independent of ``a`` and its distribution is
    invariant to permutations of a space's units, as for weights drawn unit by unit from one distribution and trained by
    a rule that treats all units alike. Tensors that one network lacks, or has in another shape, are left out;
    quantised ones are refused.
    """
    spaces = ordered_spaces(sym)
    seen = {s.name: _Seen() for s in spaces}
    tensors: list[TensorAgreement] = []
    shown: list[str | None] = []  # the space by whose units each tensor was judged
    for name in (n for n in sym.layouts if n in a and n in b):
        x, y = checked(a[name], name, "a"), checked(b[name], name, "b")
        if x.shape != y.shape:
            continue
        alone, space = None, None
        for view in views(sym, name, seen):
            found = seen[view.space].look(view, x, y, name)
            if alone is None and any(bool(s.any()) for s in found):
                alone, space = log_tail([ranks(s) for s in found]), view.space
        shown.append(space)
        tensors.append(TensorAgreement(name, cosine(x, y), equal(x, y), alone))
    tested = {name: some for name, some in seen.items() if not some.untested}
    places = {name: [ranks(s) for s in some.told] for name, some in tested.items()}
    every = [[ranks(s) for s in pieces if bool(s.any())] for pieces in _together(tested)]
    judged = tuple(_judged(sym.titles[name], some, places.get(name)) for name, some in seen.items())
    told = (t if space is None or space in places else replace(t, log_p=None) for t, space in zip(tensors, shown))
    return InPlace(judged, tuple(told), combined(every) if every else None)


def checked(x: Tensor, name: str, side: str) -> Tensor:
    """A tensor, checked to hold finite real numbers."""
    if not x.is_floating_point() and x.ndim > 1:
        raise ValueError(f"weights must be real numbers. Got integers in {name!r} of {side}: dequantise first.")
    return comparable(x, f"{name!r} of {side}")


def _judged(title: str, seen: _Seen, places: Sequence[Tensor] | None) -> SpaceAgreement:
    units, told = sum(s.shape[:-1].numel() for s in seen.pieces), seen.told
    if not told:
        return SpaceAgreement(title, units, 0.0, None, 0.0, 0.0, seen.untested)
    same = sum(float((s.argmax(-1) == torch.arange(s.shape[-1])).sum()) for s in told)
    log_p = None if places is None else log_tail(places)
    return SpaceAgreement(title, units, same / units, log_p, *spearman(told), seen.untested)


def equal(x: Tensor, y: Tensor) -> bool:
    """Whether all numbers agree, and are not all the same number."""
    return x.is_floating_point() and torch.equal(x, y) and bool((x.flatten() != x.flatten()[:1]).any())


def cosine(x: Tensor, y: Tensor) -> float:
    """Cosine of two tensors, summed in float64 in pieces."""
    sums = torch.zeros(3, dtype=torch.float64)
    for u, v in (map(Tensor.double, pair) for pair in pieces(x, y)):
        sums += torch.stack([u @ v, u @ u, v @ v])
    inner, ours, theirs = sums.tolist()
    return float(inner / (ours * theirs) ** 0.5) if ours * theirs > 0 else float(torch.equal(x, y))


@dataclass(frozen=True)
class BlockAgreement:
    """Agreement of the tensors of one block of a network.

    Attributes:
        block: Common prefix of the tensors' names.
        tensors: Number of its tensors.
        equal: How many of them are identical in both networks, number by number.
        cosine: Unweighted mean of the cosines of its tensors in place.
        log_p: Natural logarithm of the p-value (Bonferroni over its tensors), or ``None`` if it was not tested.
        derived: Whether that is significant over all blocks: at 1e-3 in a derived network, else at the level.
    """

    block: str
    tensors: int
    equal: int
    cosine: float
    log_p: float | None
    derived: bool


def by_block(tensors: Sequence[TensorAgreement], level: float) -> tuple[BlockAgreement, ...]:
    """Agreement of blocks; in independent networks, any block is called derived with probability ``level``.

    Since tensors share the order of their units, p-values are combined by Bonferroni's rule.
    """
    groups = by_key((block_of(t.tensor), t) for t in tensors)
    found = []
    for block, some in groups.items():
        told = [t.log_p for t in some if t.log_p is not None]
        log_p = min(min(told) + log(len(told)), 0.0) if told else None
        derived = log_p is not None and log_p <= log(level / len(groups))
        cosine = sum(t.cosine for t in some) / len(some)
        found.append(BlockAgreement(block, len(some), sum(t.equal for t in some), cosine, log_p, derived))
    return tuple(found)


def parts_in_words(blocks: Sequence[BlockAgreement]) -> str:
    """Runs of derived blocks, and of blocks without a sign of descent, in words."""
    parts = {
        words: ", ".join(runs([b.block for b in blocks if b.log_p is not None and b.derived is derived]))
        for words, derived in (("derived", True), ("no sign of it", False))
    }
    return "; ".join(f"{words}: {named}" for words, named in parts.items() if named)
