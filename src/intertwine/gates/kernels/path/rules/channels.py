"""Views and concatenations: what becomes of the channels."""

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from .....programs import Call
from .....programs.operations import RESHAPES
from ..moments import Signal, Source, Term, add, settle
from ..operations import SAME
from ..tile import Tile, refuse
from .registry import register_kernel_rule


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
