"""Gains and biases of norms, located in a program and folded into the linear maps that read them.

A gain for each unit ties the residual stream to its axes. A norm without gains commutes with rotations, so that the
stream of the folded network has the whole orthogonal group (SliceGPT, Ashkboos et al. 2024, section 3.2).
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from ..._evaluation import in_usual_mode
from ..._nested import by_key
from ...programs import Call, Program, Ref, capture_examples
from ...programs.operations import LAYER_NORMS, RMS_NORMS, aten
from ...programs.program import float64_handler
from ..action import tensors_of
from ..find import symmetries_of
from ..symmetry import Symmetry
from .flow import Change, Flow, Graph, Obstacle, View
from .rewriter import Outcome, Rewriter

_NORMS = LAYER_NORMS | RMS_NORMS
_STATISTICS = aten("rsqrt sqrt linalg_vector_norm clamp_min reciprocal pow")
NORMALISING = _NORMS | _STATISTICS
"""Operations at least one of which occurs in every program with norms over the last axis."""


@dataclass(frozen=True)
class Gain:
    """The gain of a norm as a function of a parameter: ``w``, or ``1 + w``."""

    view: View  # The entries of the parameter
    numbers: Tensor  # The gain, float64; ``1 + w`` for parameters ``w`` that store the offset from one
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
    """Every norm over the last axis whose gain is a parameter, in running order."""
    for position, call, out in graph.making():
        if call.op in _NORMS:
            weight, bias = call.args.get("weight"), call.args.get("bias")
            gain = _gain(graph, weight, position) if isinstance(weight, Ref) else None
            shift = graph.views.get(bias.id) if isinstance(bias, Ref) else None
            if gain is not None and (bias is None or shift is not None):
                yield Norm(position, out, gain, shift, call.op in LAYER_NORMS)
        elif call.op == "aten::mul" and len(call.inputs) == 2:
            ways = ((x, g) for x, g in (call.inputs, call.inputs[::-1]) if _is_normalised(graph, x))
            gains = (gain for _, g in ways if (gain := _gain(graph, g, position)) is not None)
            yield from (Norm(position, out, gain, None, False) for gain in islice(gains, 1))


def gains_of(model: nn.Module, example_inputs: Any) -> set[float]:
    """The values at which the gain parameters of a model's norms do nothing: 1, or 0 for gains ``1 + w``."""
    program = capture_examples(model, example_inputs)
    state = {name: x for name, x in tensors_of(model).items() if x.ndim == 1 and name in program.states}
    return {norm.gain.one for norm in norms(Graph(program, state))}


def _is_normalised(graph: Graph, ref: Ref) -> bool:
    """Whether a value was divided by a statistic of its last axis."""
    _, call = graph.origin(ref)
    if call is None or call.op not in ("aten::mul", "aten::div"):
        return call is not None and call.op in _NORMS
    shape = graph.program.values[ref.id].shape
    for other in call.inputs if shape and shape[-1] > 1 else ():
        _, maker = graph.origin(other)
        if graph.program.values[other.id].shape[-1:] == (1,) and maker is not None and maker.op in _STATISTICS:
            return True
    return False


def _gain(graph: Graph, ref: Ref, position: int) -> Gain | None:
    """The gain at a value: entries of a parameter, or numbers computed from one parameter alone."""
    shape = graph.program.values[ref.id].shape
    if not shape or shape[-1] < 2 or any(n > 1 for n in shape[:-1]):
        return None
    view = graph.views.get(ref.id)
    if view is not None:
        return Gain(view, graph.held(view).flatten(), 1.0, (position,))
    inside = {*graph.program.ancestors([ref], map(Ref, graph.views))}
    calls = [graph.program.calls[i] for i in inside]
    results = {out.id for call in calls for out in call.made}
    given = {read for call in calls for read in call.inputs if read.id not in results}
    sources = [read for read in given if read.id in graph.views]
    if len(sources) != 1 or any(graph.program.values[read.id].kind != "constant" for read in given - {*sources}):
        return None
    view, inside = graph.views[sources[0].id], inside | {position}
    alone = all(reader in inside for number in results for reader in graph.readers.get(number, ()))
    if view.entries.numel() != shape[-1] or not alone:
        return None
    in_float64 = dict.fromkeys(inside, float64_handler)
    gain = lambda numbers: graph.program.run(numbers, [ref], start=sources, handlers=in_float64)[0].flatten()
    held, readers = graph.held(view), tuple(i for i in graph.readers[sources[0].id] if i in inside)
    ones = (one for one in (0.0, 1.0) if bool((gain(torch.full_like(held, one)) == 1).all()))
    return next((Gain(view, gain(held), one, readers) for one in ones), None)


def fold_norms(rewriter: Rewriter, gains: bool = True, biases: bool = True) -> Outcome:
    """Fold what can be folded; tied weights that stand in the way are untied if the rewriter may."""
    while True:
        outcome, tied = _attempts(rewriter, gains, biases)
        if not any(rewriter.untie(obstacle) for obstacle in tied):
            break
    rewriter.settle()
    return outcome


def _attempts(rewriter: Rewriter, gains: bool, biases: bool) -> tuple[Outcome, list[Obstacle]]:
    outcome, tied = Outcome(), []
    for name, group in by_key((norm.gain.view.source, norm) for norm in norms(rewriter.graph)).items():
        bias = next((norm.bias.source for norm in group if norm.bias is not None), "")
        wanted = {**({"norms": name} if gains else {}), **({"biases": bias} if biases and bias else {})}
        reasons = dict.fromkeys(wanted, "")
        for plan in dict.fromkeys((tuple(wanted), *((step,) for step in wanted))):
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
    """Start the changes that take gains, biases or both out of the norms' results."""
    for norm in group:
        own = norm.gain.numbers
        shift = torch.zeros_like(own) if norm.bias is None else flow.graph.held(norm.bias).flatten()
        g, b = own if gain else torch.ones_like(own), shift if bias else torch.zeros_like(own)
        for position in norm.gain.readers:
            flow.graph.require(norm.gain.view, position, 0.0 if gain else 1.0, norm.gain.one if gain else 0.0)
        if norm.bias is not None:  # it stays within the gain's change unless it is folded too
            if gain and not bias and bool(((own == 0) & (shift != 0)).any()):
                raise Obstacle(f"{norm.gain.view.source} has zeros where the bias has none")
            inside = torch.where(own == 0, 1.0, 1 / torch.where(own == 0, 1.0, own)) if gain else 1.0
            flow.graph.require(norm.bias, norm.position, 0.0 if bias else inside, 0.0)
        shape = flow.graph.program.values[norm.out.id].shape
        flow.put(norm.out, Change(g.expand(shape), b.expand(shape)))


def level_biases(rewriter: Rewriter) -> None:
    """Turn biases of unit-gain layer norms into ones: readers take the rest, whether they have a bias or not.

    The result of such a norm has mean zero, so the mean of each row of a weight that reads it is free: once ones are
    added to the result, ``n`` times that mean acts as a bias.
    """
    plain = (norm for norm in norms(rewriter.graph) if norm.centred and bool((norm.gain.numbers == 1).all()))
    for group in by_key((norm.bias.source, norm) for norm in plain if norm.bias is not None).values():
        with suppress(Obstacle):
            rewriter.attempt(partial(_start_levelled, group=group))
    rewriter.settle()


def _start_levelled(flow: Flow, *, group: list[Norm]) -> None:
    for norm in group:
        assert norm.bias is not None
        shift = flow.graph.held(norm.bias).flatten()
        if bool((shift != 0).any()):
            flow.mean_one = norm.out
            flow.graph.require(norm.bias, norm.position, 0.0, 1.0)
            shape = flow.graph.program.values[norm.out.id].shape
            flow.put(norm.out, Change(torch.ones(shape).double(), (shift - 1).expand(shape)))


@in_usual_mode
def fold_norm_gains(model: nn.Module, example_inputs: Any) -> nn.Module:
    """A copy of a model with RMS-norm gains of one: the same function, with a residual stream that can rotate.

    A gain is a parameter vector that is its module's only tensor and has a scale of its own. It becomes a constant: the
    copy has no parameter of that name, so compare and align folded networks only with folded networks. Gains tied to
    weights elsewhere stay, such as those before an output that is tied to the embedding.

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
    folded = {norm.gain.view.source for norm in norms(rewriter.graph) if bool((norm.gain.numbers == 1).all())}
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


def rotatable(rewriter: Rewriter) -> tuple[Symmetry, frozenset[str]]:
    """The symmetry, if every norm of gain one divides by a length, as in any rotated basis, and adds its bias.

    On the spaces returned second, elements keep the function if they keep the vector of ones, ``Q 1 = 1``.
    """
    graph = rewriter.graph
    sites = {norm.position: norm for norm in norms(graph) if bool((norm.gain.numbers == 1).all())}
    shifting = {k for k, norm in sites.items() if norm.bias is not None and bool((graph.held(norm.bias) != 0).any())}
    sym = symmetries_of(_without_gains(rewriter.program, sites, shifting))
    sizes = {call.args["normalized_shape"][-1] for call in rewriter.program.calls if call.op in LAYER_NORMS}
    return sym, frozenset(space.name for space in sym.spaces if space.size in sizes)


def _without_gains(program: Program, sites: Mapping[int, Norm], shifting: Collection[int]) -> Program:
    """The run with norms that neither multiply nor take a mean; separate calls add their nonzero biases."""
    calls, values = list[Call](), list(program.values)
    for position, call in enumerate(program.calls):
        plain = position in sites or [call.args.get("weight"), call.args.get("bias")] == [None, None]
        if call.op == "aten::mul" and position in sites:
            out = sites[position].out
            same = next(r for r in call.inputs if values[r.id].shape == values[out.id].shape)
            calls.append(replace(call, op="aten::alias", args={"self": same}, func=torch.ops.aten.alias.default))
        elif call.op in _NORMS and plain:
            normed, first = call.outputs[0], call.outputs[:1]
            args = {"input": call.args["input"], "normalized_shape": call.args["normalized_shape"], "weight": None}
            if position in shifting:
                values.append(values[sites[position].out.id])
                normed = Ref(len(values) - 1)
            calls.append(replace(call, op="aten::rms_norm", args=args, outputs=(normed,)))
            if position in shifting:
                args = {"self": normed, "other": call.args["bias"], "alpha": 1}
                calls.append(replace(call, op="aten::add", args=args, outputs=first, func=torch.ops.aten.add.Tensor))
        else:
            calls.append(call)
    return replace(program, calls=tuple(calls), values=tuple(values))
