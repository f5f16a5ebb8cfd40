"""``intertwine zoo``: many networks that differ in their seeds."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .._words import counted
from ._command import FAILED
from ._options import Device, Json
from ._show import say

if TYPE_CHECKING:
    from ..lab.zoo import Zoo

__all__ = ["zoo"]


class Action(StrEnum):
    """What to do."""

    TRAIN = "train"
    SHOW = "show"


def zoo(
    action: Annotated[Action, typer.Argument(help="train, or show what is there.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the zoo.")] = Path("zoo"),
    model: Annotated[
        str | None, typer.Option("--model", metavar="MODEL", help="Built-in network; see 'intertwine models'.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Number of networks.")] = 10,
    data: Annotated[
        str, typer.Option("--data", metavar="DATA", help="Data; see 'intertwine compare --help'.")
    ] = "digits",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first network; the others count up.")] = 0,
    recipe: Annotated[str | None, typer.Option(help="Named settings: paper, digits or cct.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training data.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Examples of each step.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Initial learning rate.")] = None,
    together: Annotated[int, typer.Option(min=1, help="Networks that are trained at once.")] = 16,
    engine: Annotated[
        str,
        typer.Option(
            help="auto (by the kind of network), measured (fastest here), 'in turn', stacked, grouped, 'grouped by 4' "
            "or 'grouped by 2'."
        ),
    ] = "auto",
    resume: Annotated[
        bool, typer.Option("--resume/--restart", help="Keep what is there, or train it anew and replace it.")
    ] = True,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Train many seeds of one network at once, or show a zoo.

    Each network is, up to rounding, the one that 'intertwine train' makes of its seed. The kind of network decides how
    they are trained together, stacked, side by side or each by itself, and each takes one thread unless --threads says
    more, so that the bits are the same on any number of cores. What is there already is kept, and after an interruption
    the same command goes on.

    Example:
      intertwine zoo train --model digits_cnn --count 8 --out zoo
      intertwine zoo train --model myrtle_cnn --count 100 --data cifar10:PATH --out myrtles
      intertwine zoo show --out zoo
    """  # noqa: DOC501
    from ..lab.zoo import read_zoo
    from ._show import tell

    if action is Action.SHOW:
        _present(read_zoo(out), as_json)
        return
    from ..lab.data import load
    from ..lab.training import train_many
    from ._models import is_builtin
    from ._outputs import claim_folder
    from ._running import running
    from .train import recipe_of

    if model is None or not is_builtin(model):
        raise ValueError(f"--model must be a built-in network. Got {model!r}. 'intertwine models' lists them.")
    claim_folder(out, [f"seed-{k:04d}{end}" for k in range(seed, seed + count) for end in (".safetensors", ".json")])
    splits = load(data)
    made = train_many(
        model,
        splits,
        recipe_of(
            recipe,
            splits.shape,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            threads=running().threads,
        ),
        seeds=range(seed, seed + count),
        out=out,
        engine=engine,
        together=together,
        resume=resume,
        device=device,
    )
    if made.paths:
        _present(read_zoo(out), as_json)
    if made.diverged:
        tell(f"diverged, and not written: seeds {', '.join(map(str, made.diverged))}. Lower --learning-rate.")
        raise typer.Exit(FAILED)


def _present(zoo: Zoo, as_json: bool) -> None:
    from ._show import print_json, print_table

    if as_json:
        members = [{"path": m.path, "card": m.card.model_dump(mode="json")} for m in zoo.members]
        print_json({"folder": zoo.folder, "architecture": zoo.architecture, "members": members})
        return
    rows = [
        [m.name, m.card.seed, m.card.best_epoch, m.card.metrics.get("validation_accuracy"), accuracy]
        for m, accuracy in zip(zoo.members, zoo.accuracies)
    ]
    title = f"{counted(len(zoo), 'network')} {zoo.architecture} on {zoo[0].card.data}"
    print_table(["network", "seed", "best epoch", "validation accuracy", "test accuracy"], rows, title)
    mean = sum(zoo.accuracies) / len(zoo)
    say(f"test accuracy {mean:.3f} on average, from {min(zoo.accuracies):.3f} to {max(zoo.accuracies):.3f}")
