"""``intertwine zoo``: many networks that differ in their seeds."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from ..._options import TrainingOptions, advanced, argument, option


class ZooAction(StrEnum):
    """What to do."""

    TRAIN = "train"
    SHOW = "show"


@dataclass(frozen=True)
class ZooOptions(TrainingOptions):
    """Train many seeds of one network at once, or show a zoo.

    Each network is, up to rounding, the one that 'intertwine train' makes of its seed. The kind of network decides how
    they are trained together, stacked, side by side or each by itself, and each takes one thread unless --threads says
    more, so that the bits are the same on any number of cores. What is there already is kept, and after an interruption
    the same command goes on.

    Example:
      intertwine zoo train --model digits_cnn --count 8 --out zoo
      intertwine zoo train --model myrtle_cnn --count 100 --data cifar10:PATH --out myrtles
      intertwine zoo show --out zoo
    """

    action: ZooAction = argument(..., "train, or show what is there.")
    out: Path = option(Path("zoo"), "Folder of the zoo.", metavar="DIR")
    model: str | None = option(None, "Built-in network; see 'intertwine models'.", metavar="MODEL")
    count: int = option(10, "Number of networks.", min=1)
    seed: int = option(0, "Seed of the first network; the others count up.", min=0)
    together: int = advanced(16, "Networks that are trained at once.", min=1)
    engine: str = advanced("auto", "auto (by the kind of network), 'in turn', stacked, grouped or 'grouped by 2'.")
    device: str = "auto"
    as_json: bool = False
