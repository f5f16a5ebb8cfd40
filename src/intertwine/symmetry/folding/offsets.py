"""Biases that linear maps alone read, pushed into the bias after them: biases of values through attention above all.

Centring of weights: constants along the channels of a stream that only layer norms read are removed.

A layer norm subtracts the mean of its input, so a multiple of the vector of ones may be added to whatever is written
into a stream that nothing else reads. Its result has mean zero, so the same may be added to the rows that read it,
where it has neither gain nor bias.
"""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from ...programs import Call, Ref
from ...programs.operations import LAYER_NORMS, LINEAR
from .flow import Change, Flow
from .graph import Graph, Obstacle, View
from .rewriter import Outcome, Rewriter

_BIASES = {"aten::addmm": "self", "aten::linear": "bias", "aten::convolution": "bias", "aten::add": "other"}


def push_biases(rewriter: Rewriter) -> Outcome:
    """Push every bias on that can be, again and again, since one may be pushed into another; biases of values may stay.

    Raises:
        RuntimeError: If that does not end.
    """
    outcome = Outcome()
    for _ in range(100):
        outcome.kept, moved = [], 0
        for name, sites in _candidates(rewriter.graph).items():
            for entries in _segments(rewriter.graph, sites):
                try:
                    rewriter.attempt(partial(_start_bias, sites=sites, entries=entries))
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
    for position, call, _ in graph.making():
        ref = call.args.get(_BIASES.get(call.op, ""))
        view = graph.views.get(ref.id) if isinstance(ref, Ref) else None
        if view is not None and view.entries.ndim == 1 and len(view.entries) > 1:
            found.setdefault(view.source, []).append((position, view))
    return found


def _segments(graph: Graph, sites: list[_Site]) -> Iterator[Tensor]:
    """The entries of a bias, in groups that the same calls read: packed queries, keys and values apart."""
    values = graph.state[sites[0][1].source].flatten()
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
    if (out := call.outputs[0]) is not None:
        shape = graph.program.values[out.id].shape
        known = graph.carried({out.id: View("", _along(entries, shape, call.op))})
        for number, view in known.items():
            readers = (graph.program.calls[at] for at in graph.readers.get(number, ()))
            yield from (view.entries for reader in readers if not any(o.id in known for o in reader.made))


def _along(numbers: Tensor, shape: tuple[int, ...], op: str) -> Tensor:
    """Numbers of the channels in the shape of the result."""
    channel = 1 if op == "aten::convolution" else len(shape) - 1
    return numbers.reshape(-1, *[1] * (len(shape) - channel - 1)).expand(shape)


def _start_bias(flow: Flow, *, sites: list[_Site], entries: Tensor) -> None:
    for position, view in sites:
        call = flow.graph.program.calls[position]
        out = call.outputs[0]
        rows = torch.isin(view.entries, entries)
        if not bool(rows.any()):
            continue
        offset = torch.where(rows, flow.graph.held(view), 0.0)
        flow.updates.add(View(view.source, view.entries[rows]), position, 0.0, 0.0)
        if out is not None:
            shape = flow.graph.program.values[out.id].shape
            flow.put(out, Change(torch.ones(shape).double(), _along(offset, shape, call.op)))


_ZERO = 1e-9


def centre(rewriter: Rewriter) -> Outcome:
    """Subtract the mean over the stream from everything that is written to layer norms alone, and from what reads them.

    What stays are weights whose mean a layer norm subtracts but something else reads.
    """
    outcome = Outcome()
    new: dict[str, Tensor] = {}
    for name in list(rewriter.graph.uses):
        tensor = rewriter.graph.state[name]
        for axis, size in enumerate(tensor.shape):
            if size < 2:
                continue
            try:
                flow = rewriter.attempt(partial(_start_constant, name=name, axis=axis), absorb=False)
            except Obstacle as obstacle:
                outcome.kept += [("center", name, str(obstacle))] if obstacle.centred else []
                continue
            if flow.centred:
                new[name] = new.get(name, tensor) - new.get(name, tensor).mean(axis, keepdim=True)
    outcome.done |= {"center"} if new else set()
    rewriter.write(new)
    rewriter.reread()
    for position, view, call in _readers(rewriter.graph):
        held = rewriter.graph.held(view)
        mean = held.mean(LINEAR[call.op][2], keepdim=True)
        first = len(rewriter.updates)
        rewriter.updates.add(view, position, 1.0, -mean)
        try:
            rewriter.updates.check(first)
        except Obstacle:
            rewriter.updates.drop(first)
    outcome.done |= {"center"} if rewriter.updates else set()
    rewriter.settle()
    return outcome


def _start_constant(flow: Flow, *, name: str, axis: int) -> None:
    """A parameter becomes itself plus something constant along one axis."""
    shape = list(flow.graph.state[name].shape)
    shape[axis] = 1
    generator = torch.Generator().manual_seed(axis)
    offset = torch.randn(shape, generator=generator, dtype=torch.float64).expand(flow.graph.state[name].shape)
    flow.put(flow.graph.program.states[name], Change(torch.ones(offset.shape).double(), offset))


def _readers(graph: Graph) -> Iterator[tuple[int, View, Call]]:
    """Linear maps that read features of mean zero, with the views of their weights."""
    generator = torch.Generator().manual_seed(0)
    start: dict[int, View] = {}
    for _, call, out in graph.making():
        if call.op in LAYER_NORMS and len(call.args["normalized_shape"]) == 1 and _plain(graph, call):
            x = torch.randn(graph.program.values[out.id].shape, generator=generator, dtype=torch.float64)
            start[out.id] = View("features", x - x.mean(-1, keepdim=True))
    known = graph.carried(start)
    for position, call, _ in graph.making():
        read, w = (call.args[name].id for name in LINEAR[call.op][:2]) if call.op in LINEAR else (-1, -1)
        rows = known[read].entries if read in known and call.op != "aten::convolution" else None
        if rows is not None and bool((rows.sum(-1).abs() < _ZERO).all()) and w in graph.views:
            yield position, graph.views[w], call


def _plain(graph: Graph, call: Call) -> bool:
    """Whether a layer norm has a gain that is the same for all units, and a bias of zero."""
    for name in ("weight", "bias"):
        ref = call.args.get(name)
        view = graph.views.get(ref.id) if isinstance(ref, Ref) else None
        numbers = None if view is None else graph.held(view)
        wanted = 0 if name == "bias" or numbers is None else numbers.flatten()[0]
        if ref is not None and (numbers is None or bool((numbers != wanted).any())):
            return False
    return True
