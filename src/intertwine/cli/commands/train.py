"""``intertwine train`` and ``zoo``: one network on one data set, and many that differ in their seeds only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Literal

import typer

from ..._words import counted
from .._command import FAILED, running
from .._options import DeviceOptions, TrainingOptions, advanced, argument, option
from .._outputs import claim_file, claim_folder, print_json, print_table, say, tell
from . import inputs, iw, torch


class Train(DeviceOptions, TrainingOptions):
    """Train a network and keep the weights of its best validation epoch.

    The default is the recipe of the first paper. An interrupted run resumes when the same command is given again. The
    bits are the same on any number of cores, since training takes one thread unless 'intertwine --threads N train' says
    more, which is faster for large networks.

    Example:
      intertwine train --model resnet20 --data cifar10:PATH --seed 0 --out a.safetensors
      intertwine train --model digits_cnn --epochs 5 --out small.safetensors
    """

    python = 'iw.lab.training.train("resnet20", "cifar10", seed=0, out="a.safetensors")'
    suffixes = (".safetensors",)

    model: str = option("What to train; see 'intertwine compare --help'.", ..., metavar="MODEL")
    out: Path = option("Checkpoint to write, ending in .safetensors; a card is written beside it.", ..., metavar="FILE")
    precision: str | None = advanced(
        "float32, or bfloat16 for mixed precision, which is fast if the hardware supports it."
    )

    def __call__(self) -> None:
        training = iw.lab.training
        where, card_path = training.choose_device(self.device), training.card_path(self.out)
        claim_file(self.out, beside=[card_path])
        splits = training_data(self)
        settings = recipe_of(self, splits.shape, self.precision)
        known = inputs.is_builtin(self.model)  # then training fits it to the data
        network, name = (self.model, None) if known else (build_seeded(self.model, self.seed), self.model)
        run = training.train(
            network, splits, settings, seed=self.seed, name=name, out=self.out, resume=self.resume, device=where
        )
        card = run.card
        if self.as_json:
            return print_json({"checkpoint": self.out, "card": card.model_dump(mode="json"), "history": run.history})
        metrics = {key.replace("_", " "): value for key, value in card.metrics.items() if value is not None}
        row = {"network": card.architecture, "data": card.data, "seed": card.seed, "best epoch": card.best_epoch}
        print_table([row | metrics])
        return say(f"wrote {self.out} and {card_path}")


class Zoo(TrainingOptions):
    """Train many seeds of one network at once, or show a zoo.

    Each network equals, up to rounding, the one that 'intertwine train' makes from its seed. Whether they are trained
    side by side or one by one depends on the network. Training takes one thread unless --threads says more, so that the
    bits are the same on any number of cores. Networks that exist already are kept, and the same command resumes after
    an interruption.

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
    seed: int = option("Seed of the first network; the others count up from it.", 0, min=0)
    together: int = advanced("Networks trained at once.", 16, min=1)
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
            self._show(made.diverged)
        elif self.as_json:
            print_json({"folder": self.out, "architecture": self.model, "members": [], "diverged": made.diverged})
        if made.diverged:
            tell(f"diverged, and not written: seeds {', '.join(map(str, made.diverged))}. Lower --learning-rate.")
            raise typer.Exit(FAILED)
        return None

    def _show(self, diverged: Sequence[int] = ()) -> None:
        members = iw.lab.zoo.read_zoo(self.out)
        card = members[0].card
        if self.as_json:
            listed = [{"path": m.path, "card": m.card.model_dump(mode="json")} for m in members]
            shown = {"folder": self.out, "architecture": card.architecture, "members": listed}
            return print_json(shown | ({"diverged": diverged} if self.action == "train" else {}))
        rows = [
            {"network": m.name, "seed": m.card.seed, "best epoch": m.card.best_epoch,
             **{f"{split} accuracy": m.card.metrics.get(f"{split}_accuracy") for split in ("validation", "test")}}
            for m in members
        ]  # fmt: skip
        print_table(rows, f"{counted(len(members), 'network')} {card.architecture} on {card.data}")
        reached = [m.card.metrics.get("test_accuracy") or 0.0 for m in members]
        return say(f"test accuracy {fmean(reached):.3f} on average, from {min(reached):.3f} to {max(reached):.3f}")


def training_data(asked: TrainingOptions) -> iw.lab.data.DataSplits:
    """The labelled data that was asked for, or digits by default."""
    splits = inputs.read_data(replace(asked, data=asked.data or "digits"))[1]
    splits.need_labels("to train on", classes=2)
    return splits.first(asked.train_examples)


def recipe_of(asked: TrainingOptions, shape: tuple[int, ...], precision: str | None = None) -> iw.lab.training.Recipe:
    """The recipe by name or by the size of the inputs, with the settings that were given changed."""
    training = iw.lab.training
    start = training.recipe_for(shape) if asked.recipe is None else training.RECIPES[asked.recipe]
    changes = {key: getattr(asked, key) for key in ("epochs", "batch_size", "learning_rate")}
    changes |= {"precision": precision, "threads": running().threads}
    return start.but(**{key: value for key, value in changes.items() if value is not None})


def build_seeded(spec: str, seed: int) -> torch.nn.Module:
    """A model with fresh weights drawn from a seed; a factory of one's own may draw from torch, NumPy or Python."""
    from ..._random import seeded

    with seeded(seed):
        return inputs.build_model(spec)
