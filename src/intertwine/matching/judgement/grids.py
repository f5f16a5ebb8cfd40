"""Grids to which weights were rounded: scaled integers, 8-bit and 4-bit numbers; and zeros in a pattern."""

from collections.abc import Callable, Collection

import torch
from torch import Tensor

from ..._io.lazy import State
from ..._words import counted
from ...symmetry import Symmetry, Transformation
from ...symmetry.action import transform

_BITS = (2, 3, 4, 5, 6, 8)  # coarse grids first: their levels are also levels of finer ones
_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_EQUAL = 1e-5  # relative deviation of a number from one of a grid
_OFF = 0.02  # of a step: how far a value may lie from its level
_CAST = (torch.bfloat16, torch.float16)  # what dequantised weights are stored in, the coarse first
_MOST_OFF = 0.25  # of a step: how far rounding to these may move a value, so that its level can still be told
_HALF = 0.75  # of a step: how far rounding to the next level moves a value, with room for another choice of steps
_BEYOND = 0.4  # of a step: how far a level lies beyond those of signed integers, where halves lie within
_CUT = 3.0  # of a step: how far what lies beyond the last level is moved to it
_MISSED = 3  # steps between neighbouring levels that are taken
_GROUPS = (128, 64, 32, 16)  # entries that share a step, where rows do not
_SQUARE = 128  # rows and columns of blocks that share a scale
_MOST = 1 << 18  # entries that are looked at
_FEW = 8  # pieces that are looked at first
SPARSE = "2:4, two of every four neighbours in a row"
_EXACTLY = 0.9  # share of groups of four with exactly two zeros; more may occur by chance or from before
_SHARED, _ENTRIES = 8, 64  # entries per step, and in total, below which any values might fit

_POSITIVE = {"nf4": (0.0795803, 0.1609302, 0.2461123, 0.3379152, 0.4407098, 0.562617, 0.7229568, 1.0),
             "fp4": (0.5, 1, 1.5, 2, 3, 4, 6)}  # fmt: skip
_NEGATIVE = {"nf4": (0.09105, 0.1847734, 0.2844414, 0.3949175, 0.525073, 0.6961928, 1.0), "fp4": _POSITIVE["fp4"]}


def _books() -> dict[str, Tensor]:
    """The numbers, in order, of formats that have few: float8, float4 (E2M1) and NormalFloat (QLoRA, appendix E)."""
    found = {name: (*(-x for x in reversed(_NEGATIVE[name])), 0.0, *_POSITIVE[name]) for name in _POSITIVE}
    books = {name: torch.tensor(numbers) for name, numbers in found.items()}
    for format_ in _FLOAT8:
        every = torch.arange(256, dtype=torch.uint8).view(format_).float()
        books[dtype_name(format_)] = every[every.isfinite()].unique()
    return books


def quantised(sym: Symmetry, states: tuple[State, State], g: Transformation, names: Collection[str]) -> list[str]:
    """The second network's tensors that are the first's, moved by ``g`` and quantised: counts in words."""
    found: dict[str, int] = {}
    for name in sym.layouts.keys() & names:
        y = states[1][name].detach()
        y = y.to(torch.promote_types(y.dtype, torch.float32))  # levels are not told in half precision
        if y.ndim > 1:
            x = transform(states[0][name].detach().to(y), sym.layouts[name], g)
            said = f"zeros as {SPARSE}" if two_of_four(y == 0) and not two_of_four(x == 0) else grid(x, y)
            if said:
                found[said] = found.get(said, 0) + 1
    return [f"{counted(count, 'tensor')} of b: {said}" for said, count in sorted(found.items())]


def grid(x: Tensor, y: Tensor) -> str:
    """The grid on which ``y`` lies and to which ``x`` was rounded, in words; empty if there is none.

    Steps and scales are the largest absolute value, or the range, divided by the largest integer or number of a format;
    for the whole tensor, each row, each column, groups of entries along rows, or blocks. Float8 may have no scale.
    """
    for format_ in _FLOAT8:
        if torch.equal(x.to(format_).to(y.dtype), y):
            return dtype_name(format_)
    if y.ndim < 2:
        return ""
    before, after, books = x.flatten(1), y.flatten(1), _books()
    for words, view in _views(*after.shape).items():
        first = max(1, _MOST // view(after).shape[1])
        left, right = view(before)[:first], view(after)[:first]
        whole = right.shape[1] >= _SHARED and right.numel() >= _ENTRIES
        if whole and (integers := _on_grid(left[:_FEW], right[:_FEW]) and _on_grid(left, right)):
            return f"{integers}, one step {words}"
        largest = right.abs().amax(1, keepdim=True)
        for name, book in books.items() if right.numel() >= _ENTRIES else ():
            some = left[:_FEW, :_ENTRIES], right[:_FEW, :_ENTRIES], largest[:_FEW]  # nearly always enough for a no
            if _on_book(*some, book) and _on_book(left, right, largest, book):
                return f"{name}, one scale {words}"
    return ""


def _views(rows: int, columns: int) -> dict[str, Callable[[Tensor], Tensor]]:
    """Ways to cut a matrix into pieces, its rows, that share a step or a scale."""
    views: dict[str, Callable[[Tensor], Tensor]] = {
        "for the tensor": lambda t: t.reshape(1, -1)[:, :_MOST],
        "for each row": lambda t: t,
        "for each column": lambda t: t.mT,
    }
    sizes = [size for size in _GROUPS if columns % size == 0 and columns > size]
    views |= {f"for {size} entries": lambda t, size=size: t.reshape(-1, size) for size in sizes}  # type: ignore[misc]
    if rows % _SQUARE == columns % _SQUARE == 0:
        blocks = lambda t: t.reshape(-1, _SQUARE, columns // _SQUARE, _SQUARE).transpose(1, 2)
        views[f"for {_SQUARE} x {_SQUARE} entries"] = lambda t: blocks(t).reshape(-1, _SQUARE * _SQUARE)
    return views


def _on_book(x: Tensor, y: Tensor, largest: Tensor, book: Tensor) -> bool:
    """Whether ``y`` is ``x`` rounded to the numbers of a book, times a scale of each piece.

    Rounded scales, such as powers of two, bring the ``largest`` entry to one of the two largest numbers.
    """
    book, (cast, least) = book.to(y), _cast_to(y)
    done = largest[:, 0] == 0
    for top in book[-2:].flip(0):
        scale = (largest / top).clamp_min(torch.finfo(y.dtype).tiny)  # moved by the cast, as every value
        level = y / scale
        place = torch.bucketize(level.contiguous(), (book[1:] + book[:-1]) / 2)
        on = (level - book[place]).abs() <= (_EQUAL + cast) * level.abs() + least / scale
        gaps = book.diff()
        below, above = (gaps[(place + side).clamp(0, len(gaps) - 1)] * scale for side in (-1, 0))
        below, above = (torch.where(place == at, _CUT, _HALF) * gap for at, gap in ((0, below), (len(gaps), above)))
        done |= (on & (x - y <= above) & (y - x <= below)).all(1)
    return bool(done.all())


def _on_grid(x: Tensor, y: Tensor) -> str:
    """The scaled integers, from zero or each piece's minimum, to which ``x`` was rounded, in words; empty if none."""
    low, high = y.amin(1), y.amax(1)
    gaps = y.sort(1).values.diff(dim=1)
    smallest = torch.where(gaps > 0, gaps, torch.inf).amin(1)
    cast, _ = _cast_to(y)
    # what lies at an end of its piece may have been cut off there, from further out
    ends = ((y == low[:, None]) & (x < y)) | ((y == high[:, None]) & (x > y))
    for bits in _BITS:
        if (far := _levels(x, y, bits, smallest, ends, cast)) is not None:
            return f"int{bits}{' with a zero point' * far}"
    return ""


def _cast_to(y: Tensor) -> tuple[float, float]:
    """Spacing of the half-precision numbers to which ``y`` was cast, as a share and the least; zeros if to none."""
    formats = (torch.finfo(format_) for format_ in _CAST if y.to(format_).to(y.dtype).equal(y))
    return next(((of.eps, of.eps * of.smallest_normal) for of in formats), (0.0, 0.0))


def _levels(x: Tensor, y: Tensor, bits: int, smallest: Tensor, ends: Tensor, cast: float) -> bool | None:
    """Whether some piece needs a zero point; ``None`` where some piece has no step on which it is so many bits.

    Values that were ``cast``, by which part of them, lie beside their levels by that; where that hides the level of
    the largest, those of smaller ones are looked at.
    """
    top = 2 ** (bits - 1)
    largest, low, high = y.abs().amax(1), y.amin(1), y.amax(1)
    zero = torch.zeros_like(low)
    steps = [(largest / n, zero) for n in (top - 1, top, top - 0.5)] + [((high - low) / (2 * top - 1), low)]
    steps += [(smallest / k, low) for k in range(1, _MISSED + 1)]
    done = high == low  # a single value lies on any grid
    far, turned, whole = (torch.zeros_like(done) for _ in range(3))
    for step, offset in steps:
        step = torch.where((high - low) / step < 2 * top + _OFF, step, torch.inf)[:, None]
        level = (y - offset[:, None]) / step.clamp_min(torch.finfo(y.dtype).tiny)
        off = _OFF + cast * (y.abs() + offset.abs()[:, None]) / step
        near = (x - y).abs() <= torch.where(ends, _CUT, _HALF) * step + cast * y.abs()
        seen = off <= _MOST_OFF
        on = ((level - level.round()).abs() <= off) | ~seen
        fits = step[:, 0].isfinite() & (on & near).all(1) & (seen.sum(1) >= _SHARED) & ~done
        far |= fits & (y.abs() > (top + _BEYOND) * step).any(1)
        turned |= fits & (y > (top - _BEYOND) * step).any(1)  # signed integers, with a step below zero
        whole |= fits & (high - low > (2 * top - 1 - _BEYOND) * step[:, 0])
        done |= fits
    # zero points reach from end to end; steps below zero bring only the largest value to an end
    zeros = bool(far.any()) or (bool(turned.any()) and bool(whole[turned].all()))
    return zeros if bool(done.all()) else None


def two_of_four(zero: Tensor) -> bool:
    """Whether two of every four neighbours in a row are zero, as sparse tensor cores need, and in most no more."""
    if zero.ndim < 2 or zero.shape[1] % 4:
        return False
    count = zero.movedim(1, -1).reshape(-1, 4).sum(1)
    return bool((count >= 2).all()) and float((count == 2).double().mean()) > _EXACTLY


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a number format without the package name."""
    return str(dtype).removeprefix("torch.")
