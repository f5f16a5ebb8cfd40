"""Direction of descent between two related networks: what rules out that the first was made from the second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

_MOST = 0.99  # share of the weights that one operation must explain
_PRUNED = 0.05  # share of the weights that pruning must set to zero to be called so
_PIECE = 1 << 20  # entries that are looked at at once
_FEWEST = 100  # weights whose rounding errors are looked at
_BITS = {torch.bfloat16: 8, torch.float16: 11}  # significant bits
_QUARTER = 0.1, 0.4  # share of the rounding errors in each quarter of their range; 0.25 where they are uniform

UNTOLD = "training alone leaves no trace of its direction"


def direction(
    a: Mapping[str, Tensor], b: Mapping[str, Tensor], names: Sequence[str], whose: tuple[str, str] = ("a", "b")
) -> tuple[int, str]:
    """Which of two related networks cannot be the later one.

    One is the other rounded to half precision: what was lost cannot be had back. Rounding leaves errors that are
    uniform over half a unit of the last place; training that moved every weight by less than that leaves small ones.
    That both come from a third network is not ruled out. Single weights that are zero in one, all others equal, are
    said, and no direction: pruning leaves them, and so does training of the zeros of a pruned network alone (PackNet).

    Args:
        a: Tensors of the first network.
        b: Those of the second.
        names: Tensors to look at.
        whose: What to call the two.

    Returns:
        1 where ``a`` was not made from ``b``, -1 where ``b`` was not made from ``a``, 0 where neither can be told; and
        the ground.
    """
    left, right = _Signs(), _Signs()
    for name in names:
        x, y = a[name], b[name]
        if x.is_floating_point() and y.is_floating_point() and not torch.equal(x, y):
            rows = max(1, _PIECE // max(x[:1].numel(), 1)) if x.ndim else 1
            for one, other in zip(*(t.split(rows) if t.ndim else (t,) for t in (x, y))):
                left.add(other.float(), one.float())
                right.add(one.float(), other.float())
    found = [(way, signs.told) for way, signs in ((1, right), (-1, left)) if signs.told]
    if len(found) > 1:
        return 0, "the signs contradict each other"
    pruned = [name for name, signs in zip(whose, (left, right)) if signs.pruned]
    if not found and len(pruned) == 1:
        return 0, f"only weights that are zero in {pruned[0]} differ: it was pruned, or the other filled its zeros"
    return found[0] if found else (0, UNTOLD + _more_batches(a, b))


@dataclass
class _Signs:
    """Signs that a network was made from another, over tensors that differ."""

    weights: int = 0
    changed: int = 0
    zeros: int = 0
    kept: int = 0
    errors: dict[torch.dtype, Tensor] = field(
        default_factory=lambda: {half: torch.zeros(4, dtype=torch.float64) for half in _BITS}
    )

    def add(self, before: Tensor, after: Tensor) -> None:
        """Look at one tensor."""
        zero, other = (after == 0) & (before != 0), before != after
        self.weights += after.numel()
        self.changed += int(other.sum())
        self.kept += int((~other | zero).sum())
        if after.ndim > 1:
            x = after.flatten(1) != 0
            self.zeros += int((zero.flatten(1) & x.any(0) & x.any(1, keepdim=True)).sum())
        x, y = before[other], after[other]
        for half, bits in _BITS.items():
            exact = x.to(half).float() == y
            exponent = x[exact].frexp().exponent.clamp(min=-13 if half == torch.float16 else -125)
            error = (x[exact] - y[exact]).abs().ldexp(bits + 1 - exponent)  # over half a unit of the last place
            self.errors[half] += torch.histc(0.999 * error, 4, 0, 1)  # a step of a coarse grid falls below its edge

    @property
    def told(self) -> str:
        """What says so, or an empty string."""
        for quarters in self.errors.values():
            hits = float(quarters.sum())
            least, most = (share * hits for share in _QUARTER)
            if hits >= max(_MOST * self.changed, _FEWEST) and bool(((quarters > least) & (quarters < most)).all()):
                return "its weights are the other's, rounded to half precision"
        return ""

    @property
    def pruned(self) -> bool:
        """Whether single weights are zero, and the others are as they were."""
        return self.zeros >= _PRUNED * self.weights > 0 and self.kept >= _MOST * self.weights


def _more_batches(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> str:
    """Which network's batch norms have seen more batches, in words; counters are reset too often to be a sign."""
    first, second = (
        max((int(state[n]) for n in state if n.endswith("num_batches_tracked")), default=0) for state in (a, b)
    )
    if first == second:
        return ""
    return f"; batch norms have seen {first:,} and {second:,} batches, which tells it if no counter was reset"
