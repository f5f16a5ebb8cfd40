"""Rules by class of operation; importing this package registers them all."""

from collections.abc import Sequence
from typing import Any

from ....programs import Call
from ....programs.operations import COPIES
from ..engine import Engine
from . import fused_calls, indexing, linear, norms_and_reductions, shapes, writing  # noqa: F401
from .elementwise import broadcast, measured
from .registry import RULES, is_pointwise, register_rule, unknown
from .unit_indices import carried, unread_names

__all__ = ["apply", "register_rule"]

# operations that sum products or only copy them; others multiply them by one number
_SEES_PRODUCTS = COPIES | {"aten::mean", "aten::sum"}


def apply(engine: Engine, call: Call) -> Sequence[Any]:
    """The values of a call's results by its rule; everything that an operation without a rule touches is fixed."""
    scaled = call.op in ("aten::mul", "aten::div", "aten::neg") and not call.args.get("rounding_mode")
    if not (call.op in _SEES_PRODUCTS or (scaled and len(call.inputs) == 1)):
        for value in (engine.value(ref) for ref in call.inputs):
            for axis in value.axes if value.square else ():
                engine.monomial(axis, f"square read by {call.where}")
            for a, b in broadcast(*value.factors) if value.factors else ():
                engine.multiplied(a, b)
    unread_names(engine, call)
    first_mix = len(engine.mixed)
    rule = RULES.get(call.op, measured if is_pointwise(call) else unknown)
    try:
        result = rule(engine, call)
    except (KeyError, IndexError, TypeError, ValueError, ZeroDivisionError):  # arguments that the rule does not cover
        result = unknown(engine, call)
    results = result if isinstance(result, list) else [result]
    return [carried(engine, call, value, first_mix) for value in results]
