"""Propagation of affine changes ``old = factor * new + offset`` through a program, entry by entry.

A change passes operations that only move entries, sums, and attention along the values; a linear map with a parameter
as its weight absorbs it: ``W' = W diag(factor)`` and ``b' = b + W offset``. Anything else stops it, and is named.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor

from ...programs import Call, Ref
from ...programs.operations import FILLS, LAYER_NORMS, LINEAR, SCALED_DOT_PRODUCTS, SOFTMAXES
from ...programs.program import float64_handler, run_call
from .graph import MOVES, Graph, Obstacle, View

_SIGNS = {"aten::add": 1, "aten::sub": -1}


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
    """One propagation: from the values at which changes start until linear maps have absorbed all of them."""

    graph: Graph  # The program, its readers and views, and what readers of parameters require
    extend: Callable[[str], bool] = lambda module: False  # Whether the module of that name may get a bias that it lacks
    absorb: bool = True  # Whether linear maps absorb changes; otherwise they stop them
    # A value of mean one: rows of weights that read it take what a bias would, where there is none
    mean_one: Ref | None = None
    # The biases that linear layers without one would need: module and numbers
    biases: list[tuple[str, Tensor]] = field(default_factory=list)
    through_attention: bool = False
    centred: bool = False
    _changes: dict[int, Change] = field(default_factory=dict)
    _waiting: list[int] = field(default_factory=list)
    _seen: set[int] = field(default_factory=set)
    _position: int = 0  # of the call at work

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
            stops = call.op == "aten::embedding" if self.absorb else False
            rule = None if stops or (call.op == "aten::view" and "dtype" in call.args) else _RULES.get(call.op)
            if rule is None:
                raise Obstacle(f"{call.where} reads it", call)
            rule(self, call)

    # ---- operations

    def _of(self, ref: Ref) -> Change:
        shape = self.graph.program.values[ref.id].shape
        return self._changes.get(ref.id) or Change(torch.ones(()).double().expand(shape), _nothing(shape))

    def _changed(self, ref: object) -> bool:
        return isinstance(ref, Ref) and ref.id in self._changes

    def _move(self, call: Call) -> None:
        pairs = {ref.id: self._of(ref) for ref in call.inputs}
        factors = run_call(call, {number: change.factor for number, change in pairs.items()}, float64_handler)
        offsets = run_call(call, {number: change.offset for number, change in pairs.items()}, float64_handler)
        for out, factor, offset in zip(call.made, factors, offsets):
            self.put(out, Change(factor, offset))

    def _sum(self, call: Call) -> None:
        x, y = call.args["self"], call.args["other"]
        if isinstance(y, Ref) and not self._changed(x):
            x, y = (y, x) if call.op == "aten::add" and call.args.get("alpha", 1) == 1 else (x, y)
        out, shape = self._out(call)
        if not isinstance(y, Ref):
            if self._of(x).scales:
                raise Obstacle(f"{call.where} adds a number to it", call)
            return self.put(out, self._of(x))
        a, b = self._of(x), self._of(y)
        factor = a.factor.expand(shape)
        if bool((factor != b.factor.expand(shape)).any()):
            raise Obstacle(f"{call.where} adds it to something else", call)
        sign = _SIGNS[call.op] * call.args.get("alpha", 1)
        offset = (a.offset + sign * b.offset).expand(shape)
        view = self.graph.views.get(y.id)
        if self.absorb and view is not None and not self._changed(y) and bool((offset != 0).any()):
            rows = _constant(offset, len(shape) - view.entries.ndim, view.entries.shape)
            if rows is not None:
                self.graph.require(view, self._position, 1.0, sign * rows)
                offset = _nothing(shape)
        return self.put(out, Change(factor, offset))

    def _product(self, call: Call) -> None:
        x, y = call.args["self"], call.args["other"]
        out, shape = self._out(call)
        number = self._number(y) if not self._changed(y) else None
        if number is None and call.op == "aten::mul" and isinstance(x, Ref) and not self._changed(x):
            x, y, number = y, x, self._number(x)
        a = self._of(x)
        if number is not None:
            return self.put(out, Change(a.factor, a.offset * number if call.op == "aten::mul" else a.offset / number))
        if a.shifts or (self._changed(y) and (call.op == "aten::div" or self._of(y).shifts)):
            raise Obstacle(f"{call.where} multiplies it", call)
        factor = a.factor * self._of(y).factor if isinstance(y, Ref) else a.factor
        return self.put(out, Change(factor.expand(shape), _nothing(shape)))

    def _number(self, value: object) -> float | None:
        if not isinstance(value, Ref):
            return float(value) if isinstance(value, int | float) else None
        known = self.graph.program.values[value.id]
        return float(known.data) if known.data is not None and known.data.numel() == 1 else None

    def _attention(self, call: Call) -> None:
        # rows of the softmax sum to one: what all keys share passes to every query, and in the keys it is ignored
        query, key, value = (call.args[name] for name in ("query", "key", "value"))
        mask = call.args.get("attn_mask", call.args.get("attn_bias"))
        if self._changed(query) or self._changed(mask):
            raise Obstacle(f"{call.where} compares it", call)
        out, shape = self._out(call)
        if self._changed(key) and (self._of(key).scales or _varies(self._of(key).offset, -2)):
            raise Obstacle(f"{call.where} compares it", call)
        if self._changed(value):
            parts = self._shared(call, value, -2, "mixes its positions")
            self.through_attention = True
            times = shape[-3] // parts[0].shape[-3]
            self.put(out, Change(*(t.repeat_interleave(times, -3).expand(shape) for t in parts)))

    def _shared(self, call: Call, ref: Ref, dim: int, why: str) -> list[Tensor]:
        """Factor and offset that all positions along an axis share, of which that axis has one left."""
        change = self._of(ref)
        if _varies(change.factor, dim) or _varies(change.offset, dim):
            raise Obstacle(f"{call.where} {why}", call)
        return [t.narrow(dim, 0, 1) for t in (change.factor, change.offset)]

    def _mean(self, call: Call) -> None:
        change = self._of(call.args["self"])
        dims = call.args.get("dim") or range(change.factor.ndim)
        if any(_varies(change.factor, dim) for dim in dims):
            raise Obstacle(f"{call.where} adds it to something else", call)
        (offset,) = run_call(call, {call.inputs[0].id: change.offset})
        factor = change.factor
        for dim in sorted((d % factor.ndim for d in dims), reverse=True):
            factor = factor.narrow(dim, 0, 1) if call.args.get("keepdim") else factor.select(dim, 0)
        self.put(self._out(call)[0], Change(factor, offset))

    def _gather(self, call: Call) -> None:
        places = call.args["indices"]
        first = places[0] if len([p for p in places if p is not None]) == 1 else None
        if first is None or not self._changed(call.args["self"]) or self._changed(first):
            raise Obstacle(f"{call.where} picks from it", call)
        picked = self.graph.program.values[first.id]
        axes = len(picked.shape) if picked.dtype in (torch.bool, torch.uint8) else 1  # a mask stands for all of its own
        change = self._of(call.args["self"])
        if any(_varies(t, dim) for t in (change.factor, change.offset) for dim in range(axes)):
            raise Obstacle(f"{call.where} mixes its positions", call)
        out, shape = self._out(call)
        self.put(out, Change(*(t[(0,) * axes].expand(shape) for t in (change.factor, change.offset))))

    def _layer_norm(self, call: Call) -> None:
        change = self._of(call.args["input"])
        over = range(-len(call.args["normalized_shape"]), 0)
        given = any(self._changed(call.args.get(name)) for name in ("weight", "bias"))
        if given or change.scales or any(_varies(change.offset, dim) for dim in over):
            raise Obstacle(f"{call.where} normalises it", call)
        self.centred = True

    def _table(self, call: Call) -> None:
        change = self._of(call.args["weight"])
        out, shape = self._out(call)
        rows = torch.randint(len(change.offset), shape[:-1], generator=_generator(call))
        self.put(out, Change(torch.ones(shape).double(), change.offset[rows]))

    def _linear(self, call: Call) -> None:
        source, weight, summed, bias = LINEAR[call.op]
        x, w, transposed = call.args[source], call.args[weight], bool(call.args.get("transposed"))
        summed = 0 if transposed else summed
        if not self.absorb:
            return self._bilinear(call, x, w)
        view = None if self._changed(w) else self.graph.views.get(w.id)
        if view is None:
            return self._mixture(call, x, w)
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
        if change.shifts:  # ``W offset`` is added to the bias, or is a new one
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

    def _mixture(self, call: Call, x: Ref, w: Ref) -> None:
        # attention weights times values: rows that sum to one pass on what all positions share
        why = "multiplies it by another activation"
        if not self._sums_to_one(x) or self._changed(x):
            raise Obstacle(f"{call.where} {why}", call)
        parts = self._shared(call, w, -2, why)
        self.through_attention = True
        out, shape = self._out(call)
        self.put(out, Change(*(t.expand(shape) for t in parts)))

    def _bilinear(self, call: Call, x: Ref, w: Ref) -> None:
        # what a change of one operand makes of the product, for some numbers in the other: nothing is taken in
        if self._changed(x) or call.op == "aten::_grouped_mm":
            raise Obstacle(f"{call.where} reads it", call)
        generator = _generator(call)

        def numbers(ref: Ref) -> Tensor:
            if ref.id in self._changes:
                return self._changes[ref.id].offset
            value = self.graph.program.values[ref.id]
            random = ref == x and self._changed(w)
            drawn = torch.randn(value.shape, generator=generator) if random else torch.zeros(value.shape)
            return drawn.double()

        offset = run_call(call, {ref.id: numbers(ref) for ref in call.inputs})[0]
        self.put(self._out(call)[0], Change(torch.ones(offset.shape).double(), offset))

    def _sums_to_one(self, ref: Ref) -> bool:
        """Whether every row of a value is a whole row of a softmax: nothing was cut off, or turned, in between."""
        source, maker = self.graph.origin(ref)
        if maker is None or maker.op not in SOFTMAXES:
            return False
        shape = self.graph.program.values[source.id].shape
        dim = maker.args["dim"] % len(shape)
        length = shape[dim]
        entries = torch.arange(prod(shape)).reshape(*shape[:dim], *shape[dim + 1 :], length).movedim(-1, dim)
        entries = self.graph.carried({source.id: View("softmax", entries)})[ref.id].entries
        rows, places = entries // length, entries.sort(-1).values % length
        return bool((rows == rows[..., :1]).all()) and torch.equal(
            places, torch.arange(length).expand(*entries.shape[:-1], length)
        )

    def _out(self, call: Call) -> tuple[Ref, tuple[int, ...]]:
        ref = call.outputs[0]
        if ref is None:
            raise Obstacle(f"{call.where} reads it", call)
        return ref, self.graph.program.values[ref.id].shape


# operation -> how a change passes it
_RULES: dict[str, Callable[[Flow, Call], None]] = {
    **dict.fromkeys(FILLS, lambda flow, call: None),
    **dict.fromkeys(MOVES, Flow._move),
    **dict.fromkeys(LINEAR, Flow._linear),
    **dict.fromkeys(_SIGNS, Flow._sum),
    **dict.fromkeys(("aten::mul", "aten::div"), Flow._product),
    **dict.fromkeys(("aten::mean", "aten::sum"), Flow._mean),
    **dict.fromkeys(SCALED_DOT_PRODUCTS, Flow._attention),
    **dict.fromkeys(LAYER_NORMS, Flow._layer_norm),
    "aten::index": Flow._gather,
    "aten::embedding": Flow._table,
}


def _nothing(shape: Sequence[int]) -> Tensor:
    return torch.zeros(()).double().expand(shape)


def _varies(t: Tensor, dim: int) -> bool:
    return bool(t.numel()) and bool(((t - t.narrow(dim, 0, 1)).abs() > 1e-9 * t.abs().amax()).any())


def _channels(t: Tensor, channel: int, batched: bool) -> Tensor | None:
    """Numbers along the channels (and the batch of matrices) where they are the same everywhere else."""
    t = t.movedim(channel, -1)
    first = t[:, 0] if batched else t.reshape(-1, t.shape[-1])[0]
    spread = first.reshape(len(first), *[1] * (t.ndim - 2), -1) if batched else first
    return first if bool((t == spread).all()) else None


def _constant(offset: Tensor, leading: int, shape: torch.Size) -> Tensor | None:
    """``offset`` in a smaller shape to which it broadcasts, if it does."""
    rows = offset
    for _ in range(leading):
        rows = rows[0]
    for dim, n in enumerate(shape):
        rows = rows.narrow(dim, 0, 1) if n == 1 else rows
    return rows if bool((rows.expand(offset.shape) == offset).all()) else None


def _generator(call: Call) -> torch.Generator:
    return torch.Generator().manual_seed(sum(ref.id for ref in call.inputs) + 1)
