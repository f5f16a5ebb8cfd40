"""Work of ``intertwine train``."""

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ....lab import training
from ....lab.training import RECIPES, Card, Recipe, recipe_for
from ..._options import TrainingOptions
from ..._running import running
from ...commands.lab.train import TrainOptions
from ...inputs.models import build_model, is_builtin
from ...inputs.networks import read_data
from ...outputs.files import claim_file
from ...outputs.show import print_json, print_table, say


def run(asked: TrainOptions) -> None:
    """Train a network and keep the weights of its best validation epoch."""
    where = training.choose_device(asked.device)
    claim_file(asked.out, beside=[training.card_path(asked.out)])
    splits = read_data(replace(asked, data=asked.data or "digits"))[1]
    splits.need_labels("to train on")
    settings = recipe_of(asked, splits.shape, asked.precision)
    network = _fresh(asked.model, asked.seed)
    name = None if isinstance(network, str) else asked.model
    run = training.train(
        network, splits, settings, seed=asked.seed, name=name, out=asked.out, resume=asked.resume, device=where
    )
    metrics = {key.replace("_", " "): value for key, value in run.card.metrics.items() if value is not None}
    if asked.as_json:
        print_json({"checkpoint": asked.out, "card": run.card.model_dump(mode="json"), "history": run.history})
        return
    print_table(["network", "data", "seed", "best epoch", *metrics], [_row(run.card, metrics)])
    say(f"wrote {asked.out} and {training.card_path(asked.out)}")


def recipe_of(asked: TrainingOptions, shape: tuple[int, ...], precision: str | None = None) -> Recipe:
    """The recipe of a name, or of the size of the inputs, with those settings changed that were given."""
    name = asked.recipe
    start = recipe_for(shape) if name is None else RECIPES[name]
    changes = {key: getattr(asked, key) for key in ("epochs", "batch_size", "learning_rate")}
    changes |= {"precision": precision, "threads": running().threads}
    return start.but(**{key: value for key, value in changes.items() if value is not None})


def _fresh(spec: str, seed: int) -> nn.Module | str:
    """A built-in network stays text, which training fits to the data; anything else is built here from the seed."""
    if is_builtin(spec):
        return spec

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build_model(spec)


def _row(card: Card, metrics: dict[str, Any]) -> list[Any]:
    return [card.architecture, card.data, card.seed, card.best_epoch, *metrics.values()]
