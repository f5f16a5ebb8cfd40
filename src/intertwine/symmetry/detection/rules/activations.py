"""Homogeneity of activations: looked up in the known table of ``intertwine.groups``, else measured."""

from functools import cache
from math import inf
from typing import Any

import torch

from ....groups import Homogeneity, activation_names, classify
from ....programs import Call, Ref

# operation -> known activation, and the arguments that are its parameters
_PARAMETERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "leaky_relu": ("leaky_relu", ("negative_slope",)),
    "hardtanh": ("hardtanh", ("min_val", "max_val")),
    "threshold": ("threshold", ("threshold", "value")),
    "hardshrink": ("hardshrink", ("lambd",)),
    "softshrink": ("softshrink", ("lambd",)),
}
_NOTHING = Homogeneity("nonlinear")
_FINITE = Homogeneity("nonlinear", 1, "odd")  # numbers stay as they are, what is none becomes zero


def is_pointwise(call: Call) -> bool:
    """Whether an operation works number by number: by our table, or as torch has it tagged.

    Older releases tag fewer of them: ``leaky_relu`` has no tag in torch 2.11, nor have operations in place whose
    counterpart has one.
    """
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

    Where numbers are among the arguments and the operation is not in the table, nothing passes: a threshold beyond
    the range of a measurement would go unseen.
    """
    name = call.op.removeprefix("aten::")
    if name in _PARAMETERS:
        known, parameters = _PARAMETERS[name]
        return classify(f"{known}:{','.join(str(float(call.args[p])) for p in parameters)}")
    if name in ("clamp", "clamp_min", "clamp_max"):
        low, high = (call.args.get(key) for key in ("min", "max"))
        return classify(f"hardtanh:{-inf if low is None else low},{inf if high is None else high}")
    if name == "nan_to_num":
        return _FINITE if call.args.get("nan") in (None, 0) else _NOTHING
    if name in activation_names() and _plain(call):
        return classify(name)
    return _measured(call.func) if _plain(call) else _NOTHING


def _plain(call: Call) -> bool:
    """Whether every argument other than the tensor has its default value."""
    defaults = {a.name: a.default_value for a in call.func._schema.arguments if a.has_default_value()}
    return all(isinstance(v, Ref) or (k in defaults and defaults[k] == v) for k, v in call.args.items())


@cache
def _measured(func: Any) -> Homogeneity:
    def activation(x: torch.Tensor) -> torch.Tensor:
        return func(x.clone())

    try:
        return classify(activation)
    except (ValueError, RuntimeError, TypeError):  # not a function of real numbers, or constant
        return _NOTHING
