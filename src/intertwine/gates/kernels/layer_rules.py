"""Rules of gates, arithmetic and layers, and of views, concatenations and maps of positions."""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...programs import Call, Ref
from ...programs.operations import AVERAGE_POOLS, BATCH_NORMS, GATHERS, MAX_POOLS, RELUS, RESHAPES
from .moments import Grid, Signal, Source, Term, add, contract, in_channels, multiply, renewed, settle
from .path_kernel import CHOICES, MIXES, SAME, Tile, has_factors, refuse, register_kernel_rule


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


@register_kernel_rule("aten::add", "aten::sub", "aten::rsub")
def plus(tile: Tile, call: Call, signal: Signal) -> Signal:
    """A sum of activations, biases and constants."""
    sign = float(call.args["alpha"] * (1 if call.op == "aten::add" else -1))
    first, second = ("other", "self") if call.op == "aten::rsub" else ("self", "other")
    operands = [(call.args[first], 1.0), (call.args[second], sign)]
    total, *others = [_times(tile, tile.signals[v.id], f) for v, f in operands if tile.is_activation(v)]
    for other in others:
        if (other.channels, other.space, other.flat) != (total.channels, total.space, total.flat):
            refuse(call, "a sum of activations of different shapes")
        total = add(total, other, tile.layout)
    for value, factor in operands:
        if not tile.is_activation(value):
            total = _shifted(tile, call, total, value, factor)
    return total


@register_kernel_rule("aten::neg")
def negative(tile: Tile, call: Call, signal: Signal) -> Signal:
    """The same signal with the other sign."""
    return _times(tile, signal, -1.0)


@register_kernel_rule("aten::mul", "aten::div")
def scale(tile: Tile, call: Call, signal: Signal) -> Signal:
    """A product with a constant, or with one parameter for each channel."""
    other = call.args["other"]
    if tile.is_activation(other):
        other = call.args["self"]
        if call.op == "aten::div":
            refuse(call, "a division by an activation")
    if tile.is_weight(other):
        if call.op == "aten::div" or not tile.is_per_channel(other, signal):
            refuse(call, "a parameter that multiplies anything but channels")
        return renewed(signal)
    value = tile.constant(call, other, signal)
    return multiply(signal, *tile.masks(1 / value if call.op == "aten::div" else value), tile.layout)


def _times(tile: Tile, signal: Signal, factor: float) -> Signal:
    if factor == 1.0:
        return signal
    shape = (1, signal.channels, signal.positions)
    value = torch.full(shape, factor, dtype=torch.float64, device=tile.layout.device)
    return multiply(signal, *tile.masks(value), tile.layout)


def _shifted(tile: Tile, call: Call, total: Signal, value: Any, factor: float) -> Signal:
    """A signal plus a bias for each channel, or a constant of the model."""
    if not tile.is_weight(value):
        masks = tile.masks(tile.constant(call, value, total) * factor)
        term = Term(tile.constant_source(total.positions), *masks)
        return add(settle(total, tile.layout), replace(total, terms=(term,)), tile.layout)
    if not tile.is_per_channel(value, total):
        refuse(call, "a parameter added that is not one for each channel")
    return add(total, replace(total, terms=(Term(Source(tile.layout.ones(total.positions))),)), tile.layout)


@register_kernel_rule("aten::addmm", "aten::mm")
def linear(tile: Tile, call: Call, signal: Signal) -> Signal:
    """Sum over channels; a bias is a path from a constant 1."""
    _check_parameters(tile, call)
    if has_factors(call):
        refuse(call, "a linear layer with factors of its own")
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
    for part in (in_channels(signal, range(g * size, (g + 1) * size), tile.layout) for g in range(groups)):
        kernel, scale = contract(part, tile.layout)
        kernels.append(tile.layout.slide(kernel, signal.space, grid).div_(fan))
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


@register_kernel_rule(*SAME)
def same(tile: Tile, call: Call, signal: Signal) -> Signal:
    """A copy."""
    return signal


@register_kernel_rule("aten::as_strided")
def strided(tile: Tile, call: Call, signal: Signal) -> Signal:
    """A copy, if it lays out one position of each channel, as global pooling does where channels are last."""
    same = tile.shape(call.outputs[0]) == tile.shape(call.args["self"]) and signal.positions == 1
    if not same or call.args["stride"][1] != 1 or call.args["storage_offset"]:
        refuse(call, "another view of memory")
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
    """Signals side by side along the channels: each is silent on the channels of the others."""
    shapes = [tile.shape(r) for r in call.inputs]
    signals = [tile.signals[r.id] for r in call.inputs if r.id in tile.signals]
    if call.args["dim"] % len(shapes[0]) != 1 or len(signals) != len(shapes) or any(s.flat for s in signals):
        refuse(call, "a concatenation of anything but channels")
    total, at, joined = sum(s.channels for s in signals), 0, None
    for s in (settle(s, tile.layout) for s in signals):
        taken = [*[-1] * at, *range(s.channels), *[-1] * (total - at - s.channels)]
        part, at = in_channels(s, taken, tile.layout), at + s.channels
        joined = part if joined is None else add(joined, part, tile.layout, apart=True)
    return joined or signal


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
        options = slice(call.args["start"], call.args["end"], call.args["step"])
        return in_channels(signal, range(signal.channels)[options], tile.layout)
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
    if not low and not high:
        return moved
    taken = [*[-1] * low, *range(signal.channels), *[-1] * high][max(-low, 0) :]
    return in_channels(settle(moved, tile.layout), taken[: len(taken) - max(-high, 0)], tile.layout)


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
