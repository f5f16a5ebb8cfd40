"""Decoding of untrusted images to arrays of one size: known formats, sizes that fit, no silent change of values.

- Formats: PNG, JPEG, BMP, GIF, WebP, PPM and PGM, TIFF, judged by content, not by name. Others are refused.
- Grey and colour become 8 bits. Values of 16 bits are scaled to 8; floating-point and 32-bit pixels are refused, since
  nothing says their range.
- Palettes become their colours, CMYK and YCbCr become RGB, and transparency is dropped: colours are as stored.
- EXIF's orientation is applied, so that images look as in viewers. Of an animation, the first picture is taken.
- Masks are numbers, not colours: palette indices and values of 16 bits stay as they are.

Decoded images of a data set are cached, so that they need not be decoded twice.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..._io import read_tensors, write_tensors
from ..._memory import check_fits
from ..._progress import track
from ..._untrusted.files import regular_file
from ...errors import CheckpointError, DataError

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")

_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF")
_PIXELS = 2**26  # most pixels of one image: 67 megapixels
_GREY = ("1", "L", "LA", "La")
_COLOUR = ("P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr")
_OF_16_BITS = ("PNG", "PPM")  # formats whose integer pixels have 16 bits
_VERSION = 3  # version of the decoding
_WAYS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")  # in the order of Pillow's constants
_LARGEST = 8192  # longest side in pixels
_SMALL = 384  # sides below which ConvNext's processor crops a larger image


def pixels(source: bytes | Path, name: str) -> np.ndarray:
    """An image as ``(H, W)`` if it is grey, ``(H, W, 3)`` if it is in colour, in ``uint8``, 0 to 255."""
    return _read(source, name, _in_8_bits)


def in_colour(array: np.ndarray) -> np.ndarray:
    """An image as ``(H, W, 3)``, with three equal channels if it is grey."""
    return array if array.ndim == 3 else np.repeat(array[:, :, None], 3, axis=2)


def numbers(source: bytes | Path, name: str) -> np.ndarray:
    """The numbers stored in an image, ``(H, W)`` or ``(H, W, C)``, such as the labels of a mask."""
    return _read(source, name, lambda image, _: np.array(image))


def _read(source: bytes | Path, name: str, convert: Callable[[Image, str], np.ndarray]) -> np.ndarray:
    from PIL import Image

    stream: Any = io.BytesIO(source) if isinstance(source, bytes) else regular_file(source, name, DataError)
    try:
        with Image.open(stream, formats=_FORMATS) as image:
            width, height = image.size
            if width * height > _PIXELS:
                raise DataError(
                    f"{name} must have at most {_PIXELS:,} pixels. Got {width} x {height}. Make it smaller first."
                )
            size = f"{width} x {height} pixels"
            check_fits(8 * width * height, name, size, "Make it smaller first.", error=DataError)
            return convert(image, name)
    except DataError:
        raise
    except Image.DecompressionBombError:
        raise DataError(f"{name} must have at most {_PIXELS:,} pixels. Got more. Make it smaller first.") from None
    except Image.UnidentifiedImageError:
        raise DataError(
            f"images must decode as one of {', '.join(_FORMATS)}. Got a damaged one in {name}, or one of another "
            "format. Convert it first."
        ) from None
    except Exception as error:  # a damaged file may raise nearly anything
        raise DataError(f"images must decode. Got a damaged one in {name} ({error}).") from None


def _in_8_bits(image: Image, name: str) -> np.ndarray:
    from PIL import ImageOps

    mode, upright = image.mode, ImageOps.exif_transpose(image)
    assert upright is not None  # None only if it transposes in place
    if mode.startswith("I;16") or (mode == "I" and image.format in _OF_16_BITS):
        values = np.array(upright).astype(np.float64)
        return np.round(values / 257).clip(0, 255).astype(np.uint8)
    if mode not in _GREY + _COLOUR:
        raise DataError(
            f"{name} must have pixels of 8 or 16 bits. Got the mode {mode!r}, of which nothing says the range. "
            "Scale it to 8 bits first."
        )
    return np.array(upright.convert("L" if mode in _GREY else "RGB"))


def segmentation(value: Any, shape: tuple[int, int], name: str) -> np.ndarray:
    """The boolean mask ``(height, width)`` of an annotation: polygons, or COCO run lengths in either form."""
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
    """The union of polygons ``[x1, y1, x2, y2, ...]`` in pixels, as a boolean mask ``(height, width)``."""
    from PIL import Image, ImageDraw

    canvas = Image.new("1", (shape[1], shape[0]))
    for polygon in polygons:
        if len(polygon) < 6 or len(polygon) % 2:
            raise ValueError(f"a polygon must have x and y of at least three corners. Got {len(polygon)} numbers.")
        ImageDraw.Draw(canvas).polygon([float(v) for v in polygon], fill=1, outline=1)
    return np.array(canvas, dtype=bool)


def decode_runs(counts: Sequence[int] | str | bytes, shape: tuple[int, int]) -> np.ndarray:
    """A boolean mask ``(height, width)`` from run lengths of alternating 0 and 1, column by column.

    The text form writes each length in groups of five bits, lowest first, as characters starting at ``"0"``; a sixth
    bit says that more groups follow. From the fourth run on, it writes the difference from the run two before.
    """  # noqa: DOC501
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
        if group & 16:  # the sign bit of the last group
            value -= 1 << shift
        runs.append(value + runs[-2] if len(runs) > 2 else value)
        value = shift = 0
    return runs


@dataclass(frozen=True)
class Preprocessing:
    """Size, crop and channel statistics of a model's input images.

    Examples:
        >>> Preprocessing.square(224)(np.zeros((300, 400, 3), np.uint8)).shape
        (224, 224, 3)
    """

    size: tuple[int, int]  # ``(height, width)`` of the centre crop
    resize: int | tuple[int, int]  # Size before the crop: length of the shorter side, or ``(height, width)``
    interpolation: str = "bilinear"  # Pillow's filter for resizing: ``"bilinear"``, ``"bicubic"``, ...
    mean: tuple[float, ...] | None = None  # Channel means to subtract, on a scale of 0 to 1; ``None``: the data's
    std: tuple[float, ...] | None = None  # Channel standard deviations to divide by
    rounded: bool = False  # Whether half pixels before the crop are rounded (to even, as in timm) rather than cut

    def __post_init__(self) -> None:
        sides = [*self.size, *(self.resize if isinstance(self.resize, tuple) else [self.resize])]
        if any(not isinstance(side, int) or not 1 <= side <= _LARGEST for side in sides):
            raise DataError(f"sizes of images must be whole numbers from 1 to {_LARGEST:,}. Got {sides}.")
        if self.interpolation not in _WAYS:
            raise DataError(f"interpolation must be one of {', '.join(_WAYS)}. Got {self.interpolation!r}.")

    @classmethod
    def square(cls, side: int) -> Preprocessing:
        """The preprocessing that resizes the shorter side and takes a square centre crop."""
        return cls((side, side), side)

    @classmethod
    def of_transformers(cls, settings: Mapping[str, Any]) -> Preprocessing | None:
        """The preprocessing of a transformers ``preprocessor_config.json``; ``None`` if images keep their sizes.

        Examples:
            >>> Preprocessing.of_transformers({"size": 256, "do_center_crop": True, "crop_size": 224})
            Preprocessing(size=(224, 224), resize=256, interpolation='bilinear', mean=None, std=None, rounded=False)
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
        """The preprocessing in the ``pretrained_cfg`` (also ``default_cfg``) of a timm model.

        Examples:
            >>> Preprocessing.of_timm({"input_size": (3, 224, 224), "crop_pct": 0.875, "interpolation": "bicubic"})
            Preprocessing(size=(224, 224), resize=256, interpolation='bicubic', mean=None, std=None, rounded=True)
        """
        height, width = settings["input_size"][-2:]
        fraction = settings.get("crop_pct") or 0.875
        larger = int(height / fraction), int(width / fraction)
        squash = settings.get("crop_mode") == "squash" or height != width
        way, mean, std = settings.get("interpolation") or "bilinear", settings.get("mean"), settings.get("std")
        return cls((height, width), larger if squash else larger[0], way, _numbers(mean), _numbers(std), True)

    def __call__(self, image: np.ndarray) -> np.ndarray:
        """An image ``(H, W)`` or ``(H, W, 3)`` in ``uint8``, resized and cropped.

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
        whole = round if self.rounded else math.floor
        left, top = (whole((side - cut) / 2) for side, cut in zip(picture.size, self.size[::-1]))
        return np.array(picture.crop((left, top, left + self.size[1], top + self.size[0])))

    def __str__(self) -> str:
        before = "x".join(map(str, self.resize)) if isinstance(self.resize, tuple) else f"shorter side {self.resize}"
        after = "" if self.resize == self.size else f", {self.size[0]}x{self.size[1]} out of the middle"
        return f"resized to {before}{after}, {self.interpolation}"


def note(name: str, images: int, preprocessing: Preprocessing | None, tail: str = "") -> tuple[str, ...]:
    """The note of a data set: how many images it has, and how they were resized."""
    how = "" if preprocessing is None else f", {preprocessing}"
    return (f"{name}: {images:,} images{how}{tail}.",)


def decode_images(
    files: Sequence[Path],
    encoded: Iterable[tuple[str, Any]],
    total: int,
    what: str,
    preprocessing: Preprocessing | None = None,
    skip: bool = False,
) -> tuple[Tensor, list[int]]:
    """Decode images to ``(N, C, H, W)`` in ``uint8``, grey if all are grey, else RGB; or read them from the cache.

    ``encoded`` yields a name for messages, and the compressed bytes or a path, of each of the ``total`` images. They
    come from ``files``: if the size or time of one changes, they are decoded again. With ``skip``, images that do not
    decode are left out and their numbers returned; otherwise they are errors. ``what`` names the data set.
    """
    stats = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    key = hashlib.sha256(repr((_VERSION, preprocessing, skip, stats)).encode()).hexdigest()[:24]
    folder = Path(os.environ.get("INTERTWINE_CACHE") or "~/.cache/intertwine/decoded").expanduser()
    path = folder / f"{key}.safetensors"
    if path.is_file():
        with suppress(CheckpointError):  # if the cache file is damaged, images are decoded again and it is replaced
            found = read_tensors(path)
            return found["inputs"], found["skipped"].tolist()
    inputs, skipped = _decoded(encoded, total, what, preprocessing, skip)
    with suppress(OSError):  # an unwritable folder only costs the time to decode again
        write_tensors(path, {"inputs": inputs, "skipped": torch.tensor(skipped, dtype=torch.int64)})
    return inputs, skipped


def _decoded(
    encoded: Iterable[tuple[str, Any]], total: int, what: str, preprocessing: Preprocessing | None, skip: bool
) -> tuple[Tensor, list[int]]:
    arrays: list[np.ndarray] = []
    skipped: list[int] = []
    for name, source in track(encoded, f"decoding {what}", total, enabled=total > 5000):
        if source is None:
            raise DataError(f"every image of {what} must have bytes. Got none in {name}.")
        try:
            array = pixels(source, f"{name} of {what}")
        except DataError:
            if not skip:
                raise
            skipped.append(len(arrays) + len(skipped))
            continue
        array = array if preprocessing is None else preprocessing(array)
        (h, w), (h0, w0) = array.shape[:2], (arrays or [array])[0].shape[:2]
        if not arrays:
            size = f"{total:,} images of {w}x{h}"
            check_fits(6 * total * h * w, what, size, "Make them smaller, or take fewer.", error=DataError)
        if (h, w) != (h0, w0):
            raise DataError(
                f"images of {what} must all have one size. Got {w}x{h} in {name} after {w0}x{h0}. Say "
                "--size 224 (in Python, preprocessing=Preprocessing.square(224)), or resize them first."
            )
        arrays.append(array)
    if not arrays:
        raise DataError(f"{what} must hold at least one image. Got none.")
    if any(array.ndim == 3 for array in arrays):
        arrays = [in_colour(array) for array in arrays]
    images = torch.from_numpy(np.stack(arrays))
    return (images.unsqueeze(1) if images.ndim == 3 else images.permute(0, 3, 1, 2).contiguous()), skipped


class Pictures:
    """Image files as a tensor ``(N, 3, H, W)`` in ``uint8`` on a device, decoded on indexing."""

    dtype, ndim = torch.uint8, 4

    def __init__(self, files: Sequence[Path], preprocessing: Preprocessing, device: torch.device | str = "cpu") -> None:
        self.files, self._prepare, self._device = list(files), preprocessing, torch.device(device)
        self.shape = torch.Size((len(self.files), 3, *preprocessing.size))

    def __len__(self) -> int:
        return len(self.files)

    def take(self, index: Tensor | slice) -> Pictures:
        """Some of the images, not decoded yet."""
        chosen = torch.arange(len(self))[index.cpu() if isinstance(index, Tensor) else index].tolist()
        return Pictures([self.files[k] for k in chosen], self._prepare, self._device)

    def joined(self, others: Sequence[Pictures]) -> Pictures:
        """These images followed by others."""
        files = [file for one in (self, *others) for file in one.files]
        return Pictures(files, self._prepare, self._device)

    def __getitem__(self, index: Tensor | slice) -> Tensor:
        decoded = lambda file: in_colour(self._prepare(pixels(file, str(file))))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            arrays = list(pool.map(decoded, self.take(index).files))
        return torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2).contiguous().to(self._device)

    def to(self, device: torch.device | str) -> Pictures:
        """The same images, to be decoded to another device."""
        return Pictures(self.files, self._prepare, device)


def _sides(value: Any) -> tuple[int, int] | None:
    """``(height, width)`` from the form that transformers writes."""
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
