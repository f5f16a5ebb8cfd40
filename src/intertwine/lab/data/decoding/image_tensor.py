"""Compressed images to one tensor; a bad image is named."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...._memory import check_fits
from ...._progress import track
from ....errors import DataError
from .one_image import pixels
from .preprocessing import Preprocessing


def decode_images(
    encoded: Iterable[tuple[str, Any]],
    total: int,
    what: str,
    preprocessing: Preprocessing | None = None,
    skipped: list[int] | None = None,
) -> Tensor:
    """Decode images; grey where all are grey, RGB otherwise.

    Args:
        encoded: A name for messages, and the compressed bytes or a path, of each image.
        total: Number of images.
        what: The data set, for the progress bar and for messages.
        preprocessing: What brings images of other sizes to one.
        skipped: Gets the numbers of images that do not decode; without it they are errors.

    Returns:
        ``(N, C, H, W)`` in ``uint8``.

    Raises:
        DataError: If an image is missing, does not decode, or has another size than the first.
    """
    arrays: list[np.ndarray] = []
    for name, source in track(encoded, f"decoding {what}", total, enabled=total > 5000):
        if source is None:
            raise DataError(f"every image of {what} must have bytes. Got none in {name}.")
        try:
            array = pixels(source, f"{name} of {what}")
        except DataError:
            if skipped is None:
                raise
            skipped.append(len(arrays) + len(skipped))
            continue
        array = array if preprocessing is None else preprocessing(array)
        if not arrays:
            check_fits(
                6 * total * array.shape[0] * array.shape[1],
                what,
                f"{total:,} images of {array.shape[1]}x{array.shape[0]}",
                "Make them smaller, or take fewer.",
                error=DataError,
            )
        if arrays and array.shape[:2] != arrays[0].shape[:2]:
            (h, w), (h0, w0) = array.shape[:2], arrays[0].shape[:2]
            raise DataError(
                f"images of {what} must all have one size. Got {w}x{h} in {name} after {w0}x{h0}. Say "
                "--size 224 (in Python, preprocessing=Preprocessing.square(224)), or resize them first."
            )
        arrays.append(array)
    if not arrays:
        raise DataError(f"{what} must hold at least one image. Got none.")
    if any(array.ndim == 3 for array in arrays):
        arrays = [array if array.ndim == 3 else np.repeat(array[:, :, None], 3, axis=2) for array in arrays]
    images = torch.from_numpy(np.stack(arrays))
    return images.unsqueeze(1) if images.ndim == 3 else images.permute(0, 3, 1, 2).contiguous()
