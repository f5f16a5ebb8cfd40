"""Axes fixed where another path of the code may read parameters that the recorded path did not.

A host read may have decided which modules ran: experts that this example does not visit. On another path a parameter
that was not read may meet whatever its module, or the module that would call it, can see: what it is called with, what
the modules inside it return, what it computes itself. All that is fixed. Spaces inside other modules, such as the
hidden units of the experts that were visited, are not seen there.
"""

from collections.abc import Iterable

from .axis_terms import Slot, slots
from .engine import Engine


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
