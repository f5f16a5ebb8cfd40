"""Images and label masks from files or bytes, brought to one size; a bad file is named."""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ....dissection import Sample
from ....errors import DataError
from ..decoding.one_image import numbers, pixels


def read_image(source: bytes | Path, name: str) -> Tensor:
    """An image as ``(3, H, W)`` in ``uint8``."""
    return torch.from_numpy(_in_colour(source, name)).permute(2, 0, 1).contiguous()


def read_mask(source: bytes | Path, name: str) -> Tensor:
    """A mask whose pixel values are label numbers, ``(h, w)`` in int64."""
    array = numbers(source, name)
    if array.ndim != 2 or array.dtype.kind not in "uib":
        raise DataError(
            f"mask {name} must have one channel of label numbers (grey or palette). Got {array.shape} in "
            f"{array.dtype}. Convert colour-coded masks to label numbers first."
        )
    return torch.from_numpy(array.astype(np.int64))


def read_packed_mask(source: bytes | Path, name: str) -> Tensor:
    """A mask with label numbers ``red + 256 * green``, Broden's coding, ``(h, w)`` in int64."""
    array = _in_colour(source, name).astype(np.int64)
    return torch.from_numpy(array[:, :, 0] + 256 * array[:, :, 1])


def fitted(image: Tensor, labels: Tensor, whole: Tensor, size: tuple[int, int] | None) -> Sample:
    """A sample with its image resized by area and its labels by nearest neighbour.

    Args:
        image: ``(3, H, W)`` in ``uint8``.
        labels: ``(K, h, w)``.
        whole: ``(J,)``.
        size: ``(height, width)`` of image and labels; ``None`` leaves both.
    """
    if size is not None:
        small = F.interpolate(image[None].float(), size=size, mode="bilinear", antialias=True, align_corners=False)
        image = small[0].round().clamp(0, 255).to(torch.uint8)
        # float64 holds every label number exactly
        labels = F.interpolate(labels[None].double(), size=size, mode="nearest-exact")[0].long()
    return Sample(image, labels, whole)


def _in_colour(source: bytes | Path, name: str) -> np.ndarray:
    array = pixels(source, name)
    return array if array.ndim == 3 else np.repeat(array[:, :, None], 3, axis=2)
