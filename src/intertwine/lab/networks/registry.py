"""Registry of networks by name: ``build("myrtle_cnn:width=512,bn=false")``."""

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn

from ..._untrusted.construction import limited_construction
from ..._words import KINDS, named_values, near, read, written


@dataclass(frozen=True)
class Network:
    """One entry of the registry."""

    name: str  # What users type
    factory: Callable[..., nn.Module]  # Function with annotated arguments that all have defaults
    input_shape: tuple[int, ...]  # Shape of one input at the default arguments
    source: str  # Where the architecture is from
    fixed: Mapping[str, Any] = field(default_factory=dict)  # Arguments that the name itself decides

    @property
    def arguments(self) -> dict[str, Any]:
        """Argument names and defaults, without the fixed ones."""
        found = inspect.signature(self.factory).parameters
        return {name: p.default for name, p in found.items() if name not in self.fixed}

    @property
    def parameters(self) -> int:
        """Trainable parameters at the default arguments; counted without allocating them."""
        with torch.device("meta"):
            return sum(p.numel() for p in self.factory(**self.fixed).parameters())


_MODULES = 5_000  # of one network, all arguments considered
NETWORKS: dict[str, Network] = {}
"""All built-in networks, by the names that ``build`` knows: ``NETWORKS["resnet18"].parameters`` are 11,173,962."""


def register(*networks: Network) -> None:
    """Add networks to those that ``build`` knows."""
    NETWORKS.update({network.name: network for network in networks})


def build(spec: str, **arguments: Any) -> nn.Module:
    """Build a network from ``name`` or ``name:argument=value,...``, with torch's current random state.

    Args:
        spec: Name and arguments. Booleans are ``true`` or ``false``, tuples are joined by ``-`` (``widths=64-32``).
        arguments: More arguments, already typed.

    Raises:
        ValueError: If the name or an argument is unknown, given twice, or does not parse, or the network does not fit
            in memory.

    Examples:
        >>> build("mlp:widths=32-16,leaky_slope=0.1").linear2
        Linear(in_features=32, out_features=16, bias=True)
    """
    name, parsed = parse(spec)
    network = NETWORKS[name]
    for key in arguments:
        _check_argument(network, key)
        if key in parsed:
            raise ValueError(f"argument {key} must be given once. Got it in {spec!r} and as a keyword.")
    with limited_construction(f"network {spec!r}", _MODULES):
        return network.factory(**network.fixed, **parsed, **arguments)


def parse(spec: str) -> tuple[str, dict[str, Any]]:
    """Split ``name:argument=value,...`` into the name and typed arguments.

    Raises:
        ValueError: If the name or an argument is unknown, given twice, or does not parse.

    Examples:
        >>> parse("myrtle_cnn:width=512,bn=false")
        ('myrtle_cnn', {'width': 512, 'bn': False})
    """
    name, _, text = spec.partition(":")
    if name not in NETWORKS:
        raise ValueError(f"network must be one of {', '.join(NETWORKS)}. Got {name!r}.{near(name, NETWORKS)}")
    network = NETWORKS[name]
    hints = typing.get_type_hints(network.factory)
    parsed: dict[str, Any] = {}
    for key, value in named_values(text, spec):
        _check_argument(network, key)
        if key in parsed:
            raise ValueError(f"argument {key} must be given once. Got it twice in {spec!r}.")
        parsed[key] = _convert(key, value, hints[key])
    return name, parsed


def fit_to(spec: str, shape: tuple[int, ...], classes: int | None) -> str:
    """Add to ``spec`` the arguments that data of another shape or number of classes needs.

    Args:
        spec: See ``build``; arguments given there win.
        shape: Shape of one input, ``(C, H, W)`` or any other for ``mlp``.
        classes: Number of classes; ``None`` where nothing says it.

    Examples:
        >>> fit_to("resnet20:option=B", (3, 32, 32), 100)
        'resnet20:option=B,classes=100'
        >>> fit_to("mlp", (1, 28, 28), 10)
        'mlp:shape=1-28-28'
    """
    name, parsed = parse(spec)
    defaults = NETWORKS[name].arguments
    wanted = {"classes": classes, "channels": shape[0], "shape": tuple(shape), "size": shape[-1]}
    added = [
        f"{key}={written(value)}"
        for key, value in wanted.items()
        if key in defaults and key not in parsed and value not in (None, defaults[key])
    ]
    if not added:
        return spec
    return spec + (("," if parsed else ":") if ":" not in spec or parsed else "") + ",".join(added)


def input_shape(spec: str) -> tuple[int, ...]:
    """Shape of one input of a network, as its arguments say.

    Returns:
        ``(C, H, W)``, or the ``shape`` of an ``mlp``.

    Examples:
        >>> input_shape("resnet20:channels=1"), input_shape("mlp:shape=3-28-28")
        ((1, 32, 32), (3, 28, 28))
    """
    name, given = parse(spec)
    usual = NETWORKS[name].input_shape
    size = given.get("size")
    sides = usual[1:] if size is None else (size,) * len(usual[1:])
    return tuple(given.get("shape", (given.get("channels", usual[0]), *sides)))


def _check_argument(network: Network, key: str) -> None:
    if key not in network.arguments:
        listed = ", ".join(f"{name}={written(value)}" for name, value in network.arguments.items())
        meant = near(key, network.arguments)
        raise ValueError(f"argument of {network.name} must be one of {listed}. Got {key!r}.{meant}")


def _convert(key: str, text: str, hint: Any) -> Any:
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):  # the only unions here are "X | None"
        return None if text.lower() == "none" else _convert(key, text, options[0])
    if origin is Literal and text not in options:
        raise ValueError(f"{key} must be one of {', '.join(options)}. Got {text!r}.")
    kind = KINDS.get(origin or hint)
    return text if kind is None else read(kind, key, text)
