"""``intertwine train``: one network on one data set."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ..._options import DataOptions, Device, Json, Seed, advanced


@dataclass(frozen=True)
class TrainOptions(DataOptions):
    """Train a network and keep the weights of its best validation epoch.

    The default is the recipe of the first paper. A run that is interrupted goes on when the same command is given
    again. It has the same bits on any number of cores, since it takes one thread, or as many as 'intertwine --threads N
    train' says, which is faster for large networks.

    Example:
      intertwine train --model resnet20 --data cifar10:PATH --seed 0 --out a.safetensors
      intertwine train --model digits_cnn --epochs 5 --out small.safetensors
    """

    suffixes = (".safetensors",)

    model: Annotated[
        str, typer.Option("--model", metavar="MODEL", help="What to train; see 'intertwine compare --help'.")
    ]
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="FILE", help="Checkpoint to write, ending in .safetensors; a card is written beside it."
        ),
    ]
    seed: Seed = 0
    recipe: Annotated[
        str | None,
        advanced(
            help="Named settings: paper, digits, cct, or the second paper's c4gap, cnn_gap, c1gap, c1gap_long and "
            "vgg_resnet. By the size of the inputs otherwise."
        ),
    ] = None
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the training data.")] = None
    batch_size: Annotated[int | None, advanced(min=1, help="Examples of each step.")] = None
    learning_rate: Annotated[float | None, advanced(min=0, help="Initial learning rate.")] = None
    precision: Annotated[
        str | None, advanced(help="float32, or bfloat16 for mixed precision, which is fast where the hardware has it.")
    ] = None
    resume: Annotated[
        bool,
        typer.Option(
            "--resume/--restart", help="Go on after an interruption, or begin anew and replace what is there."
        ),
    ] = True
    device: Device = "auto"
    as_json: Json = False
