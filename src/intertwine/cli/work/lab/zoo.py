"""Work of ``intertwine zoo``."""

from dataclasses import replace

import typer

from ...._words import counted
from ....lab.training import train_many
from ....lab.zoo import Zoo, read_zoo
from ..._command import FAILED
from ...commands.lab.zoo import ZooAction, ZooOptions
from ...inputs.models import is_builtin
from ...inputs.networks import read_data
from ...outputs.files import claim_folder
from ...outputs.show import print_json, print_table, say, tell
from .train import recipe_of


def run(asked: ZooOptions) -> None:
    """Train many seeds of one network at once, or show a zoo."""
    if asked.action is ZooAction.SHOW:
        _present(read_zoo(asked.out), asked.as_json)
        return

    if asked.model is None or not is_builtin(asked.model):
        raise ValueError(f"--model must be a built-in network. Got {asked.model!r}. 'intertwine models' lists them.")
    seeds = range(asked.seed, asked.seed + asked.count)
    claim_folder(asked.out, [f"seed-{k:04d}{end}" for k in seeds for end in (".safetensors", ".json")])
    splits = read_data(replace(asked, data=asked.data or "digits"))[1]
    splits.need_labels("to train on")
    made = train_many(
        asked.model,
        splits,
        recipe_of(asked, splits.shape),
        seeds=seeds,
        out=asked.out,
        engine=asked.engine,
        together=asked.together,
        resume=asked.resume,
        device=asked.device,
    )
    if made.paths:
        _present(read_zoo(asked.out), asked.as_json)
    if made.diverged:
        tell(f"diverged, and not written: seeds {', '.join(map(str, made.diverged))}. Lower --learning-rate.")
        raise typer.Exit(FAILED)


def _present(zoo: Zoo, as_json: bool) -> None:
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
