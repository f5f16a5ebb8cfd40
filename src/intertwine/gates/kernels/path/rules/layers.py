"""Layers of weights: linear maps and convolutions sum over channels and windows, gains multiply channel by channel."""

import math
from dataclasses import replace

import torch

from .....programs import Call, Ref
from .....programs.operations import BATCH_NORMS
from ..moments import Grid, Signal, Source, Term, channel_slice, contract, renewed, settle
from ..tile import Tile, refuse
from .registry import register_kernel_rule


@register_kernel_rule("aten::addmm", "aten::mm")
def linear(tile: Tile, call: Call, signal: Signal) -> Signal:
    """Sum over channels; a bias is a path from a constant 1."""
    _check_parameters(tile, call)
    if signal.positions > 1 and not signal.flat:
        refuse(call, "a linear layer over another axis than the channels of (N, C, *S)")
    kernel, scale = contract(signal, tile.layout)
    if signal.flat:
        kernel = tile.layout.trace(kernel)
    fan = signal.channels * signal.positions
    kernel, scale = kernel / fan, scale + math.log(fan)
    if isinstance(call.args["self"], Ref) and call.op == "aten::addmm":
        kernel = kernel + math.exp(-scale)
    _, channels, *space = tile.shape(call.outputs[0])
    return Signal((Term(Source(kernel, scale)),), channels, tuple(space))


@register_kernel_rule("aten::convolution")
def convolution(tile: Tile, call: Call, signal: Signal) -> Signal:
    """Sum over channels and window, group by group; a bias is a path from a constant 1."""
    _check_parameters(tile, call)
    _, channels, *space = tile.shape(call.outputs[0])
    grid = _grid(tile, call, len(signal.space))
    if call.args["transposed"]:
        signal, grid = _spread(tile, signal, grid, tuple(space))
    groups = call.args["groups"]
    size = signal.channels // groups
    kernels, scale, fan = [], 0.0, size * math.prod(grid.size)
    for part in (channel_slice(signal, g * size, (g + 1) * size) for g in range(groups)):
        kernel, scale = contract(part, tile.layout)
        kernels.append(tile.layout.slide(kernel, signal.space, grid) / fan)
    scale += math.log(fan)
    if isinstance(call.args["bias"], Ref):
        kernels = [k + math.exp(-scale) for k in kernels]
    if groups == 1:
        source = Source(kernels[0], scale)
    else:
        source = Source(torch.stack(kernels).repeat_interleave(channels // groups, 0), scale, per_channel=True)
    return Signal((Term(source),), channels, tuple(space))


@register_kernel_rule(*BATCH_NORMS)
def batch_norm(tile: Tile, call: Call, signal: Signal) -> Signal:
    """A gain and a shift for each channel, in evaluation mode."""
    if call.args.get("training") or call.args.get("use_input_stats"):
        refuse(call, "a norm by the statistics of its own input, which is not linear")
    terms = list(renewed(signal).terms)
    if len(terms) == 1 and terms[0].left is None and terms[0].post is None:
        source = terms[0].source
        terms = [Term(replace(source, kernel=source.kernel + math.exp(-source.log_scale)))]
    else:
        terms.append(Term(Source(tile.layout.ones(signal.positions))))
    return replace(signal, terms=tuple(terms))


def _check_parameters(tile: Tile, call: Call) -> None:
    fixed = [r for r in call.inputs if not tile.is_activation(r) and len(tile.shape(r)) > 1]
    if not all(map(tile.is_weight, fixed)):
        refuse(call, "a layer whose weights are a constant of the model, not a parameter")


def _grid(tile: Tile, call: Call, axes: int) -> Grid:
    spread = lambda value: tuple(value) * axes if len(value) == 1 else tuple(value)
    stride, padding, dilation = (spread(call.args[name]) for name in ("stride", "padding", "dilation"))
    return Grid(tile.shape(call.args["weight"])[2:], stride, padding, dilation)


def _spread(tile: Tile, signal: Signal, grid: Grid, out: tuple[int, ...]) -> tuple[Signal, Grid]:
    """What a transposed convolution slides over: its input, zeros between the positions and around them."""
    reach = [d * (k - 1) for d, k in zip(grid.dilation, grid.size)]
    space = tuple(o + r for o, r in zip(out, reach))
    numbers = torch.arange(1, signal.positions + 1, device=tile.layout.device).view(signal.space)
    for axis, size in enumerate(space):
        begin = reach[axis] - grid.padding[axis]
        at = begin + grid.stride[axis] * torch.arange(numbers.shape[axis], device=numbers.device)
        inside = (at >= 0) & (at < size)
        wider = numbers.new_zeros(*numbers.shape[:axis], size, *numbers.shape[axis + 1 :])
        numbers = wider.index_copy(axis, at[inside], numbers.index_select(axis, inside.nonzero()[:, 0]))
    terms = tuple(replace(t, post=numbers.flatten()) for t in settle(signal, tile.layout).terms)
    ones, zeros = (1,) * len(out), (0,) * len(out)
    return Signal(terms, signal.channels, space), Grid(grid.size, ones, zeros, grid.dilation)
