"""What every closed-form start does with second moments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..closed_form import intercept

if TYPE_CHECKING:
    from ..layer import StitchingLayer
    from ..moments import Moments

__all__ = ["seen_by", "set_bias"]


def seen_by(layer: StitchingLayer, moments: Moments) -> Moments:
    """The moments that the matrix of a layer is fitted to: around the means where the layer has a bias.

    Raises:
        ValueError: If their widths are not those of the layer.
    """
    if (moments.c_in, moments.c_out) != (layer.c_in, layer.c_out):
        raise ValueError(
            f"moments must be of {layer.c_in} channels of A and {layer.c_out} of B. "
            f"Got {moments.c_in} and {moments.c_out}."
        )
    return moments if layer.bias is None else moments.centred()


def set_bias(layer: StitchingLayer, moments: Moments) -> None:
    """The best bias for the matrix that the layer evaluates; nothing without a bias."""
    if layer.bias is not None:
        with torch.no_grad():
            layer.bias.copy_(intercept(layer.rounded(), moments))
