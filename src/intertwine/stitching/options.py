"""Options of stitching besides models, layers, families and data, and recipes of training."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from .pair import Skip
from .stitched import TailNorm


@dataclass(frozen=True)
class Recipe:
    """Recipe for training stitching layers (paper 1, D.2).

    Attributes:
        epochs: Passes over the training data.
        learning_rate: Constant learning rate.
        momentum: 0.9 in v1, none in v2.
        head_start: Number of first epochs in which permutations learn while scales are held.
        batch_size: For the loaders that the command line makes; a loader given to ``train_layers`` has its own.
        keep: ``"best"`` keeps, of the start and all epochs, the map with the least training loss as evaluated;
            ``"last"`` keeps the last epoch's, as in the paper.
        judged: Training examples on which ``"best"`` is judged: the first batches that hold as many.

    Raises:
        ValueError: If a number is out of range.
    """

    epochs: int = 20
    learning_rate: float = 1e-3
    momentum: float = 0.9
    head_start: int = 10
    batch_size: int = 32
    keep: Literal["best", "last"] = "best"
    judged: int = 2048

    def __post_init__(self) -> None:
        for name, least in {"epochs": 0, "head_start": 0, "batch_size": 1, "judged": 1}.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}. Got {getattr(self, name)}.")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate must be positive. Got {self.learning_rate}.")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be from 0 to below 1. Got {self.momentum}.")
        if self.keep not in ("best", "last"):
            raise ValueError(f'keep must be "best" or "last". Got {self.keep!r}.')


RECIPES: Mapping[str, Recipe] = {"v1": Recipe(), "v2": Recipe(momentum=0.0)}


def recipe_of(recipe: Recipe | str) -> Recipe:
    """A recipe, given as itself or by name."""
    if isinstance(recipe, Recipe):
        return recipe
    if recipe not in RECIPES:
        raise ValueError(f"recipe must be one of {', '.join(RECIPES)}, or a Recipe. Got {recipe!r}.")
    return RECIPES[recipe]


@dataclass(frozen=True)
class StitchOptions:
    """Options of stitching networks, and names for the run.

    Attributes:
        skip: Inside residual blocks: A's skip connections unchanged (``"a"``, the paper), each mapped by its own layer
            of the family (``"mapped"``), or B's own (``"b"``).
        start: Where training starts: ``"direct"``, the family's closed form, or ``"random"``, as in the paper.
        tail_norm: Batch norm of the tail while layers are trained: ``"eval"`` with B's statistics, ``"train"`` with the
            batch's (the reference code).
        recalibration: Whether the tail's batch-norm statistics are measured anew before evaluation, for every family.
        bias: Whether layers have a bias; the paper's do not.
        settings: Settings of families, such as ``{"alpha": 0.01, "tau": 0.1}``; each family takes its own. ``{"alpha":
            "cv"}`` chooses alpha by cross-validation on a part of the training data (v2 D.5).
        names: Names of the models in results and intervals.
        state: File that keeps interrupted training; see ``train_layers``.
        progress: Whether to show progress.

    Raises:
        ValueError: If ``start`` is unknown, or alpha is text other than ``"cv"``.
    """

    skip: Skip = "a"
    start: Literal["direct", "random"] = "direct"
    tail_norm: TailNorm = "eval"
    recalibration: bool = True
    bias: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    names: tuple[str, str] = ("A", "B")
    state: str | Path | None = None
    progress: bool | None = None

    def __post_init__(self) -> None:
        if self.start not in ("direct", "random"):
            raise ValueError(f'start must be "direct" or "random". Got {self.start!r}.')
        if isinstance(alpha := self.settings.get("alpha"), str) and alpha != "cv":
            raise ValueError(f'alpha must be a number or "cv". Got {alpha!r}.')
