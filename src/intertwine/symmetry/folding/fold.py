"""The interpretable gauge of a network: unit gains, biases pushed forward, weights without what layer norms remove.

Biases that only linear maps read are pushed into the bias after these, above all those of values through attention.

A layer norm subtracts the mean of its input, so a multiple of the vector of ones may be added to whatever is written
into a stream that nothing else reads, and to the rows that read its result if it has neither gain nor bias.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..._result import UNSAVED, Result, of_networks
from ..._words import counted
from ...errors import VerificationError
from ...programs import Call, Ref
from ...programs.operations import LAYER_NORMS, LINEAR
from ...programs.program import float64_handler, run_call
from ..action import moved
from ..find import symmetries_of
from ..gauge.bases import general_bases
from ..proof import Proof
from ..transformation import element
from .flow import Change, Flow, Graph, Obstacle, View
from .norms import fold_norms
from .rewriter import Outcome, Rewriter


@dataclass(frozen=True)
class Kept:
    """A tensor that stays unchanged: its name, and why it cannot be folded."""

    tensor: str
    reason: str


_NOTHING = "nothing to fold: no gain or bias of a norm to take in, no other bias to push on, no mean to subtract"


@dataclass(frozen=True, repr=False)
class Fold(Result):
    """The result of ``fold``.

    Attributes:
        changed: Every tensor with new numbers, and the steps that changed it (``"norms"``, ``"biases"``,
            ``"center"``, ``"heads"``).
        kept: Gains and biases that stay, with the reason.
        added: Extra tensors of the folded model: weights that were tied, and biases that did not exist.
        proof: Comparison of the new function with the old one in float64, with a control that must fail.
        certified: The inputs on which the function is certified to be the same, in words.
        model: The folded model, of the same class.

    Examples:
        >>> import torch
        >>> from torch import nn
        >>> net = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3))
        >>> _ = nn.init.normal_(net[0].weight)
        >>> x = torch.randn(5, 4)
        >>> found = fold(net, x)
        >>> bool((found.model[0].weight == 1).all()), torch.allclose(found.model(x), net(x), atol=1e-5)
        (True, True)
    """

    changed: dict[str, tuple[str, ...]]
    kept: tuple[Kept, ...]
    added: tuple[str, ...]
    proof: Proof
    certified: str
    model: Any = field(default=None, metadata=UNSAVED)

    def summary(self) -> str:
        """What was changed, the proof, and what stays unchanged."""
        proof = self.proof
        said = f"function kept to {proof.error:.1e} (negative control {proof.control:.1e})"
        nothing = f"{_NOTHING}{', or kept for the reasons below' if self.kept else ''}"
        lines = [f"{counted(len(self.changed), 'tensor')} changed, {said}" if self.changed else nothing]
        lines += [f"added: {name}" for name in self.added]
        lines += [f"kept: {kept.tensor}: {kept.reason}" for kept in self.kept]
        return "\n".join([*lines, f"certified for {self.certified}"])

    _columns = ("tensor", "steps", "added", "kept")

    def _rows(self) -> list[dict[str, Any]]:
        """One row per tensor that was changed or kept."""
        changed = [(n, ", ".join(steps), n in self.added, "") for n, steps in self.changed.items()]
        kept = [(kept.tensor, "", False, kept.reason) for kept in self.kept]
        return [dict(zip(self._columns, row)) for row in (*changed, *kept)]


@of_networks("model")
def fold(
    model: nn.Module,
    example_inputs: Any,
    norms: bool = True,
    center: bool = True,
    biases: bool = True,
    *,
    heads: bool = False,
    extend: bool | Literal["ties"] = True,
    strict: bool = False,
) -> Fold:
    r"""The same function in an interpretable gauge: unit gains, biases pushed forward, weights without invisible parts.

    Changes are propagated through the recorded run, so that nothing is assumed about names. With normalised features
    ``n``, a gain ``g`` and a bias ``b``, every linear map that reads ``g n + b`` becomes ``W diag(g)`` with the bias
    ``c + W b``. Biases of values pass through attention, whose rows sum to one, into the bias after it; biases that
    softmax ignores vanish. If every reader of a stream subtracts its mean, the weights that write to the stream are
    centred, and so are those that read the centred features.

    Args:
        model: The model. It is left as it is.
        example_inputs: See ``symmetries``.
        norms: Fold the gains of layer norms and RMS norms.
        center: Centre the weights that write to layer norms, and those that read their features.
        biases: Fold the biases of layer norms, and push biases of values forward.
        heads: Bring every head's values (and its queries and keys, if nothing else ties them) into balanced bases: the
            singular vectors of the map through the head, largest first, which no rotation of the head changes.
        extend: Untie weights and add biases to linear layers if a fold needs it. The modules keep their classes, but
            the state dict gets more names (``Fold.added``): ``save_pretrained`` refuses if the class would not build
            these tensors. ``"ties"`` only unties, which every class of transformers can represent.
        strict: Fail if anything requested cannot be folded.

    Returns:
        The folded model, what was changed and what could not be, with the numerical proof; a copy with nothing changed
        if nothing is there to fold.

    Raises:
        ValueError: If a requested step can fold nothing of what is there (biases may stay if ``extend`` adds none to
            take them) or, with ``strict``, not everything; the obstacle is named. Also if no step is requested, or the
            weights are not real numbers.
        VerificationError: If the function changed.

    Examples:
        >>> import intertwine as iw
        >>> block = nn.Sequential(nn.Linear(3, 6), nn.LayerNorm(6), nn.Linear(6, 2))
        >>> folded = fold(block, torch.randn(5, 3))
        >>> iw.testing.assert_same_function(block, folded.model, torch.randn(5, 3))
        >>> folded.changed["0.bias"], bool((folded.model[1].weight == 1).all())
        (('center',), True)

    References:
        - N. Nanda and J. Bloom, TransformerLens, 2022: ``fold_ln``, ``center_writing_weights``, ``fold_value_biases``.
    """  # noqa: DOC502 - raised by what it calls
    if not (norms or center or biases or heads):
        raise ValueError("norms, center, biases or heads must be requested. Got none of them.")
    rewriter = Rewriter(model, example_inputs, bool(extend), biases=extend is True)
    steps: dict[str, tuple[bool, Callable[[], Outcome]]] = {
        "norms": (norms or biases, lambda: fold_norms(rewriter, norms, biases)),
        "biases": (biases, lambda: push_biases(rewriter)),
        "center": (center, lambda: centre(rewriter)),
        "heads": (heads, lambda: _balance_heads(rewriter)),
    }
    changed: dict[str, tuple[str, ...]] = {}
    outcome = Outcome()
    for name, (wanted, step) in steps.items():
        if not wanted:
            continue
        before, made = rewriter.graph.state, step()
        outcome.done |= made.done
        outcome.kept += made.kept
        for tensor, now in rewriter.graph.state.items():
            if tensor not in before or not torch.equal(before[tensor], now):
                changed[tensor] = (*changed.get(tensor, ()), name)
    _refuse(outcome, list(steps), strict, may_stay=() if rewriter.biases else ("biases",))
    kept = tuple(Kept(tensor, reason) for _, tensor, reason in outcome.kept)
    proof = rewriter.prove()
    return Fold(changed, kept, tuple(rewriter.added), proof, rewriter.certified, rewriter.finished())


def folded(model: nn.Module, example_inputs: Any, extend: bool | Literal["ties"] = True) -> nn.Module:
    """The network folded by ``fold``, or itself if nothing can be folded without changing its function."""
    try:
        found = fold(model, example_inputs, extend=extend)
    except (ValueError, VerificationError):
        return model
    return found.model if found.changed else model


def _refuse(outcome: Outcome, steps: list[str], strict: bool, may_stay: tuple[str, ...]) -> None:
    """Refuse a fold if a step that must do something did nothing or, with ``strict``, did not do everything."""
    for step in steps:
        left = [(tensor, reason) for name, tensor, reason in outcome.kept if name == step]
        idle = step not in outcome.done and (step not in may_stay or not outcome.done)
        if left and (strict or idle):
            reasons = "; ".join(f"{tensor}: {reason}" for tensor, reason in left[:3])
            more = f" and {len(left) - 3} more" if len(left) > 3 else ""
            way = f"Leave the step out: {step}=False, or --no-{step} on the command line."
            raise ValueError(f"{step} must be foldable. Got {reasons}{more}. {way}")


def _balance_heads(rewriter: Rewriter) -> Outcome:
    """Bring every general linear space of the network into its balanced basis, by an element of its symmetry group."""
    sym = symmetries_of(rewriter.program)
    g = element(sym, linear=general_bases(sym, rewriter.graph.state))
    new = moved(sym, g, rewriter.graph.state)
    rewriter.write(new)
    rewriter.reread()
    return Outcome({"heads"} if new else set())


_BIASES = {op: bias for op, (*_, bias) in LINEAR.items() if bias} | {"aten::add": "other"}


def push_biases(rewriter: Rewriter) -> Outcome:
    """Push every bias forward, repeatedly, since one may end in another; biases of values may stay."""
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
    """Vectors added along the channels, with the calls that add them."""
    found: dict[str, list[_Site]] = {}
    for position, call, _ in graph.making():
        ref = call.args.get(_BIASES.get(call.op, ""))
        view = graph.views.get(ref.id) if isinstance(ref, Ref) else None
        if view is not None and view.entries.ndim == 1 and len(view.entries) > 1:
            found.setdefault(view.source, []).append((position, view))
    return found


def _segments(graph: Graph, sites: list[_Site]) -> Iterator[Tensor]:
    """The entries of a bias, grouped by the calls that read them: packed queries, keys and values apart."""
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
    """The entries read by each call that computes with the result."""
    call = graph.program.calls[position]
    if (out := call.outputs[0]) is not None:
        shape = graph.program.values[out.id].shape
        known = graph.carried({out.id: View("", _along(entries, shape, call.op))})
        for number, view in known.items():
            readers = (graph.program.calls[at] for at in graph.readers.get(number, ()))
            yield from (view.entries for reader in readers if not any(o.id in known for o in reader.made))


def _along(numbers: Tensor, shape: tuple[int, ...], op: str) -> Tensor:
    """Channel numbers in the shape of the result."""
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
        flow.graph.require(View(view.source, view.entries[rows]), position, 0.0, 0.0)
        if out is not None:
            shape = flow.graph.program.values[out.id].shape
            flow.put(out, Change(torch.ones(shape).double(), _along(offset, shape, call.op)))


_ZERO = 1e-9


def centre(rewriter: Rewriter) -> Outcome:
    """Subtract the mean over the stream from weights that write to layer norms only, and from those that read them."""
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
        first = len(rewriter.graph.updates)
        rewriter.graph.require(view, position, 1.0, -mean)
        try:
            rewriter.graph.settled(first)
        except Obstacle:
            del rewriter.graph.updates[first:]
    outcome.done |= {"center"} if rewriter.graph.updates else set()
    rewriter.settle()
    return outcome


def _start_constant(flow: Flow, *, name: str, axis: int) -> None:
    """Start the change of a parameter by something constant along one axis."""
    shape, generator = flow.graph.state[name].shape, torch.Generator().manual_seed(axis)
    along = [1 if d == axis else n for d, n in enumerate(shape)]
    offset = torch.randn(along, generator=generator, dtype=torch.float64).expand(shape)
    flow.put(flow.graph.program.states[name], Change(torch.ones(offset.shape).double(), offset))


def _readers(graph: Graph) -> Iterator[tuple[int, View, Call]]:
    """Linear maps that read zero-mean features, with the views of their weights."""
    generator = torch.Generator().manual_seed(0)
    random = lambda ref: torch.randn(graph.program.values[ref.id].shape, generator=generator, dtype=torch.float64)
    start: dict[int, View] = {}
    for _, call, out in graph.making():
        if call.op in LAYER_NORMS:  # with its gain and bias, the mean is in general not zero
            held = {r.id: graph.held(graph.views[r.id]) if r.id in graph.views else random(r) for r in call.inputs}
            start[out.id] = View("features", run_call(call, held, float64_handler)[0])
    known = graph.carried(start)
    for position, call, _ in graph.making():
        read, w = (call.args[name].id for name in LINEAR[call.op][:2]) if call.op in LINEAR else (-1, -1)
        rows = known[read].entries if read in known and call.op != "aten::convolution" else None
        if rows is not None and bool((rows.sum(-1).abs() < _ZERO).all()) and w in graph.views:
            yield position, graph.views[w], call
