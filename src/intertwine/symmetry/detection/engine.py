"""Detection engine: it passes over a program until the structure of its spaces no longer changes.

Rules restrict axes through ``axis_operations.Algebra``, which collects the equations.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from operator import is_
from typing import Any

import torch

from ...programs import Call, Program, Ref
from ...programs.calls import makers, readers
from ..spaces import COMPLEX, UNRULED, BatchNormTensors
from .axis_operations import Algebra
from .axis_terms import Axis, Flat, Slot, Value, map_slots, slots


class Engine(Algebra):
    """One search over one program; ``calls`` are those on which outputs, or numbers that the code reads, depend."""

    def __init__(self, program: Program, calls: list[Call]) -> None:
        super().__init__()
        self.program, self.calls = program, calls
        self._resolved: dict[int, tuple[Value, int, Value]] = {}  # with the pool's change count at that time

    def _begin(self) -> None:
        super()._begin()
        self.values: dict[int, Value] = {}  # what this pass knows about every tensor value
        self.met: list[tuple[Axis, ...]] = []  # all axes that a contraction brings together, with the contracted one
        self.unknown_ops: dict[str, None] = {}  # operations without a rule, in the order encountered
        self.batch_norms: dict[BatchNormTensors, None] = {}

    def is_zero(self, ref: Ref) -> bool:
        """Whether a tensor is zero for all parameters and inputs; an empty tensor is."""
        value = self.values.get(ref.id)
        return 0 in self.program.values[ref.id].shape or (value is not None and value.zero)

    def spaces(self, ref: Ref) -> set[int]:
        """The spaces on the axes of a tensor; none if nothing is known."""
        value = self.values.get(ref.id)
        return {slot.space for axis in (value.axes if value else ()) for slot in slots(self.pool.resolve(axis))}

    # ---- values

    def value(self, ref: Ref) -> Value:
        """The axes and properties of a tensor."""
        found = self.values.get(ref.id)
        if found is None:
            before, self._fixed = self._fixed, []  # what a source fixes is not fixed by the current call
            found = self.values[ref.id] = self._source(ref)
            self._fixed = before
        known, changes, resolved = self._resolved.get(ref.id, (None, 0, None))
        if known is found and changes == self.pool.changes and resolved is not None:
            return resolved
        axes = tuple([self.pool.resolve(a) for a in found.axes])
        zero = found.zero or 0 in self.program.values[ref.id].shape
        same = zero == found.zero and all(map(is_, axes, found.axes))
        value = found if same else replace(found, axes=axes, zero=zero)
        self._resolved[ref.id] = (found, self.pool.changes, value)
        return value

    def made(self, call: Call) -> tuple[int, ...]:
        """Shape of a call's first result."""
        ref = call.outputs[0]
        if ref is None:
            raise ValueError(f"{call.op} must return a tensor first. Got none.")
        return self.program.values[ref.id].shape

    def dtype(self, ref: Ref) -> torch.dtype:
        """Element type of a tensor."""
        return self.program.values[ref.id].dtype

    @cached_property
    def readers(self) -> dict[int, list[Call]]:
        """The calls that read each value, by its number."""
        return readers(self.calls)

    @cached_property
    def _makers(self) -> dict[int, Call]:
        return makers(self.calls)

    def producer(self, ref: Ref) -> Call | None:
        """The call that produced a value; ``None`` for parameters, buffers, inputs and constants."""
        return self._makers.get(ref.id)

    # ---- the walk

    def state(self, name: str) -> Value:
        """The value of a parameter or buffer."""
        return self.value(self.program.states[name])

    def walk(self, run: Callable[["Engine", Call], Sequence[Any]]) -> None:
        """Pass over the program, with ``run`` as the rule of each call, until the structure no longer changes."""
        for _ in range(20):
            before = self.pool.changes
            self._begin()
            self._pass(run)
            if self.pool.changes == before:
                return
        raise RuntimeError("the structure of the spaces must settle within 20 passes. Got one that keeps changing.")

    def _pass(self, run: Callable[["Engine", Call], Sequence[Any]]) -> None:
        for name in self.program.states:
            self.state(name)
        for index, call in enumerate(self.calls):
            self.index, self.call, self._fixed = index, call, []
            for ref, value in zip(call.outputs, run(self, call)):
                if ref is not None:
                    self.values[ref.id] = value
            while self.pool.clashes:
                self.fix(self.pool.resolve(self.pool.clashes.pop()), f"units in two orders at {call.where}")
            # an operation also mixes or renames positions that it fixes: no space beside them has one element for each
            fixed = tuple(slot for axis in self._fixed for slot in slots(axis))
            for ref in call.inputs if fixed else ():
                self.mix(self.value(ref).axes, fixed)
        self.index, self.call = len(self.calls), Call("output", {}, ())
        for ref in self.program.outputs:
            value = self.value(ref)
            for axis in (*value.axes, *((value.names.of,) if value.names else ())):
                self.fix(self.pool.resolve(axis), "output")
        self.settle_orders()

    # ---- where values come from

    def _source(self, ref: Ref) -> Value:
        value = self.program.values[ref.id]
        if self.moves(ref):
            axes = tuple(self._state_axis(value.name, i, n) for i, n in enumerate(value.shape))
            if not value.dtype.is_floating_point:
                axes = tuple(self.rigid(a, f"{value.name} holds whole numbers") for a in axes)
            return Value(axes)
        if value.kind == "constant":
            return self._constant(ref)
        if value.kind == "result":  # a result that no rule describes is read: its sources must not move
            makers = [call for call in self.program.calls if ref in call.outputs]
            for call in makers:
                self.unknown_ops[call.op] = None
                self.fix_read(call.inputs, f"{UNRULED}, of which a result is used: {call.where}")
            if not makers:  # its sources are unknown
                self.unknown_ops["a result of no operation"] = None
                self.fix_read(self.program.states.values(), f"{UNRULED} known that made what {self.call.where} reads")
        known = {
            "input": "input",
            "buffer": "a table or mask held in a buffer",
            "parameter": f"{value.name} {COMPLEX}",
        }
        why = known.get(value.kind, f"unknown result of {self.call.where}")
        return Value(tuple(self.fix(self.kept(("value", ref.id, i), n), why) for i, n in enumerate(value.shape)))

    def fix_read(self, refs: Iterable[Ref], why: str) -> None:
        """Nothing passes along any axis of some tensors."""
        for ref in refs:
            self.fix_all(self.value(ref).axes, why)

    def moves(self, ref: Ref) -> bool:
        """Whether elements act on a value: on parameters, and on saved buffers that are vectors.

        They do not act on complex values, since elements are real. Other buffers are tables and masks: nothing moves
        them, and their values are not used, since another checkpoint may have others.
        """
        value = self.program.values[ref.id]
        vector = value.dtype.is_floating_point and sum(n > 1 for n in value.shape) == 1
        real = not value.dtype.is_complex
        return (value.kind == "parameter" and real) or (value.kind == "buffer" and vector)

    def _constant(self, ref: Ref) -> Value:
        value = self.program.values[ref.id]
        key = ("uniform", ref.id)
        if key not in self._kept:
            flat, zero = _uniform(value.data, value.shape)
            rank = _identity(value.data, flat)
            self._kept[key] = flat, zero, self.pool.new(rank) if rank else None
        flat, zero, space = self._kept[key]
        axes: list[Axis] = []
        for i, n in enumerate(value.shape):
            if n > 1 and flat[i]:
                axes.append((Flat(n, zero),))
            elif n > 1 and space is not None:
                axes.append(self.monomial(self.pool.resolve((Slot(space, n),)), "an identity matrix"))
            else:
                axes.append(self.fix(self.kept(("value", ref.id, i), n), "a constant that differs from unit to unit"))
        return Value(tuple(axes), zero)

    def _state_axis(self, tensor: str, dim: int, size: int) -> Axis:
        unknown = lambda s: Slot(s.space, s.size, self.system.new(tensor, dim, s.space))
        return map_slots(self.kept(("state", tensor, dim), size, lambda n: self.pool.new(n, held=True)), unknown)


def _uniform(data: torch.Tensor | None, shape: tuple[int, ...]) -> tuple[list[bool], bool]:
    """The dimensions along which a constant does not vary, and whether it is all zero."""
    if data is None or not data.numel():
        return [False] * len(shape), data is not None
    flat = [bool((data == data.narrow(i, 0, 1)).all()) for i in range(data.dim())]
    return flat, bool((data == 0).all())


def _identity(data: torch.Tensor | None, flat: list[bool]) -> int:
    """Rank of a matrix, constant along other axes, that is unchanged if rows and columns permute together; else 0."""
    varying = [i for i, still in enumerate(flat) if not still]
    if data is None or len(varying) != 2 or data.shape[varying[0]] != (rank := data.shape[varying[1]]):
        return 0
    for i in set(range(data.dim())) - {*varying}:
        data = data.narrow(i, 0, 1)
    matrix = data.reshape(rank, rank)
    eye = torch.eye(rank, dtype=torch.bool, device=data.device)
    return rank if torch.equal(matrix, torch.where(eye, matrix[0, 0], matrix[0, 1])) else 0
