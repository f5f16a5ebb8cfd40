"""``intertwine zoo``: many networks that differ in their seeds."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ..._options import DataOptions, Device, Json, advanced


class ZooAction(StrEnum):
    """What to do."""

    TRAIN = "train"
    SHOW = "show"


@dataclass(frozen=True)
class ZooOptions(DataOptions):
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

    action: Annotated[ZooAction, typer.Argument(help="train, or show what is there.")]
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the zoo.")] = Path("zoo")
    model: Annotated[
        str | None, typer.Option("--model", metavar="MODEL", help="Built-in network; see 'intertwine models'.")
    ] = None
    count: Annotated[int, typer.Option(min=1, help="Number of networks.")] = 10
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first network; the others count up.")] = 0
    recipe: Annotated[str | None, advanced(help="Named settings: paper, digits or cct.")] = None
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the training data.")] = None
    batch_size: Annotated[int | None, advanced(min=1, help="Examples of each step.")] = None
    learning_rate: Annotated[float | None, advanced(min=0, help="Initial learning rate.")] = None
    together: Annotated[int, advanced(min=1, help="Networks that are trained at once.")] = 16
    engine: Annotated[
        str,
        advanced(help="auto (by the kind of network), 'in turn', stacked, grouped, 'grouped by 4' or 'grouped by 2'."),
    ] = "auto"
    resume: Annotated[
        bool, typer.Option("--resume/--restart", help="Keep what is there, or train it anew and replace it.")
    ] = True
    device: Device = "auto"
    as_json: Json = False
