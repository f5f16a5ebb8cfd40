"""Images of any size brought to the size that a model takes: resized, then cut out of the middle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import DataError

_WAYS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")  # in the order of Pillow's numbers
_LARGEST = 8192  # pixels of a side
_SMALL = 384  # sides below which ConvNext's processor cuts out of a larger image


@dataclass(frozen=True)
class Preprocessing:
    """Size, cut and statistics of a model's input images.

    Args:
        size: ``(height, width)`` that is cut out of the middle.
        resize: What comes before: the length of the shorter side, or ``(height, width)``.
        interpolation: Of the resizing, as Pillow has it: ``"bilinear"``, ``"bicubic"``, ``"nearest"``, ...
        mean: Mean of each channel that the model subtracts, on the scale 0 to 1; ``None`` for that of the data.
        std: Standard deviation that it divides by.

    Raises:
        DataError: If a size is none that an image can have, or the interpolation is unknown.

    Examples:
        >>> Preprocessing.square(224)(np.zeros((300, 400, 3), np.uint8)).shape
        (224, 224, 3)
    """

    size: tuple[int, int]
    resize: int | tuple[int, int]
    interpolation: str = "bilinear"
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        sides = [*self.size, *(self.resize if isinstance(self.resize, tuple) else [self.resize])]
        if any(not isinstance(side, int) or not 1 <= side <= _LARGEST for side in sides):
            raise DataError(f"sizes of images must be whole numbers from 1 to {_LARGEST:,}. Got {sides}.")
        if self.interpolation not in _WAYS:
            raise DataError(f"interpolation must be one of {', '.join(_WAYS)}. Got {self.interpolation!r}.")

    @classmethod
    def square(cls, side: int) -> Preprocessing:
        """The shorter side resized, then a square cut out of the middle."""
        return cls((side, side), side)

    @classmethod
    def of_transformers(cls, settings: Mapping[str, Any]) -> Preprocessing | None:
        """What the ``preprocessor_config.json`` of transformers says; ``None`` where its images keep their sizes.

        Examples:
            >>> Preprocessing.of_transformers({"size": 256, "do_center_crop": True, "crop_size": 224})
            Preprocessing(size=(224, 224), resize=256, interpolation='bilinear', mean=None, std=None)
        """
        size, crops = settings.get("size"), bool(settings.get("do_center_crop"))
        fraction = settings.get("crop_pct")
        edge = size.get("shortest_edge") if isinstance(size, Mapping) else size if crops or fraction else None
        resize: Any = edge if edge is not None else _sides(size)
        cut = _sides(settings.get("crop_size")) if crops else resize if isinstance(resize, tuple) else None
        if edge is not None and fraction:  # ConvNext
            cut = (edge, edge)
            resize = int(edge / fraction) if edge < _SMALL else cut
        if resize is None or cut is None or not settings.get("do_resize", True):
            return None
        way, normed = settings.get("resample", 2), settings.get("do_normalize", True)
        mean, std = (settings.get(key) if normed else None for key in ("image_mean", "image_std"))
        return cls(cut, resize, _WAYS[way] if way in range(len(_WAYS)) else str(way), _numbers(mean), _numbers(std))

    @classmethod
    def of_timm(cls, settings: Mapping[str, Any]) -> Preprocessing:
        """What a model of timm says in its ``pretrained_cfg``, also called ``default_cfg``.

        Examples:
            >>> Preprocessing.of_timm({"input_size": (3, 224, 224), "crop_pct": 0.875, "interpolation": "bicubic"})
            Preprocessing(size=(224, 224), resize=256, interpolation='bicubic', mean=None, std=None)
        """
        height, width = settings["input_size"][-2:]
        fraction = settings.get("crop_pct") or 0.875
        larger = int(height / fraction), int(width / fraction)
        squash = settings.get("crop_mode") == "squash" or height != width
        way, mean, std = settings.get("interpolation") or "bilinear", settings.get("mean"), settings.get("std")
        return cls((height, width), larger if squash else larger[0], way, _numbers(mean), _numbers(std))

    def __call__(self, image: np.ndarray) -> np.ndarray:
        """An image ``(H, W)`` or ``(H, W, 3)`` in ``uint8``, resized and cut.

        It gets as many channels as there are means.
        """
        from PIL import Image

        channels = len(self.mean) if self.mean else None
        picture = Image.fromarray(image)
        if channels in (1, 3):
            picture = picture.convert("L" if channels == 1 else "RGB")
        way = Image.Resampling[self.interpolation.upper()]
        width, height = picture.size
        if isinstance(self.resize, tuple):
            to = self.resize[::-1]
        else:
            short = min(width, height)
            to = (self.resize * width // short, self.resize * height // short)
        picture = picture if to == picture.size else picture.resize(to, way)
        left, top = (picture.size[0] - self.size[1]) // 2, (picture.size[1] - self.size[0]) // 2
        return np.array(picture.crop((left, top, left + self.size[1], top + self.size[0])))

    def __str__(self) -> str:
        before = "x".join(map(str, self.resize)) if isinstance(self.resize, tuple) else f"shorter side {self.resize}"
        after = "" if self.resize == self.size else f", {self.size[0]}x{self.size[1]} out of the middle"
        return f"resized to {before}{after}, {self.interpolation}"


def _sides(value: Any) -> tuple[int, int] | None:
    """``(height, width)`` from how transformers writes it."""
    if isinstance(value, int):
        return value, value
    if isinstance(value, Mapping) and {"height", "width"} <= value.keys():
        return value["height"], value["width"]
    return None


def _numbers(values: Any) -> tuple[float, ...] | None:
    """Numbers of a list."""
    if values is None:
        return None
    if not isinstance(values, list | tuple) or not all(isinstance(v, int | float) for v in values):
        raise DataError(f"channel statistics must be lists of numbers. Got {values!r}.")
    return tuple(map(float, values))
