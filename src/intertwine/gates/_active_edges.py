"""The network that one input switches on: all its edges, each with its weight times its gate."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ._capture import BATCH_NORMS, MAX_POOLS, ReluProgram, capture_relu, is_gate
from ._linearise import Edges, linearise
from .paths import edge_values
from .patterns import observe, structure

__all__ = ["ActiveEdges", "Step", "active_edges"]


@dataclass(frozen=True)
class Step:
    """Edges of one call between two values.

    Attributes:
        call: Position of the call in the program.
        ref: The value that they leave; ``None`` for the constant-1 node.
        src: Where each edge begins ``(E,)``.
        dst: Where it ends ``(E,)``.
        weight: What multiplies on it ``(E,)``: never 0.
        start: For edges from the constant-1 node, what the constant is: a bias, the shift of a batch norm.
    """

    call: int
    ref: int | None
    src: Tensor
    dst: Tensor
    weight: Tensor
    start: str = ""


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

    def total(self, of: Callable[[Tensor], Tensor]) -> Tensor:
        """Sum over all paths to each output of the product of ``of(weight)`` over edges and source, ``(outputs,)``.

        ``of`` must be multiplicative, such as the identity, the absolute value, or 1 where a number is not 0.
        """
        values = {self.program.program.inputs[0].id: of(self.signal)}
        for call, steps in self.steps.items():
            out = self.program.program.calls[call].outputs[0]
            if out is None:
                continue
            size = math.prod(self.program.program.values[out.id].shape)
            values[out.id] = torch.zeros(size, dtype=torch.float64, device=self.signal.device)
            for step in steps:
                weight = of(step.weight)
                before = weight if step.ref is None else values[step.ref][step.src] * weight
                values[out.id].index_add_(0, step.dst, before)
        return values[self.program.output.id]


def active_edges(model: nn.Module, x: Tensor, memory: float) -> ActiveEdges:
    """Find the edges that one input ``(1, C, *S)`` switches on; refused where a layer's table does not fit."""
    source = model
    model, input = structure(model, "x")
    program = capture_relu(model, x)
    _check_size(program, memory)
    linear = linearise(model, program, x)
    gates = dict(zip(program.gates, observe(source, program, x)))
    steps: dict[int, tuple[Step, ...]] = {}
    for call, parts in linear.edges.items():
        found = []
        for edges in parts:
            weight = edges.coefficient.clone()
            if edges.slot is not None and edges.weight is not None:
                weight *= linear.slot_values[edges.slot][edges.weight]
            if call in gates:
                weight *= edge_values(gates[call], [edges])[0]
            found.append(_step(call, edges, weight, linear.slots))
        steps[call] = tuple(found)
    flat = x[0].detach().flatten().double()
    return ActiveEdges(program, steps, flat if input == "x" else torch.ones_like(flat))


def _step(call: int, edges: Edges, weight: Tensor, slots: tuple[str, ...]) -> Step:
    on = weight != 0
    start = "" if edges.ref is not None else "constant" if edges.slot is None else slots[edges.slot]
    return Step(call, edges.ref, edges.src[on], edges.dst[on], weight[on], start)


def _check_size(program: ReluProgram, memory: float) -> None:
    """Say what is too large before it is made.

    Raises:
        ValueError: If a call needs more.
    """
    for call in program.program.calls:
        if call.op in BATCH_NORMS or (is_gate(call) and call.op not in MAX_POOLS):
            continue  # one edge for each node
        for ref in call.inputs:
            if ref.id not in program.activations or not call.outputs or call.outputs[0] is None:
                continue
            sizes = [math.prod(program.program.values[r.id].shape) for r in (ref, call.outputs[0])]
            needed = 16.0 * sizes[0] * sizes[1]
            if needed > memory:
                raise ValueError(
                    f"every layer's table of edges must fit in memory = {memory:.1e} bytes. Got {needed:.1e} for "
                    f"{call.where}, {sizes[0]} by {sizes[1]} nodes. Give smaller inputs, or more memory."
                )
