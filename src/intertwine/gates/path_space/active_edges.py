"""The network that one input switches on: all its edges, each with its weight times its gate."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ..patterns import observe, structure
from ..relu_program import ReluProgram, capture_relu
from .edges import runner, states, tensors
from .sparse_edges import Step, steps_of, taken_by

__all__ = ["ActiveEdges", "active_edges"]


@dataclass(frozen=True)
class ActiveEdges:
    """All edges that are on, call by call, with the input's entries as weights of the first nodes.

    Attributes:
        program: What the model runs.
        steps: For each call that depends on the input, its edges; calls in the order in which they run.
        signal: What stands at the input nodes ``(nodes,)``.
    """

    program: ReluProgram
    steps: dict[int, tuple[Step, ...]]
    signal: Tensor

    def from_input(self) -> "ActiveEdges":
        """The same without the constant-1 node."""
        return replace(self, steps={c: tuple(s for s in steps if s.ref is not None) for c, steps in self.steps.items()})

    def nodes(self, call: int) -> int:
        """How many nodes the result of a call has."""
        out = self.program.program.calls[call].outputs[0]
        return 0 if out is None else math.prod(self.program.program.values[out.id].shape)

    def total(self, of: Callable[[Tensor], Tensor]) -> Tensor:
        """Sum over all paths to each output of the product of ``of(weight)`` over edges and source, ``(outputs,)``.

        ``of`` must be multiplicative, such as the identity, the absolute value, or 1 where a number is not 0.
        """
        values = {self.program.program.inputs[0].id: of(self.signal)}
        for call, steps in self.steps.items():
            out, size = self.program.program.calls[call].outputs[0], self.nodes(call)
            if out is None:
                continue
            values[out.id] = torch.zeros(size, dtype=torch.float64, device=self.signal.device)
            for step in steps:
                values[out.id] += step.apply(None if step.ref is None else values[step.ref], size, of)
        return values[self.program.output.id]


def active_edges(model: nn.Module, x: Tensor, memory: float) -> ActiveEdges:
    """Find the edges that one input ``(1, C, *S)`` switches on; refused where a layer's table does not fit."""
    source = model
    model, input = structure(model, "x")
    program = capture_relu(model, x)
    gates = dict(zip(program.gates, observe(source, program, x)))
    given = x.detach() if input == "x" else torch.ones_like(x)
    values = states(model, program) | {program.program.inputs[0].id: given}
    steps: dict[int, tuple[Step, ...]] = {}
    with torch.no_grad():
        for i, call in enumerate(program.program.calls):
            run = runner(call, values, program)
            results = tensors(run({}))
            inputs = list(dict.fromkeys(r.id for r in call.inputs if r.id in program.activations))
            if i in gates:
                steps[i] = (taken_by(call, gates[i], values[inputs[0]], results[0].numel()),)
            elif inputs:
                weights = {r.id: "/".join(program.weights[r.id]) for r in call.inputs if r.id in program.weights}
                one = lambda replaced, run=run: tensors(run(replaced))[0]
                steps[i] = steps_of(call, one, values, inputs, weights, results[0], memory)
            values.update({o.id: t for o, t in zip(call.outputs, results) if o is not None})
    return ActiveEdges(program, steps, given[0].flatten().double())
