"""Small pictures of inputs and of maps over inputs, for pages."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

_WIDTH = 128  # pixels of a picture's longer side
_BLUE, _WHITE, _RED = (33, 102, 172), (247, 247, 247), (178, 24, 43)


def is_image(shape: tuple[int, ...]) -> bool:
    """Whether inputs of a shape ``(C, H, W)`` can be drawn.

    Examples:
        >>> is_image((1, 8, 8)), is_image((64,))
        (True, False)
    """
    return len(shape) == 3 and shape[0] in (1, 3)


def input_picture(x: Tensor) -> str:
    """An input, its darkest entry black and its brightest white, as base64 of a JPEG file."""
    low, high = x.min(), x.max()
    grey = (x - low) / (high - low).clamp_min(1e-12)
    return _jpeg(255 * grey.expand(3, -1, -1))


def signed_picture(weights: Tensor, size: float | None = None) -> str:
    """Weights ``(1 or 3, H, W)`` over an input: blue below 0, white at 0, red above, as base64 of a JPEG file.

    Channels are added up; ``size`` has full colour, the largest weight unless given.
    """
    import torch

    w = weights.sum(0)
    w = (w / max(size or float(w.abs().max()), 1e-12)).clamp(-1, 1)
    colour = lambda rgb: torch.tensor(rgb, dtype=w.dtype, device=w.device)[:, None, None]
    end = torch.where(w[None] < 0, colour(_BLUE), colour(_RED))
    return _jpeg(colour(_WHITE) + w.abs()[None] * (end - colour(_WHITE)))


def _jpeg(pixels: Tensor) -> str:
    import torch
    from PIL import Image

    scale = max(1, _WIDTH // max(pixels.shape[1:]))
    large = pixels.repeat_interleave(scale, 1).repeat_interleave(scale, 2)  # pixels stay squares
    image = large.round().clamp(0, 255).to("cpu", torch.uint8).permute(1, 2, 0).contiguous().numpy()
    file = io.BytesIO()
    Image.fromarray(image).save(file, format="JPEG", quality=90, subsampling=0, optimize=True)
    return base64.b64encode(file.getvalue()).decode()
