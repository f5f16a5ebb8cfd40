"""Gates: each example's own choice of units (ReLUs) or positions (max poolings)."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from .....programs import Call
from .....programs.operations import MAX_POOLS, RELUS
from ..moments import Signal, Source, Term, multiply, settle
from ..tile import Tile
from .registry import register_kernel_rule


@register_kernel_rule(*RELUS)
def relu(tile: Tile, call: Call, signal: Signal) -> Signal:
    """Multiply by the gates of both sides."""
    shape = (-1, signal.channels, signal.positions)
    left, right = tile.gates[id(call)]
    return multiply(signal, left.reshape(shape), right.reshape(shape), tile.layout)


@register_kernel_rule(*MAX_POOLS)
def max_pool(tile: Tile, call: Call, signal: Signal) -> Signal:
    """Each example takes its own position: the kernel between the positions taken, for each channel."""
    left, right = (g.flatten(2) for g in tile.gates[id(call)])
    signal = settle(signal, tile.layout)
    space = tile.shape(call.outputs[0])[2:]
    if signal.positions == math.prod(space) == 1:
        return replace(signal, space=space)
    terms = []
    for t in signal.terms:
        masks = [
            None if m is None else m.expand(len(g), *m.shape[1:]).gather(2, g)
            for m, g in ((t.left, left), (t.right, right))
        ]
        source = tile.constant_source(math.prod(space)) if t.source.constant else _taken(t.source, left, right)
        terms.append(Term(source, *masks))
    return Signal(tuple(terms), signal.channels, space)


def _taken(source: Source, left: Tensor, right: Tensor) -> Source:
    """The kernel between the positions that both sides took, channel by channel."""
    kernel = source.kernel if source.per_channel else source.kernel[None]
    c, n, m = (torch.arange(k, device=left.device) for k in (len(kernel), len(left), len(right)))
    i, j = left.transpose(0, 1)[..., None, None], right.transpose(0, 1)[:, None, None]  # (C, n, P', m, P')
    chosen = kernel[c[:, None, None, None, None], n[:, None, None, None], i, m[:, None], j]
    return Source(chosen, source.log_scale, per_channel=True, root=source.origin, taken=source.taken)
