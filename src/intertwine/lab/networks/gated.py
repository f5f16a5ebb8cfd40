"""Gated counterparts of the second paper's networks by name, so that they are trained and loaded like any other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import nn

from .gap import c1gap, c4gap, cnn_gap
from .resnet import cifar_resnet
from .small import digits_cnn
from .vgg import vgg16

__all__ = ["Base", "gated"]

Base = Literal["c4gap", "c1gap", "cnn_gap", "vgg16", "resnet20", "resnet110", "digits_cnn"]

_BASES: dict[str, tuple[Callable[..., nn.Module], dict[str, Any]]] = {
    "c4gap": (c4gap, {}),
    "c1gap": (c1gap, {}),
    "cnn_gap": (cnn_gap, {}),
    "vgg16": (vgg16, {}),
    "resnet20": (cifar_resnet, {"depth": 20}),
    "resnet110": (cifar_resnet, {"depth": 110}),
    "digits_cnn": (digits_cnn, {}),
}


def gated(
    kind: Literal["dgn", "dlgn", "dlgn_sf"] = "dgn",
    base: Base = "c4gap",
    classes: int = 10,
    channels: int = 3,
    width: int | None = None,
    size: int = 32,
    input: Literal["x", "ones"] = "x",
    beta: float = 10.0,
    permutation: tuple[int, ...] | None = None,
) -> nn.Module:
    """The DGN, DLGN or DLGN-SF of a built-in network, freshly initialised, both halves trained together (P2 section 3).

    VGG-16-DLGN-SF is wired in the paper by an image only. Here each of its 15 layers of gates has one map of its own,
    straight from the image: a 3x3 convolution of stride 1 with batch norm, averaged down to the layer's size, or a
    matrix with batch norm for the linear layers. Batch norm is there where the base network has it.

    Args:
        kind: Which counterpart.
        base: The network whose ReLUs become gates.
        classes: Outputs.
        channels: Input channels.
        width: The base's own ``width``; its default if ``None``.
        size: Rows and columns of the images; shallow features need to know them.
        input: What the value network is given: the image, or ones, as in ``DLGN(x, 1)``.
        beta: Steepness of the soft gates.
        permutation: The k-th layer of the value network uses the gates of layer ``permutation[k]``.

    Returns:
        An ``iw.gates.GatedNetwork``, with ``gating`` and ``value``.

    Examples:
        >>> gated("dlgn", "c4gap", width=4, permutation=(3, 1, 0, 2)).permutation
        (3, 1, 0, 2)
    """
    from ... import gates

    factory, fixed = _BASES[base]
    arguments = {**fixed, "classes": classes, "channels": channels} | ({} if width is None else {"width": width})
    model = factory(**arguments)
    options: dict[str, Any] = {
        "input": input,
        "beta": beta,
        "permutation": permutation,
        "initialise": lambda copy: copy.load_state_dict(factory(**arguments).state_dict()),  # as the base does it
        "seed": int(torch.randint(2**31, (), device="cpu")),
    }
    if kind == "dlgn_sf":
        has_norm = any(isinstance(m, nn.BatchNorm2d) for m in model.modules())
        example = torch.zeros(1, channels, size, size)
        return gates.dlgn_sf(model, example, batch_norm=has_norm, **options)
    return (gates.dgn if kind == "dgn" else gates.dlgn)(model, **options)
