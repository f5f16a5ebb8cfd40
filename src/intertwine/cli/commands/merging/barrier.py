"""``intertwine barrier``: loss and accuracy between networks, before and after alignment."""

from dataclasses import dataclass
from pathlib import Path

from ..._options import DataOptions, advanced, option


@dataclass(frozen=True)
class BarrierOptions(DataOptions):
    """Measure how much worse the networks between networks are, before and after alignment.

    The barrier is the largest excess of the loss over the straight line between the losses of both ends. With three
    networks or more every pair is measured, and the barrier comes with an interval, which leaves out networks and not
    pairs. Batch norms are recalibrated on the training split.

    Example:
      intertwine barrier a.safetensors b.safetensors --data digits
      intertwine barrier seed*.safetensors --model resnet20 --data cifar10:PATH --points 11 --out barrier
    """

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
    as_json: bool = False
