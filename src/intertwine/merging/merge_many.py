"""MergeMany: several networks in one basis, and their average (Ainsworth, Hayase and Srinivasa 2022, Algorithm 3)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .._evaluation import copied
from .._progress import track
from ..matching.align import align
from ..matching.solvers.solver import Solver
from ..symmetry.action import tensors_of
from .interpolate import check_matching, write
from .merge import Repair, check_repair
from .recalibrate import recalibrate_
from .repair import repair_many_

if TYPE_CHECKING:
    from ..symmetry import Symmetry, Transformation

__all__ = ["Gathering", "average", "gather", "merge_many"]

_KINDS = ("permutation", "sign", "linear")


@dataclass(frozen=True, eq=False)
class Gathering:
    """Several networks brought into one basis.

    Attributes:
        symmetry: The symmetry of the architecture.
        transformations: For each network the element that moves it into the common basis, near that of the first.
        distances: Root mean square distance of the moved networks from their mean, relative to the mean's norm, before
            the first sweep and after each.
    """

    symmetry: Symmetry
    transformations: tuple[Transformation, ...]
    distances: tuple[float, ...]

    def apply(self, models: Sequence[nn.Module]) -> list[nn.Module]:
        """Copies of the networks in the common basis.

        Raises:
            ValueError: If their number is another one.
        """
        if len(models) != len(self.transformations):
            raise ValueError(f"models must be the {len(self.transformations)} that were gathered. Got {len(models)}.")
        return [self.symmetry.act(g, model) for g, model in zip(self.transformations, models)]


def gather(
    models: Sequence[nn.Module],
    example_inputs: Any,
    method: str | Solver = "weights",
    *,
    loader: Iterable[Any] | None = None,
    sweeps: int = 10,
    seed: int = 0,
    kinds: Collection[str] = _KINDS,
    progress: bool = False,
) -> Gathering:
    """Bring several networks into one basis: each in turn is aligned to the mean of the others.

    Every sweep goes through the networks in a new random order; it ends when no network comes closer to the others, or
    after ``sweeps``. The first network is no centre: it moves like the rest, so the result does not favour it. Scales
    stay unless ``kinds`` asks for them: a mean of several networks has smaller weights than each, and scales that
    follow it from sweep to sweep make the distance smaller and the merged network worse.

    Args:
        models: At least two networks of one architecture. They are left as they are.
        example_inputs: See ``align``.
        method: How to align, see ``align``.
        loader: Batches, for methods that look at data.
        sweeps: How often to go through the networks at most.
        seed: Same seed, same result.
        kinds: Kinds of elements to search, see ``align``.
        progress: Whether to show progress.

    Returns:
        One transformation for each network.

    Raises:
        ValueError: If there are fewer than two networks, they differ in architecture, or ``sweeps`` is less than 1.

    References:
        - Ainsworth, S., Hayase, J. and Srinivasa, S. Git Re-Basin: Merging Models modulo Permutation Symmetries.
          ICLR 2023, Algorithm 3.
    """
    if len(models) < 2:
        raise ValueError(f"models must be at least two. Got {len(models)}.")
    if sweeps < 1:
        raise ValueError(f"sweeps must be at least 1. Got {sweeps}.")
    for k, model in enumerate(models[1:], start=1):
        check_matching(models[0], model, ("models[0]", f"models[{k}]"))
    from ..symmetry import symmetries

    sym = symmetries(models[0], example_inputs)
    elements = [sym.identity() for _ in models]
    moved = [copied(model) for model in models]
    distances = [_distance(moved)]
    generator = torch.Generator().manual_seed(seed)
    for sweep in track(range(sweeps), "Gathering", enabled=progress):
        for k in torch.randperm(len(models), generator=generator).tolist():
            others = average([model for i, model in enumerate(moved) if i != k])
            found = align(
                others, moved[k], example_inputs, method=method, loader=loader, seed=seed + sweep, kinds=kinds, sym=sym
            )
            candidate = found.apply(moved[k])
            if _apart(others, candidate) < _apart(others, moved[k]):
                moved[k], elements[k] = candidate, found.transformation @ elements[k]
        distances.append(_distance(moved))
        if distances[-1] >= distances[-2] * (1 - 1e-6):
            break
    return Gathering(sym, tuple(elements), tuple(distances))


def merge_many(
    models: Sequence[nn.Module],
    example_inputs: Any,
    method: str | Solver = "weights",
    *,
    repair: Repair = True,
    loader: Iterable[Any] | None = None,
    sweeps: int = 10,
    seed: int = 0,
    kinds: Collection[str] = _KINDS,
    progress: bool = False,
) -> nn.Module:
    """Merge several networks into one: bring them into one basis, average, repair.

    Args:
        models: At least two networks of one architecture. They are left as they are.
        example_inputs: See ``align``.
        method: How to align, see ``align``.
        repair: See ``merge``.
        loader: Batches of training inputs for the repair, and for methods that look at data.
        sweeps: How often to go through the networks at most.
        seed: Same seed, same result.
        kinds: Kinds of elements to search, see ``align``.
        progress: Whether to show progress.

    Returns:
        A new network, in evaluation mode.

    Examples:
        >>> models = [nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2)) for _ in range(3)]
        >>> merged = merge_many(models, torch.zeros(2, 3))
        >>> merged(torch.zeros(1, 3)).shape
        torch.Size([1, 2])
    """
    how = check_repair(models[0], repair, loader)
    found = gather(
        models, example_inputs, method, loader=loader, sweeps=sweeps, seed=seed, kinds=kinds, progress=progress
    )
    moved = found.apply(models)
    merged = average(moved).eval()
    if how == "recalibrate" and loader is not None:
        return recalibrate_(merged, loader)
    if how is not None and loader is not None:
        return repair_many_(merged, moved, loader, shift=how == "repair")
    return merged


def average(models: Sequence[nn.Module]) -> nn.Module:
    """The mean of the weights and statistics of several networks, as a copy of the first.

    Args:
        models: Networks of one architecture and in one basis.

    Returns:
        A new network; integers and what all share stay bit for bit.
    """
    merged = copied(models[0])
    states = [tensors_of(model) for model in models]
    return write(merged, {name: _mean([state[name] for state in states]) for name in states[0]})


def _mean(tensors: list[Tensor]) -> Tensor:
    first = tensors[0]
    if not first.is_floating_point() or all(torch.equal(first, t.to(first.device)) for t in tensors[1:]):
        return first
    work = torch.promote_types(first.dtype, torch.float32)
    total = first.to(work)
    for t in tensors[1:]:
        total = total + t.to(first.device, work)
    return (total / len(tensors)).to(first.dtype)


def _distance(models: Sequence[nn.Module]) -> float:
    """Root mean square distance from the mean, relative to it."""
    centre = average(models)
    squares = sum(_apart(centre, model) for model in models) / len(models)
    norm = sum(float(p.detach().double().square().sum()) for p in centre.parameters())
    return (squares / norm) ** 0.5 if norm else 0.0


def _apart(a: nn.Module, b: nn.Module) -> float:
    """Squared distance between the parameters of two networks."""
    pairs = zip(a.parameters(), b.parameters())
    return sum(float((x.detach().double() - y.detach().to(x.device).double()).square().sum()) for x, y in pairs)
