"""Models named by a line of text: built-in names, Python factories, Hugging Face directories; gated versions."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from ..._untrusted.checkpoints import HF
from ..._words import named_values
from ...lab import networks
from ...lab.data import DataSplits
from ...lab.networks.hugging_face import fresh_model
from ...lab.networks.registry import counterpart
from ...lab.training import Card
from .._catalogue import VERSIONS
from .._checks import check_model

if TYPE_CHECKING:
    from ...gates import GatedNetwork

GATED = "gated "  # prefix on a card for the gated version of a network that is not built in

Statistics: TypeAlias = tuple[tuple[float, ...], tuple[float, ...]]  # means and deviations of channels


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint as read from disk."""

    path: Path  # The file, or a Hugging Face directory
    tensors: Mapping[str, Tensor] | None  # Its state dict; ``None`` for a directory
    card: Card | None  # The card beside it, if there is one


@dataclass(frozen=True)
class Opened:
    """A network ready to run."""

    name: str  # Short name for people
    model: nn.Module  # In evaluation mode
    facts: dict[str, Any]  # Facts for a report
    statistics: Statistics | None = None  # Used to normalise its inputs, if known


def is_builtin(spec: str) -> bool:
    """Whether ``spec`` begins with the name of a built-in network."""
    return spec.partition(":")[0] in networks.NETWORKS


def build_model(spec: str) -> nn.Module:
    """Build a model with fresh weights.

    Args:
        spec: ``NAME[:arguments]`` of a built-in network, ``package.module:factory[:arguments]``,
            ``path/to/file.py:factory[:arguments]``, or ``hf:DIRECTORY``. A factory's module is imported, which
            runs its code; a module that is not installed is looked for in the current folder.

    Raises:
        ValueError: If no model is found under this name.
    """  # noqa: DOC502 - raised by a check
    if spec.startswith(HF):
        return fresh_model(Path(spec.removeprefix(HF)))
    if is_builtin(spec):
        return networks.build(spec)
    check_model(spec)
    return _from_factory(spec)


def call_factory(spec: str, what: str) -> Callable[..., Any]:
    """Find ``package.module:name`` or ``path/to/file.py:name``."""
    place, _, name = spec.partition(":")
    try:
        module = _import_file(Path(place)) if place.endswith(".py") else import_module_of_user(place)
    except Exception as error:  # importing runs the user's code, which may raise anything
        raise ValueError(
            f"{what} must name a module that imports. Got {place!r} ({type(error).__name__}: {error})."
        ) from error
    if not callable(getattr(module, name, None)):
        public = [k for k, v in vars(module).items() if callable(v) and not k.startswith("_")]
        raise ValueError(
            f"{what} must name something callable in {place!r}. Got {name!r}. "
            f"It has {', '.join(public[:8]) or 'nothing'}."
        )
    return getattr(module, name)


def _from_factory(spec: str) -> nn.Module:
    place, name, *rest = spec.split(":", 2)
    factory = call_factory(f"{place}:{name}", "model")
    if isinstance(factory, nn.Module):
        return copy.deepcopy(factory)
    given = {key: _literal(value) for key, value in named_values("".join(rest), spec)}
    try:
        model = factory(**given)
    except Exception as error:  # the user's code may raise anything
        raise ValueError(f"model factory {spec!r} must build a model. Got {type(error).__name__}: {error}.") from error
    if not isinstance(model, nn.Module):
        raise TypeError(f"model factory {spec!r} must return a torch.nn.Module. Got {type(model).__name__}.")
    return model


def _literal(text: str) -> Any:
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def import_module_of_user(name: str) -> ModuleType:
    """Import a module, from the current folder only if it is not installed, so that local files shadow no package."""
    here = str(Path.cwd())
    if importlib.util.find_spec(name.partition(".")[0]) is None and here not in sys.path:
        sys.path.append(here)
    return importlib.import_module(name)


def _import_file(path: Path) -> ModuleType:
    name = f"_intertwine_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{str(path)!r} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up
    spec.loader.exec_module(module)
    return module


def gated_version(name: str, model: nn.Module, x: Tensor, seed: int) -> GatedNetwork:
    """The gated version of a network, by its ``--gated`` name; ``x`` is an example."""
    *_, kind, arguments = VERSIONS[name]
    return counterpart(kind, model, x, seed=seed, **arguments)


def card_name(name: str, network: nn.Module, spec: str, splits: DataSplits) -> str:
    """The name of a gated version on its card: text that rebuilds it, if its base ``spec`` is built in.

    The name is used only after checking that it builds the same tensors, since a checkpoint must open under its name.
    """
    if not is_builtin(spec):
        return f"{GATED}{name}"
    *_, kind, arguments = VERSIONS[name]
    text = networks.fit_to(networks.gated_spec(kind, spec, **arguments), splits.shape, len(splits.classes))
    with torch.device("meta"):
        built = networks.build(text)
    shapes = [{k: v.shape for k, v in m.state_dict().items()} for m in (built, network)]
    return text if shapes[0] == shapes[1] else f"{GATED}{name}"
