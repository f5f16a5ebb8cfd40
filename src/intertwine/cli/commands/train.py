"""``intertwine train``: one network on one data set."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from .._command import running
from .._options import DeviceOptions, TrainingOptions, advanced, option
from .._outputs import claim_file, print_json, print_table, say
from . import inputs, iw, torch


class Train(DeviceOptions, TrainingOptions):
    """Train a network and keep the weights of its best validation epoch.

    The default is the recipe of the first paper. A run that is interrupted goes on when the same command is given
    again. It has the same bits on any number of cores, since it takes one thread, or as many as 'intertwine --threads N
    train' says, which is faster for large networks.

    Example:
      intertwine train --model resnet20 --data cifar10:PATH --seed 0 --out a.safetensors
      intertwine train --model digits_cnn --epochs 5 --out small.safetensors
    """

    python = 'iw.lab.training.train("resnet20", "cifar10", seed=0, out="a.safetensors")'
    suffixes = (".safetensors",)

    model: str = option("What to train; see 'intertwine compare --help'.", ..., metavar="MODEL")
    out: Path = option("Checkpoint to write, ending in .safetensors; a card is written beside it.", ..., metavar="FILE")
    precision: str | None = advanced(
        "float32, or bfloat16 for mixed precision, which is fast where the hardware has it."
    )

    def __call__(self) -> None:
        training = iw.lab.training
        where, card_path = training.choose_device(self.device), training.card_path(self.out)
        claim_file(self.out, beside=[card_path])
        splits = training_data(self)
        settings = recipe_of(self, splits.shape, self.precision)
        known = inputs.is_builtin(self.model)  # then training fits it to the data
        network, name = (self.model, None) if known else (seeded(self.model, self.seed), self.model)
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


def training_data(asked: TrainingOptions) -> iw.lab.data.DataSplits:
    """The data that was asked for, or digits, with classes."""
    splits = inputs.read_data(replace(asked, data=asked.data or "digits"))[1]
    splits.need_labels("to train on", classes=2)
    return splits


def recipe_of(asked: TrainingOptions, shape: tuple[int, ...], precision: str | None = None) -> iw.lab.training.Recipe:
    """The recipe of a name, or of the size of the inputs, with those settings changed that were given."""
    training = iw.lab.training
    start = training.recipe_for(shape) if asked.recipe is None else training.RECIPES[asked.recipe]
    changes = {key: getattr(asked, key) for key in ("epochs", "batch_size", "learning_rate")}
    changes |= {"precision": precision, "threads": running().threads}
    return start.but(**{key: value for key, value in changes.items() if value is not None})


def seeded(spec: str, seed: int) -> torch.nn.Module:
    """A model whose fresh weights are those of a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return inputs.build_model(spec)
