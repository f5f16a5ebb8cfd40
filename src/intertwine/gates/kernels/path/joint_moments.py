"""The path kernel of any captured graph, by second moments between all nodes that are still needed.

The rules of :mod:`.rules` know which nodes are independent and carry little. Here nothing is known: between
two calls the moments ``E[z_i(x) z_j(y)]`` of *all* pairs of live nodes are kept, for every pair of examples. A call
adds nodes ``y = A z + sum_k w_k A_k z`` with weights of independent signs that occur nowhere else, so that

    E[y z'] = A E[z z']      and      E[y y'] = A E[z z'] A' + sum_k A_k E[z z'] A_k'.

Slow, and exact for whatever is linear between gates; the edges are those that paths are enumerated on.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ...._progress import track
from ....programs import Call
from ....programs.liveness import last_reads
from ....programs.operations import MAX_POOLS
from ...path_space.edges import Edges, linearise
from ...relu_program import ReluProgram
from ..budget import Budget

__all__ = ["joint_kernel"]

_AT_ONCE = 1 << 22  # products of moments made together
_COPIES = 4  # of all moments, while a call is done


def joint_kernel(
    program: ReluProgram, sides: Sequence[Sequence[Tensor]], output: int, budget: Budget, progress: bool | None
) -> tuple[Tensor, float]:
    """The kernel ``(N, M)`` of one output, and the logarithm of a factor.

    ``sides`` hold input and gates of the examples on one side, and of the other where there is one.

    Raises:
        ValueError: If the moments of one pair of examples do not fit in ``memory``, or the work is more than
            its ``max_operations``.
    """
    live = _most_live(program)
    bytes_per_pair = 8.0 * _COPIES * live**2
    tile = int(math.sqrt(budget.memory / bytes_per_pair))
    if tile < 1:
        raise ValueError(
            f"its {live} live nodes make {bytes_per_pair:.1e} bytes of moments, memory = {budget.memory:.1e}"
        )
    graph = _Graph.of(program, sides[0][0][:1])
    left, right, same = sides[0], sides[-1], len(sides) == 1
    n, m = len(left[0]), len(right[0])
    work = float(n) * m * graph.operations(live)
    if work > budget.max_operations:
        raise ValueError(f"it would need {work:.1e} multiply-adds, max_operations = {budget.max_operations:.1e}")
    kernel = torch.empty(n, m, dtype=torch.float64, device=left[0].device)
    tiles = [(i, j) for i in range(0, n, tile) for j in range(i if same else 0, m, tile)]
    parts = {}
    for i, j in track(tiles, "path kernel, all nodes", enabled=progress):
        a, b = ([t[k : k + tile] for t in side] for side, k in ((left, i), (right, j)))
        parts[i, j] = _Moments(graph, a, b).run(output)
    top = max(scale for _, scale in parts.values())
    for (i, j), (part, scale) in parts.items():
        kernel[i : i + tile, j : j + tile] = part * math.exp(scale - top)
        if same and j > i:
            kernel[j : j + tile, i : i + tile] = kernel[i : i + tile, j : j + tile].T
    return kernel, top


def _sizes(program: ReluProgram) -> dict[int, int]:
    return {i: math.prod(program.values[i].shape) for i in program.activations}


def _most_live(program: ReluProgram) -> int:
    """The largest number of nodes that are needed at one time, the constant 1 among them."""
    sizes, live = _sizes(program), {program.given.id}
    most = 1 + sizes[program.given.id]
    for call, done in zip(program.calls, last_reads(program.calls, [program.output])):
        live |= {o.id for o in call.outputs[:1] if o is not None and o.id in sizes}
        most = max(most, 1 + sum(sizes[v] for v in live))
        live -= set(done)
    return most


@dataclass(frozen=True)
class _Weighted:
    """Edges of one slot in pairs that share a weight: numbers of both edges ``(pairs,)``."""

    edges: tuple[tuple[int | None, Tensor], ...]
    dst: Tensor
    coefficient: Tensor
    first: Tensor
    second: Tensor


@dataclass(frozen=True)
class _Step:
    """One call: its fixed edges, and those with weights."""

    call: Call
    out: int
    size: int
    fixed: tuple[Edges, ...]
    weighted: tuple[_Weighted, ...]


@dataclass(frozen=True)
class _Graph:
    """A program's calls as edges between nodes."""

    program: ReluProgram
    steps: dict[int, _Step]
    offsets: dict[int, Tensor]

    @classmethod
    def of(cls, program: ReluProgram, x: Tensor) -> "_Graph":
        """Find the edges on one example."""
        linear = linearise(program, x)
        calls, sizes = program.calls, _sizes(program)
        steps, offsets = {}, {}
        for i, found in linear.edges.items():
            edges = [e.listed() for e in found]
            out = calls[i].outputs[0]
            if out is None:
                continue
            if i in program.gates:
                if edges[0].offset is not None:
                    offsets[i] = edges[0].offset
                steps[i] = _Step(calls[i], out.id, sizes[out.id], (), ())
                continue
            fixed = tuple(e for e in edges if e.slot is None)
            slots = dict.fromkeys(e.slot for e in edges if e.slot is not None)
            weighted = tuple(_paired([e for e in edges if e.slot == slot]) for slot in slots)
            steps[i] = _Step(calls[i], out.id, sizes[out.id], fixed, weighted)
        return cls(program, steps, offsets)

    def operations(self, live: int) -> float:
        """Multiply-adds for one pair of examples."""
        fixed = sum(2.0 * len(e.src) * live for step in self.steps.values() for e in step.fixed)
        return fixed + sum(float(len(w.first)) for step in self.steps.values() for w in step.weighted)


def _paired(edges: Sequence[Edges]) -> _Weighted:
    """All pairs of edges that carry the same weight."""
    weight = torch.cat([e.weight for e in edges if e.weight is not None])
    order = weight.argsort(stable=True)
    counts = weight.bincount()
    counts = counts[counts > 0]
    starts = counts.cumsum(0) - counts
    per_edge = counts.repeat_interleave(counts)  # for each edge in order: how many share its weight
    first = torch.repeat_interleave(per_edge)
    within = torch.arange(len(first), device=first.device) - (per_edge.cumsum(0) - per_edge)[first]
    second = starts.repeat_interleave(counts)[first] + within
    dst, coefficient = (torch.cat(parts) for parts in zip(*((e.dst, e.coefficient.double()) for e in edges)))
    return _Weighted(tuple((e.ref, e.src) for e in edges), dst, coefficient, order[first], order[second])


class _Moments:
    """Moments between all live nodes of two groups of examples ``(n, m, V, V)``; node 0 is the constant 1."""

    def __init__(self, graph: _Graph, left: Sequence[Tensor], right: Sequence[Tensor]) -> None:
        self.graph, self.program = graph, graph.program
        self.gates = {id(call): (a, b) for call, a, b in zip(self.program.gate_calls, left[1:], right[1:])}
        a, b = (F.pad(z[0].flatten(1).double(), (1, 0), value=1.0) for z in (left, right))
        self.moments = a[:, None, :, None] * b[None, :, None, :]
        self.start = {self.program.given.id: 1}
        self.scale = 0.0

    def run(self, output: int) -> tuple[Tensor, float]:
        """The kernel of one output and the logarithm of its factor."""
        for i, done in enumerate(last_reads(self.program.calls, [self.program.output])):
            if i in self.graph.steps:
                step = self.graph.steps[i]
                self._add(step, *(self._gate(i, step) if i in self.program.gates else self._linear(step)))
                self._drop(self.start.keys() & set(done))
        at = self.start[self.program.output.id] + output
        return self.moments[:, :, at, at], self.scale

    def _gate(self, i: int, step: _Step) -> tuple[Tensor, Tensor, Tensor]:
        """Each example's nodes times its gates, or the nodes that its maxima took."""
        s, start = self.moments, self.start[step.call.inputs[0].id]
        a, b = (g.flatten(1) for g in self.gates[id(step.call)])
        n, m, live, _ = s.shape
        if step.call.op in MAX_POOLS:
            left, right = (start + g + self.graph.offsets[i] for g in (a, b))
            rows = s.gather(2, left[:, None, :, None].expand(n, m, -1, live))
            columns = s.gather(3, right[None, :, None, :].expand(n, m, live, -1))
            return rows, columns, rows.gather(3, right[None, :, None, :].expand(n, m, step.size, -1))
        here = slice(start, start + step.size)
        rows = s[:, :, here] * a.double()[:, None, :, None]
        columns = s[:, :, :, here] * b.double()[None, :, None, :]
        return rows, columns, rows[..., here] * b.double()[None, :, None, :]

    def _linear(self, step: _Step) -> tuple[Tensor, Tensor, Tensor]:
        """Moments of new nodes with old ones, of old with new, and among the new."""
        s = self.moments
        n, m, live, _ = s.shape
        rows, columns = s.new_zeros(n, m, step.size, live), s.new_zeros(n, m, live, step.size)
        for e in step.fixed:
            at, c = self._at(e.ref, e.src), e.coefficient.double()
            rows.index_add_(2, e.dst, s[:, :, at] * c[:, None])
            columns.index_add_(3, e.dst, s[..., at] * c)
        new = s.new_zeros(n, m, step.size, step.size)
        for e in step.fixed:
            new.index_add_(3, e.dst, rows[..., self._at(e.ref, e.src)] * e.coefficient.double())
        flat = new.view(n, m, -1)
        for w in step.weighted:
            at = torch.cat([self._at(ref, src) for ref, src in w.edges])
            chunk = max(1, _AT_ONCE // (n * m))
            for one, two in zip(w.first.split(chunk), w.second.split(chunk)):
                products = s[:, :, at[one], at[two]] * (w.coefficient[one] * w.coefficient[two])
                flat.index_add_(2, w.dst[one] * step.size + w.dst[two], products)
        return rows, columns, new

    def _at(self, ref: int | None, src: Tensor) -> Tensor:
        return src if ref is None else src + self.start[ref]  # the constant's only node is node 0

    def _add(self, step: _Step, rows: Tensor, columns: Tensor, new: Tensor) -> None:
        live = self.moments.shape[2]
        self.moments = torch.cat([torch.cat([self.moments, columns], 3), torch.cat([rows, new], 3)], 2)
        self.start[step.out] = live

    def _drop(self, values: set[int]) -> None:
        """Forget nodes that nothing reads any more, and keep numbers near 1."""
        sizes = _sizes(self.program)
        kept = {v: start for v, start in self.start.items() if v not in values}
        nodes = [torch.arange(start, start + sizes[v]) for v, start in kept.items()]
        index = torch.cat([torch.zeros(1, dtype=torch.long), *nodes]).to(self.moments.device)
        self.moments = self.moments[:, :, index][..., index]
        at = 1
        for v in kept:
            self.start[v], at = at, at + sizes[v]
        for v in values:
            del self.start[v]
        largest = float(self.moments.abs().max())
        if largest > 1e100:
            self.moments /= largest
            self.scale += math.log(largest)
