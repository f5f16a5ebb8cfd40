"""Centring of weights: constants along the channels of a stream that only layer norms read are removed.

A layer norm subtracts the mean of its input, so a multiple of the vector of ones may be added to whatever is written
into a stream that nothing else reads. Its result has mean zero, so the same may be added to the rows that read it,
where it has neither gain nor bias.
"""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from ...programs import Call, Ref
from ...programs.operations import LAYER_NORMS
from .flow import LINEAR, Change, Flow
from .graph import Graph
from .parameter_updates import MOVES, Obstacle, View, moved_entries
from .rewriter import Outcome, Rewriter

_ZERO = 1e-9


def centre(rewriter: Rewriter) -> Outcome:
    """Subtract the mean over the stream from everything that is written to layer norms alone, and from what reads them.

    Returns:
        Whether anything was centred, and weights whose mean a layer norm subtracts but something else reads.
    """
    outcome = Outcome()
    new: dict[str, Tensor] = {}
    for name in list(rewriter.graph.uses):
        tensor = rewriter.graph.state[name]
        for axis, size in enumerate(tensor.shape):
            if size < 2:
                continue
            try:
                flow = rewriter.attempt(partial(_start, name=name, axis=axis), absorb=False)
            except Obstacle as obstacle:
                outcome.kept += [("center", name, str(obstacle))] if obstacle.centred else []
                continue
            if flow.centred:
                new[name] = new.get(name, tensor) - new.get(name, tensor).mean(axis, keepdim=True)
    outcome.done |= {"center"} if new else set()
    rewriter.write(new)
    rewriter.recapture()
    for position, view, call in _readers(rewriter.graph):
        held = rewriter.graph.state[view.parameter].flatten()[view.entries]
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


def _start(flow: Flow, *, name: str, axis: int) -> None:
    """A parameter becomes itself plus something constant along one axis."""
    shape = list(flow.graph.state[name].shape)
    shape[axis] = 1
    generator = torch.Generator().manual_seed(axis)
    offset = torch.randn(shape, generator=generator, dtype=torch.float64).expand(flow.graph.state[name].shape)
    flow.put(flow.graph.program.states[name], Change(torch.ones(offset.shape).double(), offset))


def _readers(graph: Graph) -> Iterator[tuple[int, View, Call]]:
    """Linear maps that read features of mean zero, with the views of their weights."""
    generator = torch.Generator().manual_seed(0)
    known: dict[int, Tensor] = {}
    for position in sorted(graph.live):
        call = graph.program.calls[position]
        out = call.outputs[0] if call.outputs else None
        if out is None:
            continue
        if call.op in LAYER_NORMS:
            if len(call.args["normalized_shape"]) == 1 and _plain(graph, call):
                x = torch.randn(graph.program.values[out.id].shape, generator=generator, dtype=torch.float64)
                known[out.id] = x - x.mean(-1, keepdim=True)
        elif call.op in MOVES and all(ref.id in known for ref in call.inputs):
            outputs = [o for o in call.outputs if o is not None]
            known |= {o.id: moved for o, moved in zip(outputs, moved_entries(call, known))}
        elif call.op in LINEAR:
            x, w = (call.args[name] for name in LINEAR[call.op][:2])
            view = graph.views.get(w.id)
            rows = known.get(x.id)
            zero = rows is not None and call.op != "aten::convolution" and bool((rows.sum(-1).abs() < _ZERO).all())
            if zero and view is not None:
                yield position, view, call


def _plain(graph: Graph, call: Call) -> bool:
    """Whether a layer norm has a gain that is the same for all units, and a bias of zero."""
    for name in ("weight", "bias"):
        ref = call.args.get(name)
        if ref is None:
            continue
        view = graph.views.get(ref.id) if isinstance(ref, Ref) else None
        if view is None:
            return False
        numbers = graph.state[view.parameter].flatten()[view.entries]
        if bool((numbers != (numbers.flatten()[0] if name == "weight" else 0)).any()):
            return False
    return True
