"""What each operation of a ReLU network does to the second moments of its signals."""

import math
from dataclasses import replace
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor

from ....programs import Call, Ref
from ...relu_program import BATCH_NORMS, MAX_POOLS, POOLS, ReluProgram, gate_calls, is_gate
from .moments import Grid, Layout, Signal, Source, Term, Uncovered, add, channel_slice, contract, gate, multiply, settle
from .operations import CHOICES, LINEAR, MIXES, PADDED, SAME, SHAPES, UPSAMPLED

__all__ = ["Propagation"]


class Propagation:
    """Runs the rules over a program for one tile of examples.

    Args:
        program: The captured network.
        left: Input and gates of the examples on one side, the input first.
        right: The same for the other side.
        layout: How kernels lie in memory.
    """

    def __init__(self, program: ReluProgram, left: list[Tensor], right: list[Tensor], layout: Layout) -> None:
        self.program, self.layout = program, layout
        self.gates = {id(call): (a, b) for call, a, b in zip(gate_calls(program), left[1:], right[1:])}
        shape = program.program.values[program.program.inputs[0].id].shape
        space = tuple(shape[2:])
        self._constants: dict[int, Source] = {}
        masks = [side[0].reshape(len(side[0]), shape[1], -1).double() for side in (left, right)]
        term = Term(self._one(math.prod(space)), *masks)
        self.signals = {program.program.inputs[0].id: Signal((term,), shape[1], space)}
        self._last = {r.id: i for i, call in enumerate(program.program.calls) for r in call.inputs}

    def run(self, output: int) -> tuple[Tensor, float]:
        """The kernel ``(n, m)`` of one output and its log scale."""
        for i, call in enumerate(self.program.program.calls):
            if any(r.id in self.program.activations for r in call.inputs):
                self._step(call)
            for done in [r.id for r in call.inputs if self._last[r.id] == i and r != self.program.output]:
                self.signals.pop(done, None)
        final = self.signals[self.program.output.id]
        channel, position = divmod(output, final.positions)
        kernel, scale = contract(channel_slice(final, channel, channel + 1), self.layout)
        return (kernel[:, position, :, position] if self.layout.pairs else kernel[position]), scale

    def _one(self, positions: int) -> Source:
        """The source of what is not random: the input, and constants of the model."""
        return self._constants.setdefault(positions, Source(self.layout.ones(positions), constant=True))

    def _step(self, call: Call) -> None:
        read = next(r.id for r in call.inputs if r.id in self.program.activations)
        if read not in self.signals:
            self._refuse(call, "a result of an operation that no rule of the path kernel covers")
        signal = self.signals[read]
        if call.op in MAX_POOLS:
            found = self._max_pool(call, signal)
        elif is_gate(call):
            found = gate(signal, *self.gates[id(call)], self.layout)
        elif call.op in LINEAR:
            found = self._weights(call, signal)
        elif call.op in BATCH_NORMS:
            if call.args.get("training") or call.args.get("use_input_stats"):
                self._refuse(call, "a norm by the statistics of its own input, which is not linear")
            found = self._gain(signal, shift=True)
        elif call.op in POOLS:
            found = self._average(call, signal)
        elif call.op in MIXES:
            found = self._mix(call, signal)
        elif call.op in SAME:
            found = signal
        elif call.op in SHAPES:
            found = self._reshape(call, signal)
        elif call.op in CHOICES:
            found = self._choose(call, signal)
        elif call.op in ("aten::add", "aten::sub", "aten::rsub"):
            found = self._add(call, signal)
        elif call.op == "aten::neg":
            found = self._by(signal, -1.0)
        elif call.op in ("aten::mul", "aten::div"):
            found = self._scale(call, signal)
        elif call.op == "aten::cat":
            found = self._cat(call)
        else:
            self._refuse(call, "an operation that no rule of the path kernel covers")
        if call.outputs[0] is not None:
            self.signals[call.outputs[0].id] = found

    def _weights(self, call: Call, signal: Signal) -> Signal:
        """A layer of weights: sum over channels and window; biases are paths from a constant 1."""
        out_shape = self._shape(call.outputs[0])
        is_conv = call.op == "aten::convolution"
        fixed = [r for r in call.inputs if r.id not in self.program.activations and len(self._shape(r)) > 1]
        if any(r.id not in self.program.weights for r in fixed):
            self._refuse(call, "a layer whose weights are a constant of the model, not a parameter")
        if not is_conv and signal.positions > 1 and not signal.flat:
            self._refuse(call, "a linear layer over another axis than the channels of (N, C, *S)")
        grid = self._grid(call, len(signal.space)) if is_conv else None
        if grid is not None and call.args["transposed"]:
            signal, grid = self._spread(signal, grid, out_shape[2:])
        groups = call.args["groups"] if is_conv else 1
        size = signal.channels // groups
        per_group = [channel_slice(signal, g * size, (g + 1) * size) for g in range(groups)]
        kernels, scale, fan = [], 0.0, size * (math.prod(grid.size) if grid is not None else signal.positions)
        for part in per_group:
            kernel, scale = contract(part, self.layout)
            if grid is not None:
                kernel = self.layout.slide(kernel, signal.space, grid)
            elif signal.flat:
                kernel = self.layout.trace(kernel)
            kernels.append(kernel / fan)
        scale += math.log(fan)
        if isinstance(call.args["bias" if is_conv else "self"], Ref) and call.op != "aten::mm":
            kernels = [k + math.exp(-scale) for k in kernels]
        space = out_shape[2:]
        if groups == 1:
            return Signal((Term(Source(kernels[0], scale)),), out_shape[1], space)
        kernel = torch.stack(kernels).repeat_interleave(out_shape[1] // groups, 0)
        return Signal((Term(Source(kernel, scale, per_channel=True)),), out_shape[1], space)

    def _grid(self, call: Call, axes: int) -> Grid:
        spread = lambda value: tuple(value) * axes if len(value) == 1 else tuple(value)
        stride, padding, dilation = (spread(call.args[name]) for name in ("stride", "padding", "dilation"))
        return Grid(tuple(self._shape(call.args["weight"])[2:]), stride, padding, dilation)

    def _spread(self, signal: Signal, grid: Grid, out: tuple[int, ...]) -> tuple[Signal, Grid]:
        """What a transposed convolution slides over: its input, zeros between the positions and around them."""
        reach = [d * (k - 1) for d, k in zip(grid.dilation, grid.size)]
        space = tuple(o + r for o, r in zip(out, reach))
        numbers = torch.arange(1, signal.positions + 1, device=self.layout.device).view(signal.space)
        for axis, (size, begin, step) in enumerate(
            zip(space, (r - p for r, p in zip(reach, grid.padding)), grid.stride)
        ):
            at = begin + step * torch.arange(numbers.shape[axis], device=numbers.device)
            inside = (at >= 0) & (at < size)
            wider = numbers.new_zeros(*numbers.shape[:axis], size, *numbers.shape[axis + 1 :])
            numbers = wider.index_copy(axis, at[inside], numbers.index_select(axis, inside.nonzero()[:, 0]))
        terms = tuple(replace(t, post=numbers.flatten()) for t in settle(signal, self.layout).terms)
        ones, zeros = (1,) * len(out), (0,) * len(out)
        return Signal(terms, signal.channels, space), Grid(grid.size, ones, zeros, grid.dilation)

    def _gain(self, signal: Signal, shift: bool) -> Signal:
        """Multiply each channel by a weight of its own: masks stay, sources become new ones; a shift is a bias."""
        terms = list(_renewed(signal).terms)
        bare = len(terms) == 1 and terms[0].left is None and terms[0].post is None
        if shift and bare:
            source = terms[0].source
            terms = [Term(replace(source, kernel=source.kernel + math.exp(-source.log_scale)))]
        elif shift:
            terms.append(Term(Source(self.layout.ones(signal.positions))))
        return replace(signal, terms=tuple(terms))

    def _average(self, call: Call, signal: Signal) -> Signal:
        """An average over positions; its 1/size is a value, so paths are counted without it.

        Sizes may differ, at borders or where they do not divide the map: each is a value of its own.
        """
        matrix, signal = self._positions(call, signal), settle(signal, self.layout)
        sizes = matrix.abs().amax(1)
        parts = [
            self._summed(call, _renewed(signal), ((sizes == size)[:, None] & (matrix != 0)).double())
            for size in sizes.unique()
        ]
        return replace(parts[0], terms=tuple(t for part in parts for t in part.terms))

    def _mix(self, call: Call, signal: Signal) -> Signal:
        """A fixed sum over positions; what is not random is summed at once, and stays what it is."""
        signal, matrix = settle(signal, self.layout), self._positions(call, signal)
        mixed = self._summed(call, signal, matrix)
        apply = lambda m: None if m is None else m.double() @ matrix.T
        one = self._one(mixed.positions)
        terms = (Term(one, apply(t.left), apply(t.right)) if t.source.constant else t for t in mixed.terms)
        return replace(mixed, terms=tuple(terms))

    def _summed(self, call: Call, signal: Signal, matrix: Tensor) -> Signal:
        terms = tuple(replace(t, post=matrix) for t in signal.terms)
        return Signal(terms, signal.channels, self._shape(call.outputs[0])[2:])

    def _positions(self, call: Call, signal: Signal) -> Tensor:
        """The matrix ``(P', P)`` of a map of positions, by applying it to every position."""
        given = self._shape(call.args["self"])
        axes = {d % len(given) for d in call.args["dim"] or (0,)} if call.op in ("aten::sum", "aten::mean") else set()
        if signal.flat or self._shape(call.outputs[0])[:2] != given[:2] or axes & {0, 1}:
            self._refuse(call, "an operation on other axes than positions")
        eye = torch.eye(signal.positions, dtype=torch.float64, device=self.layout.device)
        arguments = {k: v for k, v in call.args.items() if k not in ("self", "dtype")}
        if isinstance(arguments.get("index"), Ref):
            data = self.program.program.values[arguments["index"].id].data
            arguments["index"] = None if data is None else data.to(self.layout.device)
        return call.func(self=eye.view(-1, 1, *signal.space), **arguments).reshape(signal.positions, -1).T

    def _choose(self, call: Call, signal: Signal) -> Signal:
        """Slices, chosen positions and zero padding."""
        shape = self._shape(call.args["self"])
        if call.op == "aten::constant_pad_nd":
            if call.args["value"] != 0:
                self._refuse(call, "padding with a value other than 0")
            before = list(call.args["pad"]) + [0] * (2 * len(shape) - len(call.args["pad"]))
            low, high = before[-4:-2]
            spatial = {**call.args, "pad": before[: 2 * (len(shape) - 2)]}
            moved = self._map(replace(call, args=spatial), signal) if any(spatial["pad"]) else signal
            return self._pad_channels(moved, low, high)
        axes = self._axes(call, len(shape))
        if min(axes) >= 2:
            return self._map(call, signal)
        if call.op == "aten::slice" and axes == {1}:
            start, end = call.args["start"] or 0, call.args["end"]
            return channel_slice(signal, start, signal.channels if end is None else end, call.args["step"])
        if call.op != "aten::slice" or self._shape(call.outputs[0]) != shape:
            self._refuse(call, "a choice of examples or channels")
        return signal

    def _axes(self, call: Call, count: int) -> set[int]:
        """The axes that a choice is made along."""
        if call.op in UPSAMPLED | PADDED:
            return set(range(2, count)) or {1}
        named = [call.args[n] for n in ("dim", "dim0", "dim1") if n in call.args] or call.args["dims"] or range(count)
        return {d % count for d in named}

    def _map(self, call: Call, signal: Signal) -> Signal:
        """A map that gives each position the value of one other, or 0."""
        signal = settle(signal, self.layout)
        matrix = self._positions(call, signal)
        space = self._shape(call.outputs[0])[2:]
        users = [c for c in self.program.program.calls if call.outputs[0] in c.inputs]
        if all(c.op == "aten::convolution" for c in users):  # sum over channels first: padding repeats positions
            taken = torch.where(matrix.any(1), matrix.argmax(1) + 1, 0)
            return Signal(tuple(replace(t, post=taken) for t in signal.terms), signal.channels, space)
        moved: dict[int, Source] = {}
        for t in signal.terms:
            if id(t.source) not in moved:
                kernel = self.layout.move(t.source.kernel, matrix)
                new = replace(t.source, kernel=kernel, root=t.source.origin)  # of the same channels
                moved[id(t.source)] = self._one(math.prod(space)) if t.source.constant else new
        apply = lambda m: None if m is None else (m.double() @ matrix.T).to(m.dtype)
        terms = (Term(moved[id(t.source)], apply(t.left), apply(t.right)) for t in signal.terms)
        return Signal(tuple(terms), signal.channels, space)

    def _pad_channels(self, signal: Signal, low: int, high: int) -> Signal:
        if not low and not high:
            return signal
        silent = lambda channels: replace(signal, terms=(), channels=channels)
        return self._join([silent(low), signal, silent(high)])

    def _cat(self, call: Call) -> Signal:
        shapes = [self._shape(r) for r in call.inputs]
        parts = [self.signals.get(r.id) for r in call.inputs]
        signals = [p for p in parts if p is not None]
        if call.args["dim"] % len(shapes[0]) != 1 or len(signals) != len(parts) or any(s.flat for s in signals):
            self._refuse(call, "a concatenation of anything but channels")
        return self._join(signals)

    def _join(self, signals: list[Signal]) -> Signal:
        """Signals one after the other along the channels: each is masked to its own part of them."""
        total, at, joined = sum(s.channels for s in signals), 0, None
        for s in (settle(s, self.layout) for s in signals):
            before = (at, total - at - s.channels)
            terms = []
            for t in s.terms:
                left, right = _widen(t.left, self.layout.n, s, before), _widen(t.right, self.layout.m, s, before)
                terms.append(Term(_widen_source(t.source, s.channels, before), left, right))
            part = Signal(tuple(terms), total, s.space)
            joined = part if joined is None else add(joined, part, self.layout, apart=True)
            at += s.channels
        return joined or signals[0]

    def _add(self, call: Call, signal: Signal) -> Signal:
        sign = float(call.args["alpha"] * (1 if call.op == "aten::add" else -1))
        first, second = ("other", "self") if call.op == "aten::rsub" else ("self", "other")
        operands = [(call.args[first], 1.0), (call.args[second], sign)]
        is_activation = lambda v: isinstance(v, Ref) and v.id in self.program.activations
        parts = [self._by(self.signals[v.id], f) for v, f in operands if is_activation(v)]
        total = parts[0]
        for other in parts[1:]:
            if (other.channels, other.space, other.flat) != (total.channels, total.space, total.flat):
                self._refuse(call, "a sum of activations of different shapes")
            total = add(total, other, self.layout)
        for value, factor in operands:
            if isinstance(value, Ref) and value.id in self.program.weights:
                if not self._per_channel(value, signal):
                    self._refuse(call, "a parameter added that is not one for each channel")
                bias = Term(Source(self.layout.ones(total.positions)))
                total = add(total, replace(total, terms=(bias,)), self.layout)
            elif not is_activation(value):
                masks = self._masks(self._constant(call, value, total) * factor)
                term = Term(self._one(total.positions), *masks)
                total = add(settle(total, self.layout), replace(total, terms=(term,)), self.layout)
        return total

    def _scale(self, call: Call, signal: Signal) -> Signal:
        other = call.args["other"]
        if isinstance(other, Ref) and other.id in self.program.activations:
            other = call.args["self"]
            if call.op == "aten::div":
                self._refuse(call, "a division by an activation")
        if isinstance(other, Ref) and other.id in self.program.weights:
            if call.op == "aten::div" or not self._per_channel(other, signal):
                self._refuse(call, "a parameter that multiplies anything but channels")
            return self._gain(signal, shift=False)
        value = self._constant(call, other, signal)
        return multiply(signal, *self._masks(1 / value if call.op == "aten::div" else value), self.layout)

    def _by(self, signal: Signal, factor: float) -> Signal:
        if factor == 1.0:
            return signal
        shape = (1, signal.channels, signal.positions)
        value = torch.full(shape, factor, dtype=torch.float64, device=self.layout.device)
        return multiply(signal, *self._masks(value), self.layout)

    def _masks(self, value: Tensor) -> tuple[Tensor, Tensor]:
        return value.expand(self.layout.n, -1, -1), value.expand(self.layout.m, -1, -1)

    def _constant(self, call: Call, value: Any, signal: Signal) -> Tensor:
        """A constant of the model as a mask ``(1, C, P)``."""
        if isinstance(value, Ref):
            value = self.program.program.values[value.id].data
            if value is None:
                self._refuse(call, "a constant of unknown value")
        tensor = torch.as_tensor(value, dtype=torch.float64, device=self.layout.device)
        shape = self._shape(call.outputs[0])
        return tensor.expand(shape).reshape(1, signal.channels, signal.positions)

    def _per_channel(self, parameter: Ref, signal: Signal) -> bool:
        shape = self._shape(parameter)
        dims = 2 if signal.flat else 2 + len(signal.space)
        full = (1,) * (dims - len(shape)) + tuple(shape)
        return full[0] == 1 and full[1] == signal.channels and math.prod(full[2:]) == 1

    def _max_pool(self, call: Call, signal: Signal) -> Signal:
        """Each example takes its own position: the kernel between the positions taken, for each channel."""
        left, right = (g.flatten(2) for g in self.gates[id(call)])
        signal = settle(signal, self.layout)
        space = self._shape(call.outputs[0])[2:]
        if signal.positions == math.prod(space) == 1:
            return replace(signal, space=space)
        terms = []
        for t in signal.terms:
            masks = [
                None if m is None else m.expand(len(g), *m.shape[1:]).gather(2, g)
                for m, g in ((t.left, left), (t.right, right))
            ]
            if t.source.constant:
                terms.append(Term(self._one(math.prod(space)), *masks))
                continue
            kernel = t.source.kernel if t.source.per_channel else t.source.kernel[None]
            c, n, m = (torch.arange(k, device=left.device) for k in (len(kernel), self.layout.n, self.layout.m))
            i, j = left.transpose(0, 1)[..., None, None], right.transpose(0, 1)[:, None, None]  # (C, n, P', m, P')
            chosen = kernel[
                c[:, None, None, None, None], n[:, None, None, None], i, m[:, None], j
            ]  # fmt: skip
            new = Source(chosen, t.source.log_scale, per_channel=True, root=t.source.origin, taken=t.source.taken)
            terms.append(Term(new, *masks))
        return Signal(tuple(terms), signal.channels, space)

    def _reshape(self, call: Call, signal: Signal) -> Signal:
        shape = self._shape(call.outputs[0])
        space, positions = tuple(shape[2:]), math.prod(shape[2:])
        if shape[:1] != (1,):
            self._refuse(call, "a view that mixes examples")
        if (shape[1], positions) == (signal.channels, signal.positions):
            return replace(signal, space=space, flat=False)
        if all(t.source.constant and t.post is None for t in signal.terms):  # the input itself: nothing random yet
            reshape = lambda m: m.reshape(len(m), shape[1], positions)
            one = self._one(positions)
            return Signal(tuple(Term(one, reshape(t.left), reshape(t.right)) for t in signal.terms), shape[1], space)
        if len(shape) != 2 or shape[1] != signal.channels * signal.positions:
            self._refuse(call, "a view that mixes channels with positions other than by flattening")
        return replace(signal, flat=True)

    def _shape(self, ref: Ref | None) -> tuple[int, ...]:
        return () if ref is None else tuple(self.program.program.values[ref.id].shape)

    def _refuse(self, call: Call, what: str) -> NoReturn:
        """Say what no rule covers.

        Raises:
            Uncovered: Always.
        """
        raise Uncovered(
            "model must be made of linear and convolutional layers, batch norms, poolings, sums, concatenations of "
            f"channels and ReLUs on (N, C, *S). Got {what}: {call.where} at {call.line}."
        )


def _renewed(signal: Signal) -> Signal:
    """The signal times new independent values: terms that shared a source still do."""
    new: dict[int, Source] = {}
    for t in signal.terms:  # fields of one origin still have one
        new.setdefault(id(t.source.origin), replace(t.source.origin, constant=False))
    for t in signal.terms:
        new.setdefault(id(t.source), replace(t.source, constant=False, root=new[id(t.source.origin)]))
    return replace(signal, terms=tuple(replace(t, source=new[id(t.source)]) for t in signal.terms))


def _widen(mask: Tensor | None, n: int, signal: Signal, before: tuple[int, int]) -> Tensor:
    """A mask that is 0 on the channels before and after a signal's own."""
    if mask is None:
        device = signal.terms[0].source.kernel.device
        mask = torch.ones(n, signal.channels, signal.positions, dtype=torch.bool, device=device)
    return F.pad(mask, (0, 0, *before))


def _widen_source(source: Source, channels: int, before: tuple[int, int]) -> Source:
    if source.constant or not any(before):
        return source
    kernel = source.kernel
    if source.per_channel:
        kernel = F.pad(kernel, (*[0, 0] * (kernel.dim() - 1), *before))
    return source.of_channels((*[-1] * before[0], *range(channels), *[-1] * before[1]), kernel)
