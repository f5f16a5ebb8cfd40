"""Points in few dimensions whose distances are like given ones: multidimensional scaling."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from .._result import Result
from .._words import counted

_STEPS, _TOLERANCE = 1000, 1e-9


@dataclass(frozen=True, eq=False, repr=False)
class Embedding(Result):
    """Named points in a space of few dimensions.

    Attributes:
        names: Names of the points.
        points: ``(n, dimensions)``, float64, centred, along their principal axes.
        stress: Kruskal's stress-1, ``sqrt(sum (d_ij - |p_i - p_j|)^2 / sum d_ij^2)``: 0 where the points tell every
            distance; above 0.2 a picture misleads.
    """

    names: tuple[str, ...]
    points: Tensor
    stress: float

    @classmethod
    def of(cls, names: Sequence[str], distances: Tensor, points: Tensor) -> Self:
        """Points for distances, turned to their principal axes."""
        points = points - points.mean(0)
        _, _, axes = torch.linalg.svd(points, full_matrices=False)
        points = torch.cat([points @ axes.T, points.new_zeros(len(points), points.shape[1] - len(axes))], 1)
        largest = points.gather(0, points.abs().argmax(0, keepdim=True))
        points = points * torch.where(largest < 0, -1.0, 1.0)  # signs are free: the farthest point is positive
        missed = (distances - torch.cdist(points, points)).square().sum() / distances.square().sum()
        return cls(tuple(names), points, float(missed.nan_to_num(0).sqrt()))

    def _rows(self) -> list[dict[str, Any]]:
        """One row per point."""
        points = zip(self.names, self.points.tolist())
        return [{"name": name, **{f"x{k}": x for k, x in enumerate(point, 1)}} for name, point in points]

    def summary(self) -> str:
        """The stress, and the coordinates of every point."""
        places = ("  ".join(f"{v:8.3f}" for v in point) for point in self.points.tolist())
        width = max(map(len, self.names))
        space = counted(self.points.shape[1], "dimension")
        head = f"{counted(len(self.names), 'point')} in {space}, stress {self.stress:.3f}"
        return "\n".join([head, *(f"{name:<{width}}  {place}" for name, place in zip(self.names, places))])


def classical_scaling(distances: Tensor, dimensions: int) -> Tensor:
    """Points whose inner products are the best for squared distances centred on both sides (Torgerson 1952)."""
    square = distances.square()
    products = -(square - square.mean(0) - square.mean(1, keepdim=True) + square.mean()) / 2
    values, vectors = torch.linalg.eigh(products)
    points = vectors.flip(1)[:, :dimensions] * values.flip(0)[:dimensions].clamp(min=0).sqrt()
    return torch.cat([points, points.new_zeros(len(points), dimensions - points.shape[1])], 1)


def majorised(distances: Tensor, points: Tensor) -> Tensor:
    """Move points by Guttman's transform, which lowers the stress at every step, until it does no more (SMACOF)."""
    before = torch.inf
    for _ in range(_STEPS):
        now = torch.cdist(points, points)
        stress = float((distances - now).square().sum())
        if before - stress <= _TOLERANCE * stress:
            break
        before = stress
        ratio = torch.where(now > 0, distances / now.clamp(min=1e-300), 0.0)
        points = (torch.diag(ratio.sum(1)) - ratio) @ points / len(points)
    return points
