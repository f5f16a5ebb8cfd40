"""Parameter slices without influence on the outputs (backward data flow).

Nothing restricts such slices, and moving them would be wrong as soon as another input, a longer sequence or another
path reads them. From the outputs backwards, a call that only moves entries (a view, a slice, a piece of a split) passes
on the spaces of its result that matter; any other call adds those of its arguments that do not reach its result, which
it has summed over or compared. A result that is zero whatever its arguments are passes on nothing.

Axes fixed where another path of the code may read parameters that the recorded path did not.

A host read may have decided which modules ran: experts that this example does not visit. On another path a parameter
that was not read may meet whatever its module, or the module that would call it, can see: what it is called with, what
the modules inside it return, what it computes itself. All that is fixed. Spaces inside other modules, such as the
hidden units of the experts that were visited, are not seen there.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ...programs import Call, Ref
from ...programs.operations import PARTS, aten
from .axis_terms import Axis, Segments, Slot, slots
from .engine import Engine


@dataclass
class Demand:
    """The spaces of one tensor that matter to the outputs."""

    spaces: set[int] = field(default_factory=set)  # The spaces of its axes that something depends on
    idle: set[int] = field(default_factory=set)  # Spaces that some call multiplied by zeros

    @property
    def only_idle(self) -> set[int]:
        """Spaces that met nothing but zeros."""
        return self.idle - self.spaces


def demands(engine: Engine) -> dict[int, Demand]:
    """The spaces that influence outputs or host reads, by value; values without influence are left out."""
    found: dict[int, Demand] = {}
    for ref in engine.program.outputs:
        _ask(found, ref, _spaces(engine, ref), set())
    for index in range(len(engine.calls) - 1, -1, -1):
        call = engine.calls[index]
        made = [out for out in call.outputs if out is not None]
        asked = [found[out.id] for out in made if out.id in found and not engine.is_zero(out)]
        if made and not asked:
            continue
        wanted = set().union(*(d.spaces for d in asked))
        given = set().union(*(_spaces(engine, out) for out in made))
        zeros = engine.found(engine.idle.get(index, ()))
        idle = zeros.union(*(d.idle for d in asked))
        for ref in dict.fromkeys(call.inputs):
            if ref.id in engine.skipped.get(index, ()):
                continue
            here = _spaces(engine, ref)
            passed = here & wanted if _moves_entries(call) else (here - given - zeros) | (here & wanted)
            _ask(found, ref, passed, here & idle)
    return found


def beside(axis: Axis, idle: set[int]) -> Iterator[Slot]:
    """Every slot of an axis but those of segments that lie beside the idle ones."""
    for factor in axis:
        if isinstance(factor, Segments) and any(s.space in idle for s in slots((factor,))):
            for part in factor.parts:
                if any(s.space in idle for s in slots(part)):
                    yield from beside(part, idle)
        else:
            yield from slots((factor,))


def _ask(found: dict[int, Demand], ref: Ref, spaces: set[int], idle: set[int]) -> None:
    demand = found.setdefault(ref.id, Demand())
    demand.spaces |= spaces
    demand.idle |= idle


def _moves_entries(call: Call) -> bool:
    """Whether a call only moves entries: views of all kinds, their copies, and writes into parts."""
    return bool(getattr(call.func, "is_view", False)) or call.op.removesuffix("_copy") in PARTS | _WRITES


_WRITES = aten("constant_pad_nd slice_scatter select_scatter as_strided_scatter") | {
    "intertwine::part_of_write", "intertwine::written_into",
}  # fmt: skip


def _spaces(engine: Engine, ref: Ref) -> set[int]:
    """The spaces on the axes of a tensor."""
    value: Any = engine.values.get(ref.id)
    opened = () if value is None else engine.opened(value)
    return {slot.space for axes in opened for axis in axes for slot in slots(axis)}


def fix_unseen(engine: Engine, unread: Iterable[str]) -> None:
    """Fix what parameters that were not read may meet on another path; nothing where there is only one path.

    ``unread`` names them, and the buffers that move.
    """
    program = engine.program
    if not program.reads:
        return
    for place, name in {_caller(name, program.visible): name for name in unread}.items():
        why = f"{name} may read it on another path: it was not read on the path of the example"
        for number in sorted(program.visible.get(place, ())):
            value = engine.values.get(number)
            for axes in () if value is None else engine.opened(value):
                for axis in axes:
                    for slot in slots(axis):
                        engine.fix((Slot(slot.space, slot.size, slot.expr),), why)


def _caller(name: str, visited: Iterable[str]) -> str:
    """The innermost module around a parameter that ran."""
    ran = set(visited)
    place = name.rpartition(".")[0]
    while place and place not in ran:
        place = place.rpartition(".")[0]
    return place
