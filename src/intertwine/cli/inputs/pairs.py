"""Networks of one architecture on the command line: opened with or without data."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import nn

from ..._nested import map_tensors
from ...errors import DataError
from ...lab.data import Batches, DataSplits
from ...lab.training import choose_device
from .._options import DataOptions, ExampleOptions
from .._running import threads_for
from .example import example_input, in_kind_of
from .networks import (
    Checkpoint,
    Opened,
    batches,
    check_finite,
    check_run,
    model_named_by,
    open_alone,
    open_network,
    read_checkpoint,
    read_data,
    tower,
)

_FEW = 4  # examples
Use = Literal["if given", "of card", "always"]


@dataclass(frozen=True)
class Group:
    """Networks that were opened together.

    Args:
        checkpoints: Where they are from.
        networks: Ready to run.
        example: An input for all of them.
        data: The data that was asked for, or that a card names; ``None`` without any.
        data_spec: What the data was called.
        notes: What a reader must know of how inputs are normalised.
    """

    checkpoints: tuple[Checkpoint, ...]
    networks: tuple[Opened, ...]
    example: Any
    data: DataSplits | None
    data_spec: str
    notes: tuple[str, ...] = ()

    @property
    def models(self) -> list[nn.Module]:
        """The modules."""
        return [network.model for network in self.networks]

    @property
    def names(self) -> list[str]:
        """Short names, made different where files have one name."""
        plain = [network.name for network in self.networks]
        if len(set(plain)) == len(plain):
            return plain
        full = [str(checkpoint.path) for checkpoint in self.checkpoints]
        return full if len(set(full)) == len(full) else [f"{name} ({k + 1})" for k, name in enumerate(full)]

    def loader(self, split: str, examples: int, batch_size: int) -> Batches:
        """Batches of a split, normalised as the networks were trained.

        Raises:
            DataError: If there is no data.
        """
        if self.data is None:
            raise DataError("--data must be given for this. Got none. Say --data digits, for example.")
        return batches(self.data, split, examples, batch_size, self.networks)[0]


def open_group(
    paths: Sequence[Path], specs: Sequence[str | None], asked: DataOptions, use: Use, device: str = "auto"
) -> Group:
    """Read checkpoints, find out their models and data, and build them.

    Args:
        paths: Files or Hugging Face directories.
        specs: The model of each, ``None`` for what card or directory says.
        asked: What ``--data``, ``--input-shape`` and their like say.
        use: Without ``--data``, whether to do without, to take what a card names if one does, or to insist on data.
        device: Where the networks shall be.
    """
    where = choose_device(device)
    checkpoints = tuple(read_checkpoint(path) for path in paths)
    named = any(c.card and c.card.data for c in checkpoints)
    if asked.data is None and (use == "if given" or (use == "of card" and not named)):
        networks = tuple(_without_data(c, spec) for c, spec in zip(checkpoints, specs))
        example = in_kind_of(networks[0].model, _example(checkpoints[0], specs[0], asked))
        threads_for(weights=sum(p.numel() for network in networks for p in network.model.parameters()))
        for network in networks:
            network.model.to(where)
        return Group(checkpoints, networks, map_tensors(example, lambda x: x.to(where)), None, "")
    data_spec, splits = read_data(asked, checkpoints, specs)
    opened = tuple(open_network(c, spec, splits, asked) for c, spec in zip(checkpoints, specs))
    if use == "always":
        opened = tuple(tower(network, splits) for network in opened)
    loader, notes = batches(splits, "test", _FEW, _FEW, opened)
    for network in opened:
        check_run(network, loader, splits, where)
    example = map_tensors(loader.batch(slice(0, 2))[0], lambda x: x.to(where))
    return Group(checkpoints, opened, example, splits, data_spec, tuple(notes))


def card_of(group: Group, recipe: dict[str, Any], metrics: dict[str, float | None]) -> dict[str, Any]:
    """The card of a network that was made from a group: the first network's, with another recipe."""
    first = group.checkpoints[0].card
    kept = ("architecture", "data", "mean", "std", "classes", "shape")
    known = {} if first is None else {key: getattr(first, key) for key in kept}
    if first is None:
        known["architecture"] = group.networks[0].facts["model"]
    if group.data is not None and not known.get("data"):
        known["data"] = group.data.name
    return {**known, "recipe": recipe, "metrics": metrics}


def _without_data(checkpoint: Checkpoint, spec: str | None) -> Opened:

    spec = spec or model_named_by(checkpoint.path)
    model = open_alone(spec, checkpoint)
    check_finite(model, checkpoint.path)
    facts = {"name": checkpoint.path.name, "file": str(checkpoint.path), "model": spec, "class": type(model).__name__}
    return Opened(checkpoint.path.name, model, facts, None)


def _example(checkpoint: Checkpoint, spec: str | None, asked: DataOptions) -> Any:
    assert isinstance(asked, ExampleOptions)  # commands without an example's options insist on data
    if spec is None and (asked.input_shape is None or checkpoint.tensors is None):
        spec = model_named_by(checkpoint.path)
    return example_input(spec or "", asked)
