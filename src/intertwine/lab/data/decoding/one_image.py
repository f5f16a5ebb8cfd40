"""One image of others to numbers: formats that are known, sizes that fit, values that are not changed unseen.

- Formats: PNG, JPEG, BMP, GIF, WebP, PPM and PGM, TIFF, by what a file holds and not by its name. Others are refused.
- Grey and colour come as 8 bits. Values of 16 bits are scaled to 8; floating-point and 32-bit pixels are refused, since
  nothing says their range.
- Palettes become their colours, CMYK and YCbCr become RGB, transparency is left out: colours are as they are stored.
- EXIF's orientation is applied, so that an image is as viewers show it. Of an animation the first picture is taken.
- Masks are numbers, not colours: palette indices and values of 16 bits stay as they are.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...._memory import check_fits
from ...._untrusted.files import regular_file
from ....errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")

_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF")
_PIXELS = 2**26  # of one image: 67 megapixels
_GREY = ("1", "L", "LA", "La")
_COLOUR = ("P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr")
_OF_16_BITS = ("PNG", "PPM")  # formats whose integer pixels have 16 bits


def pixels(source: bytes | Path, name: str) -> np.ndarray:
    """An image as ``(H, W)`` if it is grey, ``(H, W, 3)`` if it has colours, in ``uint8``. The values, 0 to 255."""
    return _read(source, name, _in_8_bits)


def numbers(source: bytes | Path, name: str) -> np.ndarray:
    """The numbers that an image stores, ``(H, W)`` or ``(H, W, C)``, such as the labels of a mask."""
    return _read(source, name, lambda image, _: np.array(image))


def _read(source: bytes | Path, name: str, convert: Callable[[Image, str], np.ndarray]) -> np.ndarray:
    from PIL import Image

    stream: Any = io.BytesIO(source) if isinstance(source, bytes) else regular_file(source, name, DataError)
    try:
        with Image.open(stream, formats=_FORMATS) as image:
            _check_size(image, name)
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


def _check_size(image: Image, name: str) -> None:
    width, height = image.size
    if width * height > _PIXELS:
        raise DataError(f"{name} must have at most {_PIXELS:,} pixels. Got {width} x {height}. Make it smaller first.")
    size = f"{width} x {height} pixels"
    check_fits(8 * width * height, name, size, "Make it smaller first.", error=DataError)


def _in_8_bits(image: Image, name: str) -> np.ndarray:
    from PIL import ImageOps

    mode, upright = image.mode, ImageOps.exif_transpose(image)
    assert upright is not None  # only where it turns in place
    if mode.startswith("I;16") or (mode == "I" and image.format in _OF_16_BITS):
        values = np.array(upright).astype(np.float64)
        return np.round(values / 257).clip(0, 255).astype(np.uint8)
    if mode not in _GREY + _COLOUR:
        raise DataError(
            f"{name} must have pixels of 8 or 16 bits. Got the mode {mode!r}, of which nothing says the range. "
            "Scale it to 8 bits first."
        )
    return np.array(upright.convert("L" if mode in _GREY else "RGB"))
