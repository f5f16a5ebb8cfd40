"""Gains and biases folded into the linear maps that read them, and streams centred.

Gains of RMS norms put into the weights that read them set the residual stream free to rotate: a gain for each unit ties
its units to their axes, whereas a norm without gains commutes with rotations, and the stream of the folded network has
the whole orthogonal group (SliceGPT, Ashkboos et al. 2024, section 3.2, for this use of it).

Biases that linear maps alone read are pushed into the bias after them: biases of values through attention above all.

A layer norm subtracts the mean of its input, so a multiple of the vector of ones may be added to whatever is written
into a stream that nothing else reads. Its result has mean zero, so the same may be added to the rows that read it,
where it has neither gain nor bias.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from ..._evaluation import in_usual_mode
from ...programs import Call, Program, Ref
from ...programs.operations import LAYER_NORMS, RMS_NORMS, aten
from ...programs.steps import float64_handler
from ..find import symmetries_of
from ..symmetry import Symmetry
from .flow import LINEAR, Change, Flow
from .graph import MOVES, Graph, Obstacle, View, made, moved_entries
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
    for position in graph.live:
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
        elif call.op == "aten::mul" and len(call.inputs) == 2:
            ways = ((x, g) for x, g in (call.inputs, call.inputs[::-1]) if _is_normalised(graph, x))
            gains = (gain for _, g in ways if (gain := _gain(graph, g, position)) is not None)
            yield from (Norm(position, out, gain, None, False) for gain in islice(gains, 1))


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
    """The gain at a value: entries of a parameter, or numbers computed from one alone."""
    shape = graph.program.values[ref.id].shape
    if not shape or shape[-1] < 2 or any(n > 1 for n in shape[:-1]):
        return None
    view = graph.views.get(ref.id)
    if view is not None:
        return Gain(view, graph.held(view).flatten(), 1.0, (position,))
    source = _only_source(graph, ref)
    if source is None or graph.views[source.id].entries.numel() != shape[-1]:
        return None
    inside = {*graph.program.ancestors([ref], [source]), position}
    made = [out.id for i in inside - {position} for out in graph.program.calls[i].outputs if out is not None]
    if any(reader not in inside for number in made for reader in graph.readers.get(number, ())):
        return None
    readers = tuple(i for i in graph.readers[source.id] if i in inside)
    view = graph.views[source.id]
    held = graph.held(view)
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
    for norm in group:
        own = norm.gain.numbers
        shift = torch.zeros_like(own) if norm.bias is None else flow.graph.held(norm.bias).flatten()
        g, b = own if gain else torch.ones_like(own), shift if bias else torch.zeros_like(own)
        for position in norm.gain.readers:
            flow.updates.add(norm.gain.view, position, 0.0 if gain else 1.0, norm.gain.one if gain else 0.0)
        if norm.bias is not None:  # it stays inside the change of the gain unless it is folded too
            if gain and not bias and bool(((own == 0) & (shift != 0)).any()):
                raise Obstacle(f"{norm.gain.view.parameter} has zeros where the bias has none")
            inside = torch.where(own == 0, 1.0, 1 / torch.where(own == 0, 1.0, own)) if gain else 1.0
            flow.updates.add(norm.bias, norm.position, 0.0 if bias else inside, 0.0)
        shape = flow.graph.program.values[norm.out.id].shape
        flow.put(norm.out, Change(g.expand(shape), b.expand(shape)))


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


def rotatable(rewriter: Rewriter) -> tuple[Symmetry, frozenset[str]]:
    """The symmetry once every norm of gain one and bias zero divides by a length, as it does in any rotated basis.

    Streams are orthogonal spaces then. A layer norm takes the mean as well: of the spaces that come second, elements
    keep the network's function where they keep the vector of ones, ``Q 1 = 1``.
    """
    graph = rewriter.graph
    shifts = lambda norm: norm.bias is not None and bool((graph.held(norm.bias) != 0).any())
    sites = [norm for norm in norms(graph) if bool((norm.gain.numbers == 1).all()) and not shifts(norm)]
    sym = symmetries_of(_without_gains(rewriter.program, sites))
    sizes = {call.args["normalized_shape"][-1] for call in rewriter.program.calls if call.op in LAYER_NORMS}
    return sym, frozenset(space.name for space in sym.spaces if space.size in sizes)


def _without_gains(program: Program, sites: list[Norm]) -> Program:
    """The run with norms that neither multiply nor add, and layer norms that take no mean: rotations keep it."""
    calls = list(program.calls)
    for norm in sites:
        call = calls[norm.position]
        if call.op == "aten::mul":
            same = (r for r in call.inputs if program.values[r.id].shape == program.values[norm.out.id].shape)
            func = torch.ops.aten.alias.default
            calls[norm.position] = replace(call, op="aten::alias", args={"self": next(same)}, func=func)
    for position, call in enumerate(calls):
        weights = [call.args.get("weight"), call.args.get("bias")]
        plain = position in {norm.position for norm in sites} or weights == [None, None]
        if call.op in LAYER_NORMS | RMS_NORMS and plain:
            args = {"input": call.args["input"], "normalized_shape": call.args["normalized_shape"], "weight": None}
            outputs = (call.outputs[0], *(None for _ in call.outputs[1:]))
            calls[position] = replace(call, op="aten::rms_norm", args=args, outputs=outputs)
    return replace(program, calls=tuple(calls))


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
    for position in graph.live:
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
                for o, moved in zip(made(reader), moved_entries(reader, known)):
                    known[o.id] = moved
                    waiting.append(o.id)
            else:
                yield known[number]


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
        flow.updates.add(View(view.parameter, view.entries[rows]), position, 0.0, 0.0)
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
    rewriter.recapture()
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
    known: dict[int, Tensor] = {}
    for position in graph.live:
        call = graph.program.calls[position]
        out = call.outputs[0] if call.outputs else None
        if out is None:
            continue
        if call.op in LAYER_NORMS:
            if len(call.args["normalized_shape"]) == 1 and _plain(graph, call):
                x = torch.randn(graph.program.values[out.id].shape, generator=generator, dtype=torch.float64)
                known[out.id] = x - x.mean(-1, keepdim=True)
        elif call.op in MOVES and all(ref.id in known for ref in call.inputs):
            known |= {o.id: moved for o, moved in zip(made(call), moved_entries(call, known))}
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
        view = graph.views.get(ref.id) if isinstance(ref, Ref) else None
        numbers = None if view is None else graph.held(view)
        wanted = 0 if name == "bias" or numbers is None else numbers.flatten()[0]
        if ref is not None and (numbers is None or bool((numbers != wanted).any())):
            return False
    return True
