"""The random choices behind chance levels and intervals, drawn once and used for all pairs of layers."""

from dataclasses import dataclass, field
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
    """

    permutations: Tensor  # ``(shuffles, N)``
    # Random, disjoint parts of the examples; one part, in order, where there are no subsamples
    folds: tuple[Tensor, ...]
    halves: Tensor  # ``(subsamples, folds)`` bool: the folds of each half

    @classmethod
    def make(cls, examples: int, null: int, bootstrap: int, seed: int) -> "Draws":
        """Draw ``null`` shuffles and ``bootstrap`` halves of ``examples``; below 8 examples there are no halves."""
        g = torch.Generator().manual_seed(seed)
        permutations = torch.stack([torch.randperm(examples, generator=g) for _ in range(null)] or [torch.empty(0)])
        permutations = permutations[:null].long()
        if bootstrap == 0 or examples < _FEWEST:
            return cls(permutations, (torch.arange(examples),), torch.ones(0, 1, dtype=torch.bool))
        parts = min(_FOLDS, examples // 2) // 2 * 2
        folds = torch.randperm(examples, generator=g).tensor_split(parts)
        halves = torch.zeros(bootstrap, parts, dtype=torch.bool)
        for half in halves:
            half[torch.randperm(parts, generator=g)[: parts // 2]] = True
        return cls(permutations, folds, halves)

    @property
    def examples(self) -> int:
        """Number of examples."""
        return sum(len(fold) for fold in self.folds)

    @cached_property
    def subsamples(self) -> tuple[Tensor, ...]:
        """The examples of each half, fold by fold."""
        return tuple(torch.cat([f for f, chosen in zip(self.folds, half) if chosen]) for half in self.halves)


@dataclass
class Cells:
    """What one measure found for all pairs of layers, before it is summarised; NaN where ``notes`` says why."""

    scores: Tensor  # (La, Lb)
    null: Tensor  # (La, Lb, shuffles)
    halves: Tensor  # (La, Lb, subsamples)
    floor: Tensor  # (La, Lb)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def empty(cls, rows: int, columns: int, draws: Draws) -> "Cells":
        """Cells full of NaN."""

        def nan(*shape: int) -> Tensor:
            return torch.full((rows, columns, *shape), torch.nan, dtype=torch.float64)

        return cls(nan(), nan(len(draws.permutations)), nan(len(draws.halves)), nan())
