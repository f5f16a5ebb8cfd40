"""Registry of rules: the effect of each operation on symmetries, by its qualified name.

The homogeneity of an activation is looked up in the table of ``intertwine.groups``, or else measured.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from math import inf
from typing import Any

import torch

from ....groups import Homogeneity, activation_names, classify
from ....programs import Call, Ref
from ....programs.operations import registering
from ...spaces import UNRULED
from ..axis_terms import Value
from ..engine import Engine

Rule = Callable[[Engine, Call], Any]

RULES: dict[str, Rule] = {}


def register_rule(*ops: str) -> Callable[[Rule], Rule]:
    """Register the rule of some operations: a decorator for a function of the engine and a call.

    The rule reads its arguments from ``call.args`` by their schema names, looks up tensors with
    ``engine.value(ref)``, restricts their axes as the operation requires (``engine.rigid``, ``no_scale``, ``no_sign``,
    ``monomial``, ``fix``) and returns a ``Value`` for its result, or a list with one for every result. A rule that
    claims too much gives a wrong group: test it with ``Symmetry.verify``.

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
        engine.drop(engine.value(ref))
        engine.fix_all(engine.value(ref).axes, why)
    return [opaque(engine, ref, why, i) for i, ref in enumerate(call.outputs)]


def opaque(engine: Engine, ref: Ref | None, why: str, tag: Any) -> Value:
    """A result of which only the shape is known; it is fixed along every axis."""
    shape = engine.program.values[ref.id].shape if ref is not None else ()
    return Value(tuple(engine.fresh(n, why, (tag, i)) for i, n in enumerate(shape)))


def relaid(engine: Engine, x: Value, shape: Sequence[int], kept: Mapping[int, int], why: str) -> Value:
    """A tensor in a new layout, with the axes ``kept`` (new to old) and fresh ones; axes not kept are fixed."""
    engine.fix_all((a for i, a in enumerate(x.axes) if i not in kept.values()), why)
    axes = (x.axes[kept[i]] if i in kept else engine.fresh(n, why, ("relaid", i)) for i, n in enumerate(shape))
    return Value(tuple(axes), x.zero)


def relaid_along(engine: Engine, call: Call, x: Value, dims: Iterable[int], why: str) -> Value:
    """The result of a call that changes the layout of some axes and keeps the others in place."""
    others = set(range(len(x.axes))) - {dim % len(x.axes) for dim in dims}
    return relaid(engine, x, engine.made(call), {i: i for i in others}, why)


# known activation -> those arguments that are its parameters
_PARAMETERS: dict[str, tuple[str, ...]] = {
    "leaky_relu": ("negative_slope",),
    "hardtanh": ("min_val", "max_val"),
    "threshold": ("threshold", "value"),
    "hardshrink": ("lambd",),
    "softshrink": ("lambd",),
}
_NOTHING = Homogeneity("nonlinear")
_FINITE = Homogeneity("nonlinear", 1, "odd")  # finite numbers stay, others become zero


def is_pointwise(call: Call) -> bool:
    """Whether an operation is elementwise: by our table, or because torch tags it, or its counterpart, so."""
    return call.func is not None and _is_pointwise(call.op, call.func)


@cache
def _is_pointwise(op: str, func: Any) -> bool:
    name = op.removeprefix("aten::")
    tags = set(func.tags)
    if name != op and hasattr(torch.ops.aten, name):
        packet = getattr(torch.ops.aten, name)
        tags |= {tag for overload in packet.overloads() for tag in getattr(packet, overload).tags}
    return name in _PARAMETERS or torch.Tag.pointwise in tags


def scaling_of(call: Call) -> Homogeneity:
    """The scalar laws of a pointwise call on one tensor.

    Nothing passes if an operation that is not in the table has numbers among its arguments: a measurement would miss a
    threshold beyond its range.
    """
    name = call.op.removeprefix("aten::")
    if name in _PARAMETERS:
        return classify(f"{name}:{','.join(str(float(call.args[p])) for p in _PARAMETERS[name])}")
    if name in ("clamp", "clamp_min", "clamp_max"):
        low, high = (call.args.get(key) for key in ("min", "max"))
        return classify(f"hardtanh:{-inf if low is None else low},{inf if high is None else high}")
    if name == "nan_to_num":
        return _FINITE if call.args.get("nan") in (None, 0) else _NOTHING
    defaults = {a.name: a.default_value for a in call.func._schema.arguments if a.has_default_value()}
    if not all(isinstance(v, Ref) or (k in defaults and defaults[k] == v) for k, v in call.args.items()):
        return _NOTHING
    return classify(name) if name in activation_names() else _measured(call.func)


@cache
def _measured(func: Any) -> Homogeneity:
    def activation(x: torch.Tensor) -> torch.Tensor:
        return func(x.clone())

    try:
        return classify(activation)
    except (ValueError, RuntimeError, TypeError):  # not a function of real numbers, or constant
        return _NOTHING
