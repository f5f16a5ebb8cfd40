"""The random choices behind chance levels and intervals, drawn once and used for all pairs of layers."""

from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

_FOLDS = 20
_FEWEST = 8  # examples: half of them must be enough for the unbiased estimators


@dataclass(frozen=True)
class Draws:
    """Shuffles of the examples, and halves of them.

    Halves are unions of random folds, so that tables of sums over folds serve all of them: any number of subsamples
    costs one pass over the data. No example occurs twice: duplicates would put a kernel's diagonal off the diagonal.

    Shuffles are turns of one random wheel, so that a Fourier transform over its parts gives the products of all of them
    for the cost of two. Turns are a group, of which random ones are drawn without replacement, so that p-values are
    exact (Hemerik and Goeman, "Exact testing with random permutations", TEST 2018). The ``N mod parts`` examples that
    fit no part, of which there are as few as can be, keep their partners.
    """

    permutations: Tensor  # ``(shuffles, N)``
    # Random, disjoint parts of the examples; one part, in order, where there are no subsamples
    folds: tuple[Tensor, ...]
    halves: Tensor  # ``(subsamples, folds)`` bool: the folds of each half
    wheel: Tensor  # ``(parts, N // parts)``: shuffle ``p`` gives part ``i`` the partners of part ``i + turns[p]``
    turns: Tensor  # ``(shuffles,)``; empty where shuffles are independent of each other

    @classmethod
    def make(cls, examples: int, null: int, bootstrap: int, seed: int) -> "Draws":
        """Draw ``null`` shuffles and ``bootstrap`` halves of ``examples``; below 8 examples there are no halves."""
        g = torch.Generator().manual_seed(seed)
        shuffles = _shuffles(examples, null, g)
        if bootstrap == 0 or examples < _FEWEST:
            return cls(shuffles[0], (torch.arange(examples),), torch.ones(0, 1, dtype=torch.bool), *shuffles[1:])
        order = torch.randperm(examples, generator=g)
        return cls(shuffles[0], *_halves(order, bootstrap, _FOLDS, g), *shuffles[1:])

    def without(self) -> "Draws":
        """No shuffles and no halves of these examples."""
        return self.make(self.examples, 0, 0, 0)

    def fewer(self, halves: int, folds: int) -> "Draws":
        """The same shuffles, and fewer halves of fewer folds."""
        if len(self.halves) <= halves:
            return self
        order, g = torch.cat(self.folds), torch.Generator().manual_seed(0)
        merged, chosen = _halves(order, halves, folds, g)
        return replace(self, folds=merged, halves=chosen)

    @property
    def examples(self) -> int:
        """Number of examples."""
        return sum(len(fold) for fold in self.folds)

    @cached_property
    def subsamples(self) -> tuple[Tensor, ...]:
        """The examples of each half, fold by fold."""
        return tuple(torch.cat([f for f, chosen in zip(self.folds, half) if chosen]) for half in self.halves)


def _halves(order: Tensor, count: int, folds: int, generator: torch.Generator) -> tuple[tuple[Tensor, ...], Tensor]:
    """Folds of examples in random order, and random halves of the folds."""
    parts = min(folds, len(order) // 2) // 2 * 2
    halves = torch.zeros(count, parts, dtype=torch.bool)
    for half in halves:
        half[torch.randperm(parts, generator=generator)[: parts // 2]] = True
    return order.tensor_split(parts), halves


def _shuffles(examples: int, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Permutations, the wheel, and its turns; independent permutations where too few examples make no wheel."""
    most = min(examples, 3 * count + 3)
    if not 0 < count < most:
        orders = [torch.randperm(examples, generator=generator) for _ in range(count)]
        none = torch.empty(0, dtype=torch.int64)
        return torch.stack(orders) if orders else none.view(0, examples or 0), none.view(0, 0), none
    parts = min(range(count + 1, most + 1), key=lambda n: (examples % n, n))
    wheel = torch.randperm(examples, generator=generator)[: examples // parts * parts].view(parts, -1)
    turns = torch.randperm(parts - 1, generator=generator)[:count] + 1
    permutations = torch.arange(examples).repeat(count, 1)
    for order, turn in zip(permutations, turns.tolist()):
        order[wheel] = wheel.roll(-turn, 0)
    return permutations, wheel, turns


@dataclass
class Cells:
    """What one measure found for all pairs of layers, before it is summarised; NaN where ``notes`` says why."""

    scores: Tensor  # (La, Lb)
    null: Tensor  # (La, Lb, shuffles)
    halves: Tensor  # (La, Lb, subsamples)
    floor: Tensor  # (La, Lb)
    parts: int  # Folds that the halves are made of
    notes: list[str] = field(default_factory=list)

    @classmethod
    def empty(cls, rows: int, columns: int, draws: Draws) -> "Cells":
        """Cells full of NaN."""

        def nan(*shape: int) -> Tensor:
            return torch.full((rows, columns, *shape), torch.nan, dtype=torch.float64)

        return cls(nan(), nan(len(draws.permutations)), nan(len(draws.halves)), nan(), len(draws.folds))
