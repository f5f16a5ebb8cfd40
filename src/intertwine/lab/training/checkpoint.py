"""Checkpoints: weights as safetensors, and a JSON card that describes them."""

import hashlib
import re
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor, nn

from ..._io import digest as digest_of
from ..._io import file_digest, read_json, read_tensors, versions, write_json, write_tensors
from ..._untrusted.weights import check_kinds
from ..._words import first_line
from ...errors import CheckpointError
from ..networks import NETWORKS, build

_T = TypeVar("_T")
_LISTED = 5  # most tensor names in an error message
_WRAPPERS = re.compile(r"(?<![^.])(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")  # of torch
_AVERAGED = "n_averaged"  # the counter beside the weights of torch's AveragedModel, an average over training


class Card(BaseModel):
    """The card of a checkpoint: what it is and where it came from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    architecture: str  # Text for ``networks.build`` with every non-default argument; or a class name
    data: str = ""  # Name of the data set
    seed: int | None = None  # Seed of the initial weights, the order of examples and the augmentation
    recipe: dict[str, Any] = Field(default_factory=dict)  # Settings of the training run
    start: str = ""  # Digest of the initial weights, if a module was given whose weights do not follow from the seed
    metrics: dict[str, float | None] = Field(default_factory=dict)  # Accuracies and losses by name
    best_epoch: int | None = None  # Epoch of these weights, from 1
    engine: str = ""  # How it was trained together with others; empty if alone
    mean: tuple[float, ...] = ()  # Channel means subtracted from inputs
    std: tuple[float, ...] = ()  # Channel standard deviations by which inputs were divided
    classes: tuple[str, ...] = ()  # Class names, in logit order
    shape: tuple[int, ...] = ()  # Shape of one input
    versions: dict[str, str] = Field(default_factory=versions)  # Versions of Python, torch and intertwine
    sha256: str = ""  # Hash of the weights file; empty if not recorded


def card_path(path: str | Path) -> Path:
    """The path of a checkpoint's card: beside it, ending in ``.json``."""
    return Path(path).with_suffix(".json")


def save_checkpoint(path: str | Path, model: nn.Module, card: Card) -> Path:
    """Write a model's state dict to ``NAME.safetensors`` and its card to ``NAME.json``, each atomically."""
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"checkpoint path must end in .safetensors. Got {str(path)!r}.")
    write_tensors(path, model.state_dict(), {"architecture": card.architecture})
    write_json(card_path(path), card.model_copy(update={"sha256": file_digest(path)}).model_dump(mode="json"))
    return path


def read_card(path: str | Path) -> Card | None:
    """The card beside a checkpoint; ``None`` if there is none, a ``CheckpointError`` if the file is no card."""
    beside = card_path(path)
    if not beside.is_file():
        return None
    try:
        return Card.model_validate(read_json(beside))
    except (ValidationError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"card must be a JSON file that save_checkpoint wrote. Got {str(beside)!r} ({first_line(error)}). "
            "Remove it and say which model the weights belong to."
        ) from None


def check_card(path: str | Path, card: Card | None) -> None:
    """Refuse, with a ``CheckpointError``, weights for which their card was not written."""
    if card is not None and card.sha256 and card.sha256 != file_digest(path):
        raise CheckpointError(
            f"checkpoint must be the file that its card was written for. Got {str(path)!r}, of another SHA-256 than "
            f"{card_path(path).name!r} says. Copy both again, or remove the card and say which model the weights "
            "belong to."
        )


def load_checkpoint(path: str | Path, model: nn.Module | str | None = None) -> nn.Module:
    """Build a network and load its weights, which must match the card beside them.

    Args:
        path: Safetensors, or a torch file that can be read with ``weights_only=True``.
        model: The network of the weights: a module (its weights are replaced), or text for ``networks.build``; if
            ``None``, the network that the card names.

    Raises:
        CheckpointError: If the file is missing, damaged, unsafe, of another architecture or not the card's, or if the
            architecture is unknown.
    """
    path = Path(path)
    tensors, card, beside = read_tensors(path), read_card(path), str(card_path(path))
    check_card(path, card)
    if model is None and card is None:
        raise CheckpointError(
            f"model must be given where no card lies beside the weights. Got no {beside!r}. "
            "Name the network, such as model='resnet20'."
        )
    if model is None and card is not None:
        model = card.architecture
        if model.partition(":")[0] not in NETWORKS:
            raise CheckpointError(
                f"model must be given where the card names no built-in network. Got {model!r} in {beside!r}. "
                "Pass the module that the weights belong to."
            )
    if isinstance(model, nn.Module):
        load_weights(model, tensors, repr(str(path)), type(model).__name__)
        return model.eval()
    return build_with(str(model), tensors, repr(str(path))).eval()


def build_with(spec: str, tensors: Mapping[str, Tensor], source: str) -> nn.Module:
    """The network of a text with weights loaded; mismatches are found before the network takes memory."""
    with torch.device("meta"):
        wanted = build(spec).state_dict()
    _check_architecture(wanted, plain_names(tensors, wanted), source, spec)
    network = build(spec)
    load_weights(network, tensors, source, spec)
    return network


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor], source: str, name: str) -> None:
    """Load a state dict strictly; a mismatch names the first tensors that do not fit, and changes nothing.

    A common prefix (see ``plain_names``) is dropped; of tied weights one name is enough, as ``save_model`` of
    safetensors writes them. ``source`` and ``name`` say where the tensors are from and what the model is, in a
    ``CheckpointError`` if names, shapes or kinds of numbers differ.
    """
    wanted = model.state_dict()
    tensors = plain_names(tensors, wanted)
    tied: dict[int, list[str]] = {}
    for key, parameter in model.named_parameters(remove_duplicate=False):
        tied.setdefault(id(parameter), []).append(key)
    for names in tied.values():
        held = [key for key in names if key in tensors]
        if held and len(held) < len(names):
            tensors = {**dict.fromkeys(names, tensors[held[0]]), **tensors}
    _check_architecture(wanted, tensors, source, name)
    check_kinds(tensors, wanted, source)
    kept = {k: v for k, v in wanted.items() if k not in tensors}
    if not any(t.is_meta for t in wanted.values()):
        model.load_state_dict({**kept, **tensors})
        return
    model.load_state_dict({**kept, **tensors}, assign=True)  # a model on the meta device takes the tensors themselves
    for first, *others in tied.values():
        for key in others:
            module, _, name = key.rpartition(".")
            setattr(model.get_submodule(module), name, model.get_parameter(first))


def plain_names(tensors: Mapping[str, _T], wanted: Container[str] = ()) -> Mapping[str, _T]:
    """Tensors without a prefix that all names have: those of data-parallel training and of ``torch.compile``.

    With the names of a model (``wanted``) any prefix is dropped that brings its names about, such as that of the
    attribute of a Lightning module that held it, and none if some name is the model's as it stands. What torch puts
    before the names of modules inside (compiled, sharded, recomputed) is dropped, too.
    """
    plain = _without_prefix(tensors, wanted)
    bare = {key: key if key in wanted else _WRAPPERS.sub("", key) for key in plain if key in wanted or key != _AVERAGED}
    if len(set(bare.values())) < len(bare) or list(plain) == list(bare.values()):
        return plain
    return _without_prefix({new: plain[key] for key, new in bare.items()}, wanted)


def _without_prefix(tensors: Mapping[str, _T], wanted: Container[str]) -> Mapping[str, _T]:
    plain = tensors
    while plain and not any(key in wanted for key in plain):
        first, *others = {key.partition(".")[0] for key in plain}
        if others or not all("." in key for key in plain) or not (wanted or first in ("module", "_orig_mod")):
            return tensors if wanted else plain
        plain = {key.partition(".")[2]: value for key, value in plain.items()}
    return plain


def _check_architecture(wanted: Mapping[str, Tensor], tensors: Mapping[str, Tensor], source: str, name: str) -> None:
    # Old checkpoints lack batch norm's step counter, which is not used in eval mode.
    missing = [key for key in wanted if key not in tensors and not key.endswith("num_batches_tracked")]
    unexpected = [key for key in tensors if key not in wanted]
    mismatched = [
        f"{key} {tuple(tensors[key].shape)} for {tuple(value.shape)}"
        for key, value in wanted.items()
        if key in tensors and tensors[key].shape != value.shape
    ]
    differences = (("missing", missing), ("unexpected", unexpected), ("of another shape", mismatched))
    more = lambda count: f" and {count} more" if count > 0 else ""
    listed = [
        f"{len(found)} {kind}: {', '.join(found[:_LISTED])}{more(len(found) - _LISTED)}"
        for kind, found in differences
        if found
    ]
    if listed:
        told = "; ".join(listed)
        pruned = any(key.endswith("_mask") and f"{key.removesuffix('_mask')}_orig" in tensors for key in unexpected)
        advice = " Call torch.nn.utils.prune.remove on every pruned layer before saving." if pruned else ""
        raise CheckpointError(
            f"checkpoint must be of the architecture {name}. Got {source} with tensors {told}.{advice}"
        )


def digest(module: nn.Module) -> str:
    """Hash of a module's parameters and buffers, bit for bit, including their names and types."""
    parts = (part for name, t in module.state_dict().items() for part in (f"{name} {t.dtype} {tuple(t.shape)}", t))
    return digest_of(parts, hashlib.blake2b(digest_size=16))
