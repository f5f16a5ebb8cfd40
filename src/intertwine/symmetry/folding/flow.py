"""Propagation of affine changes ``old = factor * new + offset`` through a program, entry by entry.

A change passes operations that only move entries, sums, and the values of attention. A linear map whose weight is a
parameter absorbs it: ``W' = W diag(factor)`` and ``b' = b + W offset``. Anything else stops it and is reported.

A parameter may be read by several calls (tied embeddings, a module that runs twice). Updating it keeps the function
only if all of its readers require the same update, entry by entry.
"""

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from ..._nested import by_key
from ...programs import Call, Program, Ref, operations
from ...programs.calls import makers
from ...programs.operations import LINEAR, aten
from ...programs.program import float64_handler, run_call

MOVES = operations.REARRANGEMENTS | operations.PARTS | operations.REPEATS | aten("cat stack flip")
"""Operations that move or cast entries and compute nothing."""


class Obstacle(Exception):
    """A change that cannot be propagated, with the reason in words and the place where it stops."""

    def __init__(self, reason: str, call: Call | None = None, parameter: str = "") -> None:
        super().__init__(reason)
        self.call, self.parameter = call, parameter  # the parameter whose readers disagree, if any
        self.through_attention = self.centred = False  # what it had passed before, or lost to a layer norm


def close(a: Tensor, b: Tensor) -> bool:
    """Whether numbers are equal up to rounding."""
    return not a.numel() or torch.equal(a, b) or bool(((a - b).abs() <= 1e-9 * a.abs().amax()).all())


@dataclass(frozen=True)
class View:
    """A value composed of entries of one parameter or other source: the index of each entry, int64."""

    source: str
    entries: Tensor


_Update = tuple[View, int, Tensor, Tensor]  # entries, position of the call, factor and offset


class Graph:
    """The use-def graph of a program: the readers and makers of its values, and which values are parameter entries."""

    def __init__(self, program: Program, state: Mapping[str, Tensor]) -> None:
        self.program, self.state = program, dict(state)
        self.outputs = {ref.id for ref in program.outputs}
        self.updates: list[_Update] = []  # updates that calls require, in the order found

    def making(self) -> Iterator[tuple[int, Call, Ref]]:
        """Calls that produce something, in running order: position, call and first output."""
        for position, call in enumerate(self.program.calls):
            if call.outputs and (out := call.outputs[0]) is not None:
                yield position, call, out

    @cached_property
    def readers(self) -> dict[int, list[int]]:
        """Positions of the calls that read each value, by its number."""
        return by_key(
            (number, k) for k, call in enumerate(self.program.calls) for number in {r.id for r in call.inputs}
        )

    @cached_property
    def makers(self) -> dict[int, Call]:
        """The call that made each value, by its number."""
        return makers(self.program.calls)

    def carried(self, start: Mapping[int, View]) -> dict[int, View]:
        """Some values, and all that calls derive from one of them by only moving its entries."""
        found = dict(start)
        for call in self.program.calls:
            if call.op not in MOVES or not all(ref.id in found for ref in call.inputs):
                continue
            given = {ref.id: found[ref.id] for ref in call.inputs}
            sources = {view.source for view in given.values()}
            if len(sources) == 1:
                (source,) = sources
                moved = run_call(call, {number: view.entries for number, view in given.items()}, float64_handler)
                found |= {out.id: View(source, entries) for out, entries in zip(call.made, moved)}
        return found

    @cached_property
    def views(self) -> dict[int, View]:
        """The parameter entries of each value that is composed of entries of one parameter, by its number."""
        numbered = {name: torch.arange(tensor.numel()).view_as(tensor) for name, tensor in self.state.items()}
        return self.carried({self.program.states[name].id: View(name, rows) for name, rows in numbered.items()})

    def held(self, view: View) -> Tensor:
        """The numbers of a view, in float64."""
        return self.state[view.source].flatten()[view.entries]

    @cached_property
    def uses(self) -> dict[str, list[tuple[View, int]]]:
        """Views of every parameter and the positions of the calls that compute with them, by name; -1 if returned."""
        found: dict[str, list[tuple[View, int]]] = {}
        for number, view in self.views.items():
            for position in self.readers.get(number, ()):
                if not any(out.id in self.views for out in self.program.calls[position].made):
                    found.setdefault(view.source, []).append((view, position))
            if number in self.outputs:
                found.setdefault(view.source, []).append((view, -1))
        return found

    def origin(self, ref: Ref) -> tuple[Ref, Call | None]:
        """The value behind the casts and views of a value, and the call that made it."""
        while (call := self.makers.get(ref.id)) is not None and call.op in MOVES and len(call.inputs) == 1:
            ref = call.inputs[0]
        return ref, call

    def require(self, view: View, position: int, factor: Tensor | float, offset: Tensor | float) -> None:
        """Record the update ``new = factor * old + offset`` that a call requires of the entries of a view."""
        wide = lambda number: torch.as_tensor(number, dtype=torch.float64)
        self.updates.append((view, position, wide(factor), wide(offset)))

    def settled(self, first: int = 0) -> dict[str, Tensor]:
        """The parameters changed by the updates from number ``first`` on; their readers must agree."""
        names = dict.fromkeys(update[0].source for update in self.updates[first:])
        new = {name: self._new(name) for name in names}
        return {name: tensor for name, tensor in new.items() if not torch.equal(tensor, self.state[name])}

    def _new(self, name: str) -> Tensor:
        """One parameter with all its updates."""
        old = self.state[name]
        factors = torch.full((old.numel(),), torch.nan, dtype=torch.float64)
        offsets = torch.zeros(old.numel(), dtype=torch.float64)
        updates = [update for update in self.updates if update[0].source == name]
        heard = {update[1] for update in updates}
        one, zero = torch.ones(()).double(), torch.zeros(()).double()
        updates += [(view, at, one, zero) for view, at in self.uses.get(name, ()) if at not in heard]
        for view, position, *numbers in updates:
            at = view.entries.flatten()
            wanted = [t.expand(view.entries.shape).flatten() for t in numbers]
            known = ~factors[at].isnan()
            before = (factors[at].where(known, wanted[0]), offsets[at].where(known, wanted[1]))
            factors[at], offsets[at] = wanted
            after = factors[at], offsets[at]  # two updates of one entry
            if not all(close(one, other) for one, other in zip((*wanted, *wanted), (*before, *after))):
                other = "whoever calls the model" if position < 0 else self.program.calls[position].where
                raise Obstacle(f"{name} is also read by {other}", self.program.calls[updates[0][1]], name)
        read = torch.zeros(old.numel(), dtype=torch.bool)
        for view, _ in self.uses.get(name, ()):
            read[view.entries.flatten()] = True
        if not bool(read.all()) and bool(((factors != 1) & ~factors.isnan() | (offsets != 0)).any()):
            # a longer input or another path still reads the unchanged rest
            raise Obstacle(f"this run does not read all of {name}: give Examples that do", None, name)
        factors = torch.where(factors.isnan(), 1.0, factors)
        return (old.flatten() * factors + offsets).reshape(old.shape)


@dataclass(frozen=True)
class Change:
    """An affine change of a value, in its shape: ``old = factor * new + offset``."""

    factor: Tensor
    offset: Tensor

    @property
    def shifts(self) -> bool:
        """Whether there is an offset."""
        return bool((self.offset != 0).any())

    @property
    def scales(self) -> bool:
        """Whether a factor differs from one."""
        return bool((self.factor != 1).any())


@dataclass
class Flow:
    """One propagation: from the values where changes start until linear maps have absorbed all of them."""

    graph: Graph  # The program, its readers and views, and the updates that readers of parameters require
    extend: Callable[[str], bool] = lambda module: False  # Whether the named module may get a bias that it lacks
    absorb: bool = True  # Whether linear maps absorb changes; otherwise they stop them
    # A value of mean one: weight rows that read it take what a missing bias would
    mean_one: Ref | None = None
    # The biases needed by linear layers that have none: module and numbers
    biases: list[tuple[str, Tensor]] = field(default_factory=list)
    through_attention: bool = False
    centred: bool = False
    _changes: dict[int, Change] = field(default_factory=dict)
    _waiting: list[int] = field(default_factory=list)
    _seen: set[int] = field(default_factory=set)
    _position: int = 0  # of the current call

    def put(self, ref: Ref, change: Change) -> None:
        """Start a change at a value."""
        if not (change.scales or change.shifts):
            return
        if ref.id in self.graph.outputs:
            raise Obstacle("the model returns it", self.graph.makers.get(ref.id))
        self._changes[ref.id] = change
        for position in self.graph.readers.get(ref.id, ()):
            if position not in self._seen:
                self._seen.add(position)
                heapq.heappush(self._waiting, position)

    def run(self) -> None:
        """Propagate all changes until none is left."""
        while self._waiting:
            self._position = heapq.heappop(self._waiting)
            call = self.graph.program.calls[self._position]
            if call.op in LINEAR and self.absorb:
                self._linear(call)
            elif call.op == "aten::index":
                self._gather(call)
            elif call.op not in operations.FILLS:
                self._pass(call)

    def _of(self, ref: Ref) -> Change:
        shape = self.graph.program.values[ref.id].shape
        none = (torch.full((), number, dtype=torch.float64).expand(shape) for number in (1.0, 0.0))
        return self._changes.get(ref.id) or Change(*none)

    def _changed(self, ref: object) -> bool:
        return isinstance(ref, Ref) and ref.id in self._changes

    def _pass(self, call: Call) -> None:
        """Pass a change through a call that turns it into an affine change of its result, whatever the other numbers.

        If linear maps do not absorb, their effect on some numbers represents all.

        Raises:
            Obstacle: If it does not pass.
        """
        read = call.args[LINEAR[call.op][0]] if call.op in LINEAR else None
        norm = call.op in operations.LAYER_NORMS
        given = norm and any(map(self._changed, call.inputs[1:]))  # the gain or the bias
        reads_bits = call.op == "aten::view" and "dtype" in call.args
        if call.op in MOVES and not reads_bits:
            pairs = {ref.id: self._of(ref) for ref in call.inputs}
            factors = run_call(call, {number: pair.factor for number, pair in pairs.items()}, float64_handler)
            offsets = run_call(call, {number: pair.offset for number, pair in pairs.items()}, float64_handler)
            made: Iterator[tuple[Tensor, Tensor]] = zip(factors, offsets)
        elif call.op not in _PASSED or (self._changed(read) and not self.absorb) or given:
            raise Obstacle(f"{call.where} reads it", call)
        else:
            made = self._tried(call)
        for out, (factor, offset) in zip(call.made, made):
            self.put(out, Change(factor, self._taken(call, offset)))
        value = call.args.get("value") if call.op in operations.SCALED_DOT_PRODUCTS else None
        self.through_attention |= self._changed(value) or (call.op in LINEAR and self.absorb)
        self.centred |= norm

    def _tried(self, call: Call) -> Iterator[tuple[Tensor, Tensor]]:
        """Factor and offset of every result: found with ones and with random numbers, and checked on others."""
        results = []
        for draw in range(3):
            new = {ref.id: self._numbers(call, ref, draw) for ref in call.inputs}
            changes = {number: c for number in new if (c := self._changes.get(number)) is not None}
            try:
                old = {**new, **{n: c.factor * new[n] + min(draw, 1) * c.offset for n, c in changes.items()}}
                results.append([run_call(call, numbers, float64_handler) for numbers in (old, new)])
            except RuntimeError as error:  # it refuses such numbers, or needs a data-dependent count of them
                raise Obstacle(f"{call.where} reads it", call) from error
        for (top, old, again), (bottom, new, other) in zip(*(zip(*some) for some in zip(*results))):
            factor = torch.where(bottom == 0, 1.0, top / bottom)
            factor = torch.where((factor - 1).abs() < _ROUNDING, 1.0, factor)
            offset = old - factor * new
            offset = torch.where(offset.abs() < _ROUNDING * new.abs().amax(), 0.0, offset) if offset.numel() else offset
            if not close(again, factor * other + offset):
                raise Obstacle(f"{call.where} reads it", call)
            yield factor, offset

    def _numbers(self, call: Call, ref: Ref, draw: int) -> Tensor:
        """Numbers in place of a value: ones, or random numbers, which sum to one if a softmax made the value."""
        value, changed = self.graph.program.values[ref.id], self._changed(ref)
        if not draw and value.dtype.is_floating_point:
            minus = call.op == "aten::sub" and ref == call.args["other"]
            return torch.full(value.shape, -1.0 if minus else 1.0, dtype=torch.float64)
        if value.data is not None and not value.drawn:
            return value.data
        generator = torch.Generator().manual_seed(3 * ref.id + (draw if changed or self.absorb else 0))
        if value.dtype == torch.bool:
            return torch.ones(value.shape, dtype=torch.bool)
        if not value.dtype.is_floating_point:
            return torch.randint(len(self._of(call.inputs[0]).factor), value.shape, generator=generator)
        source, maker = self.graph.origin(ref)
        if changed or maker is None or maker.op not in operations.SOFTMAXES:
            return torch.rand(value.shape, generator=generator, dtype=torch.float64)
        shape = self.graph.program.values[source.id].shape
        shares = torch.rand(shape, generator=generator, dtype=torch.float64).softmax(maker.args["dim"])
        return self.graph.carried({source.id: View("", shares)})[ref.id].entries

    def _taken(self, call: Call, offset: Tensor) -> Tensor:
        """What remains of an offset after a parameter that is added has absorbed its share."""
        beside = [r for r in call.inputs if r.id in self.graph.views and not self._changed(r)]
        if not (self.absorb and call.op in ("aten::add", "aten::sub") and beside and bool((offset != 0).any())):
            return offset
        view = self.graph.views[beside[0].id]
        rows = _constant(offset, offset.ndim - view.entries.ndim, view.entries.shape)
        if rows is None:
            return offset
        second = beside[0] == call.args["other"]
        times = call.args.get("alpha", 1) * (-1 if call.op == "aten::sub" else 1) if second else 1
        self.graph.require(view, self._position, 1.0, rows / times)
        return torch.zeros_like(offset)

    def _gather(self, call: Call) -> None:
        places = call.args["indices"]
        first = places[0] if len([p for p in places if p is not None]) == 1 else None
        if first is None or not self._changed(call.args["self"]) or self._changed(first):
            raise Obstacle(f"{call.where} picks from it", call)
        picked = self.graph.program.values[first.id]
        axes = len(picked.shape) if picked.dtype in (torch.bool, torch.uint8) else 1  # a mask replaces all of its axes
        change = self._of(call.args["self"])
        if not all(
            close(t, t.narrow(d, 0, 1)) for t in (change.factor, change.offset) for d in range(axes) if t.numel()
        ):
            raise Obstacle(f"{call.where} mixes its positions", call)
        shape = self.graph.program.values[call.made[0].id].shape
        self.put(call.made[0], Change(*(t[(0,) * axes].expand(shape) for t in (change.factor, change.offset))))

    def _linear(self, call: Call) -> None:
        source, weight, summed, bias = LINEAR[call.op]
        x, w, transposed = call.args[source], call.args[weight], bool(call.args.get("transposed"))
        summed = 0 if transposed else summed
        view = None if self._changed(w) else self.graph.views.get(w.id)
        if view is None:
            return self._pass(call)
        if bias and self._changed(call.args.get(bias)):
            raise Obstacle(f"{call.where} adds it", call)
        shape, change = view.entries.shape, self._of(x)
        channel = 1 if call.op == "aten::convolution" else -1
        batched = len(shape) > 2 and call.op in ("aten::bmm", "aten::baddbmm", "aten::matmul")
        factor, offset = (_channels(t, channel, batched) for t in (change.factor, change.offset))
        if call.args.get("groups", 1) != 1:
            raise Obstacle(f"{call.where} reads it in groups", call)
        if factor is None or offset is None:
            raise Obstacle(f"{call.where} reads it with other factors at other places", call)
        wide = [n if d == summed % len(shape) or (batched and d == 0) else 1 for d, n in enumerate(shape)]
        taken = torch.zeros(())
        if change.shifts:  # ``W offset`` is added to the bias, or becomes a new one
            if call.op == "aten::_grouped_mm" or transposed or any(call.args.get("padding") or ()):
                raise Obstacle(f"{call.where} cannot take an offset in", call)
            held = self.graph.held(view)
            product = (held * offset.reshape(wide)).sum(summed % held.ndim)
            numbers = product.flatten(1).sum(1) if call.op == "aten::convolution" else product
            own = call.args.get(bias) if bias else None
            if own is None and numbers.ndim == 1 and self.graph.origin(x)[0] == self.mean_one:
                taken = numbers.unsqueeze(summed % held.ndim) / max(wide)
            else:
                self._push(call, own, numbers)
        self.graph.require(view, self._position, factor.reshape(wide), taken)
        return None

    def _push(self, call: Call, own: Ref | None, numbers: Tensor) -> None:
        view = self.graph.views.get(own.id) if isinstance(own, Ref) else None
        if view is not None:
            return self.graph.require(view, self._position, 1.0, numbers.reshape(view.entries.shape))
        if own is None and numbers.ndim == 1 and self.extend(call.module):
            return self.biases.append((call.module, numbers))
        if own is None:
            raise Obstacle(f"{call.module or call.where} has no bias to take it", call)
        raise Obstacle(f"{call.where} has a bias that is no parameter", call)


_PASSED = LINEAR.keys() | operations.SCALED_DOT_PRODUCTS | operations.LAYER_NORMS
_PASSED |= aten("add sub mul div mean sum embedding")
"""Operations whose results are rational functions of the changed numbers and treat all of them alike."""
_ROUNDING = 1e-12  # tolerance for a factor of one, or an offset of zero


def _channels(t: Tensor, channel: int, batched: bool) -> Tensor | None:
    """Numbers along the channels (and the batch of matrices), if they are constant along all other axes."""
    t = t.movedim(channel, -1)
    first = t[:, 0] if batched else t.reshape(-1, t.shape[-1])[0]
    spread = first.reshape(len(first), *[1] * (t.ndim - 2), -1) if batched else first
    return first if close(t, spread) else None


def _constant(offset: Tensor, leading: int, shape: torch.Size) -> Tensor | None:
    """``offset`` in a smaller shape to which it broadcasts, if it does."""
    rows = offset
    for _ in range(leading):
        rows = rows[0]
    for dim, n in enumerate(shape):
        rows = rows.narrow(dim, 0, 1) if n == 1 else rows
    return rows if close(offset, rows) else None
