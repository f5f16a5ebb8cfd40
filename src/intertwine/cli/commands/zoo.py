"""``intertwine zoo``: many networks that differ in their seeds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import typer

from ..._words import counted
from .._command import FAILED
from .._options import TrainingOptions, advanced, argument, option
from .._outputs import claim_folder, print_json, print_table, say, tell
from . import inputs, iw
from .train import recipe_of


@dataclass(frozen=True, kw_only=True)
class Zoo(TrainingOptions):
    """Train many seeds of one network at once, or show a zoo.

    Each network is, up to rounding, the one that 'intertwine train' makes of its seed. The kind of network decides how
    they are trained together, side by side or each by itself, and each takes one thread unless --threads says
    more, so that the bits are the same on any number of cores. What is there already is kept, and after an interruption
    the same command goes on.

    Example:
      intertwine zoo train --model digits_cnn --count 8 --out zoo
      intertwine zoo train --model myrtle_cnn --count 100 --data cifar10:PATH --out myrtles
      intertwine zoo show --out zoo
    """

    python = 'iw.lab.training.train_many("digits_cnn", "digits", seeds=range(8), out="zoo")'

    action: Literal["train", "show"] = argument(..., "train, or show what is there.")
    out: Path = option(Path("zoo"), "Folder of the zoo.", metavar="DIR")
    model: str | None = option(None, "Built-in network; see 'intertwine models'.", metavar="MODEL")
    count: int = option(10, "Number of networks.", min=1)
    seed: int = option(0, "Seed of the first network; the others count up.", min=0)
    together: int = advanced(16, "Networks that are trained at once.", min=1)
    engine: str = advanced("auto", "auto (by the kind of network), 'in turn', grouped or 'grouped by 2'.")
    device: str = "auto"

    def __call__(self) -> None:
        if self.action == "show":
            _present(iw.lab.zoo.read_zoo(self.out), self.as_json)
            return
        if self.model is None or not inputs.is_builtin(self.model):
            raise ValueError(f"--model must be a built-in network. Got {self.model!r}. 'intertwine models' lists them.")
        seeds = range(self.seed, self.seed + self.count)
        claim_folder(self.out, [f"seed-{k:04d}{end}" for k in seeds for end in (".safetensors", ".json")])
        splits = inputs.read_data(replace(self, data=self.data or "digits"))[1]
        splits.need_labels("to train on")
        made = iw.lab.training.train_many(
            self.model,
            splits,
            recipe_of(self, splits.shape),
            seeds=seeds,
            out=self.out,
            engine=self.engine,
            together=self.together,
            resume=self.resume,
            device=self.device,
        )
        if made.paths:
            _present(iw.lab.zoo.read_zoo(self.out), self.as_json)
        if made.diverged:
            tell(f"diverged, and not written: seeds {', '.join(map(str, made.diverged))}. Lower --learning-rate.")
            raise typer.Exit(FAILED)


def _present(zoo: iw.lab.zoo.Zoo, as_json: bool) -> None:
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
