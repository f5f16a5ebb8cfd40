"""``intertwine barrier``: loss and accuracy between networks, before and after alignment."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from .._options import DataOptions, DeviceOptions, advanced, option
from . import Study, inputs, iw, solver_of


class Barrier(Study, DeviceOptions, DataOptions):
    """Measure how much worse the networks between networks are, before and after alignment.

    The barrier is the largest excess of the loss over the straight line between the losses of both ends. With three
    networks or more every pair is measured, and the barrier comes with an interval, which leaves out networks and not
    pairs. Batch norms are recalibrated on as many examples of the training split as the networks are judged by. Points
    are scored from coarse to fine: Control-C ends early, and what was scored by then is written.

    Example:
      intertwine barrier a.safetensors b.safetensors --data digits
      intertwine barrier seed*.safetensors --model resnet20 --data cifar10:PATH --points 25 --examples 10000
    """

    python = "iw.barrier(a, b, loader)"
    methods = ("none",)

    checkpoints: list[Path]
    method: str = option("How to align, see 'intertwine align --help'; none for the direct path only.", "weights")
    points: int = option("Points of each path, the ends included.", 11, min=3)
    recalibrate: bool = advanced("Also with batch norms measured anew at every point.", True)
    interpolation: str = "linear"
    split: str = "test"
    examples: int = 2000
    batch_size: int = 250
    out: Path = Path("barrier")

    def find(self) -> iw.merging.Barrier:
        solver = None if self.method == "none" else solver_of(self.method)
        group = inputs.open_group(self.checkpoints, self, "always")
        group.need_data().need_labels("to measure losses")
        interpolation: Any = self.interpolation
        options = iw.merging.PathOptions(
            recalibrate=self.recalibrate, calibration=group.loader("train", self.examples, self.batch_size),
            interpolation=interpolation, example_inputs=group.example, seed=self.seed,
        )  # fmt: skip
        loader = group.loader(self.split, self.examples, self.batch_size)
        found = iw.merging.barriers(
            group.models, loader, self.points, alignments=solver, names=group.names, progress=True, options=options
        )
        settings = {**group.facts(self.split), "command": self.line, "seed": self.seed}
        return replace(found, settings=settings, notes=(*group.notes, *found.notes))
