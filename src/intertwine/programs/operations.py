"""Predicates on operations: gates, poolings, norms, attention, random numbers."""

from collections.abc import Sequence
from typing import Any

import torch

from .calls import Call

__all__ = [
    "ATTENTION", "AVERAGE_POOLS", "BATCH_NORMS", "MAX_POOLS", "OWN_STATISTICS", "RELUS", "SMOOTH_ACTIVATIONS",
    "gate_names", "is_gate", "is_random", "is_zero_clamp", "normalises_by_input", "slope_of", "writes",
]  # fmt: skip

RELUS = {
    "aten::relu", "aten::leaky_relu", "aten::_prelu_kernel", "aten::abs", "aten::threshold", "aten::clamp",
    "aten::clamp_min",
}  # fmt: skip
"""Piecewise linear with one kink at 0; thresholds and clamps only with the arguments that ``is_gate`` asks for."""
MAX_POOLS = {
    "aten::max_pool2d_with_indices", "aten::max_pool3d_with_indices", "aten::adaptive_max_pool2d",
    "aten::adaptive_max_pool3d",
}  # fmt: skip
"""They return where they took each number from, counted within its channel."""
AVERAGE_POOLS = {"aten::avg_pool2d", "aten::avg_pool3d", "aten::avg_pool1d", "aten::_adaptive_avg_pool2d", "aten::mean"}
BATCH_NORMS = {
    "aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::miopen_batch_norm",
    "aten::_native_batch_norm_legit_no_training", "aten::_batch_norm_no_update", "aten::_native_batch_norm_legit",
    "aten::batch_norm",
}  # fmt: skip
OWN_STATISTICS = {
    "aten::native_layer_norm", "aten::native_group_norm", "aten::rms_norm", "aten::_fused_rms_norm",
}  # fmt: skip
"""Norms by statistics of the input, at all times."""
ATTENTION = {"aten::_softmax", "aten::_scaled_dot_product_flash_attention_for_cpu", "aten::softmax"}
SMOOTH_ACTIVATIONS = {
    f"aten::{name}"
    for name in ("gelu", "silu", "elu", "celu", "selu", "tanh", "sigmoid", "softplus", "mish", "hardswish", "hardtanh",
                 "hardsigmoid", "log_sigmoid_forward", "erf", "exp", "sin", "rrelu", "rrelu_with_noise")
}  # fmt: skip
"""Pointwise nonlinearities that are neither on nor off."""
_CLAMPS = {"aten::clamp", "aten::clamp_min"}


def is_gate(call: Call) -> bool:
    """Whether a call is a ReLU (a clamp from below at 0, or two slopes: leaky, parametric, |q|) or a max pooling."""
    if call.op == "aten::threshold":
        return call.args["threshold"] == 0 and call.args["value"] == 0
    if call.op in _CLAMPS:
        return is_zero_clamp(call)
    return call.op in RELUS or call.op in MAX_POOLS


def gate_names(calls: Sequence[Call]) -> tuple[str, ...]:
    """A name for each gating call: its module, with ``#k`` where a module gates more than once."""
    labels = [call.module or call.op.removeprefix("aten::") for call in calls]
    return tuple(
        f"{label}#{labels[:i].count(label)}" if labels.count(label) > 1 else label for i, label in enumerate(labels)
    )


def is_zero_clamp(call: Call) -> bool:
    """Whether a call is ``max(q, 0)`` written as a clamp."""
    return call.op in _CLAMPS and call.args["min"] == 0 and call.args.get("max") is None


def slope_of(call: Call) -> Any:
    """What a gate multiplies by where it is off: 0 for a ReLU, -1 for the absolute value, a weight for ``PReLU``."""
    if call.op == "aten::leaky_relu":
        return call.args["negative_slope"]
    if call.op == "aten::_prelu_kernel":
        return call.args["weight"]
    return -1.0 if call.op == "aten::abs" else 0.0


def is_random(call: Call) -> bool:
    """Whether a call draws random numbers; dropout by nothing does not."""
    if call.func is None or torch.Tag.nondeterministic_seeded not in call.func.tags:
        return False
    chance = call.args.get("p", call.args.get("dropout_p", 1))
    active = call.args.get("train", call.args.get("training", True))
    return chance != 0 and active is not False


def normalises_by_input(call: Call) -> bool:
    """Whether a call is a norm by statistics of its own input: layer norm, or batch norm without running statistics."""
    if call.op not in BATCH_NORMS:
        return call.op in OWN_STATISTICS
    return bool(call.args.get("training")) or call.args.get("running_mean") is None


def writes(func: Any) -> bool:
    """Whether an operation writes into one of its arguments."""
    return any(a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments)
