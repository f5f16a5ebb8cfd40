"""Grids of quantisation: whether the values of a tensor are integers or float8 numbers times common scales."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

_BITS = (4, 8)  # the coarse grid first: its levels are among those of a finer one
_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_EQUAL = 1e-5  # relative deviation of a number from one of a grid
_OFF = 0.02  # of a step: how far a value may lie from its level
_HALF = 0.75  # of a step: how far rounding to the next level moves a value, with room for another choice of steps
_GROUPS = (128, 64, 32)  # entries that share a step, where rows do not
_MOST = 1 << 18  # entries that are looked at
_SHARED, _ENTRIES = 8, 64  # entries that share a step, and all of them, below which any values may fit


def grid(x: Tensor, y: Tensor) -> str:
    """The grid that ``y`` lies on and ``x`` was rounded to, in words; empty where there is none.

    Steps and scales are the largest absolute value, or the range, divided by the largest integer or float8 number: of
    the whole tensor, of each row, of each column, or of groups of entries along the rows. Float8 may have no scale.
    """
    for format_ in _FLOAT8:
        if torch.equal(x.to(format_).to(y.dtype), y):
            return _name(format_)
    if y.ndim < 2:
        return ""
    before, after = x.flatten(1), y.flatten(1)
    for words, view in _views(after):
        pieces = view(after)
        some = max(1, _MOST // pieces.shape[1])
        left, right = view(before)[:some], pieces[:some]
        for bits in _BITS:
            if right.shape[1] >= _SHARED and right.numel() >= _ENTRIES and _on_grid(left, right, bits):
                return f"int{bits}, one step {words}"
        for format_ in _FLOAT8:
            if right.numel() >= _ENTRIES and _on_float8(left, right, format_):
                return f"{_name(format_)}, one scale {words}"
    return ""


def _name(format_: torch.dtype) -> str:
    return str(format_).removeprefix("torch.")


def _views(y: Tensor) -> list[tuple[str, Callable[[Tensor], Tensor]]]:
    """Ways in which entries may share a step: ``(pieces, entries)`` each."""
    ways: list[tuple[str, Callable[[Tensor], Tensor]]] = [
        ("for the tensor", lambda t: t.reshape(1, -1)[:, :_MOST]),
        ("for each row", lambda t: t),
        ("for each column", lambda t: t.mT),
    ]
    sizes = [size for size in _GROUPS if y.shape[1] % size == 0 and y.shape[1] > size]
    return [*ways, *((f"for {size} entries", partial(_groups, size)) for size in sizes)]


def _on_float8(x: Tensor, y: Tensor, format_: torch.dtype) -> bool:
    """Whether ``y`` is ``x`` rounded to float8 after division by the largest entry of each piece."""
    scale = (y.abs().amax(1) / torch.finfo(format_).max).clamp_min(torch.finfo(y.dtype).tiny)[:, None]
    level = (y / scale).clamp(torch.finfo(format_).min, torch.finfo(format_).max)
    step = torch.finfo(format_).eps * level.abs().clamp_min(torch.finfo(format_).smallest_normal) * scale
    on = (level.to(format_).to(y.dtype) - level).abs() <= _EQUAL * level.abs()
    return bool(on.all()) and bool(((x - y).abs() <= _HALF * step).all())


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
