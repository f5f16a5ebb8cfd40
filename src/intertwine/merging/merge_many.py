"""Average of several networks in one basis (MergeMany; Ainsworth, Hayase and Srinivasa 2023, Algorithm 3)."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from torch import nn

from .._evaluation import copied, in_usual_mode
from ..features.spectral_norms import follow_
from ..matching.joint import gather, mean_weights
from ..matching.solvers.solver import Solver
from ..symmetry.action import tensors_of
from .interpolate import write
from .merge import Repair, check_repair, mend_


@in_usual_mode
def merge_many(
    models: Sequence[nn.Module],
    example_inputs: Any,
    method: str | Solver = "weights",
    *,
    repair: Repair = True,
    loader: Iterable[Any] | None = None,
    sweeps: int = 10,
    seed: int = 0,
    kinds: Collection[str] = ("permutation", "sign", "linear"),
    progress: bool | None = None,
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

    Examples:
        >>> import torch
        >>> models = [nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2)) for _ in range(3)]
        >>> merged = merge_many(models, torch.zeros(2, 3))
        >>> merged(torch.zeros(1, 3)).shape
        torch.Size([1, 2])
    """
    check_repair(models[0], repair, loader)
    found = gather(
        models, example_inputs, method, loader=loader, sweeps=sweeps, seed=seed, kinds=kinds, progress=progress
    )
    return merge_moved(found.apply(models), repair, loader)


def merge_moved(moved: Sequence[nn.Module], repair: Repair = True, loader: Iterable[Any] | None = None) -> nn.Module:
    """Merge networks that are in one basis: average, repair.

    Args:
        moved: The networks.
        repair: See ``merge``.
        loader: Batches for the repair.
    """
    how = check_repair(moved[0], repair, loader)
    shares = {name: [1 / len(moved)] * len(moved) for name, _ in moved[0].named_modules()}
    return mend_(average(moved).eval(), moved, shares, how, loader)


def average(models: Sequence[nn.Module]) -> nn.Module:
    """The mean of the weights and statistics of several networks, as a copy of the first."""
    return follow_(write(copied(models[0]), mean_weights([tensors_of(model) for model in models])), models)
