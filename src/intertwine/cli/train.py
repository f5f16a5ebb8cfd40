"""``intertwine train``: one network on one data set."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ._options import Device, Json, Seed
from ._show import say

if TYPE_CHECKING:
    from torch import nn

    from ..lab.training import Card, Recipe

__all__ = ["recipe_of", "train"]


def train(
    model: Annotated[
        str, typer.Option("--model", metavar="MODEL", help="What to train; see 'intertwine compare --help'.")
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="FILE", help="Checkpoint to write, ending in .safetensors; a card is written beside it."
        ),
    ],
    data: Annotated[
        str, typer.Option("--data", metavar="DATA", help="Data; see 'intertwine compare --help'.")
    ] = "digits",
    seed: Seed = 0,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="Named settings: paper, digits, cct, or the second paper's c4gap, cnn_gap, c1gap, c1gap_long and "
            "vgg_resnet. By the size of the inputs otherwise."
        ),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training data.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Examples of each step.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Initial learning rate.")] = None,
    precision: Annotated[
        str | None,
        typer.Option(help="float32, or bfloat16 for mixed precision, which is fast where the hardware has it."),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume/--restart", help="Go on after an interruption, or begin anew and replace what is there."
        ),
    ] = True,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Train a network and keep the weights of its best validation epoch.

    The default is the recipe of the first paper. A run that is interrupted goes on when the same command is given
    again. It has the same bits on any number of cores, since it takes one thread, or as many as 'intertwine --threads N
    train' says, which is faster for large networks.

    Example:
      intertwine train --model resnet20 --data cifar10:PATH --seed 0 --out a.safetensors
      intertwine train --model digits_cnn --epochs 5 --out small.safetensors
    """
    from ..lab import data as lab_data
    from ..lab import training
    from ._outputs import claim_file
    from ._running import running
    from ._show import print_json, print_table

    where = training.choose_device(device)
    claim_file(out, beside=[training.card_path(out)])
    splits = lab_data.load(data)
    settings = recipe_of(
        recipe,
        splits.shape,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        precision=precision,
        threads=running().threads,
    )
    network = _fresh(model, seed)
    name = None if isinstance(network, str) else model
    run = training.train(network, splits, settings, seed=seed, name=name, out=out, resume=resume, device=where)
    metrics = {key.replace("_", " "): value for key, value in run.card.metrics.items() if value is not None}
    if as_json:
        print_json({"checkpoint": out, "card": run.card.model_dump(mode="json"), "history": run.history})
        return
    print_table(["network", "data", "seed", "best epoch", *metrics], [_row(run.card, metrics)])
    say(f"wrote {out} and {training.card_path(out)}")


def recipe_of(name: str | None, shape: tuple[int, ...], **changes: Any) -> Recipe:
    """The recipe of a name, or of the size of the inputs, with those settings changed that are not ``None``.

    Raises:
        ValueError: If there is no such name.
    """
    from ..lab.training import RECIPES, recipe_for

    if name is not None and name not in RECIPES:
        raise ValueError(f"recipe must be one of {', '.join(RECIPES)}. Got {name!r}.")
    start = recipe_for(shape) if name is None else RECIPES[name]
    return start.but(**{key: value for key, value in changes.items() if value is not None})


def _fresh(spec: str, seed: int) -> nn.Module | str:
    """A built-in network stays text, which training fits to the data; anything else is built here from the seed."""
    from ._models import build_model, is_builtin

    if is_builtin(spec):
        return spec
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build_model(spec)


def _row(card: Card, metrics: dict[str, Any]) -> list[Any]:
    return [card.architecture, card.data, card.seed, card.best_epoch, *metrics.values()]
