"""The front door: two models, their programs, the parameter entries that correspond, and the proof on numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from ..._evaluation import copied, without_weights
from ..._examples import arguments, each
from ..._nested import map_tensors, tensors_in
from ..._result import Result, of_networks
from ..._words import counted
from ...errors import CaptureError
from ...programs import Program, Ref, capture
from ...programs.steps import float64_handler
from ...symmetry.action import tensors_of
from ...symmetry.proof import in_float64
from ...testing import relative_error, tolerance
from . import rules
from .entries import Entry, carried, entries_of
from .graph import NOTHING, Graph, Pairing, inside, pairing, parting
from .reader import Reader
from .slices import sink_slices

__all__ = ["Correspondence", "carrier_of", "correspond", "in_code_of", "in_one_code", "unwrapped"]

WHOLE, A_IN_B, B_IN_A = "the same program", "a is part of b", "b is part of a"
SETTINGS, APART = "the same program with other settings", "not comparable"
_WRAPPERS = ("OptimizedModule", "DataParallel", "DistributedDataParallel", "AveragedModel")
_OWNED = ("_parameters", "_buffers", "_modules", "training")  # by modules, beside settings
_ = rules


@dataclass(frozen=True, eq=False, repr=False)
class Correspondence(Result):
    """Which entries of B's tensors are which of A's; truthy where the programs are one, or one is part of the other.

    Attributes:
        verdict: ``"the same program"``, ``"a is part of b"``, ``"b is part of a"``, ``"the same program with other
            settings"`` or ``"not comparable"``.
        entries: Parts of tensors of A, each with the part of a tensor of B that it is.
        part: Module of the larger network whose result is that of the smaller one; empty for whole networks.
        reason: Where the programs part, which settings differ, or how the proof failed.
        error: Relative error of A's program with B's weights against B's, in float64 where both run in it; ``None``
            where nothing could be run, as on the meta device.
        rtol: Largest error that rounding explains.
        unread: Tensors of A that no entry of B fills: nothing reads them on the example.
        looked_through: What was taken off before: "a wrapped in DataParallel".
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
        """Whether A's program with B's weights was seen to compute B's function."""
        return bool(self) and self.error is not None and self.rtol is not None and self.error <= self.rtol

    @property
    def renamed(self) -> int:
        """Number of entries that are not one tensor under one name."""
        return sum(not entry.identity for entry in self.entries)

    @property
    def identity(self) -> bool:
        """Whether every tensor corresponds to the one of its own name, entry by entry."""
        return bool(self) and not self.part and not self.renamed

    def convert(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """B's weights under A's names and in A's shapes, tied names included.

        Tensors that nothing reads (``unread``) are left out: load with ``strict=False`` where there are any.

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
        """The verdict, how far the tables differ, the proof, and every entry that is not the identity."""
        if not self:
            return f"{self.verdict}: {self.reason}"
        said = f"{counted(len(self.entries), 'entry')}, {self.renamed} under another name or in another form"
        head = f"{self.verdict}{f' ({self.part})' if self.part else ''}: {said}; {self._proof}"
        lines = [f"  {entry}" for entry in self.entries if not entry.identity]
        lines += [f"  not read: {', '.join(self.unread)}"] if self.unread else []
        return "\n".join([head, *self.looked_through, *lines])

    @property
    def _proof(self) -> str:
        if self.error is None:
            return "not proved: nothing was run"
        return f"proved, error {self.error:.1e} of {self.rtol:.1e} that rounding explains"

    _columns = ("a", "b", "change")

    def _rows(self) -> list[dict[str, Any]]:
        """One row for each entry."""
        return [{"a": str(e.a), "b": str(e.b), "change": e.change} for e in self.entries]


@of_networks("a", "b")
def correspond(a: nn.Module, b: nn.Module, example_inputs: Any, example_inputs_b: Any = None) -> Correspondence:
    """Find which parameter entries of one network are which of another, whatever their code calls and packs them.

    Both programs are captured and written with indices alone: reshapes, transpositions, packing and names leave
    nothing, fused operations are taken apart, slices are carried to the parameters. The graphs are coloured from both
    ends until colours stand still, and paired from the outputs on. What was found is then proved: with B's entries in
    place of A's, all constant ones made distinct, A must compute what B computes, in float64.

    Args:
        a: One network. Both are left as they are, and may be on the meta device, where nothing is proved.
        b: The other.
        example_inputs: One tensor, a tuple of positional arguments or a mapping of keyword arguments.
        example_inputs_b: What ``b`` is called with, where its code takes the same numbers in another form.

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
    left = _Side.of("a", a, example_inputs)
    return _compared(left, _Side.of("b", b, example_inputs if borrowed else example_inputs_b, borrowed))


@dataclass(frozen=True, eq=False)
class _Side:
    """One model with its program as terms."""

    model: nn.Module
    prefix: str
    inputs: Any
    program: Program
    reader: Reader
    graph: Graph
    wrapped: tuple[str, ...]

    @classmethod
    def of(cls, name: str, model: nn.Module, inputs: Any, borrowed: bool = False) -> _Side:
        inner, prefix, wrapped = unwrapped(model)
        try:
            program = capture(inner, *arguments(each(inputs)[0]))
        except CaptureError as error:
            advice = " Give same() or correspond() example_inputs_b, what b is called with." if borrowed else ""
            raise CaptureError(f"{name}: {error}{advice}") from error
        reader = Reader(program, tensors_of(inner))
        said = tuple(f"{name} wrapped in {kind}" for kind in wrapped)
        return cls(inner, prefix, inputs, program, reader, Graph.of(reader.outputs), said)

    def sunk(self) -> _Side:
        """The same with slices where nothing but they are used; its terms are rewritten."""
        sink_slices([view.term for view in self.reader.outputs])
        return replace(self, graph=Graph.of(self.reader.outputs))


def in_one_code(a: nn.Module, b: nn.Module) -> bool:
    """Whether two models are of the same classes with the same settings, as far as their attributes show."""
    ours, theirs = (dict(m.named_modules()) for m in (a, b))
    return ours.keys() == theirs.keys() and all(_alike(m, theirs[name], set()) for name, m in ours.items())


def _alike(x: Any, y: Any, seen: set[int]) -> bool:
    """Whether two settings are equal; tensors that modules own are none."""
    if x is y or id(x) in seen:
        return True
    seen.add(id(x))
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
        return x.__code__ == y.__code__ and _alike(inner[0], inner[1], seen)
    if type(x).__eq__ is object.__eq__ and hasattr(x, "__dict__"):
        ours, theirs = ({k: v for k, v in vars(z).items() if k not in _OWNED} for z in (x, y))
        return _alike(ours, theirs, seen)
    try:
        return bool(x == y)
    except Exception:
        return False


def in_code_of(a: nn.Module, b: nn.Module, found: Correspondence) -> nn.Module:
    """A copy of ``a`` that holds the weights of ``b``, as far as they correspond."""
    twin = copied(a)
    live = tensors_of(twin)
    with torch.no_grad():
        for name, tensor in found.convert(tensors_of(b)).items():
            live[name].copy_(tensor)
    return twin


def carrier_of(a: nn.Module, b: nn.Module, example_inputs: Any) -> Callable[[nn.Module], nn.Module] | None:
    """What carries weights of networks in the code of ``b`` into copies of ``a``; other networks stay as they are.

    ``None`` where nothing is to be carried, by names and shapes of tensors, or widths alone differ.

    Raises:
        ValueError: If names differ, and the programs too; the message says where.
    """
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


def unwrapped(model: nn.Module) -> tuple[nn.Module, str, tuple[str, ...]]:
    """What wrappers of torch run, with what they put before its names, and their kinds."""
    prefix, kinds = "", list[str]()
    while (kind := type(model).__name__) in _WRAPPERS:
        name = next((n for n in ("_orig_mod", "module") if isinstance(getattr(model, n, None), nn.Module)), None)
        if name is None:
            break
        kinds.append(kind.replace("OptimizedModule", "torch.compile"))
        prefix, model = f"{prefix}{name}.", getattr(model, name)
    return model, prefix, tuple(kinds)


def _compared(a: _Side, b: _Side) -> Correspondence:
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
    if ours == theirs == NOTHING:
        said = "the programs part: each operation of one has its like in the other, but they are joined otherwise"
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
    a: _Side, b: _Side, found: Pairing, verdict: str, part: tuple[int, ...] = (), reason: str = ""
) -> Correspondence:
    """The correspondence of a pairing, where A's program with B's weights computes B's function."""
    entries = entries_of(found)
    meta = without_weights(a.model) or without_weights(b.model)
    error, rtol = (None, None) if meta else _error(a, b, entries, verdict, part)
    filled = {e.a.name for e in entries}
    values = {n: a.program.values[ref.id] for n, ref in a.program.states.items() if n not in filled}
    unread = tuple(a.prefix + n for n, v in values.items() if v.kind != "constant" and v.dtype.is_floating_point)
    holds = error is not None and rtol is not None and error <= rtol
    if verdict == SETTINGS and holds:
        verdict = WHOLE  # what differs is read by nothing that counts
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


def _module_of(side: _Side, part: Sequence[int]) -> str:
    """The outermost module that returns a value, as far as one does."""
    views = side.reader.views
    here = {id(views[number].term) for number in part}
    names = [tap for tap, ref in side.program.taps.items() if ref.id in views and id(views[ref.id].term) in here]
    return min(names, key=lambda name: name.count("."), default="inside it")


def _error(a: _Side, b: _Side, entries: Sequence[Entry], verdict: str, part: tuple[int, ...]) -> tuple[float, float]:
    """Relative error of A's function with B's weights, and that which rounding explains."""
    theirs = _distinct(b)
    made = carried(entries, theirs)
    made |= {alias: made[n] for alias, n in a.program.aliases.items() if n in made}
    ours = {n: t.double() if t.is_floating_point() else t for n, t in tensors_of(a.model).items() if n not in made}
    ours |= made
    refs = [[ref.id for ref in side.program.outputs] for side in (a, b)]
    refs = [list(part) if verdict == whose else own for whose, own in zip((B_IN_A, A_IN_B), refs)]
    rtol = tolerance(torch.float64)
    given = [each(side.inputs)[0] for side in (a, b)]
    generator = torch.Generator().manual_seed(1)
    others = [map_tensors(given[0], lambda x: _moved(x, generator))] * 2  # what is special in the example hides much
    for x, y in (others, given)[given[0] is not given[1] :]:
        error = float("inf")
        with suppress(CaptureError, RuntimeError, TypeError, ValueError):
            error = relative_error(_replayed(b, theirs, refs[1], y), _replayed(a, ours, refs[0], x))
        if error < float("inf"):
            break
    if error <= rtol or part or verdict == SETTINGS:
        return error, rtol
    try:  # constants of the code may have been made in float32
        (right, one), (left, other) = _ran(b, theirs, y), _ran(a, ours, x)
        return relative_error(right, left), max(one, other)
    except ValueError:
        return float("inf"), rtol


def _distinct(side: _Side) -> dict[str, Tensor]:
    """Tensors in float64, what the code reads as parameters moved a little: equal entries would hide mistakes."""
    generator = torch.Generator().manual_seed(0)
    found = {n: t.double() if t.is_floating_point() else t for n, t in tensors_of(side.model).items()}
    for name, ref in side.program.states.items():
        if side.program.values[ref.id].kind != "constant" and side.reader.data(ref) is None:
            found[name] = _moved(found[name], generator)
    return {**found, **{alias: found[name] for alias, name in side.program.aliases.items()}}


def _moved(t: Tensor, generator: torch.Generator) -> Tensor:
    """Real numbers moved a little; positive ones, such as variances, stay so."""
    if not t.is_floating_point() or not bool(t.isfinite().all()):
        return t
    size = t.abs().mean() if t.numel() and bool(t.any()) else torch.ones((), dtype=t.dtype)
    noise = torch.rand(t.shape, generator=generator, dtype=t.dtype).to(t.device) - 0.5
    moved = t + 0.3 * size * noise
    return torch.where((t > 0) & (moved <= 0), t, moved)


def _replayed(side: _Side, states: Mapping[str, Tensor], values: Sequence[int], inputs: Any) -> list[Tensor]:
    """Values of the captured run, again in float64 with other tensors."""
    wide = [x.double() if x.is_floating_point() else x for x in tensors_in([*arguments(inputs)])]
    handlers = dict.fromkeys(range(len(side.program.calls)), float64_handler)
    held = {n: t for n, t in states.items() if n in side.program.states}
    with torch.no_grad():
        return list(side.program.run(wide, [Ref(n) for n in values], states=held, handlers=handlers))


def _ran(side: _Side, states: Mapping[str, Tensor], inputs: Any) -> tuple[list[Tensor], float]:
    """What the model itself returns with other tensors, and the error that rounding explains."""
    made = in_float64(side.model, inputs)
    with torch.no_grad():
        for name, t in tensors_of(made.model).items():
            t.copy_(states[name])
    return made.outputs(), made.rtol
