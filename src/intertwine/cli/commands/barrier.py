"""``intertwine barrier``: loss and accuracy between networks, before and after alignment."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from .._options import DataOptions, Device, Json, Model, OutFolder, Seed, advanced


@dataclass(frozen=True)
class BarrierOptions(DataOptions):
    """Measure how much worse the networks between networks are, before and after alignment.

    The barrier is the largest excess of the loss over the straight line between the losses of both ends. With three
    networks or more it comes with an interval, which leaves out networks and not pairs. Batch norms are recalibrated on
    the training split.

    Example:
      intertwine barrier a.safetensors b.safetensors --data digits
      intertwine barrier seed*.safetensors --model resnet20 --data cifar10:PATH --points 11 --out barrier
    """

    methods = ("none",)

    def check(self) -> None:
        """Refuse what cannot be right, before torch is imported.

        Raises:
            ValueError: If there are fewer than two checkpoints.
        """
        super().check()
        if len(self.checkpoints) < 2:
            raise ValueError(f"at least two checkpoints must be given. Got {len(self.checkpoints)}.")

    checkpoints: Annotated[
        list[Path],
        typer.Argument(
            metavar="A B [C ...]", help="Checkpoints of one architecture; more than two: every pair of them."
        ),
    ]
    model: Model = None
    method: Annotated[
        str, typer.Option(help="How to align, see 'intertwine align --help'; none for the direct path only.")
    ] = "weights"
    points: Annotated[int, typer.Option(min=3, help="Points of each path, the ends included.")] = 25
    recalibrate: Annotated[
        bool, advanced("--recalibrate/--no-recalibrate", help="Also with batch norms measured anew at every point.")
    ] = True
    interpolation: Annotated[str, advanced(help="linear or spherical.")] = "linear"
    split: Annotated[str, typer.Option(help="Split to score on: train, validation, test or all.")] = "test"
    examples: Annotated[int, typer.Option(min=4, help="Use so many examples of each split at most.")] = 5000
    batch_size: Annotated[int, advanced(min=2, help="Examples that run at once.")] = 250
    seed: Seed = 0
    device: Device = "auto"
    out: OutFolder = Path("barrier")
    as_json: Json = False
