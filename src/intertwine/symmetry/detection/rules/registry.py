"""Rules for symmetries: one per operation, looked up by its qualified name."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ....programs import Call, Ref
from ...spaces import UNRULED
from ..axis_terms import Value
from .picks import carried, drop, unread_names

if TYPE_CHECKING:
    from ..engine import Engine

__all__ = ["Rule", "apply", "register_rule"]

Rule = Callable[["Engine", Call], Any]
R = TypeVar("R", bound=Rule)

_RULES: dict[str, Rule] = {}
_SEES_PRODUCTS = {"aten::mean", "aten::sum", "aten::_to_copy", "aten::clone", "aten::detach", "aten::alias"}


def register_rule(*ops: str) -> Callable[[R], R]:
    """Teach the engine operations: a decorator for a function of the engine and a call.

    The rule reads its arguments from ``call.args`` by their schema names, looks up tensors with
    ``engine.value(ref)``, says what the operation takes away from their axes (``engine.rigid``, ``no_scale``,
    ``no_sign``, ``monomial``, ``fix``) and returns a ``Value`` for its result, or a list with one for every result. A
    rule that claims too much gives a wrong group: test it with ``Symmetry.verify``.

    Args:
        *ops: Qualified operation names without overload or trailing underscore, such as ``"mylib::gate"``.

    Returns:
        The decorator.

    Raises:
        ValueError: If a name has no namespace.

    Examples:
        >>> @register_rule("mylib::double")
        ... def double(engine, call):
        ...     return engine.value(call.args["x"])
    """
    for op in ops:
        if "::" not in op:
            raise ValueError(f'op must be a qualified name such as "mylib::gate". Got {op!r}.')

    def decorate(rule: R) -> R:
        for op in ops:
            _RULES[op] = rule
        return rule

    return decorate


def apply(engine: "Engine", call: Call) -> Sequence[Any]:
    """The values of a call's results, by its rule; what an operation without a rule touches is fixed."""
    from .activations import is_pointwise
    from .elementwise import broadcast, measured
    from .stacks import through_stack

    stacked = through_stack(engine, call)
    if stacked is not None:
        return stacked
    if not _sees_products(call):
        for value in (engine.value(ref) for ref in call.inputs):
            for axis in value.axes if value.square else ():
                engine.monomial(axis, f"square read by {call.where}")
            for a, b in broadcast(*value.factors) if value.factors else ():
                engine.multiplied(a, b) if a and b else None
    unread_names(engine, call)
    first_mix = len(engine.mixed)
    rule = _RULES.get(call.op)
    if rule is None and is_pointwise(call):
        rule = measured
    try:
        result = unknown(engine, call) if rule is None else rule(engine, call)
    except (KeyError, IndexError, TypeError, ValueError):  # arguments that the rule was not written for
        result = unknown(engine, call)
    results = result if isinstance(result, list) else [result]
    return [carried(engine, call, value, first_mix) for value in results]


def _sees_products(call: Call) -> bool:
    """Whether an operation sums products, or only copies them or multiplies them by one number."""
    if call.op in ("aten::mul", "aten::div", "aten::neg"):
        return len(call.inputs) == 1 and not call.args.get("rounding_mode")
    return call.op in _SEES_PRODUCTS


def unknown(engine: "Engine", call: Call) -> list[Value]:
    """An operation without a rule: nothing that it touches may move."""
    engine.unknown_ops[call.op] = None
    why = f"{UNRULED}: {call.where}"
    for ref in call.inputs:
        drop(engine, engine.value(ref).names)
        for axis in engine.value(ref).axes:
            engine.fix(axis, why)
    return [opaque(engine, ref, why, i) for i, ref in enumerate(call.outputs)]


def opaque(engine: "Engine", ref: Ref | None, why: str, tag: Any) -> Value:
    """A result of which only the shape is known, fixed along every axis."""
    shape = engine.program.values[ref.id].shape if ref is not None else ()
    return Value(tuple(engine.fresh(n, why, (tag, i)) for i, n in enumerate(shape)))
