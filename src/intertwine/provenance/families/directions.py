"""Direction of descent between two related networks: what rules out that the first was made from the second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

_HALVES = (torch.bfloat16, torch.float16)
_MOST = 0.99  # share of the weights that one operation must explain
_PRUNED = 0.05  # share of the weights that pruning must set to zero to be called so
_PIECE = 1 << 20  # entries that are looked at at once
_FEWEST = 8  # rows that must have shrunk alike
_PARALLEL, _ALIKE, _SHRUNK = 1e-6, 1e-3, 1e-4  # one less the cosine, spread of log ratios, their size

UNTOLD = "training alone leaves no trace of its direction"


def direction(a: Mapping[str, Tensor], b: Mapping[str, Tensor], names: Sequence[str]) -> tuple[int, str]:
    """Which of two related networks cannot be the later one.

    One is the other rounded to half precision, or with weights set to zero: what was lost cannot be had back. Rows that
    were never trained (tokens and places that no text held) only shrink, by weight decay. Counters of batch norm only
    rise. None of these rules out that both come from a third network.

    Args:
        a: Tensors of one network, read one at a time.
        b: Those of the other.
        names: Tensors that both have in one shape.

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
    steps = [_counter(state) for state in (a, b)]
    found = {}
    for way, signs in ((1, right), (-1, left)):
        said = signs.told
        if None not in steps and way * (steps[1] - steps[0]) > 0:  # type: ignore[operator]
            said = said or "its batch norms have seen more batches"
        if said:
            found[way] = said
    if len(found) != 1:
        return 0, "the signs contradict each other" if found else UNTOLD
    return next(iter(found.items()))


@dataclass
class _Signs:
    """Signs that a network came later than another, over tensors that differ."""

    weights: int = 0
    rounded: int = 0
    zeros: int = 0
    kept: int = 0
    rows: int = 0
    ratios: list[Tensor] = field(default_factory=list)

    def add(self, before: Tensor, after: Tensor) -> None:
        """Look at one tensor."""
        zero = (after == 0) & (before != 0)
        self.weights += after.numel()
        self.rounded += max(int((before.to(half).float() == after).sum()) for half in _HALVES)
        self.zeros += int(zero.sum())
        self.kept += int(((before == after) | zero).sum())
        if after.ndim > 1:
            x, y = before.flatten(1).double(), after.flatten(1).double()
            norms = x.norm(dim=1), y.norm(dim=1)
            parallel = (x * y).sum(1) >= (1 - _PARALLEL) * norms[0] * norms[1]
            ratio = (norms[1] / norms[0]).log()
            self.rows += len(x)
            self.ratios.append(ratio[parallel & (norms[0] > 0) & (norms[1] > 0) & (ratio.abs() > _SHRUNK)])

    @property
    def told(self) -> str:
        """What says so, or an empty string."""
        if self.weights and self.rounded >= _MOST * self.weights:
            return "its weights are the other's, rounded to half precision"
        if self.zeros >= _PRUNED * self.weights > 0 and self.kept >= _MOST * self.weights:
            return "its weights are the other's, some of them set to zero"
        ratios = torch.cat(self.ratios) if self.ratios else torch.zeros(0)
        if _FEWEST <= len(ratios) < self.rows / 2 and float(ratios.std()) < _ALIKE and float(ratios.mean()) < 0:
            shrunk = 1 - float(ratios.mean().exp())
            return (
                f"{len(ratios)} rows that were not trained are {shrunk:.2%} smaller in it, as weight decay leaves them"
            )
        return ""


def _counter(state: Mapping[str, Tensor]) -> int | None:
    """The largest counter of batches, where there is one."""
    counts = [int(state[n]) for n in state if n.endswith("num_batches_tracked")]
    return max(counts) if counts else None
