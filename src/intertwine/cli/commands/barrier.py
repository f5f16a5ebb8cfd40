"""``intertwine barrier``: loss and accuracy between networks, before and after alignment."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from .._options import DataOptions, advanced, option
from .._outputs import RESULTS, claim_folder, present, say
from . import inputs, iw, solver_of

if TYPE_CHECKING:
    from ...merging.interpolate import Interpolation


@dataclass(frozen=True, kw_only=True)
class Barrier(DataOptions):
    """Measure how much worse the networks between networks are, before and after alignment.

    The barrier is the largest excess of the loss over the straight line between the losses of both ends. With three
    networks or more every pair is measured, and the barrier comes with an interval, which leaves out networks and not
    pairs. Batch norms are recalibrated on the training split.

    Example:
      intertwine barrier a.safetensors b.safetensors --data digits
      intertwine barrier seed*.safetensors --model resnet20 --data cifar10:PATH --points 11 --out barrier
    """

    python = "iw.barrier(a, b, loader)"

    methods = ("none",)

    checkpoints: list[Path]
    model: str | None = None
    method: str = option("weights", "How to align, see 'intertwine align --help'; none for the direct path only.")
    points: int = option(25, "Points of each path, the ends included.", min=3)
    recalibrate: bool = advanced(True, "Also with batch norms measured anew at every point.")
    interpolation: str = "linear"
    split: str = "test"
    examples: int = 5000
    batch_size: int = 250
    seed: int = 0
    device: str = "auto"
    out: Path = Path("barrier")

    def __call__(self) -> None:
        solver = solver_of(self.method)
        claim_folder(self.out, RESULTS, self.checkpoints)
        group = inputs.open_group(self.checkpoints, self, "always")
        group.need_data().need_labels("to measure losses")
        found = iw.merging.barriers(
            group.models,
            group.loader(self.split, self.examples, self.batch_size),
            self.points,
            alignments=None if self.method == "none" else solver,
            names=group.names,
            progress=True,
            options=iw.merging.PathOptions(
                recalibrate=self.recalibrate,
                calibration=group.loader("train", self.examples, self.batch_size),
                interpolation=cast("Interpolation", self.interpolation),
                example_inputs=group.example,
                seed=self.seed,
            ),
        )
        settings = {**group.facts(self.split), "command": self.line, "seed": self.seed}
        present(replace(found, settings=settings, notes=(*group.notes, *found.notes)), self.out, self.as_json, say)
