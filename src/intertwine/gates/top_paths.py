"""The paths that contribute most to an output, found without enumerating the others."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from .._result import Result
from ._active_edges import ActiveEdges, Step, active_edges

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["TopPath", "TopPaths", "top_paths"]

_CANDIDATES = 1 << 21  # partial paths looked at together


@dataclass(frozen=True)
class TopPath:
    """One path and what it adds to the output.

    Attributes:
        contribution: ``phi(x, p) v(p)``.
        source: Where in the input it starts, such as ``(channel, row, column)``; ``None`` for a constant 1.
        start: The bias, shift or constant at which it starts; empty for an entry of the input.
        units: Each gate on the way by name, and the unit taken there.
    """

    contribution: float
    source: tuple[int, ...] | None
    start: str
    units: tuple[tuple[str, tuple[int, ...]], ...]

    def __str__(self) -> str:
        begin = self.start if self.source is None else f"x{list(self.source)}"
        return " -> ".join([begin, *(f"{name}{list(unit)}" for name, unit in self.units)])


@dataclass(frozen=True)
class TopPaths(Result):
    """The largest contributions to one output for one input.

    Attributes:
        paths: The paths, the largest ``|contribution|`` first.
        output: Which output they lead to.
        value: The output: the sum of the contributions of all paths.
        total: The sum of ``|contribution|`` over all paths.
        active: Number of paths that contribute anything (as a float: it may be huge).
        shape: Shape of one input.
    """

    paths: tuple[TopPath, ...]
    output: int
    value: float
    total: float
    active: float
    shape: tuple[int, ...]

    @property
    def share(self) -> float:
        """Share of ``total`` that these paths carry: how much of the computation one looks at."""
        return sum(abs(p.contribution) for p in self.paths) / self.total if self.total else 0.0

    def by_source(self) -> Tensor:
        """Contributions of these paths summed by input entry ``(C, *S)``: a picture."""
        picture = torch.zeros(self.shape, dtype=torch.float64)
        for path in self.paths:
            if path.source is not None:
                picture[path.source] += path.contribution
        return picture

    def __str__(self) -> str:
        head = (
            f"Output {self.output} = {self.value:.4g}, from {self.active:.3g} paths; these {len(self.paths)} carry "
            f"{100 * self.share:.2g} % of all that is added and taken away:"
        )
        return "\n".join([head, *(f"{p.contribution:+.4g}  {p}" for p in self.paths)])

    def to_frame(self) -> pd.DataFrame:
        """One row per path: its contribution, where it starts, and its unit at every gate."""
        import pandas as pd

        rows = [
            {
                "contribution": p.contribution,
                "start": p.start or f"x{list(p.source or ())}",
                **{name: str(list(unit)) for name, unit in p.units},
            }
            for p in self.paths
        ]
        return pd.DataFrame(rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {**vars(self), "paths": [vars(p) for p in self.paths]}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Rebuild from ``to_dict``'s data."""
        paths = tuple(
            TopPath(
                p["contribution"],
                None if p["source"] is None else tuple(p["source"]),
                p["start"],
                tuple((name, tuple(unit)) for name, unit in p["units"]),
            )
            for p in data["paths"]
        )
        return cls(**{**data, "paths": paths, "shape": tuple(data["shape"])})


def top_paths(
    model: nn.Module, x: Tensor, k: int = 10, *, output: int | None = None, biases: bool = True, memory: float = 2**31
) -> TopPaths:
    """Find the ``k`` paths with the largest ``|phi(x, p) v(p)|`` for one input, exactly.

    Dynamic programming over the graph of scalar nodes: the best ``k`` partial paths to a node are among the best ``k``
    to each of its predecessors, so that ``edges x k`` candidates are looked at instead of all paths, whose number
    grows exponentially with depth. What counts as a path is what :func:`paths` enumerates: biases start at a constant
    1, gains of batch norms and sizes of poolings multiply.

    Read them with care: single paths cancel, and in a wide network the largest carry a small ``share``. The
    contributions do not change when units are permuted or rescaled.

    Args:
        model: A ReLU network that returns ``(N, outputs)``, in evaluation mode, or a gated network.
        x: One input ``(1, C, *S)``.
        k: How many paths.
        output: Which output; the largest without.
        biases: Whether paths that start at a bias (or a shift, or a constant) may be among them.
        memory: Bytes that the edges of the largest layer may take: input nodes times output nodes times 16.

    Returns:
        The paths with what all paths together add up to.

    Raises:
        ValueError: If there is more than one input, an argument is out of range, or a layer is too large.

    Examples:
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 1, bias=False))
        >>> found = top_paths(model, torch.randn(1, 3), k=2)
        >>> len(found.paths), found.paths[0].units[0][0]
        (2, '1')
    """
    if not isinstance(x, Tensor) or x.dim() < 2 or len(x) != 1:
        shape = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"x must be one input (1, C, *S). Got {shape}.")
    if k < 1:
        raise ValueError(f"k must be at least 1. Got {k}.")
    edges = active_edges(model, x, memory)
    values = edges.total(lambda w: w)
    shape = edges.program.program.values[edges.program.output.id].shape
    output = int(values.argmax()) if output is None else output
    if len(shape) != 2 or not 0 <= output < shape[1]:
        raise ValueError(f"output must be one of the model's outputs (N, outputs). Got {output}, shape {tuple(shape)}.")
    kept = edges if biases else edges.from_input()
    tables = _best(kept, k)
    found = tables[edges.program.output.id]
    ranks = [r for r in range(k) if found.value[output, r] != 0]
    return TopPaths(
        tuple(_trace(kept, tables, output, rank, tuple(x.shape[1:])) for rank in ranks),
        output,
        float(values[output]),
        float(edges.total(torch.abs)[output]),
        float(edges.total(lambda w: (w != 0).double())[output]),
        tuple(x.shape[1:]),
    )


@dataclass(frozen=True)
class _Table:
    """The best partial paths to every node of a value, best first: products, and where each came from."""

    value: Tensor  # (nodes, k), 0 where there are fewer
    step: Tensor  # which step of the call; -1 at the input
    edge: Tensor  # which edge of that step
    rank: Tensor  # which of the partial paths to the edge's source


def _best(edges: ActiveEdges, k: int) -> dict[int, _Table]:
    first = torch.zeros(len(edges.signal), k, dtype=torch.float64, device=edges.signal.device)
    first[:, 0] = edges.signal
    none = torch.full(first.shape, -1, dtype=torch.long, device=first.device)
    tables = {edges.program.program.inputs[0].id: _Table(first, none, none, none)}
    for call, steps in edges.steps.items():
        out = edges.program.program.calls[call].outputs[0]
        if out is not None:
            nodes = math.prod(edges.program.program.values[out.id].shape)
            tables[out.id] = _merge(steps, tables, nodes, k)
    return tables


def _merge(steps: tuple[Step, ...], tables: dict[int, _Table], nodes: int, k: int) -> _Table:
    """The best of all candidates that end in each node, some nodes at a time."""
    incoming = [_incoming(step, nodes) for step in steps]
    widths = [edges.shape[1] for edges in incoming]
    starts = torch.tensor(widths, device=steps[0].dst.device).cumsum(0) * k  # where each step's candidates end
    parts = []
    for rows in torch.arange(nodes, device=starts.device).split(max(1, _CANDIDATES // max(1, sum(widths) * k))):
        lists = [edges[rows] for edges in incoming]
        none = torch.zeros(len(rows), k, dtype=torch.float64, device=starts.device)  # so that there are always k
        value = torch.cat([*(_candidates(s, e, tables, k) for s, e in zip(steps, lists)), none], 1)
        best = value.abs().topk(k, dim=1).indices
        step = torch.searchsorted(starts, best, right=True)
        edge = torch.cat([*lists, none[:, :1].long()], 1).gather(1, (best // k).clamp(max=sum(widths)))
        parts.append((value.gather(1, best), step, edge, best % k))
    return _Table(*(torch.cat(p) for p in zip(*parts)))


def _incoming(step: Step, nodes: int) -> Tensor:
    """For each node the numbers of the edges that end there ``(nodes, most)``, -1 beyond the last."""
    order = step.dst.argsort(stable=True)
    node = step.dst[order]
    place = torch.arange(len(order), device=order.device) - torch.searchsorted(node, node)
    most = int(place.max()) + 1 if len(place) else 0
    table = order.new_full((nodes, most), -1)
    table[node, place] = order
    return table


def _candidates(step: Step, edges: Tensor, tables: dict[int, _Table], k: int) -> Tensor:
    """Partial paths lengthened by each edge ``(rows, most * k)``; 0 where there is none."""
    if not edges.numel():
        return step.weight.new_zeros(len(edges), edges.shape[1] * k)
    edge = edges.clamp(min=0)
    weight = torch.where(edges >= 0, step.weight[edge], 0.0)
    if step.ref is None:
        return torch.nn.functional.pad(weight[..., None], (0, k - 1)).flatten(1)
    return (tables[step.ref].value[step.src[edge]] * weight[..., None]).flatten(1)


def _trace(edges: ActiveEdges, tables: dict[int, _Table], node: int, rank: int, shape: tuple[int, ...]) -> TopPath:
    """Follow a path back from the output."""
    program = edges.program
    producer = {
        call.outputs[0].id: i for i, call in enumerate(program.program.calls) if call.outputs and call.outputs[0]
    }
    ref: int | None = program.output.id
    contribution = float(tables[program.output.id].value[node, rank])
    units: list[tuple[str, tuple[int, ...]]] = []
    start = ""
    while ref is not None and ref in producer:
        table, call = tables[ref], producer[ref]
        step = edges.steps[call][int(table.step[node, rank])]
        if call in program.gates:
            name = program.names[program.gates.index(call)]
            units.append((name, _unravel(node, tuple(program.program.values[ref].shape[1:]))))
        edge, before = int(table.edge[node, rank]), int(table.rank[node, rank])
        node, rank, ref, start = int(step.src[edge]), before, step.ref, step.start
    source = None if ref is None else _unravel(node, shape)
    return TopPath(contribution, source, start, tuple(reversed(units)))


def _unravel(index: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    found = []
    for size in reversed(shape):
        index, place = divmod(index, size)
        found.append(place)
    return tuple(reversed(found))
