"""Deviation of matched weights, weight by weight and tensor by tensor."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..._io.lazy import State
from ...symmetry.action import transform
from ...symmetry.coupling import narrowed
from ...symmetry.gauge.canonical import Folded
from ...symmetry.symmetry import Symmetry
from ...symmetry.transformation import Transformation

# Precisions that a copy may have gone through, and the relative deviation of single weights that each explains.
PRECISIONS = {"float64": 1e-9, "float32": 1e-5, "float16": 2.0**-9, "bfloat16": 2.0**-6}
HALVES = (torch.float16, torch.bfloat16)
_QUANTILE = 0.999  # share of all weights to be explained: rounding moves each by a share of it, training does not
_OF_ONE = 0.99  # the same share for one tensor
_ONE = 4  # times the precision: allowed deviation of a single weight, relative to its size and a typical one of its row
_MEAN = 3.0  # ratio of largest to RMS deviation of rounded weights; fits by a few noisy scales have less
_SPARED = 100.0  # times the precision to which most tensors agree: what a cast of the others must explain
_ODD = 16  # times the others' deviation in its row: rounding, a share of every weight, never moves one weight so far
_NOISE = 10  # times the precision of the comparison: deviation that a match may leave at single weights
_BIG = 0.25  # size, relative to a typical weight of the row, from which a weight is compared with the others of its row
_LONG = 16  # number of weights whose mean is meaningful
_FITTED = 2  # weights per free scale or basis entry from which agreement does not come from fitting
_PIECE = 1 << 20  # entries compared at once
_IN_ORDER = 0.5  # von Neumann's ratio: 0.4 for sinusoids of 16 positions, 0.05 for 512, 1 for unordered weights
_CORNER = 512  # rows and columns for which it is computed
TRUST = 1e-12  # squared relative distance below which a tensor counts as equal


@dataclass(frozen=True)
class TensorDeviation:
    """The deviation between the weights of two tensors, relative to their sizes."""

    size: int  # Number of weights
    distance: float  # Distance of the tensors, relative to the second
    change: float  # The same relative to the moved first, as ``diff`` reports it
    informative: bool  # Whether the weights vary, so that agreement is informative
    rounded: bool  # Whether it holds numbers of half precision in one of the networks
    weights: float  # Deviation below which 99 % of the weights stay, or three times ``distance`` if larger
    # The largest deviation of a single weight, relative to its size plus a typical size in its row: numbers near zero
    # may be off by more than their size, but no rounding moves one weight of a row far
    edit: float
    # How many times farther off a single weight is than the average of its row, or than a match may leave; small
    # weights, and tensors that a basis mixes, are left out
    odd: float


@dataclass(frozen=True)
class Deviation:
    """The deviation of matched weights."""

    tensors: Mapping[str, TensorDeviation]  # By name, without empty tensors
    sym: Symmetry  # The symmetry by which they were matched
    largest: Tensor  # The largest deviations of single weights, as many as the quantile over the networks needs
    finest: str  # The precision of the comparison, beyond which agreement cannot be seen

    @cached_property
    def overall(self) -> float:
        """The deviation below which 99.9 % of all weights stay."""
        return float(_top(self.largest, above_quantile(self.weights)).min()) if len(self.largest) else 0.0

    @property
    def weights(self) -> int:
        """The number of weights."""
        return sum(t.size for t in self.tensors.values())

    @property
    def precision(self) -> str | None:
        """The finest precision of a copy that explains the deviation of all tensors, or ``None``."""
        fits = (name for name, limit in PRECISIONS.items() if self.overall <= limit and not self.beyond(name))
        return next(fits, None)

    def beyond(self, precision: str) -> dict[str, float]:
        """Tensors that differ by more than rounding to a precision explains, with their relative changes.

        A cast spares no tensor: beside closer ones it must hold rounded numbers. Nor does a cast move one weight alone.
        """
        limit, shared = PRECISIONS[precision], self.shared()
        spared = limit if shared is None else min(limit, _SPARED * PRECISIONS[shared])

        def explained(t: TensorDeviation) -> bool:
            most = limit if t.rounded else spared
            return t.weights <= most and t.edit <= _ONE * most and t.odd <= _ODD

        return {name: t.change for name, t in self.tensors.items() if not explained(t)}

    def shared(self, share: float = 0.5) -> str | None:
        """The finest precision to which a share of informative tensors agree, by number or weights, without fitting."""
        told = {name: t for name, t in self.tensors.items() if t.informative}
        for name, limit in PRECISIONS.items():
            if limit < PRECISIONS[self.finest]:
                continue
            agree = [n for n, t in told.items() if t.weights <= limit]
            near, all_ = (sum(told[n].size for n in some) for some in (agree, told))
            enough = len(agree) >= share * len(told) or near >= share * all_
            if agree and enough and near >= _FITTED * narrowed(self.sym, agree).dim:
                return name
        return None


def deviation(
    a: Folded, b: Folded, g: Transformation, rounded: Collection[str] = (), count: int | None = None
) -> Deviation:
    """Compare ``a``, moved by ``g``, with ``b`` weight by weight, batch norms folded, moving one tensor at a time.

    ``rounded`` tensors hold numbers of half precision in one network. For components of networks (``joined``),
    ``count`` is the number of weights of the networks.
    """
    finest = "float64" if torch.float64 in {t.dtype for t in b.state.values()} else "float32"
    kept = above_quantile(sum(b.state[name].numel() for name in b.sym.layouts) if count is None else count)
    moved_by = lambda name: transform(a.state[name], a.sym.layouts[name], g)
    tensors, largest = {}, torch.zeros(0)
    for name, layout in b.sym.layouts.items():
        if not b.state[name].numel():
            continue
        near, right = moved_by(name), meets(moved_by, b, name)
        distance = apart(near, b, name, right)
        # a basis mixes entries and their rounding, which a fitted matrix doubles on either side
        mixed = bool(layout.spaces & a.sym.mixing)
        some = above_quantile(right.numel(), _OF_ONE)
        ratios, edit = _largest(near, right, b.size(name), mixed, max(some, kept))
        tensors[name] = TensorDeviation(
            size=right.numel(),
            distance=distance,
            change=distance if name in b.means else changed(near, right),
            informative=not (constant(a.state[name]) and constant(right)),
            rounded=name in rounded,
            weights=max(float(_top(ratios, some).min()), _MEAN * distance),
            edit=edit,
            odd=0.0 if mixed or right.ndim < 2 else _oddest(near, right, _NOISE * PRECISIONS[finest]),
        )
        largest = _top(torch.cat([largest, ratios]), kept)
    return Deviation(tensors, b.sym, largest, finest)


def joined(parts: Sequence[Deviation], sym: Symmetry, count: int) -> Deviation:
    """The deviation of networks of ``count`` weights, or of a part, from the deviations of their components."""
    largest = _top(torch.cat([torch.zeros(0), *(part.largest for part in parts)]), above_quantile(count))
    finest = "float64" if all(part.finest == "float64" for part in parts) else "float32"
    return Deviation({name: t for part in parts for name, t in part.tensors.items()}, sym, largest, finest)


def above_quantile(count: int, share: float = _QUANTILE) -> int:
    """How many of ``count`` numbers are at or above the quantile of a share, by default that of all weights."""
    return count - min(int(share * count), count - 1)


def _largest(near: Tensor, right: Tensor, sizes: Tensor, mixed: bool, count: int) -> tuple[Tensor, float]:
    """The largest deviations relative to the entry's or a typical size, and relative to both together in its row."""
    typical = 4 * _norm(sizes) / sizes.numel() ** 0.5 if mixed else 0.0
    found, edit = right.new_zeros(0), 0.0
    for x, y, size in row_pieces(near, right, sizes):
        off, tiny = (x - y).abs(), torch.finfo(size.dtype).tiny
        row = size.square().mean(1, keepdim=True).sqrt()
        size = size.new_full((), typical) if mixed else size.abs()
        ratios = torch.where(off == 0, 0.0, off / size.clamp_min(tiny)).flatten()
        found = _top(torch.cat([found, _top(ratios, count)]), count)
        edit = max(edit, float((off / (size + row).clamp_min(tiny)).max()))
    return found, edit


def _oddest(near: Tensor, right: Tensor, noise: float) -> float:
    """The largest deviation of a weight, relative to the mean deviation of the others in its row or to ``noise``.

    Weights that equal the other's after rounding to half precision do not count: their neighbours may be exact.
    """
    found = 0.0
    for x, y in row_pieces(near, right):
        big = y.abs() >= _BIG * y.square().mean(1, keepdim=True).sqrt()
        ratios = torch.where(big & (y != 0), (x - y).abs() / y.abs(), 0.0)
        if int(big.sum()) < len(big) * _LONG:  # short rows are treated as one
            big, ratios, x, y = (z.reshape(1, -1) for z in (big, ratios, x, y))
        # where one number is the other rounded to half precision
        cast = torch.stack([p.to(half).to(p.dtype) == q for half in HALVES for p, q in ((x, y), (y, x))]).any(0)
        worst, others = ratios.masked_fill(cast, 0.0).max(1).values, big.sum(1) - 1
        calm = (ratios.sum(1) - worst) / others.clamp_min(1)
        odd = torch.where(others >= _LONG - 1, worst / calm.clamp_min(noise / _ODD), 0.0)
        found = max(found, float(odd.max()))
    return found


def apart(near: Tensor, b: Folded, name: str, met: Tensor | None = None) -> float:
    """Relative distance of a moved tensor from its target, by default that of ``b``."""
    return gap(near, b.state[name] if met is None else met) / max(_norm(b.size(name)), 1e-300)


def meets(near: Callable[[str], Tensor], b: Folded, name: str) -> Tensor:
    """The target of a moved tensor; for a batch norm's bias, that with the moved gain if it is closer."""
    if name not in b.means:
        return b.state[name]
    other = b.with_gain(name, near(b.means[name][0]))
    return min(b.state[name], other, key=lambda x: gap(near(name), x))


def relative(x: Tensor, y: Tensor) -> float:
    """Distance of two tensors relative to the second; infinity if the second is zero."""
    size = _norm(y)
    return gap(x, y) / size if size else float("inf")


def changed(x: Tensor, y: Tensor) -> float:
    """``|y - x| / |x|``, the change from the first tensor to the second; a change from zeros is 1."""
    size = _norm(x) or _norm(y)
    return gap(x, y) / size if size else 0.0


def gap(x: Tensor, y: Tensor) -> float:
    """Frobenius norm of the difference of two tensors, in float64, without a temporary of their shape."""
    return sum(_norm(p - q) ** 2 for p, q in pieces(x, y)) ** 0.5


def distance(a: State, b: State) -> float:
    """Root mean square sine of the angles between tensors of the same name, each weighted by its size.

    A tensor's ``sin^2`` is the share of ``b`` that no positive multiple of ``a`` explains: 0 for equal directions, 1
    for orthogonal or opposite ones.
    """
    weights = ((name, right) for name, right in b.items() if right.is_floating_point())  # no batch-norm counters
    found = {name: (sine(a[name], right), right.numel()) for name, right in weights}
    return combined({name: s for name, (s, _) in found.items()}, {name: n for name, (_, n) in found.items()})


def combined(sines: Mapping[Any, float], sizes: Mapping[Any, int]) -> float:
    """Root mean square of sines of tensors or of network parts, each weighted by its size."""
    total = sum(sizes[name] for name in sines)
    return (sum(sizes[name] * s**2 for name, s in sines.items()) / total) ** 0.5 if total else 0.0


def sine(left: Tensor, right: Tensor) -> float:
    """Sine of the angle between two tensors; 1 beyond a right angle, and if one tensor is zero."""
    if torch.equal(left, right):
        return 0.0
    ours, theirs = _norm(left), _norm(right)
    if not ours * theirs > 0:
        return 1.0
    inner = sum(float((x * (y / theirs)).sum(dtype=torch.float64)) for x, y in pieces(left, right))
    if not inner > 0:
        return 1.0
    return min(1.0, sum(_norm(x - inner * (y / theirs)) ** 2 for x, y in pieces(left, right)) ** 0.5 / ours)


def constant(x: Tensor) -> bool:
    """Whether a tensor has at most two values, as untrained gains and biases have."""
    some = x.flatten()[: 1 << 16]
    return not len(some) or bool(((some == some.min()) | (some == some.max())).all())


def halved(x: Tensor) -> bool:
    """Whether a tensor holds only numbers of half precision."""
    if constant(x) or x.dtype in HALVES:
        return not constant(x)
    return any(all(torch.equal(y, y.to(half).to(y.dtype)) for (y,) in pieces(x)) for half in HALVES)


def patterned(x: Tensor) -> bool:
    """Whether neighbours along one of the first two dimensions are similar: equal rows, ramps, position sinusoids.

    Von Neumann's ratio, squared differences of neighbours over twice the variance, is near 1 for unordered units.
    """
    x = x[tuple(slice(_CORNER) for _ in x.shape)].double()
    for dim in [d for d, n in enumerate(x.shape) if n > 1][:2]:
        rows = x.movedim(dim, 0).flatten(1)
        if rows.diff(dim=0).square().sum() <= 2 * _IN_ORDER * (rows - rows.mean(0)).square().sum():
            return True
    return False


def _norm(x: Tensor) -> float:
    return sum(float(torch.linalg.vector_norm(y, dtype=torch.float64)) ** 2 for (y,) in pieces(x)) ** 0.5


def pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Tensors of one shape, flattened, in pieces, so that computing on their entries needs little memory."""
    flat = tuple(x.flatten() for x in tensors)
    return iter([flat]) if flat[0].numel() <= _PIECE else zip(*(x.split(_PIECE) for x in flat))


def row_pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Tensors of one shape as rows ``(n, rest)``, a few rows at a time; a vector is one row."""
    rows = [x.reshape(1, -1) if x.ndim < 2 else x.flatten(1) for x in tensors]
    return zip(*(x.split(max(1, _PIECE // x.shape[1])) for x in rows))


def _top(x: Tensor, count: int) -> Tensor:
    """The largest entries, unordered."""
    least = len(x) - count
    if least <= 0:
        return x
    return torch.from_numpy(np.partition(x.numpy(), least)[least:].copy())  # a view would keep everything in memory
