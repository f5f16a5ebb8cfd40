"""Networks by name, ``build("myrtle_cnn:width=512,bn=false")``, and gated counterparts of built-in ones.

The counterparts have names too, so that they are trained and loaded like any other network.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from ..._untrusted.construction import limited_construction
from ..._words import KINDS, check_known, named_values, near, read, written

if TYPE_CHECKING:
    from ...gates import GatedNetwork


@dataclass(frozen=True)
class Network:
    """One entry of the registry."""

    name: str  # The name that users type
    factory: Callable[..., nn.Module]  # Function with annotated arguments that all have defaults
    input_shape: tuple[int, ...]  # Shape of one input at the default arguments
    source: str  # Source of the architecture
    fixed: Mapping[str, Any] = field(default_factory=dict)  # Arguments fixed by the name

    @property
    def arguments(self) -> dict[str, Any]:
        """Argument names and defaults, without fixed arguments."""
        found = inspect.signature(self.factory).parameters
        return {name: p.default for name, p in found.items() if name not in self.fixed}

    @property
    def parameters(self) -> int:
        """Number of trainable parameters at the default arguments, counted without allocating them."""
        with torch.device("meta"):
            return sum(p.numel() for p in self.factory(**self.fixed).parameters())


_MODULES = 5_000  # most modules of one network, whatever its arguments
NETWORKS: dict[str, Network] = {}
"""All built-in networks by name, as for ``build``: ``NETWORKS["resnet18"].parameters`` is 11,173,962."""


def register(*networks: Network) -> None:
    """Add networks to those that ``build`` knows."""
    NETWORKS.update({network.name: network for network in networks})


def build(spec: str, **arguments: Any) -> nn.Module:
    """Build a network from ``name`` or ``name:argument=value,...``, using torch's current random state.

    In text, booleans are ``true`` or ``false``, and ``-`` joins tuples (``widths=64-32``); keyword arguments are typed.

    Raises:
        ValueError: If the name or an argument is unknown, given twice, or does not parse, a size is below 1, or the
            network does not fit in memory.

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
    for key, value in {**parsed, **arguments}.items():
        sizes = value if isinstance(value, tuple) else (value,)
        if key != "permutation" and any(type(size) is int and size < 1 for size in sizes):
            raise ValueError(f"{key} must be at least 1. Got {written(value)}.")
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
    check_known("network", name, NETWORKS)
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
    """Text for ``build`` with the arguments that data of another shape or number of classes needs; its own come first.

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
    """Shape of one input of a network by its arguments: ``(C, H, W)``, or the ``shape`` of an ``mlp``.

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


def gated(
    kind: Literal["dgn", "dlgn", "dlgn_sf"] = "dgn",
    base: str = "c4gap",
    classes: int = 10,
    channels: int = 3,
    width: int | None = None,
    size: int = 32,
    input: Literal["x", "ones"] = "x",
    beta: float = 10.0,
    permutation: tuple[int, ...] | None = None,
    regime: Literal["standalone", "fixed_random", "fixed_learnt"] = "standalone",
) -> nn.Module:
    """The DGN, DLGN or DLGN-SF of a built-in network, freshly initialised, with jointly trained halves (P2 section 3).

    The paper shows the wiring of VGG-16-DLGN-SF only in an image. Here each of its 15 layers of gates has its own map
    directly from the image: a 3x3 convolution of stride 1 with batch norm, averaged down to the layer's size, or a
    matrix with batch norm for the linear layers. Batch norm is used if the base network has it.

    Args:
        kind: Which counterpart.
        base: The network whose ReLUs become gates, with its own arguments after slashes: ``mlp/widths=64-32``.
        classes: Number of outputs.
        channels: Number of input channels.
        width: The base's own ``width``; its default if ``None``.
        size: Height and width of the images, needed for shallow features.
        input: Input of the value network: the image, or ones, as in ``DLGN(x, 1)``.
        beta: Steepness of the soft gates.
        permutation: The k-th layer of the value network uses the gates of layer ``permutation[k]``.
        regime: For a DGN: whether its gating network is trained with the value network, or frozen with hard gates.

    Raises:
        ValueError: If the base is not built in, or freezing is requested for a DLGN.

    Examples:
        >>> gated("dlgn", "c4gap", width=4, permutation=(3, 1, 0, 2)).permutation
        (3, 1, 0, 2)
    """
    if kind != "dgn" and regime != "standalone":
        raise ValueError(f"regime must be standalone for a {kind}, both of whose halves are trained. Got {regime!r}.")
    name, _, own = base.partition("/")
    known = [known for known in NETWORKS if known not in ("dgn", "dlgn", "dlgn_sf")]
    check_known("base", name, known)
    arguments = [*filter(None, own.split("/")), *([] if width is None else [f"width={width}"])]
    spec = fit_to(":".join(filter(None, [name, ",".join(arguments)])), (channels, size, size), classes)
    model = build(spec)
    options: dict[str, Any] = {
        "beta": beta, "permutation": permutation, **({"regime": regime} if kind == "dgn" else {}),
        "initialise": lambda copy: copy.load_state_dict(build(spec).state_dict()),  # like the base
        "seed": int(torch.randint(2**31, (), device="cpu")),
    }  # fmt: skip
    return counterpart(kind, model, torch.zeros(1, channels, size, size), input, **options)


def counterpart(kind: str, model: nn.Module, example: Tensor, input: str = "x", **options: Any) -> GatedNetwork:
    """The ``dgn``, ``dlgn`` or ``dlgn_sf`` of a network; shallow features have batch norm if the network has."""
    from ... import gates  # imported on demand: most networks are not gated

    if kind != "dlgn_sf":
        return (gates.dgn if kind == "dgn" else gates.dlgn)(model, input=input, **options)
    maps = gates.gated_network.ShallowMaps(batch_norm=has_batch_norm(model))
    return gates.dlgn_sf(model, example, input=input, maps=maps, **options)


def gated_spec(kind: str, base: str, **arguments: str) -> str:
    """Text for ``build`` that gives the gated counterpart of ``base``, which is itself such a text.

    Examples:
        >>> gated_spec("dlgn", "mlp:widths=64-32,channels=1", input="ones")
        'dlgn:base=mlp/widths=64-32/channels=1,input=ones'
    """
    own = base.replace(" ", "").replace(":", "/", 1).replace(",", "/")
    return f"{kind}:" + ",".join([f"base={own}", *(f"{name}={value}" for name, value in arguments.items())])


def has_batch_norm(model: nn.Module) -> bool:
    """Whether a network has batch norm, so that shallow features should have it too."""
    return any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())
