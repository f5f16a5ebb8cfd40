"""Concept sets from COCO annotations: polygons and run-length masks, several categories on one pixel."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..._untrusted.files import json_of, within
from ...dissection import Concept, ConceptSet, Sample
from ...errors import DataError
from .masks import fitted, read_image


class CocoConcepts(ConceptSet):
    """Images with object annotations in the COCO format.

    A concept is a category; its category is the ``supercategory``. Polygons are filled by Pillow, which counts the
    pixels on the border as inside: borders can differ by a pixel from those of COCO's own tools.

    Args:
        annotations: The JSON file with ``images``, ``annotations`` and ``categories``.
        images: The folder with the image files.
        size: ``(height, width)`` to bring images and labels to; ``None`` leaves them.
        planes: How many categories one pixel may carry.

    Raises:
        DataError: If the file or folder is missing or the file lacks a part.
    """

    def __init__(
        self, annotations: str | Path, images: str | Path, size: tuple[int, int] | None = None, planes: int = 3
    ) -> None:
        file, folder = Path(annotations), Path(images)
        if not folder.is_dir():
            raise DataError(f"images must be an existing folder. Got {str(folder)!r}.")
        data = json_of(file, "annotations", DataError)
        missing = [k for k in ("images", "annotations", "categories") if not isinstance(data, dict) or not data.get(k)]
        if missing:
            raise DataError(f"{str(file)!r} must have images, annotations and categories. Got no {missing[0]}.")
        self.concepts = tuple(Concept(c["name"], c.get("supercategory") or "object") for c in data["categories"])
        self._number = {c["id"]: i for i, c in enumerate(data["categories"])}
        self._images, self._folder, self._size = data["images"], folder, size
        self._annotations: dict[Any, list[dict[str, Any]]] = {image["id"]: [] for image in self._images}
        for annotation in data["annotations"]:
            self._annotations.setdefault(annotation["image_id"], []).append(annotation)
        self.name, self.planes = file.stem, planes

    def __len__(self) -> int:
        return len(self._images)

    def _read(self, i: int) -> Sample:
        """Read image ``i``."""
        entry = self._images[i]
        image = read_image(within(self._folder, entry["file_name"], "file_name", DataError), entry["file_name"])
        shape = (image.shape[1], image.shape[2])
        if (entry.get("height", shape[0]), entry.get("width", shape[1])) != shape:
            raise DataError(
                f"{entry['file_name']} must have the size of its entry, {entry['width']}x{entry['height']}. "
                f"Got {shape[1]}x{shape[0]}."
            )
        labels = np.full((self.planes, *shape), -1)
        for concept, mask in self._masks(i, shape).items():
            for plane in labels:  # the first plane that is still free, pixel by pixel
                free = mask & (plane < 0)
                plane[free] = concept
                mask &= ~free
            if mask.any():
                raise DataError(
                    f"a pixel must carry at most planes={self.planes} categories. Got more in {entry['file_name']}. "
                    "Pass a larger number of planes."
                )
        return fitted(image, torch.from_numpy(labels), torch.empty(0, dtype=torch.long), self._size)

    def _masks(self, i: int, shape: tuple[int, int]) -> dict[int, np.ndarray]:
        """For each category in the image, the union of its annotations."""
        masks: dict[int, np.ndarray] = {}
        for annotation in self._annotations[self._images[i]["id"]]:
            if annotation["category_id"] not in self._number:
                raise DataError(
                    f"category_id must be one of the file's categories. Got {annotation['category_id']} in image "
                    f"{self._images[i]['file_name']}."
                )
            concept = self._number[annotation["category_id"]]
            mask = _segmentation(annotation.get("segmentation"), shape, self._images[i]["file_name"])
            masks[concept] = masks[concept] | mask if concept in masks else mask
        return masks


def fill_polygons(polygons: Sequence[Sequence[float]], shape: tuple[int, int]) -> np.ndarray:
    """The union of polygons ``[x1, y1, x2, y2, ...]`` as a mask.

    Args:
        polygons: Corner coordinates in pixels.
        shape: ``(height, width)``.

    Returns:
        ``(height, width)`` in bool.

    Raises:
        ValueError: If a polygon has fewer than three corners or an odd number of coordinates.
    """
    from PIL import Image, ImageDraw

    canvas = Image.new("1", (shape[1], shape[0]))
    for polygon in polygons:
        if len(polygon) < 6 or len(polygon) % 2:
            raise ValueError(f"a polygon must have x and y of at least three corners. Got {len(polygon)} numbers.")
        ImageDraw.Draw(canvas).polygon([float(v) for v in polygon], fill=1, outline=1)
    return np.array(canvas, dtype=bool)


def decode_runs(counts: Sequence[int] | str | bytes, shape: tuple[int, int]) -> np.ndarray:
    """A run-length mask: lengths of runs of 0 and 1 in turn, column by column.

    The text form writes each length in groups of five bits, the lowest first, as characters from ``"0"`` on; a further
    bit says that more groups follow. From the fourth run on, it writes the difference to the run two before.

    Args:
        counts: Lengths, or their text form.
        shape: ``(height, width)``.

    Returns:
        ``(height, width)`` in bool.

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


def _segmentation(value: Any, shape: tuple[int, int], name: str) -> np.ndarray:
    try:
        if isinstance(value, dict):
            if tuple(value["size"]) != shape:
                raise ValueError(f"the mask must have the size {shape} of its image. Got {tuple(value['size'])}.")
            return decode_runs(value["counts"], shape)
        if isinstance(value, list):
            return fill_polygons(value, shape)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"segmentation in {name} must be polygons or runs. Got one that does not read: {error}"
        ) from None
    raise DataError(f"segmentation in {name} must be polygons or runs. Got {type(value).__name__}.")
