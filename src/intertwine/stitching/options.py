"""Options of stitching beside models, layers, families and data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from .networks.cut import Skip


@dataclass(frozen=True)
class StitchOptions:
    """How networks are stitched, and what the run is called.

    Attributes:
        skip: Inside residual blocks: A's skip connections as they are (``"a"``, the paper), each mapped by a layer of
            the family (``"mapped"``), or B's own (``"b"``).
        start: Where training starts: ``"direct"``, the family's closed form, or ``"random"``, as in the paper.
        tail_norm: Batch norm of the tail while layers are trained: ``"eval"`` with B's statistics, ``"train"`` with the
            batch's (the reference code).
        recalibration: Whether the tail's batch-norm statistics are found anew before evaluation, for every family.
        bias: Whether layers have a bias; the paper's do not.
        settings: Of families, such as ``{"alpha": 0.01, "tau": 0.1}``; each family takes its own. ``{"alpha": "cv"}``
            chooses alpha by cross-validation on a part of the training data (v2 D.5).
        names: What the models are called in results and intervals.
        state: File that keeps interrupted training; see ``train_layers``.
        progress: Whether to show progress.

    Raises:
        ValueError: If ``start`` is unknown.
    """

    skip: Skip = "a"
    start: Literal["direct", "random"] = "direct"
    tail_norm: Literal["eval", "train"] = "eval"
    recalibration: bool = True
    bias: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    names: tuple[str, str] = ("A", "B")
    state: str | Path | None = None
    progress: bool | None = None

    def __post_init__(self) -> None:
        if self.start not in ("direct", "random"):
            raise ValueError(f'start must be "direct" or "random". Got {self.start!r}.')
