"""Biases that linear maps alone read, pushed into the bias after them: biases of values through attention above all."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from ...programs import Ref
from .flow import Change, Flow
from .graph import Graph
from .parameter_updates import MOVES, Obstacle, View, moved_entries
from .rewriter import Outcome, Rewriter

_BIASES = {"aten::addmm": "self", "aten::linear": "bias", "aten::convolution": "bias", "aten::add": "other"}


def push_biases(rewriter: Rewriter) -> Outcome:
    """Push every bias on that can be; repeated, since one may be pushed into another.

    Returns:
        Whether any was pushed, and biases of values that stay, with the reason.

    Raises:
        RuntimeError: If that does not end.
    """
    outcome = Outcome()
    for _ in range(100):
        outcome.kept, moved = [], 0
        for name, sites in _candidates(rewriter.graph).items():
            for entries in _segments(rewriter.graph, sites):
                try:
                    rewriter.attempt(partial(_start, sites=sites, entries=entries))
                    moved += 1
                except Obstacle as obstacle:
                    outcome.kept += [("biases", name, str(obstacle))] if obstacle.through_attention else []
        if not moved:
            return outcome
        outcome.done.add("biases")
        rewriter.settle()
    raise RuntimeError("biases must settle within 100 rounds. Got some that keep moving.")


_Site = tuple[int, View]


def _candidates(graph: Graph) -> dict[str, list[_Site]]:
    """Vectors that are added along the channels, with the calls that add them."""
    found: dict[str, list[_Site]] = {}
    for position in sorted(graph.live):
        call = graph.program.calls[position]
        ref = call.args.get(_BIASES.get(call.op, ""))
        view = graph.views.get(ref.id) if isinstance(ref, Ref) else None
        if view is not None and view.entries.ndim == 1 and len(view.entries) > 1:
            found.setdefault(view.parameter, []).append((position, view))
    return found


def _segments(graph: Graph, sites: list[_Site]) -> Iterator[Tensor]:
    """The entries of a bias, in groups that the same calls read: packed queries, keys and values apart."""
    values = graph.state[sites[0][1].parameter].flatten()
    read = [entries for position, view in sites for entries in _read(graph, position, view.entries)]
    if not read:
        return
    seen = torch.stack([torch.zeros(len(values)).index_fill(0, entries.unique(), 1.0) for entries in read], 1)
    groups = torch.unique(seen, dim=0, return_inverse=True)[1]
    added = torch.cat([view.entries for _, view in sites]).unique()
    for group in groups[added].unique():
        entries = added[groups[added] == group]
        if bool((values[entries] != 0).any()):
            yield entries


def _read(graph: Graph, position: int, entries: Tensor) -> Iterator[Tensor]:
    """The entries that each call reads which computes with the result."""
    call = graph.program.calls[position]
    out = call.outputs[0]
    if out is None:
        return
    shape = graph.program.values[out.id].shape
    known = {out.id: _along(entries, shape, call.op)}
    waiting = [out.id]
    while waiting:
        number = waiting.pop()
        for at in graph.readers.get(number, ()):
            reader = graph.program.calls[at]
            if reader.op in MOVES and len(reader.inputs) == 1:
                outputs = [o for o in reader.outputs if o is not None]
                for o, moved in zip(outputs, moved_entries(reader, known)):
                    known[o.id] = moved
                    waiting.append(o.id)
            else:
                yield known[number]


def _along(numbers: Tensor, shape: tuple[int, ...], op: str) -> Tensor:
    """Numbers of the channels in the shape of the result."""
    channel = 1 if op == "aten::convolution" else len(shape) - 1
    return numbers.reshape(-1, *[1] * (len(shape) - channel - 1)).expand(shape)


def _start(flow: Flow, *, sites: list[_Site], entries: Tensor) -> None:
    for position, view in sites:
        call = flow.graph.program.calls[position]
        out = call.outputs[0]
        rows = torch.isin(view.entries, entries)
        if not bool(rows.any()):
            continue
        chosen = View(view.parameter, view.entries[rows])
        offset = torch.zeros(len(view.entries)).double()
        offset[rows] = flow.graph.state[view.parameter].flatten()[chosen.entries].double()
        flow.updates.add(chosen, position, 0.0, 0.0)
        if out is not None:
            shape = flow.graph.program.values[out.id].shape
            flow.put(out, Change(torch.ones(shape).double(), _along(offset, shape, call.op)))
