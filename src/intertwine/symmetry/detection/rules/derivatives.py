"""Derivatives of activations, met where a network returns a gradient: forces of an energy, scores of a density."""

from ....programs import Call
from ..axis_terms import Value
from ..engine import Engine
from .elementwise import multiplied, through, unzero
from .registry import register_rule


def _backward(*activations: str) -> tuple[str, ...]:
    return tuple(f"aten::{name}_backward" for name in activations)


_STEPS = {"aten::leaky_relu_backward", "aten::threshold_backward"}  # one number on each side of zero
_EVEN = set(_backward("tanh", "softshrink", "hardshrink"))


@register_rule(
    *_STEPS, *_EVEN,
    *_backward("sigmoid", "softplus", "silu", "gelu", "elu", "hardtanh", "hardswish", "hardsigmoid", "mish"),
    *_backward("log_sigmoid"),
)  # fmt: skip
def derivative(engine: Engine, call: Call) -> Value:
    """``g f'(x)``: linear in ``g``; of ``x`` scales pass where ``f'`` is a step at zero, signs where it is even."""
    step = call.op in _STEPS and call.args.get("threshold", 0) == 0
    result = engine.value(call.inputs[0])
    for ref in call.inputs[1:]:
        factor = through(engine, unzero(engine.value(ref)), 0 if step else None, -1 if call.op in _EVEN else 0)
        result = multiplied(engine, result, factor)
    return result
