"""The bases in which a layer is dissected: powers of a random rotation, and random elements of G_ReLU."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from .rotation import Rotation, random_rotation


@dataclass(frozen=True)
class Arm:
    """One basis: what is done to the channels before they are dissected."""

    # ``"rotation"`` for ``Q^alpha``, ``"g_relu"`` for a permutation with positive scales
    kind: Literal["rotation", "g_relu"]
    alpha: float  # Power of the rotation; 0 is the basis of the network itself. 1 for ``"g_relu"``.
    seed: int  # Which random rotation or element

    @property
    def name(self) -> str:
        """A short name that is also a valid file name."""
        return f"{self.kind}-{self.alpha:g}-{self.seed}"

    def action(self, units: int, scale: Tensor | None = None) -> Callable[[Tensor], Tensor]:
        """The map on channel axis 1 of maps ``(B, U, h', w')``; changed maps come in float64."""
        generator = torch.Generator().manual_seed(self.seed)
        if self.kind == "g_relu":
            from ..groups import PositiveMonomial

            element = PositiveMonomial(units).random(generator=generator)
            return lambda maps: element.apply(maps.double(), dim=1)
        if self.alpha == 0:
            return lambda maps: maps
        power = Rotation.of(random_rotation(units, generator)).power(self.alpha)
        power = power if scale is None else power / scale
        return lambda maps: _turn(power.to(maps.device), maps.double())


def _turn(matrix: Tensor, maps: Tensor) -> Tensor:
    return (matrix @ maps.flatten(2)).view_as(maps)


@dataclass(frozen=True)
class Bases:
    """The bases in which a layer is dissected.

    Attributes:
        rotations: Powers ``alpha`` in [0, 1] of random rotations; 0, the basis of the network, is always done.
        seeds: Random rotations for each power: a number of them, or their seeds.
        g_relu: Number of random elements of G_ReLU.

    Raises:
        ValueError: If one is out of range.
    """

    rotations: Sequence[float] = (0, 0.25, 0.5, 0.75, 1)
    seeds: int | Sequence[int] = 5
    g_relu: int = 1

    def __post_init__(self) -> None:
        wrong = [a for a in self.rotations if not 0 <= a <= 1]
        if wrong or not self.rotations:
            raise ValueError(f"rotations must be powers in [0, 1]. Got {list(self.rotations)}.")
        seeds = self._seeds
        if not seeds or len(set(seeds)) < len(seeds):
            raise ValueError(f"seeds must be different and at least one. Got {list(seeds)}.")
        if self.g_relu < 0:
            raise ValueError(f"g_relu must be a number of elements, at least 0. Got {self.g_relu}.")

    @property
    def _seeds(self) -> tuple[int, ...]:
        return tuple(range(self.seeds)) if isinstance(self.seeds, int) else tuple(self.seeds)

    @property
    def arms(self) -> tuple[Arm, ...]:
        """Each power for each seed, the power 0 once since it is the same for all, then elements of G_ReLU."""
        seeds, powers = self._seeds, sorted({float(a) for a in self.rotations} - {0.0})
        return (
            Arm("rotation", 0.0, seeds[0]),
            *(Arm("rotation", alpha, seed) for alpha in powers for seed in seeds),
            *(Arm("g_relu", 1.0, seed) for seed in range(self.g_relu)),
        )


BASES = Bases()
