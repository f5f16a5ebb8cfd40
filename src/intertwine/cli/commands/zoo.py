"""``intertwine zoo``: many networks that differ in their seeds."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Literal

import typer

from ..._words import counted
from .._command import FAILED
from .._options import TrainingOptions, advanced, argument, option
from .._outputs import claim_folder, print_json, print_table, say, tell
from . import inputs, iw
from .train import recipe_of, training_data


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

    action: Literal["train", "show"] = argument("train, or show what is there.", ...)
    out: Path = option("Folder of the zoo.", Path("zoo"), metavar="DIR")
    model: str | None = option("Built-in network; see 'intertwine models'.", metavar="MODEL")
    count: int = option("Number of networks.", 10, min=1)
    seed: int = option("Seed of the first network; the others count up.", 0, min=0)
    together: int = advanced("Networks that are trained at once.", 16, min=1)
    device: str = "auto"

    def __call__(self) -> None:
        if self.action == "show":
            return self._show()
        if self.model is None or not inputs.is_builtin(self.model):
            raise ValueError(f"--model must be a built-in network. Got {self.model!r}. 'intertwine models' lists them.")
        seeds = range(self.seed, self.seed + self.count)
        claim_folder(self.out, [f"seed-{k:04d}{end}" for k in seeds for end in (".safetensors", ".json")])
        splits = training_data(self)
        how = {key: getattr(self, key) for key in ("out", "together", "resume", "device")}
        made = iw.lab.training.train_many(self.model, splits, recipe_of(self, splits.shape), seeds=seeds, **how)
        if made.paths:
            self._show()
        if made.diverged:
            tell(f"diverged, and not written: seeds {', '.join(map(str, made.diverged))}. Lower --learning-rate.")
            raise typer.Exit(FAILED)
        return None

    def _show(self) -> None:
        members = iw.lab.zoo.read_zoo(self.out)
        card = members[0].card
        if self.as_json:
            listed = [{"path": m.path, "card": m.card.model_dump(mode="json")} for m in members]
            return print_json({"folder": self.out, "architecture": card.architecture, "members": listed})
        rows = [
            {"network": m.name, "seed": m.card.seed, "best epoch": m.card.best_epoch,
             **{f"{split} accuracy": m.card.metrics.get(f"{split}_accuracy") for split in ("validation", "test")}}
            for m in members
        ]  # fmt: skip
        print_table(rows, f"{counted(len(members), 'network')} {card.architecture} on {card.data}")
        reached = [m.card.metrics.get("test_accuracy") or 0.0 for m in members]
        return say(f"test accuracy {fmean(reached):.3f} on average, from {min(reached):.3f} to {max(reached):.3f}")
