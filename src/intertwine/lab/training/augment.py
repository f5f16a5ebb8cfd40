"""Random translations and mirror images of a batch."""

import torch
from torch import Tensor

__all__ = ["augment", "draw_moves", "move"]


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
