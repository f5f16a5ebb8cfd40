"""Signals of one tile of examples, with what rules ask of their program."""

import math
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from ....programs import Call, Ref
from ....programs.steps import run_call
from ...relu_program import ReluProgram
from .moments import Layout, Signal, Source, Term, Uncovered


class Tile:
    """The second moments of a network's values between two groups of examples, as far as the rules have come.

    Args:
        program: The captured network.
        left: Input and gates of the examples on one side, the input first.
        right: The same for the other side.
        layout: How kernels lie in memory.
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
