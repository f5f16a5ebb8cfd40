"""Gains and biases of norms, located in a program.

Gains and biases of norms, folded into the linear maps that read them.

Gains of RMS norms put into the weights that read them, which sets the residual stream free to rotate.

A gain for each unit ties the units of a residual stream to their axes. A norm without gains commutes with rotations,
and the stream of the folded network has the whole orthogonal group (SliceGPT, Ashkboos et al. 2024, section 3.2, for
this use of it).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..._evaluation import in_usual_mode
from ...programs import Ref
from ...programs.operations import LAYER_NORMS, RMS_NORMS, aten
from ...programs.steps import float64_handler
from .flow import Change, Flow
from .graph import Graph, Obstacle, View
from .rewriter import Outcome, Rewriter

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


def fold_norms(rewriter: Rewriter, gains: bool = True, biases: bool = True) -> Outcome:
    """Fold what can be folded; tied weights that stand in the way are untied where the rewriter may."""
    while True:
        outcome, tied = _attempts(rewriter, gains, biases)
        if not any(rewriter.untie(obstacle) for obstacle in tied):
            break
    rewriter.settle()
    return outcome


def _attempts(rewriter: Rewriter, gains: bool, biases: bool) -> tuple[Outcome, list[Obstacle]]:
    outcome, tied = Outcome(), []
    sites: dict[str, list[Norm]] = {}
    for norm in norms(rewriter.graph):
        sites.setdefault(norm.gain.view.parameter, []).append(norm)
    for name, group in sites.items():
        bias = next((norm.bias.parameter for norm in group if norm.bias is not None), "")
        wanted = {**({"norms": name} if gains else {}), **({"biases": bias} if biases and bias else {})}
        reasons = dict.fromkeys(wanted, "")
        for plan in dict.fromkeys((tuple(wanted), *((step,) for step in wanted))):
            if not set(plan) <= wanted.keys():
                continue
            try:
                rewriter.attempt(partial(_start, group=group, gain="norms" in plan, bias="biases" in plan))
            except Obstacle as obstacle:
                reasons |= {step: str(obstacle) for step in plan}
                tied.append(obstacle)
                continue
            outcome.done |= set(plan)
            break
        else:
            plan = ()
        outcome.kept += [(step, tensor, reasons[step]) for step, tensor in wanted.items() if step not in plan]
    return outcome, tied


def _start(flow: Flow, *, group: list[Norm], gain: bool, bias: bool) -> None:
    """The results of the norms without their gains, their biases, or both."""
    state = flow.graph.state
    for norm in group:
        g = norm.gain.numbers if gain else torch.ones_like(norm.gain.numbers)
        b = _numbers(state, norm.bias) if bias else torch.zeros_like(g)
        shape = flow.graph.program.values[norm.out.id].shape
        one = norm.gain.one if gain else 0.0
        for position in norm.gain.readers:
            flow.updates.add(norm.gain.view, position, 0.0 if gain else 1.0, one)
        if norm.bias is not None:
            flow.updates.add(norm.bias, norm.position, _factor(state, norm, gain, bias), 0.0)
        flow.put(norm.out, Change(g.expand(shape), b.expand(shape)))


def _factor(state: dict[str, Tensor], norm: Norm, gain: bool, bias: bool) -> Tensor | float:
    # what the bias is multiplied by: it stays inside the change of the gain unless it is folded too
    if bias or not gain:
        return 0.0 if bias else 1.0
    g, b = norm.gain.numbers, _numbers(state, norm.bias)
    if bool(((g == 0) & (b != 0)).any()):
        raise Obstacle(f"{norm.gain.view.parameter} has zeros where the bias has none")
    return torch.where(g == 0, 1.0, 1 / torch.where(g == 0, 1.0, g))


def _numbers(state: dict[str, Tensor], view: View | None) -> Tensor:
    return torch.zeros(()).double() if view is None else state[view.parameter].flatten()[view.entries].flatten()


@in_usual_mode
def fold_norm_gains(model: nn.Module, example_inputs: Any) -> nn.Module:
    """A copy of a model whose RMS norms have gains of one: the same function, with a residual stream that can rotate.

    A gain is a parameter vector that is its module's only tensor and has a scale of its own. It becomes a constant: the
    copy has no parameter of that name, so compare and align folded networks with folded networks. Gains that weights
    elsewhere share, as before an output that is tied to the embedding, stay where they are.

    Args:
        model: The model. It is left as it is.
        example_inputs: One tensor, a tuple of positional arguments or a mapping of keyword arguments.

    Raises:
        ValueError: If there is no gain that can be folded.

    Examples:
        >>> import torch
        >>> import intertwine as iw
        >>> class Block(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.first, self.norm, self.last = nn.Linear(3, 6), nn.RMSNorm(6), nn.Linear(6, 2)
        ...     def forward(self, x):
        ...         return self.last(self.norm(self.first(x)))
        >>> model, x = Block(), torch.randn(5, 3)
        >>> folded = fold_norm_gains(model, x)
        >>> iw.testing.assert_same_function(model, folded, x)
        >>> [[s.group.mixes for s in iw.symmetries(m, x).spaces] for m in (model, folded)]
        [[False], [True]]
    """
    rewriter = Rewriter(model, example_inputs, extend=False)
    fold_norms(rewriter, biases=False)
    rewriter.prove()
    twin = rewriter.finished()
    folded = {norm.gain.view.parameter for norm in norms(rewriter.graph) if bool((norm.gain.numbers == 1).all())}
    places = {name: twin.get_submodule(name.rpartition(".")[0]) for name in folded}
    alone = {n: m for n, m in places.items() if len(list(m.parameters())) == 1 and not list(m.buffers())}
    if not alone:
        raise ValueError("model must have norms with gains that can be folded. Got none.")
    for name, module in alone.items():
        last = name.rpartition(".")[2]
        constant = getattr(module, last).detach()
        delattr(module, last)
        module.register_buffer(last, constant, persistent=False)
    return twin
