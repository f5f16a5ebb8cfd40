"""Copies of units: how parameters scale where every unit of a space stands there several times.

A network computes the same function when each of its units becomes ``k`` equal ones, if what reads them is divided by
``k``. Which axes read is no matter of modules: every sum over units has to get one factor ``1 / k``, and operations say
which factors pass, as they do for scales.
"""

from collections.abc import Mapping
from fractions import Fraction

from ..programs import Program
from .detection.axis_terms import Axis, Expr, Slot, Value, map_slots, slots
from .detection.describe import labelled
from .detection.engine import Engine
from .find import walked


def copy_degrees(program: Program) -> Mapping[tuple[str, int, str], Fraction | None]:
    """The power of ``k`` that entries are multiplied by where every unit of a space becomes ``k`` equal ones.

    By tensor, axis and name of the space: 0 where units are written, -1 where they are read; ``None`` where no powers
    keep the function, or an axis needs several. Where scales leave a choice, hidden features stay as they are.

    Examples:
        >>> import torch
        >>> from intertwine.symmetry import symmetries
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 3))
        >>> found = copy_degrees(symmetries(model, torch.zeros(2, 4)).origin.program)
        >>> {(tensor, axis): str(power) for (tensor, axis, space), power in found.items() if space == "0.weight[0]"}
        {('0.weight', 0): '0', ('0.bias', 0): '0', ('2.weight', 1): '-1'}
    """
    engine = walked(program, _Copies)
    _keep_features(engine)
    states = {name: engine.state(name) for name, ref in program.states.items() if engine.moves(ref)}
    names = {slot.space: label for label, slot in labelled(states)}
    found: dict[tuple[str, int, str], Fraction | None] = {}
    for tensor, value in states.items():
        for dim, axis in enumerate(value.axes):
            for slot in slots(axis):
                key, power = (tensor, dim, names[slot.space]), _power(engine, slot)
                found[key] = power if found.get(key, power) == power else None
    return found


class _Copies(Engine):
    """A walk in which a sum over units counts as one power more of their number."""

    def contracted(self, a: Axis, b: Axis) -> None:
        """Both axes are summed against each other."""
        more = lambda s: Slot(s.space, s.size, s.expr + Expr({_number(s): Fraction(1)}, frozenset(), s.expr.turn))
        super().contracted(map_slots(self.pool.resolve(a), more), b)


def _number(slot: Slot) -> int:
    """The variable that stands for the number of copies, beside the unknowns, which count from zero."""
    return -1 - slot.space


def _power(engine: Engine, slot: Slot) -> Fraction | None:
    log, number = engine.system.log, _number(slot)
    known = bool(log.reduce({number: Fraction(1)}))
    return log.reduce(slot.expr.log).get(number, Fraction(0)) if known else None


def _keep_features(engine: Engine) -> None:
    """Where scales may go with the copies, hidden features get none: in running order, as far as the equations allow.

    A network of copies is then one that training could have found, and not only one of the same function.
    """
    log = engine.system.log
    outputs = [ref for call in engine.calls for ref in call.outputs if ref is not None]
    for ref in outputs:
        value = engine.values.get(ref.id) if ref.id in engine.program.varying else None
        for axis in engine.value(ref).axes if isinstance(value, Value) else ():
            for slot in slots(axis):
                if any(v >= 0 for v in log.reduce(slot.expr.log)):
                    log.add(slot.expr.log)
