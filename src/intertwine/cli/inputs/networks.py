"""Checkpoints on the command line: the model of each, its data, and a check that it runs on them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from ..._io import read_tensors
from ..._io.lazy import GGUF, LazyState, StoredState
from ..._nested import map_tensors, tensors_in
from ..._random import seeded
from ..._untrusted.checkpoints import HF, SETTINGS, check_checkpoint, not_finite, unnamed
from ...errors import CheckpointError, DataError
from ...lab import networks
from ...lab.networks.hugging_face import as_loaded, load_pretrained
from ...lab.training import build_with, check_card, choose_device, load_weights, plain_names, read_card
from ...symmetry import Symmetry, symmetries
from .._command import one_thread
from .._options import DataOptions, ExampleOptions, NetworkOptions
from .._outputs import tell
from .data import batches, data_facts, directory_of, example_input, image_statistics, in_kind_of, read_data, settings_of
from .models import GATED, Checkpoint, Opened, Statistics, build_model, gated_version, is_builtin

if TYPE_CHECKING:
    from ...lab.data import Batches, DataSplits

Use = Literal["if given", "of card", "always"]

_TOWERS = ("text_model", "vision_model")
_FEW = 4  # examples


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint: safetensors, an index, GGUF, a torch file of tensors, a transformers or peft directory."""
    check_checkpoint(path)
    if path.is_dir() and any((path / name).is_file() for name in SETTINGS):
        return Checkpoint(path, None, None)
    if path.is_dir() or path.name.endswith(".index.json"):
        return Checkpoint(path, StoredState(path).tensors(), None)
    if path.suffix == GGUF:
        return Checkpoint(path, StoredState(path), None)
    tensors = read_tensors(path)
    card = read_card(path)
    check_card(path, card)
    return Checkpoint(path, tensors, card)


def open_network(
    checkpoint: Checkpoint, spec: str | None, data: DataSplits, asked: DataOptions | None = None
) -> Opened:
    """Build the model of a checkpoint and load its weights, which must fit and be finite.

    Args:
        checkpoint: What ``read_checkpoint`` read.
        spec: The model; ``None`` for the one that the card or the directory names.
        data: Determines how many classes and channels a built-in network gets.
        asked: Options; ``--mean`` and ``--std`` take precedence over the card or directory.
    """
    card, path = checkpoint.card, checkpoint.path
    spec = f"{HF}{path}" if checkpoint.tensors is None else spec or model_named_by(path)
    model = _fitted(spec, checkpoint, data)
    check_finite(model, path)
    facts = {**_facts(path, spec, model), "parameters": f"{sum(p.numel() for p in model.parameters()):,}"}
    if card is not None:
        facts |= {"trained on": card.data, "seed": card.seed}
        known = {k: v for k, v in card.metrics.items() if k.endswith("accuracy") and v is not None}
        facts |= {key.replace("_", " "): f"{value:.1%}" for key, value in known.items()}
        if card.best_epoch is not None:
            facts["epoch"] = f"{card.best_epoch} of {card.recipe.get('epochs', '?')}"
    given = asked is not None and asked.statistics is not None  # the data has them already
    statistics = (data.mean, data.std) if given else statistics_of(checkpoint, spec, model)
    return Opened(path.name, model.eval(), {k: v for k, v in facts.items() if v not in (None, "")}, statistics)


def tower(network: Opened, data: DataSplits) -> Opened:
    """The part of an image-text network, such as CLIP, that reads this data; any other network unchanged."""
    part = getattr(network.model, _TOWERS[len(data.shape) == 3], None)
    if not all(hasattr(getattr(network.model, "config", None), f"{kind}_config") for kind in ("text", "vision")):
        return network
    if not isinstance(part, nn.Module):
        return network
    name = f"{network.facts['class']}.{_TOWERS[len(data.shape) == 3]}"
    tell(f"{network.name} has a part for images and one for texts: {name} reads this data.")
    return replace(network, model=part, facts={**network.facts, "class": name})


def statistics_of(checkpoint: Checkpoint, spec: str, model: nn.Module) -> Statistics | None:
    """Channel means and deviations of inputs, from the card or from the model's own preprocessing."""
    said: Any = checkpoint.card
    if said is None or not (said.mean and said.std):
        folder = directory_of(checkpoint.path, spec)
        if folder is not None:
            return image_statistics(folder)
        said = settings_of(model)
    return (said.mean, said.std) if said is not None and said.mean and said.std else None


def open_alone(spec: str, checkpoint: Checkpoint) -> nn.Module:
    """The model with a checkpoint's weights, built as named: no data determines the number of classes."""
    if checkpoint.tensors is None:
        return load_pretrained(checkpoint.path)
    if spec.startswith(HF):
        return load_pretrained(Path(spec.removeprefix(HF)), plain_names(checkpoint.tensors), checkpoint.path)
    if is_builtin(spec):
        return build_with(spec, checkpoint.tensors, repr(str(checkpoint.path))).eval()
    model = build_model(spec)
    load_weights(model, checkpoint.tensors, repr(str(checkpoint.path)), spec)
    return model.eval()


def check_run(network: Opened, loader: Batches, data: DataSplits, device: Any = "cpu") -> None:
    """Run a network on two examples, so that a wrong image size is reported clearly and before long work."""
    said = f"data must be inputs that {network.name} accepts. Got inputs of shape {data.shape} from {data.name}"
    check_takes(network.model.to(device), loader.batch(slice(0, 2)), device, said)


def check_takes(model: nn.Module, batch: Any, device: Any, said: str) -> None:
    """Refuse inputs that a model fails on; the message begins with ``said``, the rule and what was given."""
    from ...features.batches import call

    try:
        with torch.no_grad():
            call(model, batch, device)
    except Exception as error:  # whatever a model raises on inputs that it was not made for
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        rows = next((m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)), None)
        highest = max((int(x.max()) for x in tensors_in(batch) if not x.is_floating_point() and x.numel()), default=0)
        if isinstance(error, IndexError) and rows is not None and highest >= rows:
            raise DataError(
                f"{said}, with tokens up to {highest}: its vocabulary has {rows}. Give texts in its own tokens, see "
                "--tokenizer."
            ) from error
        raise DataError(
            f"{said}, on which it fails ({type(error).__name__}: {reason}). Use data of the kind and size that it was "
            "trained on; --size changes the size of images."
        ) from error


def check_finite(model: nn.Module, path: Path) -> None:
    """Refuse weights that hold NaN or infinity."""
    # parameters only: a buffer, such as an attention mask, may well hold infinities
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            raise not_finite(name, path)


def model_named_by(path: Path, *others: Path) -> str:
    """The model that a checkpoint, or else the next one, names: by its directory or by the card of its weights."""
    if others:
        with suppress(CheckpointError):
            return model_named_by(path)
        return model_named_by(*others)
    if any((path / name).is_file() for name in SETTINGS):
        return f"{HF}{path}"
    if path.is_dir():
        raise CheckpointError(
            f"--model must be given where no config.json says which. Got none for {str(path)!r}. Say --model "
            "hf:DIRECTORY, or --model package.module:factory."
        )
    card = None if path.name.endswith(".index.json") else read_card(path)
    if card is None and (path.parent / "config.json").is_file():
        return f"{HF}{path.parent}"
    if card is None:
        raise unnamed(path)
    if card.architecture.startswith(GATED):
        raise CheckpointError(
            "--model must be given for a gated version of a model that is not built in: the network that it was "
            f"built from. Got none for {str(path)!r}. Say --model package.module:factory."
        )
    if not is_builtin(card.architecture):
        named = ":" in card.architecture and " " not in card.architecture  # not a pruned one
        said = card.architecture if named else "package.module:factory"
        # a card is data: it must not make us import code
        raise CheckpointError(
            f"--model must be given for a model that is not built in. Got {card.architecture!r} from the card of "
            f"{str(path)!r}. Say --model {said}."
        )
    return card.architecture


def model_of(asked: NetworkOptions) -> str:
    """The model of ``--model``, or else the one that the argument names, directly or as a checkpoint."""
    named = asked.network or ""
    path = Path(named.removeprefix(HF))
    return asked.model or (model_named_by(path) if path.exists() else named)


def _fitted(spec: str, checkpoint: Checkpoint, data: DataSplits) -> nn.Module:
    """The model with a checkpoint's weights; a built-in model is fitted to the data, or else built as written."""
    card, tensors = checkpoint.card, checkpoint.tensors
    if card is not None and tensors is not None and card.architecture.startswith(GATED):
        x = data.loader("test", 1).batch(slice(0, 1))[0]
        gated = gated_version(card.architecture.removeprefix(GATED), build_model(spec), x, card.seed or 0)
        load_weights(gated, tensors, repr(str(checkpoint.path)), "its gated version")
        return gated
    if not is_builtin(spec):
        return open_alone(spec, checkpoint)
    classes = len(data.classes) or len(card.classes if card else ())
    try:
        return open_alone(networks.fit_to(spec, data.shape, classes or None), checkpoint)
    except CheckpointError:
        with suppress(CheckpointError):
            return open_alone(spec, checkpoint)
        raise


def symmetry_of(spec: str, asked: ExampleOptions) -> Symmetry:
    """The symmetry of a model that is built here, without weights if its code allows, and then discarded."""
    with suppress(ValueError):
        return model_and_symmetry(spec, asked, meta=True)[1]
    return model_and_symmetry(spec, asked, meta=False)[1]  # rotary positions of transformers 4, or the error


def model_and_symmetry(spec: str, asked: ExampleOptions, meta: bool) -> tuple[nn.Module, Symmetry]:
    """A model built here, and its symmetry, which refers to the model weakly: proofs and drawings need both."""
    with seeded(0), torch.device("meta" if meta else "cpu"):  # proofs are run with these weights
        network = build_model(spec).eval()
    grouped: Any = getattr(network, "set_experts_implementation", None)
    if meta and grouped is not None:
        grouped("batched_mm")  # the default of transformers does not run without weights
    one_thread(weights=sum(p.numel() for p in network.parameters()))
    return network, symmetries(network, in_kind_of(network, example_input(spec, asked, meta)))


def stored(asked: ExampleOptions) -> tuple[LazyState, LazyState, Symmetry]:
    """Checkpoints A and B, read tensor by tensor on demand, and the symmetry of the model that one of them names."""
    a, b = asked.reads
    spec = asked.model or model_named_by(a, b)
    return stored_state(a, spec), stored_state(b, spec), symmetry_of(spec, asked)


def stored_state(path: Path, spec: str) -> LazyState:
    """A checkpoint read tensor by tensor on demand, under the names of the model."""
    state = StoredState(path)
    if not spec.startswith(HF):
        return state
    with torch.device("meta"):
        return as_loaded(build_model(spec), state)


@dataclass(frozen=True)
class Group:
    """Networks that were opened together."""

    checkpoints: tuple[Checkpoint, ...]  # Where they are from
    networks: tuple[Opened, ...]  # Ready to run
    example: Any  # An input for all of them
    data: DataSplits | None  # The requested data, or what a card names
    data_spec: str  # The name under which the data was given
    notes: tuple[str, ...] = ()  # Notes for the reader on how inputs are normalised

    @property
    def models(self) -> list[nn.Module]:
        """The modules."""
        return [network.model for network in self.networks]

    @property
    def names(self) -> list[str]:
        """Short names, made distinct if files share a name."""
        plain = [network.name for network in self.networks]
        if len(set(plain)) == len(plain):
            return plain
        full = [str(checkpoint.path) for checkpoint in self.checkpoints]
        return full if len(set(full)) == len(full) else [f"{name} ({k + 1})" for k, name in enumerate(full)]

    def loader(self, split: str, examples: int, batch_size: int) -> Batches:
        """Batches of a split, normalised as in the networks' training; there must be data."""
        return batches(self.need_data(), split, examples, batch_size, self.networks)[0]

    def facts(self, split: str) -> dict[str, Any]:
        """Facts about the networks and their data for a report."""
        networks = [network.facts for network in self.networks]
        return {"networks": networks, "data": data_facts(self.data_spec, split, self.need_data())}

    def need_data(self) -> DataSplits:
        """The data, which must be there."""
        if self.data is None:
            raise DataError("--data must be given for this. Got none. Say --data digits, images:FOLDER or text:FILE.")
        return self.data

    def card(self, recipe: dict[str, Any], metrics: dict[str, float | None] | None = None) -> dict[str, Any]:
        """The card of a network made from these: the first network's card with another recipe."""
        first = self.checkpoints[0].card
        known: dict[str, Any] = {"architecture": self.networks[0].facts["model"]}
        if first is not None:
            known = {key: getattr(first, key) for key in ("architecture", "data", "mean", "std", "classes", "shape")}
        if self.data is not None and not known.get("data"):
            known["data"] = self.data.name
        if (statistics := self.networks[0].statistics) is not None:  # also those of --mean and --std
            known["mean"], known["std"] = statistics
        return {**known, "recipe": recipe, "metrics": metrics or {}}


def open_group(paths: Sequence[Path], asked: DataOptions, use: Use, specs: Sequence[str | None] | None = None) -> Group:
    """Read checkpoints, determine their models and data, and build them.

    Args:
        paths: Files or Hugging Face directories.
        asked: Options such as ``--data``, ``--input-shape`` and ``--device``.
        use: Without ``--data``: do without data, use what a card names if any, or insist on data.
        specs: The model of each; by default, from ``--model`` and ``--model-b``.
    """
    where = choose_device(getattr(asked, "device", "cpu"))
    if specs is None:
        specs = [asked.model, *[getattr(asked, "model_b", None) or asked.model] * (len(paths) - 1)]
    checkpoints = tuple(read_checkpoint(path) for path in paths)
    named = asked.data or (use == "of card" and any(c.card and c.card.data for c in checkpoints))
    if not named and use != "always":
        named_by = [spec or model_named_by(path, *paths) for path, spec in zip(paths, specs)]
        networks = tuple(_without_data(c, spec) for c, spec in zip(checkpoints, named_by))
        assert isinstance(asked, ExampleOptions)  # commands without an example's options insist on data
        spec = specs[0]
        if spec is None and (asked.input_shape is None or checkpoints[0].tensors is None):
            spec = named_by[0]
        models = [network.model for network in networks]
        example = in_kind_of(models[0], example_input(spec or "", asked), models)
        one_thread(weights=sum(p.numel() for network in networks for p in network.model.parameters()))
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


def _without_data(checkpoint: Checkpoint, spec: str) -> Opened:
    path = checkpoint.path
    model = open_alone(spec, checkpoint)
    check_finite(model, path)
    return Opened(path.name, model, _facts(path, spec, model))


def _facts(path: Path, spec: str, model: nn.Module) -> dict[str, Any]:
    return {"name": path.name, "file": str(path), "model": spec, "class": type(model).__name__}
