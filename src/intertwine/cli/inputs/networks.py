"""Checkpoints on the command line: which model they belong to, on which data, and whether they run on it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..._io import read_tensors
from ...errors import CheckpointError, DataError
from ...features import tap
from ...features.batches import call
from ...lab import data, networks
from ...lab.data import Batches, DataSplits, Preprocessing, TextBlocks
from ...lab.training import Card, build_with, check_card, load_weights, read_card
from ...symmetry import ShardedState, Symmetry, symmetries
from .._files import HF, SETTINGS, check_checkpoint
from .._options import DataOptions, ExampleOptions
from .._running import threads_for
from ..outputs.show import tell
from .example import example_input, in_kind_of
from .gated_versions import GATED, gated_version
from .hugging_face import load_pretrained
from .models import build_model, is_builtin
from .preparation import directory_of, image_statistics, normalised, preparation, settings_of

_TOWERS = ("text_model", "vision_model")
_WITH_PATHS = ("parquet", "npz", "images", "dataset", "text")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint as it lies on disk."""

    path: Path  # The file, or a Hugging Face directory
    tensors: dict[str, Tensor] | None  # Its state dict; ``None`` for a directory
    card: Card | None  # The card beside it, if there is one


@dataclass(frozen=True)
class Opened:
    """A network ready to run."""

    name: str  # Short name for people
    model: nn.Module  # In evaluation mode
    facts: dict[str, Any]  # What a report says of it
    # Channel means and standard deviations that its inputs were normalised by, where that is known
    statistics: tuple[tuple[float, ...], tuple[float, ...]] | None


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint, before anything that takes long.

    Args:
        path: Safetensors, their index, a torch file that holds tensors only, or a directory of transformers or peft.

    Raises:
        CheckpointError: If it is missing, damaged or unsafe.
    """  # noqa: DOC502 - the helpers raise
    check_checkpoint(path)
    if path.is_dir() and any((path / name).is_file() for name in SETTINGS):
        return Checkpoint(path, None, None)
    if path.is_dir() or path.name.endswith(".index.json"):
        return Checkpoint(path, ShardedState(path).tensors(), None)
    tensors = read_tensors(path)
    card = read_card(path)
    check_card(path, card)
    return Checkpoint(path, tensors, card)


def read_data(
    asked: DataOptions, checkpoints: Sequence[Checkpoint] = (), specs: Sequence[str | None] = ()
) -> tuple[str, DataSplits]:
    """Load the data that was asked for, or else what the first card names, as the networks take it.

    Args:
        asked: What ``--data`` and its like say.
        checkpoints: Whose cards and directories to ask.
        specs: The ``--model`` of each.

    Raises:
        DataError: If nothing says which data, or a card names data without saying where it lies.
    """
    if asked.data is not None:
        sources = list(zip_longest([c.path for c in checkpoints], specs))
        return asked.data, normalised(_loaded(asked.data, preparation(asked, asked.data, sources)), asked)
    named = next((c.card.data for c in checkpoints if c.card and c.card.data), None)
    if named is None:
        raise DataError(
            "--data must be given where no card lies beside the weights. Got none. Say --data digits, for example."
        )
    kind = named.partition(":")[0]
    if kind in _WITH_PATHS:
        raise DataError(
            f"--data must say where the data lies. Got only its name from the card, {named!r}. Say --data {kind}:PATH."
        )
    return named, normalised(_loaded(named), asked)


def _loaded(spec: str, prepared: Preprocessing | TextBlocks | None = None) -> DataSplits:
    splits = data.load(spec, prepared)
    for note in splits.notes:
        tell(note)
    threads_for(values=math.prod(splits.shape))
    return splits


def data_facts(spec: str, split: str, data: DataSplits) -> dict[str, Any]:
    """What a report says of the data."""
    return {
        "name": data.name,
        "given as": spec,
        "split": f"{split}, {len(data.split(split)):,} examples",  # type: ignore[arg-type]
        "shape": " x ".join(map(str, data.shape)),
        "classes": len(data.classes),
    }


def open_network(
    checkpoint: Checkpoint, spec: str | None, data: DataSplits, asked: DataOptions | None = None
) -> Opened:
    """Build the model of a checkpoint and load its weights.

    Args:
        checkpoint: What ``read_checkpoint`` read.
        spec: The model; ``None`` for what the card or the directory says.
        data: Says how many classes and channels a built-in network should have.
        asked: ``--mean`` and ``--std`` come before what card or directory says.

    Raises:
        CheckpointError: If the weights do not fit, or are not finite.
    """  # noqa: DOC502 - the helpers raise
    card, path = checkpoint.card, checkpoint.path
    if checkpoint.tensors is None:
        model, spec = load_pretrained(path), f"{HF}{path}"  # a directory names its own model
    else:
        if spec is None:
            spec = spec_of(card, path)
        classes = len(data.classes) or len(card.classes if card else ())
        model = _with_weights(_gated(card, spec, data) or spec, checkpoint.tensors, path, data, classes)
    check_finite(model, path)
    facts: dict[str, Any] = {"name": path.name, "file": str(path), "model": spec, "class": type(model).__name__}
    facts["parameters"] = f"{sum(p.numel() for p in model.parameters()):,}"
    if card is not None:
        facts |= {"trained on": card.data, "seed": card.seed}
        facts |= {
            k.replace("_", " "): f"{v:.1%}" for k, v in card.metrics.items() if k.endswith("accuracy") and v is not None
        }
        if card.best_epoch is not None:
            facts["epoch"] = f"{card.best_epoch} of {card.recipe.get('epochs', '?')}"
    statistics = asked.statistics if asked else None
    if statistics is None and card is not None and card.mean and card.std:
        statistics = card.mean, card.std
    statistics = statistics or statistics_of(path, spec, model)
    return Opened(path.name, model.eval(), {k: v for k, v in facts.items() if v not in (None, "")}, statistics)


def tower(network: Opened, data: DataSplits) -> Opened:
    """The part of a network of images and texts, such as CLIP, that reads this data; any other network as it is."""
    part = getattr(network.model, _TOWERS[len(data.shape) == 3], None)
    if not all(hasattr(getattr(network.model, "config", None), f"{kind}_config") for kind in ("text", "vision")):
        return network
    if not isinstance(part, nn.Module):
        return network
    name = f"{network.facts['class']}.{_TOWERS[len(data.shape) == 3]}"
    tell(f"{network.name} has a part for images and one for texts: {name} reads this data.")
    return replace(network, model=part, facts={**network.facts, "class": name})


def statistics_of(path: Path, spec: str, model: nn.Module) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Means and deviations that a model's own preprocessing subtracts and divides by."""
    folder = directory_of(path, spec)
    if folder is not None:
        return image_statistics(folder)
    said = settings_of(model)
    return (said.mean, said.std) if said is not None and said.mean and said.std else None


def open_alone(spec: str, checkpoint: Checkpoint) -> nn.Module:
    """The model with a checkpoint's weights, as it is named: no data says how many classes it should have.

    Args:
        spec: The model.
        checkpoint: What ``read_checkpoint`` read.
    """
    if checkpoint.tensors is None:
        return load_pretrained(checkpoint.path)
    if spec.startswith(HF):
        return load_pretrained(Path(spec.removeprefix(HF)), checkpoint.tensors, checkpoint.path)
    if is_builtin(spec):
        return build_with(spec, checkpoint.tensors, repr(str(checkpoint.path))).eval()
    model = build_model(spec)
    load_weights(model, checkpoint.tensors, repr(str(checkpoint.path)), spec)
    return model.eval()


def batches(
    data: DataSplits, split: str, examples: int, batch_size: int, networks: Sequence[Opened]
) -> tuple[Batches, list[str]]:
    """Batches of a split, normalised as the networks were trained, and what a reader must know of that."""
    loader = data.loader(split, batch_size=batch_size, examples=examples)  # type: ignore[arg-type]
    if any(getattr(getattr(n.model, "config", None), "is_encoder_decoder", False) for n in networks):
        loader = replace(loader, names=("input_ids", "decoder_input_ids"))
    if len(loader.split) < 4:
        raise DataError(
            f"data must have at least 4 examples in the {split} split. Got {len(loader.split)} of {data.name}."
        )
    notes = [*data.notes, *_fewer(data, split, examples)]
    known = {n.statistics for n in networks if n.statistics is not None and len(n.statistics[0]) == len(data.mean)}
    if len(known) == 1:
        mean, std = known.pop()
        return replace(loader, mean=mean, std=std), notes
    return loader, [*notes, *_unsaid(data, bool(known))]


def _fewer(data: DataSplits, split: str, examples: int) -> list[str]:
    """Why data of the user's own gives fewer examples than were asked for."""
    here = len(data.split(split)) if split != "all" else examples  # type: ignore[arg-type]
    all_of_them = len(data.train) + len(data.validation) + len(data.test) if data.labelled else len(data.train)
    if ":" not in data.name or here >= min(examples, all_of_them):
        return []
    return [f"{here:,} of {all_of_them:,} examples are used, all of the {split} split; --split all takes all of them."]


def _unsaid(data: DataSplits, different: bool) -> list[str]:
    """What inputs are normalised with where the networks do not say it."""
    if different:
        return ["The networks were trained with different normalisations of their inputs; this data's own is used."]
    if not data.mean:  # tokens
        return []
    mean, std = (", ".join(f"{value:.3g}" for value in values) for values in (data.mean, data.std))
    return [
        "Neither a card nor a preprocessor says how the networks' inputs were normalised: they get this data's own "
        f"mean ({mean}) and deviation ({std}) of each channel. Networks that were trained on other numbers compute "
        "other features: say --mean and --std."
    ]


def check_run(network: Opened, loader: Batches, data: DataSplits, device: Any = "cpu") -> None:
    """Run a network on two examples, so that a wrong image size is said in words and before long work."""
    said = f"data must be inputs that {network.name} accepts. Got inputs of shape {data.shape} from {data.name}"
    check_takes(network.model.to(device), loader.batch(slice(0, 2)), device, said)


def check_takes(model: nn.Module, batch: Any, device: Any, said: str) -> None:
    """Refuse inputs that a model fails on.

    Raises:
        DataError: If it does; ``said``, what must be and what was given, begins the message.
    """
    try:
        with torch.no_grad():
            call(model, batch, device)
    except Exception as error:  # whatever a model raises on inputs that it was not made for
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(
            f"{said}, on which it fails ({type(error).__name__}: {reason}). Use data of the kind and size that it was "
            "trained on; of images, --size says another one."
        ) from error


def check_layers(network: Opened, loader: Batches, layers: list[str] | None) -> None:
    """Refuse layer names that the network does not have, before long work."""
    with tap(network.model, layers) as tapped:
        tapped.prepare(loader.batch(slice(0, 2)))


def check_finite(model: nn.Module, path: Path) -> None:
    """Refuse weights that hold NaN or infinity."""
    # parameters only: a buffer may well hold infinities, such as the mask of an attention
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            raise CheckpointError(
                f"checkpoint must hold finite weights. Got NaN or infinity in {name} of {str(path)!r}. "
                "Take a checkpoint from before the training diverged."
            )


def model_named_by(path: Path) -> str:
    """The model that a checkpoint names itself: a directory its own, weights that of their card.

    Raises:
        CheckpointError: If weights have no card, or one of a model that is not built in.
    """
    if not path.is_dir():
        return spec_of(None if path.name.endswith(".index.json") else read_card(path), path)
    if not any((path / name).is_file() for name in SETTINGS):
        raise CheckpointError(
            f"--model must be given where no config.json says which. Got none for {str(path)!r}. Say --model "
            "hf:DIRECTORY, or --model package.module:factory."
        )
    return f"{HF}{path}"


def model_of(network: str | None, model: str | None) -> str:
    """The model that an argument names, as ``--model`` does or as a checkpoint of it, or else ``--model``."""
    path = Path((network or "").removeprefix(HF))
    spec = network if network is None or not path.exists() else model_named_by(path)
    return model or spec or ""


def spec_of(card: Card | None, path: Path) -> str:
    """The model of weights: what their card says, or the ``config.json`` that lies beside them."""
    if card is None and (path.parent / "config.json").is_file():
        return f"{HF}{path.parent}"
    if card is None:
        raise CheckpointError(
            f"--model must be given where no card lies beside the weights. Got none for {str(path)!r}. "
            "Say --model resnet20, or --model package.module:factory."
        )
    if card.architecture.startswith(GATED):
        raise CheckpointError(
            "--model must be given for a gated version of a model that is not built in: the network that it was "
            f"built from. Got none for {str(path)!r}. Say --model package.module:factory."
        )
    if not is_builtin(card.architecture):
        said = card.architecture if ":" in card.architecture else "package.module:factory"
        # a card is data: it must not make us import code
        raise CheckpointError(
            f"--model must be given for a model that is not built in. Got {card.architecture!r} from the card of "
            f"{str(path)!r}. Say --model {said}."
        )
    return card.architecture


def _gated(card: Card | None, spec: str, data: DataSplits) -> Callable[[], nn.Module] | None:
    """What builds the gated version of a network that is not built in, where a card says that this is one."""
    if card is None or not card.architecture.startswith(GATED):
        return None
    x = data.loader("test", 1).batch(slice(0, 1))[0]
    return lambda: gated_version(card.architecture.removeprefix(GATED), build_model(spec), x, card.seed or 0)


def _with_weights(
    spec: str | Callable[[], nn.Module], tensors: dict[str, Tensor], path: Path, data: DataSplits, classes: int
) -> nn.Module:
    """The model with these weights; a built-in one is first fitted to the data, then tried as it was written."""
    if callable(spec):
        gated = spec()
        load_weights(gated, tensors, repr(str(path)), "its gated version")
        return gated
    if spec.startswith(HF):
        return load_pretrained(Path(spec.removeprefix(HF)), tensors, path)
    candidates = [spec]
    if is_builtin(spec):
        candidates = list(dict.fromkeys([networks.fit_to(spec, data.shape, classes or None), spec]))
    mismatch: CheckpointError | None = None
    for candidate in candidates:
        try:
            if is_builtin(candidate):
                return build_with(candidate, tensors, repr(str(path)))
            model = build_model(candidate)
            load_weights(model, tensors, repr(str(path)), candidate)
            return model
        except CheckpointError as error:
            mismatch = mismatch or error
    raise mismatch or CheckpointError(f"checkpoint must be of the architecture {spec}. Got {str(path)!r}.")


def symmetry_of(spec: str, asked: ExampleOptions) -> Symmetry:
    """The symmetry of a model that is built here without weights, and forgotten."""
    return model_and_symmetry(spec, asked, meta=True)[1]


def model_and_symmetry(spec: str, asked: ExampleOptions, meta: bool) -> tuple[nn.Module, Symmetry]:
    """A model that is built here and its symmetry, which refers to the model weakly: proofs and drawings want both.

    Args:
        spec: The model.
        asked: As in ``example_input``.
        meta: Whether to do without weights.
    """
    with torch.device("meta" if meta else "cpu"):
        network = build_model(spec).eval()
    grouped: Any = getattr(network, "set_experts_implementation", None)
    if meta and grouped is not None:
        grouped("batched_mm")  # the default of transformers does not run without weights
    threads_for(weights=sum(p.numel() for p in network.parameters()))
    return network, symmetries(network, in_kind_of(network, example_input(spec, asked, meta)))
