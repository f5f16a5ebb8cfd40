"""Second moments carried through a captured network, tile by tile and call by call, with the rule of each operation."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from ...programs import Call, Ref, operations
from ...programs.calls import last_reads
from ...programs.operations import MAX_POOLS, RESHAPES, aten, is_gate
from ...programs.steps import run_call
from ..relu_program import ReluProgram, reading
from .moments import Layout, Signal, Source, Term, Uncovered, contract, in_channels

SAME = operations.COPIES | {"aten::dropout"}
CHOICES = aten("slice select index_select flip roll transpose") | operations.GATHERS
"""Each position takes the value of one other, or 0."""
MIXES = operations.INTERPOLATIONS | {"aten::sum"}
"""Fixed sums over positions: their coefficients are no values but stay on the paths."""


def needs_pairs(program: ReluProgram) -> bool:
    """Whether something averages or chooses among positions, so that pairs of positions are needed."""
    for call in program.calls:
        if call.op in operations.AVERAGE_POOLS | MAX_POOLS | MIXES and call.inputs[0].id in program.varying:
            shapes = [program.values[r.id].shape for r in (call.inputs[0], call.outputs[0]) if r is not None]
            if any(math.prod(shape[2:]) > 1 for shape in shapes):
                return True
    return False


def fully_connected(program: ReluProgram) -> tuple[bool, ...] | None:
    """Whether each layer of weights has biases, where such layers and ReLUs in turns are all there is; else ``None``.

    The input may be flattened first. The last layer must be one of weights, after which all outputs are equal.
    """
    biases: list[bool] = []
    gated = True  # the input stands where gated units do
    for call in reading(program):
        if is_gate(call) and call.op not in MAX_POOLS and not gated:
            gated = True
        elif call.op in ("aten::mm", "aten::addmm") and gated:
            bias = call.args.get("self") if call.op == "aten::addmm" else None
            learnt = [r.id for r in call.inputs if r.id not in program.varying]
            if any(r not in program.weights for r in learnt):
                return None
            biases.append(bias is not None)
            gated = False
        elif call.op not in SAME and (call.op not in RESHAPES or biases or program.shape(call.outputs[0])[:1] != (1,)):
            return None
    return None if gated else tuple(biases)


class Tile:
    """The second moments of a network's values between two groups of examples, as far as the rules have come.

    Each side is its input and its gates, the input first.
    """

    def __init__(self, program: ReluProgram, left: list[Tensor], right: list[Tensor], layout: Layout) -> None:
        self.program, self.layout, self.shape = program, layout, program.shape
        self.gates = {id(call): (a, b) for call, a, b in zip(program.gate_calls, left[1:], right[1:])}
        self._constants: dict[int, Source] = {}
        given = program.inputs[0]
        _, channels, *space = self.shape(given)
        masks = [side[0].reshape(len(side[0]), channels, -1).double() for side in (left, right)]
        term = Term(self.constant_source(math.prod(space)), *masks)
        self.signals = {given.id: Signal((term,), channels, tuple(space))}

    def is_activation(self, value: Any) -> bool:
        """Whether an argument is a value that depends on the input."""
        return isinstance(value, Ref) and value.id in self.program.varying

    def is_weight(self, value: Any) -> bool:
        """Whether an argument is computed from parameters alone."""
        return isinstance(value, Ref) and value.id in self.program.weights

    def constant_source(self, positions: int) -> Source:
        """The source of what is not random: the input, and constants of the model."""
        return self._constants.setdefault(positions, Source(self.layout.ones(positions), constant=True))

    def masks(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """A constant ``(1, C, P)`` as masks of both sides."""
        return value.expand(self.layout.n, -1, -1), value.expand(self.layout.m, -1, -1)

    def constant(self, call: Call, value: Any, signal: Signal) -> Tensor:
        """A constant argument of a call as ``(1, C, P)``."""
        value = self._known(call, value) if isinstance(value, Ref) else value
        tensor = torch.as_tensor(value, dtype=torch.float64, device=self.layout.device)
        return tensor.expand(self.shape(call.outputs[0])).reshape(1, signal.channels, signal.positions)

    def is_per_channel(self, parameter: Ref, signal: Signal) -> bool:
        """Whether a parameter holds one number for each channel of a signal."""
        shape = self.shape(parameter)
        dims = 2 if signal.flat else 2 + len(signal.space)
        full = (1,) * (dims - len(shape)) + tuple(shape)
        return full[0] == 1 and full[1] == signal.channels and math.prod(full[2:]) == 1

    def position_matrix(self, call: Call, signal: Signal) -> Tensor:
        """The matrix ``(P', P)`` of a map of positions, by applying it to every position."""
        given = self.shape(call.args["self"])
        axes = {d % len(given) for d in call.args["dim"] or (0,)} if call.op in ("aten::sum", "aten::mean") else set()
        if signal.flat or self.shape(call.outputs[0])[:2] != given[:2] or axes & {0, 1}:
            refuse(call, "an operation on other axes than positions")
        eye = torch.eye(signal.positions, dtype=torch.float64, device=self.layout.device)
        x, *others = call.inputs
        tensors = {x.id: eye.view(-1, 1, *signal.space)} | {ref.id: self._known(call, ref) for ref in others}
        kept = {name: value for name, value in call.args.items() if name != "dtype"}
        return run_call(replace(call, args=kept), tensors)[0].reshape(signal.positions, -1).T

    def _known(self, call: Call, ref: Ref) -> Tensor:
        data = self.program.values[ref.id].data
        if data is None:
            refuse(call, "a constant of unknown value")
        return data.to(self.layout.device)


def refuse(call: Call, what: str) -> NoReturn:
    """Say what no rule covers."""
    raise Uncovered(
        "model must be made of linear and convolutional layers, batch norms, poolings, sums, concatenations of "
        f"channels and ReLUs on (N, C, *S). Got {what}: {call.where} at {call.line}. iw.gates.paths enumerates small "
        "networks of any linear maps."
    )


KernelRule = Callable[[Tile, Call, Signal], Signal]

_RULES: dict[str, KernelRule] = {}


def register_kernel_rule(*ops: str) -> Callable[[KernelRule], KernelRule]:
    """Teach the path kernel operations: a decorator for a function of the tile, a call and the signal that it reads.

    The rule returns the signal of the call's result. One that is wrong gives a wrong kernel: test it against
    ``iw.gates.paths``.

    Args:
        *ops: Qualified operation names without overload or trailing underscore, such as ``"aten::neg"``.

    Raises:
        ValueError: If a name is not qualified.
    """  # noqa: DOC502 - raised by what it calls
    return operations.registering(_RULES, ops)


def propagate(tile: Tile, output: int) -> tuple[Tensor, float]:
    """Run the rules over a program for one tile of examples.

    The kernel ``(n, m)`` of one output up to a factor, and the factor's logarithm.
    """
    program = tile.program
    for call, done in zip(program.calls, last_reads(program.calls, [program.outputs[0]])):
        read = next((r.id for r in call.inputs if r.id in program.varying), None)
        if read is not None and read not in tile.signals:
            refuse(call, "a result of an operation that no rule of the path kernel covers")
        if read is not None and call.op not in _RULES:
            refuse(call, "an operation that no rule of the path kernel covers")
        if read is not None:
            found = _RULES[call.op](tile, call, tile.signals[read])
            tile.signals.update({out.id: found for out in call.outputs[:1] if out is not None})
        for number in done:
            tile.signals.pop(number, None)
    final = tile.signals[program.outputs[0].id]
    channel, position = divmod(output, final.positions)
    kernel, scale = contract(in_channels(final, [channel], tile.layout), tile.layout)
    return (kernel[:, position, :, position] if tile.layout.pairs else kernel[position]), scale
