"""Edges that one input switches on: every edge of a network with its weight times its gate, by the node it ends in."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...programs import Call
from ...programs.operations import MAX_POOLS
from ..patterns import observe, structure
from ..relu_program import ReluProgram, capture_relu
from .edges import Edges, Linearised, Windows, linearise

__all__ = ["ActiveEdges", "Incoming", "active_edges"]


@dataclass(frozen=True)
class Incoming(ABC):
    """Edges of one call, to be looked up by the node in which they end.

    Attributes:
        ref: The value that they leave; ``None`` for the constant-1 node.
        start: For edges from the constant-1 node, what the constant is: a bias, the shift of a batch norm.
    """

    ref: int | None
    start: str

    @property
    @abstractmethod
    def most(self) -> int:
        """The largest number of edges that end in one node."""

    @abstractmethod
    def into(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Where the edges to some nodes begin, and their weights, ``(nodes, most)``; weight 0 where there is none."""

    @abstractmethod
    def apply(self, before: Tensor | None, of: Callable[[Tensor], Tensor]) -> Tensor:
        """Sum over edges of ``of(weight)`` times what stands at their beginning, for each node ``(size,)``."""


@dataclass(frozen=True)
class _Listed(Incoming):
    """Edges listed for each node ``(size, most)``."""

    src: Tensor
    weight: Tensor

    @property
    def most(self) -> int:
        return self.src.shape[1]

    def into(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        return self.src[nodes], self.weight[nodes]

    def apply(self, before: Tensor | None, of: Callable[[Tensor], Tensor]) -> Tensor:
        return (of(self.weight) if before is None else before[self.src] * of(self.weight)).sum(1)

    @classmethod
    def of(cls, edges: Edges, linear: Linearised, size: int) -> "_Listed":
        """Sort edges by the node of ``size`` in which they end."""
        value, start = edges.coefficient.double(), "constant"
        if edges.slot is not None:
            value, start = value * linear.slot_values[edges.slot][edges.weight], linear.slots[edges.slot]
        order = edges.dst.argsort(stable=True)
        node = edges.dst[order]
        place = torch.arange(len(order), device=order.device) - torch.searchsorted(node, node)
        most = int(place.max()) + 1 if len(place) else 0
        src, weight = order.new_zeros(size, most), value.new_zeros(size, most)
        src[node, place], weight[node, place] = edges.src[order], value[order]
        return cls(edges.ref, "" if edges.ref is not None else start, src, weight)

    @classmethod
    def taken(cls, call: Call, gates: Tensor, edges: Edges) -> "_Listed":
        """The edges of a gate that are on: those of a ReLU, or the one position that each maximum took."""
        flat = gates.flatten()
        if call.op not in MAX_POOLS or edges.offset is None:
            return cls(edges.ref, "", edges.src[:, None], flat.double()[:, None])
        return cls(edges.ref, "", (flat + edges.offset)[:, None], torch.ones_like(flat, dtype=torch.float64)[:, None])


@dataclass(frozen=True)
class _Kernel(Incoming):
    """A convolution's windows ``(G, D, P)`` and weights ``(C, D)``: no edge is ever listed."""

    windows: Tensor
    weight: Tensor

    @property
    def most(self) -> int:
        return self.weight.shape[1]

    def into(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        groups, _, positions = self.windows.shape
        channel, position = nodes // positions, nodes % positions
        src = self.windows[channel // (len(self.weight) // groups), :, position]
        return src.clamp(min=0), torch.where(src >= 0, self.weight[channel], 0.0)

    def apply(self, before: Tensor | None, of: Callable[[Tensor], Tensor]) -> Tensor:
        weight = of(self.weight).view(len(self.windows), -1, self.most)
        padded = F.pad(self.weight.new_ones(1) if before is None else before, (0, 1))  # padding reads the 0 at the end
        return (weight @ padded[self.windows]).flatten()


@dataclass(frozen=True)
class ActiveEdges:
    """All edges that are on, call by call, with the input's entries as weights of the first nodes.

    Attributes:
        program: What the model runs.
        steps: For each call that depends on the input, its edges; calls in the order in which they run.
        signal: What stands at the input nodes ``(nodes,)``.
    """

    program: ReluProgram
    steps: dict[int, tuple[Incoming, ...]]
    signal: Tensor

    def from_input(self) -> "ActiveEdges":
        """The same without the constant-1 node."""
        return replace(self, steps={c: tuple(s for s in steps if s.ref is not None) for c, steps in self.steps.items()})

    def nodes(self, call: int) -> int:
        """How many nodes the result of a call has."""
        return math.prod(self.program.shape(self.program.calls[call].outputs[0]))

    def total(self, of: Callable[[Tensor], Tensor]) -> Tensor:
        """Sum over all paths to each output of the product of ``of(weight)`` over edges and source, ``(outputs,)``.

        ``of`` must be multiplicative, such as the identity, the absolute value, or 1 where a number is not 0.
        """
        values = {self.program.given.id: of(self.signal)}
        for call, steps in self.steps.items():
            out = self.program.calls[call].outputs[0]
            if out is not None:
                zeros = torch.zeros(self.nodes(call), dtype=torch.float64, device=self.signal.device)
                parts = (s.apply(None if s.ref is None else values[s.ref], of) for s in steps)
                values[out.id] = sum(parts, zeros)
        return values[self.program.output.id]


def active_edges(model: nn.Module, x: Tensor, memory: float) -> ActiveEdges:
    """Find the edges that one input ``(1, C, *S)`` switches on; refused where a layer's table does not fit."""
    source = model
    model, input = structure(model, "x")
    program = capture_relu(model, x)
    gates = dict(zip(program.gates, observe(source, program, x)))
    given = x.detach() if input == "x" else torch.ones_like(x)
    linear = linearise(program, given, memory)
    steps: dict[int, tuple[Incoming, ...]] = {}
    for i, edges in linear.edges.items():
        call = program.calls[i]
        size = math.prod(program.shape(call.outputs[0]))
        if i in gates:
            steps[i] = (_Listed.taken(call, gates[i], edges[0].listed()),)
        else:
            steps[i] = tuple(_incoming(e, linear, size) for e in edges)
    return ActiveEdges(program, steps, given[0].flatten().double())


def _incoming(edges: Edges | Windows, linear: Linearised, size: int) -> Incoming:
    if isinstance(edges, Edges):
        return _Listed.of(edges, linear, size)
    return _Kernel(edges.ref, "", edges.windows, linear.slot_values[edges.slot][edges.numbers])
