"""Segmentations of COCO as masks: polygons, and lengths of runs."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import DataError


def segmentation(value: Any, shape: tuple[int, int], name: str) -> np.ndarray:
    """The mask ``(height, width)`` in bool of an annotation: polygons, or runs of COCO in either of their forms."""
    got = f"{type(value).__name__}."
    try:
        if isinstance(value, list):
            return fill_polygons(value, shape)
        if isinstance(value, dict):
            if tuple(value["size"]) != shape:
                raise ValueError(f"the mask must have the size {shape} of its image. Got {tuple(value['size'])}.")
            return decode_runs(value["counts"], shape)
    except (ValueError, KeyError, TypeError) as error:
        got = f"one that does not read: {error}"
    raise DataError(f"segmentation in {name} must be polygons or runs. Got {got}") from None


def fill_polygons(polygons: Sequence[Sequence[float]], shape: tuple[int, int]) -> np.ndarray:
    """The union of polygons ``[x1, y1, x2, y2, ...]`` in pixels as a mask ``(height, width)`` in bool."""
    from PIL import Image, ImageDraw

    canvas = Image.new("1", (shape[1], shape[0]))
    for polygon in polygons:
        if len(polygon) < 6 or len(polygon) % 2:
            raise ValueError(f"a polygon must have x and y of at least three corners. Got {len(polygon)} numbers.")
        ImageDraw.Draw(canvas).polygon([float(v) for v in polygon], fill=1, outline=1)
    return np.array(canvas, dtype=bool)


def decode_runs(counts: Sequence[int] | str | bytes, shape: tuple[int, int]) -> np.ndarray:
    """A run-length mask ``(height, width)`` in bool: lengths of runs of 0 and 1 in turn, column by column.

    The text form writes each length in groups of five bits, the lowest first, as characters from ``"0"`` on; a further
    bit says that more groups follow. From the fourth run on, it writes the difference to the run two before.

    Raises:
        ValueError: If the runs do not cover the mask exactly.

    Examples:
        >>> decode_runs([1, 2, 1], (2, 2)).astype(int)
        array([[0, 1],
               [1, 0]])
    """
    runs = _runs_from_text(counts) if isinstance(counts, str | bytes) else list(counts)
    height, width = shape
    if sum(runs) != height * width or any(r < 0 for r in runs):
        raise ValueError(f"runs must cover {height} x {width} pixels. Got {sum(runs)} in {len(runs)} runs.")
    flat = np.repeat(np.arange(len(runs)) % 2 == 1, runs)
    return flat.reshape(width, height).T.copy()


def _runs_from_text(text: str | bytes) -> list[int]:
    runs: list[int] = []
    value = shift = 0
    for character in text.encode() if isinstance(text, str) else text:
        group = character - 48
        value |= (group & 31) << shift
        shift += 5
        if group & 32:
            continue
        if group & 16:  # the sign of the last group
            value -= 1 << shift
        runs.append(value + runs[-2] if len(runs) > 2 else value)
        value = shift = 0
    return runs
