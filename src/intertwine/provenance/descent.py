"""Descent between related networks: evidence against one direction, and merges of two networks."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import torch
from torch import Tensor

from .._io.lazy import State
from .._nested import by_key
from ..matching.judgement.deviation import row_pieces
from .changes.tensor_change import COUNTER

_MOST = 0.99  # share of the weights that one operation must explain
_PRUNED = 0.05  # share of the weights that pruning must set to zero to be called so
_FEWEST = 100  # fewest weights whose rounding errors are examined
_BITS = {torch.bfloat16: 8, torch.float16: 11}  # significant bits
_QUARTER = 0.1, 0.4  # share of the rounding errors in each quarter of their range; 0.25 if uniform

UNTOLD = "training alone leaves no trace of its direction"


def direction(a: State, b: State, names: Sequence[str], whose: tuple[str, str] = ("a", "b")) -> tuple[int, str]:
    """The direction of descent that can be ruled out between two related networks.

    If one is the other rounded to half precision, the lost digits cannot be recovered. Rounding leaves errors that are
    uniform over half a unit in the last place; training that moved every weight by less leaves small errors. A common
    origin in a third network is not ruled out. If single weights are zero in one and all others equal, no direction is
    given: this results from pruning, but also from training only the zeros of a pruned network (PackNet).
    The answer is 1 if ``a`` was not made from ``b``, -1 if ``b`` was not made from ``a``, 0 if neither can be told;
    and the ground, in which ``whose`` names the two.
    """
    left, right = _Signs(), _Signs()
    for name in names:
        x, y = a[name], b[name]
        if x.is_floating_point() and y.is_floating_point() and not torch.equal(x, y):
            for one, other in row_pieces(x, y):
                left.add(other.float(), one.float())
                right.add(one.float(), other.float())
    for way, signs in ((1, right), (-1, left)):  # never both: two different numbers cannot be each other's rounding
        if signs.rounded:
            return way, "its weights are the other's, rounded to half precision"
    pruned = [name for name, signs in zip(whose, (left, right)) if signs.pruned]
    if len(pruned) == 1:
        return 0, f"only weights that are zero in {pruned[0]} differ: it was pruned, or the other filled its zeros"
    # batch counters are reset too often to be evidence
    first, second = (max((int(x[n].amax()) for n in x if n.endswith(COUNTER)), default=0) for x in (a, b))
    seen = f"; batch norms have seen {first:,} and {second:,} batches, which tells it if no counter was reset"
    return 0, UNTOLD + seen * (0 < first != second > 0)  # old checkpoints have none


@dataclass
class _Signs:
    """Evidence, over differing tensors, that one network was made from another."""

    weights: int = 0
    changed: int = 0
    zeros: int = 0
    kept: int = 0
    errors: dict[torch.dtype, Tensor] = field(default_factory=lambda: {h: torch.zeros(4).double() for h in _BITS})

    def add(self, before: Tensor, after: Tensor) -> None:
        """Examine some rows of one tensor."""
        zero, other = (after == 0) & (before != 0), before != after
        self.weights += after.numel()
        self.changed += int(other.sum())
        self.kept += int((~other | zero).sum())
        live = after != 0
        self.zeros += int((zero & live.any(0) & live.any(1, keepdim=True)).sum())
        x, y = before[other], after[other]
        for half, bits in _BITS.items():
            exact = x.to(half).float() == y
            exponent = x[exact].frexp().exponent.clamp(min=-13 if half == torch.float16 else -125)
            error = (x[exact] - y[exact]).abs().ldexp(bits + 1 - exponent)  # relative to half a unit in the last place
            self.errors[half] += torch.histc(0.999 * error, 4, 0, 1)  # keeps steps of a coarse grid below the bin edge

    @property
    def rounded(self) -> bool:
        """Whether the changes are those of rounding to half precision."""
        for quarters in self.errors.values():
            hits = float(quarters.sum())
            least, most = (share * hits for share in _QUARTER)
            if hits >= max(_MOST * self.changed, _FEWEST) and bool(((quarters > least) & (quarters < most)).all()):
                return True
        return False

    @property
    def pruned(self) -> bool:
        """Whether single weights are zero and the others unchanged."""
        return self.zeros >= _PRUNED * self.weights > 0 and self.kept >= _MOST * self.weights


_SHARE = 0.05  # smallest weight of a parent that counts
_ROUNDED = 0.02  # residual of a merge by rounding, relative to the parents' distance
_EVEN = 0.03  # largest standard deviation over tensors for a single merge weight
_APART = 0.01  # parents' distance, relative to their norm, from which a tensor determines weights
_PAIRED = 12  # most relatives of one network that are tried in pairs


@dataclass(frozen=True)
class Merge:
    """A network that holds weights of two others.

    Attributes:
        child: The network.
        parents: The two others.
        weights: Their shares, averaged over tensors by the distance of the parents there.
        residual: The unexplained part relative to the parents' distance: rounding, or training since the merge.
        told: Whether it lies between them (up to rounding) with one share or several, or is related to both, which are
            unrelated. Neither shows which is later: the common origin of both lies between them too, and a network may
            be extrapolated from two others.
        by_tensor: The shares in each tensor in which the parents differ.
    """

    child: str
    parents: tuple[str, str]
    weights: tuple[float, float]
    residual: float
    told: str
    by_tensor: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def sum(self) -> str:
        """The weighted sum, such as ``0.40 base + 0.60 tuned``."""
        return " + ".join(f"{weight:.2f} {parent}" for weight, parent in zip(self.weights, self.parents))


def merges(states: Mapping[str, State], related: Collection[frozenset[str]], names: Sequence[str]) -> tuple[Merge, ...]:
    """Networks that hold weights of two of their relatives: merges, or common origins.

    Either a network is ``w a + v b`` with positive weights in each tensor, up to rounding; or it is related to two
    mutually unrelated networks, and so holds weights of both. Tensors of other shapes are left out.
    """
    pairs = sorted(sorted(pair) for pair in related)
    kin = by_key(both for one, other in pairs for both in ((one, other), (other, one)))
    found = []
    for child, relatives in ((child, some) for child, some in kin.items() if len(some) > 1):
        members = [child, *relatives[:_PAIRED]]
        grams = _grams([states[m] for m in members], names)
        every = (
            _merge(child, (a, b), {n: g[[0, i, j]][:, [0, i, j]] for n, g in grams.items()}, {a, b} in related)
            for (i, a), (j, b) in combinations(enumerate(members[1:], 1), 2)
        )
        found += sorted(filter(None, every), key=lambda merge: merge.residual)[:1]
    return tuple(found)


def _grams(states: Sequence[State], names: Sequence[str]) -> dict[str, Tensor]:
    """Inner products of all networks, tensor by tensor."""
    found = {}
    for name in names:
        if all(name in state for state in states):
            tensors = [state[name] for state in states]
            if tensors[0].is_floating_point() and len({t.shape for t in tensors}) == 1:
                x = torch.stack([t.flatten().double() for t in tensors])
                found[name] = x @ x.mT
    return found


def _merge(child: str, parents: tuple[str, str], grams: Mapping[str, Tensor], related: bool) -> Merge | None:
    """The merge of two parents, by least squares in each tensor; ``None`` if it is no merge."""
    left = apart = squares = 0.0
    total, by_tensor = torch.zeros(2, dtype=torch.float64), dict[str, tuple[float, float]]()
    for name, g in grams.items():
        pair, target = g[1:, 1:], g[1:, 0]
        w = torch.linalg.lstsq(pair, target, driver="gelsd").solution
        left += max(float(g[0, 0] - 2 * w @ target + w @ pair @ w), 0.0)
        gap = max(float(pair[0, 0] - 2 * pair[0, 1] + pair[1, 1]), 0.0)
        apart += gap
        total += w * gap
        squares += float(w[0]) ** 2 * gap
        if gap > _APART**2 * float(pair.trace()):
            by_tensor[name] = (float(w[0]), float(w[1]))
    if apart <= 0:
        return None
    first, second = (total / apart).tolist()
    residual = (left / apart) ** 0.5
    if min(first, second) < _SHARE or (related and residual > _ROUNDED):
        return None
    shares = [w for w, _ in by_tensor.values()]
    uneven = bool(shares) and squares / apart - first**2 > _EVEN**2
    apiece = f" tensor by tensor, with {min(shares):.2f} to {max(shares):.2f} of {parents[0]}" if uneven else ""
    between = f"a weighted sum of both{apiece}, up to rounding"
    told = between if residual <= _ROUNDED else "related to both, which are unrelated"
    return Merge(child, parents, (first, second), residual, f"{told}: a merge, or they come from it", by_tensor)
