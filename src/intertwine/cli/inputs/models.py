"""Models by a line of text: built-in names, factories in Python, Hugging Face directories."""

import copy
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from ..._words import near
from ...lab import networks
from .._files import HF
from .hugging_face import fresh_model


def is_builtin(spec: str) -> bool:
    """Whether ``spec`` begins with the name of a built-in network."""
    return spec.partition(":")[0] in networks.names()


def build_model(spec: str) -> nn.Module:
    """Build a model with fresh weights.

    Args:
        spec: ``NAME[:arguments]`` of a built-in network, ``package.module:factory[:arguments]``,
            ``path/to/file.py:factory[:arguments]``, or ``hf:DIRECTORY``. A factory's module is imported, which
            runs its code; what is installed nowhere is looked for in the current folder.

    Raises:
        ValueError: If nothing is found under this name, or the factory fails.
    """
    if spec.startswith(HF):
        return fresh_model(Path(spec.removeprefix(HF)))
    if is_builtin(spec):
        return networks.build(spec)
    if ":" in spec:
        return _from_factory(spec)

    raise ValueError(
        f"model must be one of {', '.join(networks.names())}, or package.module:factory, path/to/file.py:factory, or "
        f"hf:DIRECTORY. Got {spec!r}.{near(spec, networks.names())}"
    )


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
    arguments = _arguments(rest[0] if rest else "", spec)
    try:
        model = factory(**arguments)
    except Exception as error:  # the user's code may raise anything
        raise ValueError(f"model factory {spec!r} must build a model. Got {type(error).__name__}: {error}.") from error
    if not isinstance(model, nn.Module):
        raise TypeError(f"model factory {spec!r} must return a torch.nn.Module. Got {type(model).__name__}.")
    return model


def _arguments(text: str, spec: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not key.isidentifier():
            raise ValueError(f"arguments must be written name=value. Got {part!r} in {spec!r}.")
        found[key] = _literal(value)
    return found


def _literal(text: str) -> Any:
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def import_module_of_user(name: str) -> ModuleType:
    """Import a module; from the current folder only what is installed nowhere, so that its files shadow no package."""
    here = str(Path.cwd())
    if importlib.util.find_spec(name.partition(".")[0]) is None and here not in sys.path:
        sys.path.append(here)
    return importlib.import_module(name)


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise FileNotFoundError(f"no file {str(path)!r}")
    name = f"_intertwine_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{str(path)!r} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickling look their module up
    spec.loader.exec_module(module)
    return module
