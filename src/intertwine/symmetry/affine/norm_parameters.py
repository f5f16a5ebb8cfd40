"""Gains and biases of norms, located in a program."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ...programs import Ref
from ...programs.operations import LAYER_NORMS, RMS_NORMS, aten
from ...programs.steps import float64_handler
from .graph import Graph
from .parameter_updates import View

_NORMS = LAYER_NORMS | RMS_NORMS
_STATISTICS = aten("rsqrt sqrt linalg_vector_norm clamp_min reciprocal pow")


@dataclass(frozen=True)
class Gain:
    """The gain of a norm as a function of a parameter: ``w``, or ``1 + w``."""

    view: View  # The entries of the parameter
    numbers: Tensor  # The gain, float64; ``1 + w`` for parameters ``w`` that are counted from one
    one: float  # The value of the parameter at which the gain is one
    readers: tuple[int, ...]  # Positions of the calls that read the parameter for it


@dataclass(frozen=True)
class Norm:
    """One call of a norm."""

    position: int  # Of the call that multiplies by the gain
    out: Ref  # Its result
    gain: Gain  # Its gain
    bias: View | None  # The entries of its bias, if it has one
    centred: bool  # Whether it subtracts the mean


def norms(graph: Graph) -> Iterator[Norm]:
    """Every norm over the last axis with a parameter as gain, in the order in which they ran."""
    for position in sorted(graph.live):
        call = graph.program.calls[position]
        out = call.outputs[0] if call.outputs else None
        if out is None:
            continue
        if call.op in _NORMS:
            weight, bias = call.args.get("weight"), call.args.get("bias")
            gain = _gain(graph, weight, position) if isinstance(weight, Ref) else None
            shift = graph.views.get(bias.id) if isinstance(bias, Ref) else None
            if gain is not None and (bias is None or shift is not None):
                yield Norm(position, out, gain, shift, call.op in LAYER_NORMS)
        elif call.op == "aten::mul":
            for x, g in ((call.args["self"], call.args["other"]), (call.args["other"], call.args["self"])):
                if isinstance(x, Ref) and isinstance(g, Ref) and _is_normalised(graph, x):
                    gain = _gain(graph, g, position)
                    if gain is not None:
                        yield Norm(position, out, gain, None, False)
                        break


def _is_normalised(graph: Graph, ref: Ref) -> bool:
    """Whether a value was divided by a statistic of its last axis."""
    _, call = graph.origin(ref)
    if call is None or call.op not in ("aten::mul", "aten::div"):
        return call is not None and call.op in _NORMS
    shape = graph.program.values[ref.id].shape
    for name in ("self", "other"):
        other = call.args[name]
        if isinstance(other, Ref) and shape and shape[-1] > 1:
            small = graph.program.values[other.id].shape
            _, maker = graph.origin(other)
            if small[-1:] == (1,) and maker is not None and maker.op in _STATISTICS:
                return True
    return False


def _gain(graph: Graph, ref: Ref, position: int) -> Gain | None:
    """The gain at a value: entries of a parameter, or numbers computed from one alone."""
    shape = graph.program.values[ref.id].shape
    if not shape or shape[-1] < 2 or any(n > 1 for n in shape[:-1]):
        return None
    view = graph.views.get(ref.id)
    if view is not None:
        return Gain(view, graph.state[view.parameter].flatten()[view.entries].flatten(), 1.0, (position,))
    source = _only_source(graph, ref)
    if source is None or graph.views[source.id].entries.numel() != shape[-1]:
        return None
    inside = {*graph.program.ancestors([ref], [source]), position}
    made = [out.id for i in inside - {position} for out in graph.program.calls[i].outputs if out is not None]
    if any(reader not in inside for number in made for reader in graph.readers.get(number, ())):
        return None
    readers = tuple(i for i in graph.readers[source.id] if i in inside)
    view = graph.views[source.id]
    held = graph.state[view.parameter].flatten()[view.entries]
    for one in (0.0, 1.0):
        if bool((_computed(graph, ref, source, torch.full_like(held, one)) == 1).all()):
            return Gain(view, _computed(graph, ref, source, held).flatten(), one, readers)
    return None


def _only_source(graph: Graph, ref: Ref) -> Ref | None:
    """The parameter's view that a value is computed from, if it is one and nothing else but constants."""
    found: dict[int, Ref] = {}
    waiting = [ref]
    while waiting:
        at = waiting.pop()
        call = graph.producers.get(at.id)
        if at.id in graph.views:
            found[at.id] = at
        elif call is None:
            if graph.program.values[at.id].kind != "constant":
                return None
        elif len(call.inputs) > 8 or call.op in _NORMS:
            return None
        else:
            waiting += call.inputs
    return next(iter(found.values())) if len(found) == 1 else None


def _computed(graph: Graph, ref: Ref, source: Ref, numbers: Tensor) -> Tensor:
    """A value for other numbers at its source, in float64."""
    inside = graph.program.ancestors([ref], [source])
    return graph.program.run(numbers, [ref], start=[source], handlers=dict.fromkeys(inside, float64_handler))[0]
