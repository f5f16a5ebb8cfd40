"""``intertwine train``: one network on one data set."""

from dataclasses import dataclass
from pathlib import Path

from ..._options import TrainingOptions, advanced, option


@dataclass(frozen=True)
class TrainOptions(TrainingOptions):
    """Train a network and keep the weights of its best validation epoch.

    The default is the recipe of the first paper. A run that is interrupted goes on when the same command is given
    again. It has the same bits on any number of cores, since it takes one thread, or as many as 'intertwine --threads N
    train' says, which is faster for large networks.

    Example:
      intertwine train --model resnet20 --data cifar10:PATH --seed 0 --out a.safetensors
      intertwine train --model digits_cnn --epochs 5 --out small.safetensors
    """

    suffixes = (".safetensors",)

    model: str = option(..., "What to train; see 'intertwine compare --help'.", metavar="MODEL")
    out: Path = option(..., "Checkpoint to write, ending in .safetensors; a card is written beside it.", metavar="FILE")
    seed: int = 0
    precision: str | None = advanced(
        None, "float32, or bfloat16 for mixed precision, which is fast where the hardware has it."
    )
    device: str = "auto"
    as_json: bool = False
