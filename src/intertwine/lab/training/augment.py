"""Random translations and mirror images of a batch."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..data import Batches

__all__ = ["Augmented", "augment", "draw_moves", "move"]


def augment(x: Tensor, translate: int, flip: bool, generator: torch.Generator | None = None) -> Tensor:
    """Move every image by up to ``translate`` pixels each way and mirror every second one, on average.

    Pixels that come in from outside are 0, which is the mean colour of inputs whose channel means were subtracted.

    Args:
        x: ``(N, C, H, W)``, normalised.
        translate: Largest shift in pixels.
        flip: Whether to mirror left-right.
        generator: Source of the shifts; on the CPU.

    Returns:
        A new tensor of the same shape, or ``x`` itself where there is nothing to do.

    Raises:
        ValueError: If ``x`` is no batch of images.

    Examples:
        >>> augment(torch.ones(8, 3, 5, 5), translate=2, flip=True).shape
        torch.Size([8, 3, 5, 5])
    """  # noqa: DOC502 - raised by move
    if not translate and not flip:
        return x
    return move(x, *draw_moves(len(x), translate, flip, generator), translate)


def draw_moves(n: int, translate: int, flip: bool, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Draw shifts and mirrorings for ``n`` images.

    Args:
        n: Number of images.
        translate: Largest shift in pixels.
        flip: Whether to mirror every second image, on average.
        generator: Source, on the CPU.

    Returns:
        Shifts ``(2, n, 1)`` down and right from 0 to ``2 translate``, and ``(n, 1)`` booleans.
    """
    shifts = torch.randint(0, 2 * translate + 1, (2, n, 1), generator=generator)
    mirrored = torch.rand(n, 1, generator=generator) < 0.5 if flip else torch.zeros(n, 1, dtype=torch.bool)
    return shifts, mirrored


def move(x: Tensor, shifts: Tensor, mirrored: Tensor, translate: int) -> Tensor:
    """Move and mirror images as drawn, on their device.

    Args:
        x: ``(N, C, H, W)``, normalised.
        shifts: ``(2, N, 1)``, from ``draw_moves``.
        mirrored: ``(N, 1)``, from ``draw_moves``.
        translate: Largest shift in pixels.

    Returns:
        A new tensor of the same shape.

    Raises:
        ValueError: If ``x`` is no batch of images.
    """
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
    """Batches of normalised images under random translations and mirroring, drawn from torch's global random numbers.

    Args:
        batches: The images.
        translate: Largest shift in pixels.
        flip: Whether to mirror every second image, on average.

    Examples:
        >>> from intertwine.lab import data
        >>> moved = Augmented(data.load("digits").loader("train", batch_size=32), translate=1, flip=False)
        >>> next(iter(moved))[0].shape
        torch.Size([32, 1, 8, 8])
    """

    batches: Batches
    translate: int
    flip: bool

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for inputs, labels in self.batches:
            yield augment(inputs, self.translate, self.flip), labels
