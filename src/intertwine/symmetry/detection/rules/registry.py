"""Registry of rules: what each operation does to symmetries, by its qualified name."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ....programs import Call, Ref
from ....programs.operations import registering
from ...spaces import UNRULED
from ..axis_terms import Value
from ..engine import Engine
from .unit_indices import drop

Rule = Callable[[Engine, Call], Any]

RULES: dict[str, Rule] = {}


def register_rule(*ops: str) -> Callable[[Rule], Rule]:
    """Teach the engine operations: a decorator for a function of the engine and a call.

    The rule reads its arguments from ``call.args`` by their schema names, looks up tensors with
    ``engine.value(ref)``, says what the operation takes away from their axes (``engine.rigid``, ``no_scale``,
    ``no_sign``, ``monomial``, ``fix``) and returns a ``Value`` for its result, or a list with one for every result. A
    rule that claims too much gives a wrong group: test it with ``Symmetry.verify``.

    Args:
        *ops: Qualified operation names without overload or trailing underscore, such as ``"mylib::gate"``.

    Raises:
        ValueError: If a name is not qualified.

    Examples:
        >>> @register_rule("mylib::double")
        ... def double(engine, call):
        ...     return engine.value(call.args["x"])
    """  # noqa: DOC502 - raised by what it calls
    return registering(RULES, ops)


def unknown(engine: Engine, call: Call) -> list[Value]:
    """An operation without a rule: nothing that it touches may move."""
    engine.unknown_ops[call.op] = None
    why = f"{UNRULED}: {call.where}"
    for ref in call.inputs:
        drop(engine, engine.value(ref).names)
        engine.fix_all(engine.value(ref).axes, why)
    return [opaque(engine, ref, why, i) for i, ref in enumerate(call.outputs)]


def opaque(engine: Engine, ref: Ref | None, why: str, tag: Any) -> Value:
    """A result of which only the shape is known, fixed along every axis."""
    shape = engine.program.values[ref.id].shape if ref is not None else ()
    return Value(tuple(engine.fresh(n, why, (tag, i)) for i, n in enumerate(shape)))


def relaid(engine: Engine, x: Value, shape: Sequence[int], kept: Mapping[int, int], why: str) -> Value:
    """A tensor laid out anew: axes are those ``kept`` (new to old) and fresh ones, what is not kept is fixed."""
    engine.fix_all((a for i, a in enumerate(x.axes) if i not in kept.values()), why)
    axes = (x.axes[kept[i]] if i in kept else engine.fresh(n, why, ("relaid", i)) for i, n in enumerate(shape))
    return Value(tuple(axes), x.zero)


def but(count: int, *fixed: int) -> dict[int, int]:
    """All of so many axes but some, each kept in its place: see ``relaid``."""
    return {i: i for i in range(count) if i not in fixed}
