"""Gated counterparts of built-in networks by name, so that they are trained and loaded like any other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from ..._words import near
from .registry import NETWORKS, build, fit_to

if TYPE_CHECKING:
    from ...gates import GatedNetwork


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
    """The DGN, DLGN or DLGN-SF of a built-in network, freshly initialised, both halves trained together (P2 section 3).

    VGG-16-DLGN-SF is wired in the paper by an image only. Here each of its 15 layers of gates has one map of its own,
    straight from the image: a 3x3 convolution of stride 1 with batch norm, averaged down to the layer's size, or a
    matrix with batch norm for the linear layers. Batch norm is there where the base network has it.

    Args:
        kind: Which counterpart.
        base: The network whose ReLUs become gates, with arguments of its own after slashes: ``mlp/widths=64-32``.
        classes: Outputs.
        channels: Input channels.
        width: The base's own ``width``; its default if ``None``.
        size: Rows and columns of the images; shallow features need to know them.
        input: What the value network is given: the image, or ones, as in ``DLGN(x, 1)``.
        beta: Steepness of the soft gates.
        permutation: The k-th layer of the value network uses the gates of layer ``permutation[k]``.
        regime: Of a DGN: whether its gating network is trained with the value network, or frozen, with hard gates.

    Raises:
        ValueError: If the base is not built in, or a DLGN shall be frozen.

    Examples:
        >>> gated("dlgn", "c4gap", width=4, permutation=(3, 1, 0, 2)).permutation
        (3, 1, 0, 2)
    """
    if kind != "dgn" and regime != "standalone":
        raise ValueError(f"regime must be standalone for a {kind}, both of whose halves are trained. Got {regime!r}.")
    name, _, own = base.partition("/")
    known = [known for known in NETWORKS if known not in ("dgn", "dlgn", "dlgn_sf")]
    if name not in known:
        raise ValueError(f"base must be one of {', '.join(known)}. Got {name!r}.{near(name, known)}")
    arguments = [*filter(None, own.split("/")), *([] if width is None else [f"width={width}"])]
    spec = fit_to(":".join(filter(None, [name, ",".join(arguments)])), (channels, size, size), classes)
    model = build(spec)
    options: dict[str, Any] = {
        "beta": beta, "permutation": permutation, **({"regime": regime} if kind == "dgn" else {}),
        "initialise": lambda copy: copy.load_state_dict(build(spec).state_dict()),  # as the base does it
        "seed": int(torch.randint(2**31, (), device="cpu")),
    }  # fmt: skip
    return counterpart(kind, model, torch.zeros(1, channels, size, size), input, **options)


def counterpart(kind: str, model: nn.Module, example: Tensor, input: str = "x", **options: Any) -> GatedNetwork:
    """The ``dgn``, ``dlgn`` or ``dlgn_sf`` of a network; shallow features have batch norm where it has."""
    from ... import gates  # where it is asked for: most networks are not gated

    if kind != "dlgn_sf":
        return (gates.dgn if kind == "dgn" else gates.dlgn)(model, input=input, **options)
    maps = gates.gated_network.ShallowMaps(batch_norm=has_batch_norm(model))
    return gates.dlgn_sf(model, example, input=input, maps=maps, **options)


def gated_spec(kind: str, base: str, **arguments: str) -> str:
    """Text for ``build`` of the gated counterpart of ``base``, itself such a text.

    Examples:
        >>> gated_spec("dlgn", "mlp:widths=64-32,channels=1", input="ones")
        'dlgn:base=mlp/widths=64-32/channels=1,input=ones'
    """
    own = base.replace(" ", "").replace(":", "/", 1).replace(",", "/")
    return f"{kind}:" + ",".join([f"base={own}", *(f"{name}={value}" for name, value in arguments.items())])


def has_batch_norm(model: nn.Module) -> bool:
    """Whether a network normalises, so that shallow features shall, too."""
    return any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())
