"""Find the symmetries of a model: capture its program, walk the engine through it, and describe what moves.

Also copies of units: how parameters scale if every unit of a space is repeated. A network computes the same function
when each of its units becomes ``k`` equal ones, if whatever reads them is divided by ``k``. Which axes read does not
depend on modules: every sum over units needs one factor ``1 / k``, and operations say which factors pass.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

from torch import nn

from .._result import of_networks
from ..programs import Program, capture_examples
from .detection.axis_terms import Axis, Expr, Slot, map_slots, slots
from .detection.describe import describe, labelled
from .detection.engine import Engine
from .detection.rules import apply
from .detection.rules.fused_calls import fused, with_parts, with_shuffles
from .symmetry import Origin, Symmetry


@of_networks("model")
def symmetries(model: nn.Module, example_inputs: Any) -> Symmetry:
    """Find the group of weight-space symmetries of a model's architecture.

    Every function that the model computes on tensors of the example's shapes stays exactly the same under the group,
    whatever the weights. Where the papers treat chains of layers (v2 3.2, E.4-E.6, E.47; v1 E.26), this reads the
    group off the operations that the model runs: which axes of which parameters must move together, and what each
    operation lets through. Operations without a rule fix what they touch and are listed.

    Args:
        model: Any module; on the meta device nothing is computed, so a model of any size can be read.
        example_inputs: A tensor, a tuple or list of positional arguments, a mapping of keyword arguments, or several
            of these as ``Examples``. Axes of size one carry no space, so give a batch of at least two. If the path of
            the code depends on the data (``path_only``), everything that parameters read by no example may meet is
            fixed: give ``Examples`` that together read all of them. A few yes-or-no questions are answered both ways.

    Examples:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3))
        >>> [s.name for s in symmetries(model, torch.zeros(2, 4)).spaces]
        ['0.weight[0]']
    """
    program = capture_examples(model, example_inputs)
    return replace(symmetries_of(program), origin=Origin(model, example_inputs, program))


def symmetries_of(program: Program) -> Symmetry:
    """Find the symmetries of a captured program."""
    found = describe(walked(program))
    if not any((shape := program.values[ref.id].shape) and shape[0] == 1 for ref in program.inputs):
        return found
    note = "the first axis of an input has size one: certified for that size only; give a batch of two or more"
    return replace(found, notes=(*found.notes, note))


def walked(program: Program, kind: type[Engine] = Engine) -> Engine:
    """An engine that has walked through a program until the structure of its spaces no longer changes."""
    engine = kind(program, with_parts(program, with_shuffles(program, fused(program))))
    engine.walk(apply)
    return engine


def copy_degrees(program: Program, lengths: Collection[str] = ()) -> Mapping[tuple[str, int, str], Fraction | None]:
    """The power of ``k`` by which entries are multiplied when every unit of a space becomes ``k`` equal ones.

    By tensor, axis and name of the space: 0 where units are written, -1 where they are read; ``None`` if no power keeps
    the function, or if an axis needs several. If scales leave a choice, tensors in ``lengths``, such as the singular
    vectors of spectral norms, keep their length; after that, hidden features stay unchanged.
    """
    engine = walked(program, _Copies)
    _keep_lengths(engine, lengths)
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
    """A walk in which every sum over units adds one power of their number."""

    def added_up(self, axis: Axis) -> Axis:
        """An axis whose units are about to be added up."""
        more = lambda s: Slot(s.space, s.size, s.expr + Expr({_number(s): Fraction(1)}, frozenset(), s.expr.turn))
        return map_slots(self.pool.resolve(axis), more)


def _number(slot: Slot) -> int:
    """The variable for the number of copies, apart from the unknowns, which count from zero."""
    return -1 - slot.space


def _power(engine: Engine, slot: Slot) -> Fraction | None:
    log, number = engine.system.log, _number(slot)
    known = bool(log.reduce({number: Fraction(1)}))
    return log.reduce(slot.expr.log).get(number, Fraction(0)) if known else None


def _keep_lengths(engine: Engine, names: Collection[str]) -> None:
    """Give ``k`` equal entries the factor ``k ** -1/2`` each, as far as the equations allow."""
    log = engine.system.log
    for name in names:
        ref = engine.program.states.get(name)
        for axis in engine.state(name).axes if ref is not None and engine.moves(ref) else ():
            for slot in slots(axis):
                form = {**slot.expr.log, _number(slot): Fraction(1, 2)}
                if any(v >= 0 for v in log.reduce(form)):
                    log.add(form)


def _keep_features(engine: Engine) -> None:
    """Where copies leave scales free, give hidden features none, in running order, as training would have found."""
    log = engine.system.log
    for ref in (ref for call in engine.calls for ref in call.made):
        value = engine.values.get(ref.id) if ref.id in engine.program.varying else None
        for axis in engine.value(ref).axes if value is not None else ():
            for slot in slots(axis):
                if any(v >= 0 for v in log.reduce(slot.expr.log)):
                    log.add(slot.expr.log)
