"""Largest path contributions to one output, by dynamic programming over nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..._result import Result
from .active_edges import ActiveEdges, Incoming, active_edges

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


@dataclass(frozen=True, repr=False)
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

    def summary(self) -> str:
        """The output, the share of it that these paths carry, and the paths."""
        head = (
            f"Output {self.output} = {self.value:.4g}, from {self.active:.3g} paths; these {len(self.paths)} carry "
            f"{100 * self.share:.3g} % of all that is added and taken away:"
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


def top_paths(
    model: nn.Module, x: Tensor, k: int = 10, *, output: int | None = None, biases: bool = True, memory: float = 2**31
) -> TopPaths:
    """Find the ``k`` paths with the largest ``|phi(x, p) v(p)|`` for one input, exactly.

    Dynamic programming over the graph of scalar nodes: the best ``k`` partial paths to a node are among the best ``k``
    to each of its predecessors, so that every edge is looked at once, and ``k`` of those to each node ``k`` times,
    instead of all paths, whose number grows exponentially with depth. Edges of convolutions are never listed, so that
    whole images can be done. What counts as a path is what :func:`paths` enumerates: biases start at a constant
    1, gains of batch norms and sizes of poolings multiply.

    Read them with care: single paths cancel, and in a wide network the largest carry a small ``share``. The
    contributions do not change when units are permuted or rescaled.

    Args:
        model: A ReLU network that returns ``(N, outputs)``, in evaluation mode, or a gated network.
        x: One input ``(1, C, *S)``.
        k: How many paths.
        output: Which output; the largest without.
        biases: Whether paths that start at a bias (or a shift, or a constant) may be among them.
        memory: Bytes that the edges of a layer of an unknown kind may take: input nodes times output nodes times 16.

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
    shape = edges.program.shape(edges.program.output)
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
class _Best:
    """The best partial paths to every node of a value, best first: products, and where each came from."""

    value: Tensor  # (nodes, k), 0 where there are fewer
    step: Tensor  # which step of the call; -1 at the input
    source: Tensor  # the node before
    rank: Tensor  # which of the partial paths to it


def _best(edges: ActiveEdges, k: int) -> dict[int, _Best]:
    first = torch.zeros(len(edges.signal), k, dtype=torch.float64, device=edges.signal.device)
    first[:, 0] = edges.signal
    none = torch.full(first.shape, -1, dtype=torch.long, device=first.device)
    tables = {edges.program.given.id: _Best(first, none, none, none)}
    for call, steps in edges.steps.items():
        out = edges.program.calls[call].outputs[0]
        if out is not None:
            tables[out.id] = _merge(steps, tables, edges.nodes(call), k)
    return tables


def _merge(steps: tuple[Incoming, ...], tables: dict[int, _Best], nodes: int, k: int) -> _Best:
    """The best of all candidates that end in each node, some nodes at a time."""
    value = torch.zeros(nodes, k, dtype=torch.float64, device=next(iter(tables.values())).value.device)
    none = torch.full(value.shape, -1, dtype=torch.long, device=value.device)
    table = _Best(value, none.clone(), none.clone(), none)
    width = sum(step.most for step in steps)
    for rows in torch.arange(nodes if width else 0, device=value.device).split(max(1, _CANDIDATES // (width + k * k))):
        best = _candidates(steps, tables, rows, k)
        order = best.value.abs().topk(min(k, best.value.shape[1]), dim=1).indices
        for name in ("value", "step", "source", "rank"):
            getattr(table, name)[rows, : order.shape[1]] = getattr(best, name).gather(1, order)
    return table


def _candidates(steps: tuple[Incoming, ...], tables: dict[int, _Best], rows: Tensor, k: int) -> _Best:
    """Partial paths that end in ``rows``, over the ``k`` edges whose best partial path is best.

    No other edge can carry one of the ``k`` best: these ``k`` edges bring as many that are no worse.
    """
    lists = [step.into(rows) for step in steps]
    firsts = [w if s.ref is None else tables[s.ref].value[:, 0][src] * w for s, (src, w) in zip(steps, lists)]
    edge = torch.cat(firsts, 1).abs()
    edge = edge.topk(min(k, edge.shape[1]), dim=1).indices
    ends = torch.tensor([step.most for step in steps], device=rows.device).cumsum(0)
    which = torch.searchsorted(ends, edge, right=True)
    source = torch.cat([src for src, _ in lists], 1).gather(1, edge)
    weight = torch.cat([w for _, w in lists], 1).gather(1, edge)
    values = torch.zeros(*edge.shape, k, dtype=torch.float64, device=rows.device)
    for number, step in enumerate(steps):
        here = which == number
        if step.ref is None:
            values[..., 0][here] = weight[here]
        else:
            values[here] = tables[step.ref].value[source[here]] * weight[here][:, None]
    spread = lambda t: t[..., None].expand_as(values).flatten(1)
    ranks = torch.arange(k, device=rows.device).expand_as(values).flatten(1)
    return _Best(values.flatten(1), spread(which), spread(source), ranks)


def _trace(edges: ActiveEdges, tables: dict[int, _Best], node: int, rank: int, shape: tuple[int, ...]) -> TopPath:
    """Follow a path back from the output."""
    program = edges.program
    producer = {call.outputs[0].id: i for i, call in enumerate(program.calls) if call.outputs and call.outputs[0]}
    ref: int | None = program.output.id
    contribution = float(tables[program.output.id].value[node, rank])
    units: list[tuple[str, tuple[int, ...]]] = []
    start = ""
    while ref is not None and ref in producer:
        table, call = tables[ref], producer[ref]
        step = edges.steps[call][int(table.step[node, rank])]
        if call in program.gates:
            name = program.names[program.gates.index(call)]
            units.append((name, _unravel(node, tuple(program.values[ref].shape[1:]))))
        before = int(table.source[node, rank]), int(table.rank[node, rank])
        (node, rank), ref, start = before, step.ref, step.start
    source = None if ref is None else _unravel(node, shape)
    return TopPath(contribution, source, start, tuple(reversed(units)))


def _unravel(index: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    found = []
    for size in reversed(shape):
        index, place = divmod(index, size)
        found.append(place)
    return tuple(reversed(found))
