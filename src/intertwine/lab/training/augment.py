"""Random translations, mirror images and resized crops of a batch."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..data import Batches


def augment(
    x: Tensor, translate: int, flip: bool, generator: torch.Generator | None = None, crop: float = 0.0
) -> Tensor:
    """Crop every image, move it by up to ``translate`` pixels each way and mirror every second one, on average.

    Pixels that come in from outside are 0, which is the mean colour of inputs whose channel means were subtracted.

    Args:
        x: ``(N, C, H, W)``, normalised.
        translate: Largest shift in pixels.
        flip: Whether to mirror left-right.
        generator: Source of the shifts; on the CPU.
        crop: Least share of the image that a random crop keeps before it is resized; 0 for none.

    Returns:
        A new tensor of the same shape, or ``x`` itself where there is nothing to do.

    Raises:
        ValueError: If ``x`` is no batch of images.

    Examples:
        >>> augment(torch.ones(8, 3, 5, 5), translate=2, flip=True).shape
        torch.Size([8, 3, 5, 5])
    """  # noqa: DOC502 - raised by move
    if crop:
        x = resized(x, draw_crops(len(x), crop, generator))
    if not translate and not flip:
        return x
    return move(x, *draw_moves(len(x), translate, flip, generator), translate)


def draw_moves(n: int, translate: int, flip: bool, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Draw shifts ``(2, n, 1)`` down and right from 0 to ``2 translate``, and mirrorings ``(n, 1)`` in bool."""
    shifts = torch.randint(0, 2 * translate + 1, (2, n, 1), generator=generator)
    mirrored = torch.rand(n, 1, generator=generator) < 0.5 if flip else torch.zeros(n, 1, dtype=torch.bool)
    return shifts, mirrored


def draw_crops(n: int, least: float, generator: torch.Generator | None = None) -> Tensor:
    """Draw boxes of ``least`` to all of an image's area and of aspects 3/4 to 4/3 (Szegedy et al. 2015).

    ``(n, 4)``: height, width, top and left as shares of the image. Boxes that do not fit are made to.
    """
    area, aspect, top, left = torch.rand(4, n, generator=generator)
    area, ratio = least + (1 - least) * area, ((2 * aspect - 1) * math.log(4 / 3)).exp()
    height, width = (area / ratio).sqrt().clamp(max=1), (area * ratio).sqrt().clamp(max=1)
    return torch.stack([height, width, top * (1 - height), left * (1 - width)], 1)


def resized(x: Tensor, boxes: Tensor) -> Tensor:
    """Boxes ``(N, 4)`` of images ``(N, C, H, W)``, brought to the images' size by bilinear interpolation."""
    height, width, top, left = boxes.to(x).T
    zero = torch.zeros_like(height)
    across = torch.stack([width, zero, 2 * left + width - 1], 1)
    down = torch.stack([zero, height, 2 * top + height - 1], 1)
    grid = torch.nn.functional.affine_grid(torch.stack([across, down], 1), list(x.shape), align_corners=False)
    return torch.nn.functional.grid_sample(x, grid, padding_mode="border", align_corners=False)


def move(x: Tensor, shifts: Tensor, mirrored: Tensor, translate: int) -> Tensor:
    """Move and mirror normalised images ``(N, C, H, W)`` as ``draw_moves`` drew it, on their device."""
    if x.ndim != 4:
        raise ValueError(
            f"x must be a batch of images (N, C, H, W). Got shape {tuple(x.shape)}. Set translate=0, flip=False."
        )
    n, _, h, w = x.shape
    columns = torch.arange(w).expand(n, w)
    rows = (shifts[0] + torch.arange(h))[:, None, :, None].to(x.device)
    columns = (shifts[1] + torch.where(mirrored, w - 1 - columns, columns))[:, None, None, :].to(x.device)
    padded = torch.nn.functional.pad(x, (translate,) * 4)
    examples = torch.arange(n, device=x.device)[:, None, None, None]
    channels = torch.arange(x.shape[1], device=x.device)[None, :, None, None]
    return padded[examples, channels, rows, columns]


@dataclass(frozen=True)
class Augmented:
    """Batches of normalised images, randomly cropped, moved and mirrored by torch's global random numbers.

    Args:
        batches: The images.
        translate: Largest shift in pixels.
        flip: Whether to mirror every second image, on average.
        crop: Least share of the image that a random resized crop keeps; 0 for none.

    Examples:
        >>> from intertwine.lab import data
        >>> moved = Augmented(data.load("digits").loader("train", batch_size=32), translate=1, flip=False)
        >>> next(iter(moved))[0].shape
        torch.Size([32, 1, 8, 8])
    """

    batches: Batches
    translate: int
    flip: bool
    crop: float = 0.0

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for inputs, labels in self.batches:
            yield augment(inputs, self.translate, self.flip, crop=self.crop), labels
