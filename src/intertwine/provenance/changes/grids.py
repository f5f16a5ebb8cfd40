"""Grids of integer quantisation: whether the values of a tensor lie on equally spaced levels."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

_BITS = (8, 4)
_OFF = 0.02  # of a step: how far a value may lie from its level
_HALF = 0.75  # of a step: how far rounding to the next level moves a value, with room for another choice of steps
_GROUPS = (128, 64, 32)  # entries that share a step, where rows do not
_MOST = 1 << 18  # entries that are looked at
_SHARED, _ENTRIES = 8, 64  # entries that share a step, and all of them, below which any values may fit


def grid(x: Tensor, y: Tensor) -> str:
    """The grid that ``y`` lies on and ``x`` was rounded to, in words; empty where there is none.

    Steps are the largest absolute value, or the range, divided by the largest integer: of the whole tensor, of each
    row, of each column, or of groups of entries along the rows.
    """
    if y.ndim < 2:
        return ""
    before, after = x.flatten(1), y.flatten(1)
    for words, view in _views(after):
        pieces = view(after)
        some = max(1, _MOST // pieces.shape[1])
        left, right = view(before)[:some], pieces[:some]
        for bits in _BITS:
            if right.shape[1] >= _SHARED and right.numel() >= _ENTRIES and _on_grid(left, right, bits):
                return f"int{bits}, {words}"
    return ""


def _views(y: Tensor) -> list[tuple[str, Callable[[Tensor], Tensor]]]:
    """Ways in which entries may share a step: ``(pieces, entries)`` each."""
    ways: list[tuple[str, Callable[[Tensor], Tensor]]] = [
        ("one step for the tensor", lambda t: t.reshape(1, -1)[:, :_MOST]),
        ("one step for each row", lambda t: t),
        ("one step for each column", lambda t: t.mT),
    ]
    sizes = [size for size in _GROUPS if y.shape[1] % size == 0 and y.shape[1] > size]
    return [*ways, *((f"one step for {size} entries", partial(_groups, size)) for size in sizes)]


def _groups(size: int, y: Tensor) -> Tensor:
    return y.reshape(-1, size)


def _on_grid(x: Tensor, y: Tensor, bits: int) -> bool:
    top = 2 ** (bits - 1)
    largest, low, high = y.abs().amax(1), y.amin(1), y.amax(1)
    gaps = y.sort(1).values.diff(dim=1)
    smallest = torch.where(gaps > 0, gaps, torch.inf).amin(1)
    smallest = torch.where((high - low) / smallest < 2 * top + _OFF, smallest, torch.inf)
    for step, offset in (
        *((largest / n, torch.zeros_like(low)) for n in (top - 1, top, top - 0.5)),
        *((s, low) for s in ((high - low) / (2 * top - 1), smallest)),
    ):
        if not bool(step.isfinite().all()):
            continue
        step = step.clamp_min(torch.finfo(y.dtype).tiny)[:, None]
        level = (y - offset[:, None]) / step
        # coarse levels are reached by whole numbers only; one that is not settles it
        if bool(((level - level.round()).abs() <= _OFF).all()) and bool(((x - y).abs() <= _HALF * step).all()):
            return True
    return False
