"""Rules of views, concatenations and maps of positions: where entries move and are summed with fixed numbers."""

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from ...programs import Call
from ...programs.operations import AVERAGE_POOLS, GATHERS, RESHAPES
from .moments import Signal, Source, Term, add, channel_slice, renewed, settle
from .propagation import CHOICES, MIXES, SAME, Tile, refuse, register_kernel_rule


@register_kernel_rule(*SAME)
def same(tile: Tile, call: Call, signal: Signal) -> Signal:
    """A copy."""
    return signal


@register_kernel_rule(*RESHAPES)
def reshape(tile: Tile, call: Call, signal: Signal) -> Signal:
    """Positions in another shape, or flattened into channels."""
    shape = tile.shape(call.outputs[0])
    space, positions = tuple(shape[2:]), math.prod(shape[2:])
    if shape[:1] != (1,):
        refuse(call, "a view that mixes examples")
    if (shape[1], positions) == (signal.channels, signal.positions):
        return replace(signal, space=space, flat=False)
    if all(t.source.constant and t.post is None for t in signal.terms):  # the input itself: nothing random yet
        split = lambda m: m.reshape(len(m), shape[1], positions)
        one = tile.constant_source(positions)
        return Signal(tuple(Term(one, split(t.left), split(t.right)) for t in signal.terms), shape[1], space)
    if len(shape) != 2 or shape[1] != signal.channels * signal.positions:
        refuse(call, "a view that mixes channels with positions other than by flattening")
    return replace(signal, flat=True)


@register_kernel_rule("aten::cat")
def concatenate(tile: Tile, call: Call, signal: Signal) -> Signal:
    """Signals side by side along the channels."""
    shapes = [tile.shape(r) for r in call.inputs]
    parts = [tile.signals.get(r.id) for r in call.inputs]
    signals = [p for p in parts if p is not None]
    if call.args["dim"] % len(shapes[0]) != 1 or len(signals) != len(parts) or any(s.flat for s in signals):
        refuse(call, "a concatenation of anything but channels")
    return _join(tile, signals)


def pad_channels(tile: Tile, signal: Signal, low: int, high: int) -> Signal:
    """Silent channels before and after those of a signal."""
    if not low and not high:
        return signal
    silent = lambda channels: replace(signal, terms=(), channels=channels)
    return _join(tile, [silent(low), signal, silent(high)])


def _join(tile: Tile, signals: list[Signal]) -> Signal:
    """Signals one after the other along the channels: each is masked to its own part of them."""
    layout, total, at, joined = tile.layout, sum(s.channels for s in signals), 0, None
    for s in (settle(s, layout) for s in signals):
        around = (at, total - at - s.channels)
        terms = (
            Term(
                _widen_source(t.source, s.channels, around),
                _widen(t.left, layout.n, s, around),
                _widen(t.right, layout.m, s, around),
            )
            for t in s.terms
        )
        part = Signal(tuple(terms), total, s.space)
        joined = part if joined is None else add(joined, part, layout, apart=True)
        at += s.channels
    return joined or signals[0]


def _widen(mask: Tensor | None, n: int, signal: Signal, around: tuple[int, int]) -> Tensor:
    """A mask that is 0 on the channels around a signal's own."""
    if mask is None:
        device = signal.terms[0].source.kernel.device
        mask = torch.ones(n, signal.channels, signal.positions, dtype=torch.bool, device=device)
    return F.pad(mask, (0, 0, *around))


def _widen_source(source: Source, channels: int, around: tuple[int, int]) -> Source:
    if source.constant or not any(around):
        return source
    kernel = source.kernel
    if source.per_channel:
        kernel = F.pad(kernel, (*[0, 0] * (kernel.dim() - 1), *around))
    return source.of_channels((*[-1] * around[0], *range(channels), *[-1] * around[1]), kernel)


@register_kernel_rule(*AVERAGE_POOLS)
def average(tile: Tile, call: Call, signal: Signal) -> Signal:
    """An average over positions; its 1/size is a value, so paths are counted without it.

    Sizes may differ, at borders or where they do not divide the map: each is a value of its own.
    """
    matrix, signal = tile.position_matrix(call, signal), settle(signal, tile.layout)
    sizes = matrix.abs().amax(1)
    parts = [
        _summed(tile, call, renewed(signal), ((sizes == size)[:, None] & (matrix != 0)).double())
        for size in sizes.unique()
    ]
    return replace(parts[0], terms=tuple(t for part in parts for t in part.terms))


@register_kernel_rule(*MIXES)
def mix(tile: Tile, call: Call, signal: Signal) -> Signal:
    """A fixed sum over positions; what is not random is summed at once, and stays what it is."""
    signal, matrix = settle(signal, tile.layout), tile.position_matrix(call, signal)
    mixed = _summed(tile, call, signal, matrix)
    apply = lambda m: None if m is None else m.double() @ matrix.T
    one = tile.constant_source(mixed.positions)
    terms = (Term(one, apply(t.left), apply(t.right)) if t.source.constant else t for t in mixed.terms)
    return replace(mixed, terms=tuple(terms))


@register_kernel_rule(*CHOICES)
def choose(tile: Tile, call: Call, signal: Signal) -> Signal:
    """Chosen positions, or a slice of the channels."""
    shape = tile.shape(call.args["self"])
    axes = _axes(call, len(shape))
    if min(axes) >= 2:
        return _moved(tile, call, signal)
    if call.op == "aten::slice" and axes == {1}:
        start, end = call.args["start"] or 0, call.args["end"]
        return channel_slice(signal, start, signal.channels if end is None else end, call.args["step"])
    if call.op != "aten::slice" or tile.shape(call.outputs[0]) != shape:
        refuse(call, "a choice of examples or channels")
    return signal


@register_kernel_rule("aten::constant_pad_nd")
def pad(tile: Tile, call: Call, signal: Signal) -> Signal:
    """Zeros around positions and channels."""
    if call.args["value"] != 0:
        refuse(call, "padding with a value other than 0")
    dims = len(tile.shape(call.args["self"]))
    given = list(call.args["pad"]) + [0] * (2 * dims - len(call.args["pad"]))
    low, high = given[-4:-2]
    spatial = {**call.args, "pad": given[: 2 * (dims - 2)]}
    moved = _moved(tile, replace(call, args=spatial), signal) if any(spatial["pad"]) else signal
    return pad_channels(tile, moved, low, high)


def _summed(tile: Tile, call: Call, signal: Signal, matrix: Tensor) -> Signal:
    terms = tuple(replace(t, post=matrix) for t in signal.terms)
    return Signal(terms, signal.channels, tile.shape(call.outputs[0])[2:])


def _axes(call: Call, count: int) -> set[int]:
    """The axes that a choice is made along."""
    if call.op in GATHERS:
        return set(range(2, count)) or {1}
    named = [call.args[n] for n in ("dim", "dim0", "dim1") if n in call.args] or call.args["dims"] or range(count)
    return {d % count for d in named}


def _moved(tile: Tile, call: Call, signal: Signal) -> Signal:
    """A map that gives each position the value of one other, or 0."""
    signal = settle(signal, tile.layout)
    matrix = tile.position_matrix(call, signal)
    space = tile.shape(call.outputs[0])[2:]
    readers = [c for c in tile.program.calls if call.outputs[0] in c.inputs]
    if all(c.op == "aten::convolution" for c in readers):  # sum over channels first: padding repeats positions
        taken = torch.where(matrix.any(1), matrix.argmax(1) + 1, 0)
        return Signal(tuple(replace(t, post=taken) for t in signal.terms), signal.channels, space)
    moved: dict[int, Source] = {}
    for source in {id(t.source): t.source for t in signal.terms}.values():
        kernel = tile.layout.move(source.kernel, matrix)
        new = replace(source, kernel=kernel, root=source.origin)  # of the same channels
        moved[id(source)] = tile.constant_source(math.prod(space)) if source.constant else new
    apply = lambda m: None if m is None else (m.double() @ matrix.T).to(m.dtype)
    terms = (Term(moved[id(t.source)], apply(t.left), apply(t.right)) for t in signal.terms)
    return Signal(tuple(terms), signal.channels, space)
