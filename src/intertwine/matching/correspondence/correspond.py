"""Entry point: two models, their programs, the corresponding parameter entries, and the numerical proof."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from ..._evaluation import copied, without_weights
from ..._result import Result, of_networks
from ..._words import counted
from ...errors import CaptureError
from ...symmetry.action import tensors_of, write
from . import rules
from .entries import Entry, carried, entries_of
from .graph import NOTHING, Graph, Pairing, inside, pairing, parting
from .proof import Side, error_of

__all__ = ["Correspondence", "carrier_of", "correspond", "in_code_of", "in_one_code"]

WHOLE, A_IN_B, B_IN_A = "the same program", "a is part of b", "b is part of a"
SETTINGS, APART = "the same program with other settings", "not comparable"
_OWNED = ("_parameters", "_buffers", "_modules", "training")  # attributes of modules that are no settings
_ = rules


@dataclass(frozen=True, eq=False, repr=False)
class Correspondence(Result):
    """The entries of A's and B's tensors that correspond; truthy if the programs agree, or one is part of the other.

    Attributes:
        verdict: ``"the same program"``, ``"a is part of b"``, ``"b is part of a"``, ``"the same program with other
            settings"`` or ``"not comparable"``.
        entries: Parts of tensors of A, each with the corresponding part of a tensor of B.
        part: Module of the larger network whose result is that of the smaller one; empty for whole networks.
        reason: Where the programs differ, which settings differ, or how the proof failed.
        error: Relative error of A's program with B's weights against B's, in float64 if both run in it; ``None``
            if nothing could be run, as on the meta device.
        rtol: Largest error that rounding explains.
        unread: Tensors of A that no entry of B fills: nothing reads them on the example.
        looked_through: Wrappers that were removed first: "a wrapped in DataParallel".
        aliases: Other names of tied tensors of A, each with the name that entries use.
    """

    verdict: str
    entries: tuple[Entry, ...] = ()
    part: str = ""
    reason: str = ""
    error: float | None = None
    rtol: float | None = None
    unread: tuple[str, ...] = ()
    looked_through: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return self.verdict in (WHOLE, A_IN_B, B_IN_A)

    @property
    def proved(self) -> bool:
        """Whether A's program with B's weights was shown to compute B's function."""
        return bool(self) and self.error is not None and self.rtol is not None and self.error <= self.rtol

    @property
    def renamed(self) -> int:
        """Number of entries that are not the same tensor under the same name."""
        return sum(not entry.identity for entry in self.entries)

    def convert(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """B's weights under A's names and in A's shapes, tied names included.

        Tensors that nothing reads (``unread``) are left out: load with ``strict=False`` if there are any.

        Args:
            state: B's state dict.

        Raises:
            ValueError: If nothing corresponds, or a tensor that is read is missing.
        """
        if not self:
            raise ValueError(
                f"a and b must correspond for weights to be carried over. Got: {self.verdict}, {self.reason}."
            )
        missing = next((e.b.name for e in self.entries if e.b.name not in state), None)
        if missing is not None:
            raise ValueError(f"state must be a state dict of b. Got none of its {missing!r}.")
        made = carried(self.entries, state)
        return {**made, **{alias: made[name] for alias, name in self.aliases.items() if name in made}}

    def summary(self) -> str:
        """The verdict, how far names and forms differ, the proof, and every entry that is not the identity."""
        if not self:
            return f"{self.verdict}: {self.reason}"
        said = f"{counted(len(self.entries), 'entry')}, {self.renamed} under another name or in another form"
        proof = "not proved: nothing was run"
        if self.error is not None:
            proof = f"proved, error {self.error:.1e} of {self.rtol:.1e} that rounding explains"
        head = f"{self.verdict}{f' ({self.part})' if self.part else ''}: {said}; {proof}"
        lines = [f"  {entry}" for entry in self.entries if not entry.identity]
        lines += [f"  not read: {', '.join(self.unread)}"] if self.unread else []
        return "\n".join([head, *self.looked_through, *lines])

    _columns = ("a", "b", "change")

    def _rows(self) -> list[dict[str, Any]]:
        """One row for each entry."""
        return [{"a": str(e.a), "b": str(e.b), "change": e.change} for e in self.entries]


@of_networks("a", "b")
def correspond(a: nn.Module, b: nn.Module, example_inputs: Any, example_inputs_b: Any = None) -> Correspondence:
    """Find which parameter entries of two networks correspond, however their code names and packs them.

    Both programs are captured and rewritten with indices alone: reshapes, transpositions, packing and names disappear,
    fused operations are decomposed, and slices are carried to the parameters. The graphs are coloured from both ends
    until colours no longer change, and paired starting at the outputs. The result is then proved: with B's entries in
    place of A's, and constant tensors made distinct, A must compute B's function in float64.

    Args:
        a: One network. Both are left as they are; they may be on the meta device, but then nothing is proved.
        b: The other.
        example_inputs: One tensor, a tuple of positional arguments or a mapping of keyword arguments.
        example_inputs_b: The inputs of ``b``, if its code takes the same numbers in another form.

    Raises:
        CaptureError: If a model does not run on its inputs; the message says which.

    Examples:
        >>> a = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> class Own(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.up, self.down = nn.Conv1d(4, 8, 1), nn.Linear(8, 3)
        ...
        ...     def forward(self, x):
        ...         return self.down(self.up(x[..., None])[..., 0].clamp(min=0))
        >>> found = correspond(a, Own(), torch.randn(5, 4))
        >>> [str(entry) for entry in found.entries]
        ['0.weight = up.weight.reshape(8, 4)', '0.bias = up.bias', '2.weight = down.weight', '2.bias = down.bias']
        >>> found.proved
        True
    """  # noqa: DOC502 - raised by what it calls
    borrowed = example_inputs_b is None
    left = Side.of("a", a, example_inputs)
    return _compared(left, Side.of("b", b, example_inputs if borrowed else example_inputs_b, borrowed))


def in_one_code(a: nn.Module, b: nn.Module) -> bool:
    """Whether two models have the same classes and settings, as far as their attributes show."""
    ours, theirs = (dict(m.named_modules()) for m in (a, b))
    return ours.keys() == theirs.keys() and all(_alike(m, theirs[name], {}) for name, m in ours.items())


def _alike(x: Any, y: Any, seen: dict[tuple[int, int], tuple[Any, Any]]) -> bool:
    """Whether two settings are equal, except tensors owned by modules. Pairs ``seen`` stay alive, so ids stay valid."""
    if x is y or (id(x), id(y)) in seen:
        return True
    seen[id(x), id(y)] = x, y
    if type(x) is not type(y):
        return False
    if isinstance(x, Tensor):
        return x.shape == y.shape and torch.equal(x, y)
    if isinstance(x, list | tuple):
        return len(x) == len(y) and all(_alike(v, w, seen) for v, w in zip(x, y))
    if isinstance(x, Mapping):
        return x.keys() == y.keys() and all(_alike(v, y[key], seen) for key, v in x.items())
    if isinstance(x, FunctionType):
        inner = [[c.cell_contents for c in f.__closure__ or ()] for f in (x, y)]
        inner = [[*some, f.__defaults__, f.__kwdefaults__] for some, f in zip(inner, (x, y))]
        return x.__code__ == y.__code__ and _alike(inner[0], inner[1], seen)
    if isinstance(x, partial):
        return _alike((x.func, x.args, x.keywords), (y.func, y.args, y.keywords), seen)
    if type(x).__eq__ is object.__eq__ and hasattr(x, "__dict__"):
        ours, theirs = ({k: v for k, v in vars(z).items() if k not in _OWNED} for z in (x, y))
        return _alike(ours, theirs, seen)
    try:
        return bool(x == y)
    except Exception:
        return False


def in_code_of(a: nn.Module, b: nn.Module, found: Correspondence) -> nn.Module:
    """A copy of ``a`` with the weights of ``b``: those that correspond, and by name those that nothing reads."""
    return write(copied(a), {**found.convert(tensors_of(b)), **by_name(a, b, found.unread)})


def by_name(a: nn.Module, b: nn.Module, names: Sequence[str]) -> dict[str, Tensor]:
    """Tensors of ``b`` for those names of ``a`` that have the same shape in both."""
    ours, theirs = tensors_of(a), tensors_of(b)
    return {n: theirs[n] for n in names if n in theirs and theirs[n].shape == ours[n].shape}


def carrier_of(a: nn.Module, b: nn.Module, example_inputs: Any) -> Callable[[nn.Module], nn.Module] | None:
    """The function that carries weights in ``b``'s code into copies of ``a``; ``None`` if at most widths differ."""
    shapes = lambda model: {name: tensor.shape for name, tensor in tensors_of(model).items()}
    ours, theirs = shapes(a), shapes(b)
    if ours == theirs:
        return None
    try:
        found = correspond(a, b, example_inputs)
    except CaptureError as error:
        found = Correspondence(APART, reason=str(error))
    if found.verdict == WHOLE:
        return lambda model: in_code_of(a, model, found) if shapes(model) == theirs else model
    if ours.keys() == theirs.keys():
        return None
    said = found.summary().splitlines()[0]
    raise ValueError(f"a and b must be of one architecture, or one program in other code. Got {said}")


def _compared(a: Side, b: Side) -> Correspondence:
    found = pairing(a.graph, b.graph)
    if found is not None:
        return _proved(a, b, found, WHOLE)
    for verdict, small, large in ((A_IN_B, a, b), (B_IN_A, b, a)):
        views = {n: v for n, v in large.reader.views.items() if n in large.program.varying}
        where = inside(small.graph, views, large.reader.outputs)
        if where is not None:
            there = Graph.of([view for _, view in where])
            found = pairing(small.graph, there) if small is a else pairing(there, small.graph)
            if found is not None:
                return _proved(a, b, found, verdict, tuple(n for n, _ in where))
    a, b = a.sunk(), b.sunk()
    if (found := pairing(a.graph, b.graph)) is not None:
        return _proved(a, b, found, WHOLE)
    if (found := pairing(a.graph, b.graph, strict=False)) is not None:
        said = f"the models compute other functions, settings differ: {'; '.join(_settings(found))}"
        return _proved(a, b, found, SETTINGS, reason=said)
    ours, theirs = parting(a.graph, b.graph)
    said = f"the programs part: a has {ours} where b has {theirs}"
    said += "".join(f"; the adapter of {name} is apart from its weights: give a copy after {name}.merge_and_unload()"
                    for name, side in (("a", a), ("b", b)) if hasattr(side.model, "merge_and_unload"))  # fmt: skip
    if ours == theirs == NOTHING:
        said = "the programs part: both have the same operations, but connect them differently"
        ties = {"a": a.program.aliases, "b": b.program.aliases}
        said += "".join(f"; {name} alone ties weights: {', '.join(f'{k} to {v}' for k, v in list(own.items())[:3])}"
                        for name, own in ties.items() if own and not all(ties.values()))  # fmt: skip
    shapes = [{n: side.program.values[ref.id].shape for n, ref in side.program.states.items()} for side in (a, b)]
    for name, here in shapes[0].items():
        other = shapes[1].get(name, here)
        if len(here) == len(other) and sum(x != y for x, y in zip(here, other)) == 1:  # a resized vocabulary, perhaps
            said += f"; {name} is {tuple(here)} in a and {tuple(other)} in b"
            break
    return Correspondence(APART, reason=said, looked_through=(*a.wrapped, *b.wrapped))


def _settings(found: Pairing) -> list[str]:
    said = []
    for n, m in sorted(found.vertices.items()):
        v, w = found.a.vertices[n], found.b.vertices[m]
        if v.op == "output" or v.attrs == w.attrs:
            continue
        numbers = [(x, y) for x, y in zip(v.attrs, w.attrs) if x != y] if len(v.attrs) == len(w.attrs) else []
        what = ", ".join(f"{x} and {y}" for x, y in numbers) or f"{v.attrs} and {w.attrs}"
        module, line = v.term.where
        said.append(f"{v.op} {what} in {module or 'the network'} ({line})")
    return said[:3] + ([f"and {len(said) - 3} more"] if len(said) > 3 else []) or ["constants of the code"]


def _proved(
    a: Side, b: Side, found: Pairing, verdict: str, part: tuple[int, ...] = (), reason: str = ""
) -> Correspondence:
    """The correspondence of a pairing, if A's program with B's weights computes B's function."""
    entries = entries_of(found)
    meta = without_weights(a.model) or without_weights(b.model)
    error = rtol = None
    if not meta:
        of_a, of_b = (part if verdict == inner else side.outputs for inner, side in ((B_IN_A, a), (A_IN_B, b)))
        error, rtol = error_of(a, b, entries, (of_a, of_b), as_models=not part and verdict != SETTINGS)
    filled = {e.a.name for e in entries}
    values = {n: a.program.values[ref.id] for n, ref in a.program.states.items() if n not in filled}
    unread = tuple(a.prefix + n for n, v in values.items() if v.kind != "constant" and v.dtype.is_floating_point)
    holds = error is not None and rtol is not None and error <= rtol
    if verdict == SETTINGS and holds:
        verdict = WHOLE  # nothing that matters reads the differing parts
    if error is not None and not holds and verdict != SETTINGS:
        verdict = APART
        reason = f"the programs look alike, but with b's weights a computes another function ({error:.1e})"
    place = _module_of(b if verdict == A_IN_B else a, part) if part else ""
    order = {n: k for k, n in enumerate(a.program.states)}
    named = []
    for e in sorted(entries, key=lambda e: (order[e.a.name], e.a.factors)):
        ours, theirs = replace(e.a, name=a.prefix + e.a.name), replace(e.b, name=b.prefix + e.b.name)
        named.append(replace(e, a=ours, b=theirs))
    aliases = {a.prefix + k: a.prefix + v for k, v in a.program.aliases.items()}
    said = (*a.wrapped, *b.wrapped)
    return Correspondence(verdict, tuple(named), place, reason, error, rtol, unread, said, aliases)


def _module_of(side: Side, part: Sequence[int]) -> str:
    """The outermost module that returns a value, if any does."""
    views = side.reader.views
    here = {views[number].term for number in part}
    names = [tap for tap, ref in side.program.taps.items() if ref.id in views and views[ref.id].term in here]
    return min(names, key=lambda name: name.count("."), default="inside it")
