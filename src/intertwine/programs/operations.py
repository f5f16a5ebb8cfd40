"""Table of operations, with predicates on calls: gates, poolings, norms, attention, views, random numbers."""

from collections.abc import Callable, Sequence
from re import fullmatch
from typing import Any, TypeVar

import torch

from ..features.activations import ACTIVATIONS, CLAMPS, nonlinearity
from .calls import Call


def aten(names: str) -> frozenset[str]:
    """Qualified names of torch's own operations, from their plain names in one text."""
    return frozenset(f"aten::{name}" for name in names.split())


RELUS = aten("relu leaky_relu _prelu_kernel abs threshold clamp clamp_min")
"""Piecewise linear with one kink at 0; thresholds and clamps only with the arguments that ``is_gate`` asks for."""
OTHER_ACTIVATIONS = aten(" ".join(ACTIVATIONS)) - RELUS
"""Nonlinearities that are neither on nor off."""
MAX_POOLS = aten("max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool2d adaptive_max_pool3d")
"""They also return the position of each number taken, counted within its channel."""
AVERAGE_POOLS = aten(
    "avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d "
    "_adaptive_avg_pool2d _adaptive_avg_pool3d mean"
)
INTERPOLATIONS = aten("upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d")
_COPYING = ("upsample_nearest{}d", "_upsample_nearest_exact{}d", "reflection_pad{}d", "replication_pad{}d")
GATHERS = aten(" ".join(kind.format(k) for kind in _COPYING for k in (1, 2, 3)))
"""Each position takes the number of one other: nearest-neighbour upsampling, padding by copies."""

BATCH_NORMS = aten(
    "native_batch_norm cudnn_batch_norm miopen_batch_norm _native_batch_norm_legit_no_training _batch_norm_no_update "
    "_native_batch_norm_legit batch_norm"
)
LAYER_NORMS = aten("native_layer_norm layer_norm")
RMS_NORMS = aten("rms_norm _fused_rms_norm")
OWN_STATISTICS = LAYER_NORMS | RMS_NORMS | aten("native_group_norm group_norm")
"""Norms by statistics of the input, at all times."""

SOFTMAXES = aten("softmax _softmax")
"""Positive numbers that sum to one; unlike ``_safe_softmax``, which is zero where a mask leaves nothing."""
SCALED_DOT_PRODUCTS = aten(
    "scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention _scaled_dot_product_attention_math "
    "_scaled_dot_product_fused_attention_overrideable"
)
ATTENTION = SOFTMAXES | SCALED_DOT_PRODUCTS | {"aten::_safe_softmax"}

LINEAR = {
    "aten::mm": ("self", "mat2", -2, ""),
    "aten::bmm": ("self", "mat2", -2, ""),
    "aten::matmul": ("self", "other", -2, ""),
    "aten::_grouped_mm": ("self", "mat2", -2, ""),
    "aten::addmm": ("mat1", "mat2", -2, "self"),
    "aten::baddbmm": ("batch1", "batch2", -2, "self"),
    "aten::linear": ("input", "weight", -1, "bias"),
    "aten::convolution": ("input", "weight", 1, "bias"),
}
"""Names of the input and the weight, dimension of the weight that is summed over, name of the bias."""

COPIES = aten("clone detach alias contiguous _to_copy to lift_fresh")
"""The same numbers in the same shape, perhaps of another type or in other memory."""
MEMORY_VIEWS = aten("view _unsafe_view")
"""Reshapes of memory, which may have another layout when a call is run again."""
SINGLES = aten("squeeze unsqueeze")
"""Axes of size one removed, or inserted."""
RESHAPES = MEMORY_VIEWS | SINGLES | aten("reshape flatten unflatten")
"""The same entries, row by row in the same order."""
TRANSPOSES = aten("permute transpose t movedim")
"""The same entries with the axes in another order."""
REARRANGEMENTS = COPIES | RESHAPES | TRANSPOSES
"""Every entry, once."""
PARTS = aten("slice select")
"""Some of the entries, none of them twice."""
REPEATS = aten("expand repeat")
"""Every entry, several times."""
FILLS = aten("zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty new_empty_strided")
"""Only the shape of the argument is read."""
DECOMPOSED = aten(
    "addcmul addcdiv mse_loss huber_loss smooth_l1_loss binary_cross_entropy binary_cross_entropy_with_logits "
    "nll_loss_forward nll_loss2d_forward aminmax mv dot vdot trace linalg_cross block_diag diag_embed index_fill "
    "narrow_copy pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle elu_backward split "
    "split_with_sizes unsafe_split unsafe_split_with_sizes split_with_sizes_copy unbind unbind_copy im2col col2im "
    "var_mean std_mean _weight_norm_interface lerp polar "
    "gelu_backward hardsigmoid_backward hardswish_backward hardtanh_backward leaky_relu_backward log_sigmoid_backward "
    "mish_backward sigmoid_backward silu_backward softplus_backward tanh_backward threshold_backward"
)
"""Recorded as plain operations: losses, derivatives, what moves entries about, and what returns several parts."""

R = TypeVar("R", bound=Callable[..., Any])


def registering(rules: dict[str, R], ops: Sequence[str]) -> Callable[[R], R]:
    """Decorator that enters a rule for some operations into a registry; malformed names are a ``ValueError``."""
    for op in ops:
        if not fullmatch(r"[\w-]+::\w+", op):
            raise ValueError(f'op must be a qualified name without overload, such as "mylib::gate". Got {op!r}.')

    def decorate(rule: R) -> R:
        rules.update(dict.fromkeys(ops, rule))
        return rule

    return decorate


def is_gate(call: Call) -> bool:
    """Whether a call is a ReLU (a clamp from below at 0, or two slopes: leaky, parametric, |q|) or a max pooling."""
    if call.op == "aten::threshold":
        return call.args["threshold"] == 0 and call.args["value"] == 0
    if call.op in CLAMPS:
        return nonlinearity(call.op, call.args["min"], call.args.get("max")) == "relu"
    return call.op in RELUS or call.op in MAX_POOLS


def gate_names(calls: Sequence[Call]) -> tuple[str, ...]:
    """A name for each gating call: its module, with ``#k`` if a module gates more than once."""
    labels = [call.module or call.op.removeprefix("aten::") for call in calls]
    return tuple(
        f"{label}#{labels[:i].count(label)}" if labels.count(label) > 1 else label for i, label in enumerate(labels)
    )


def slope_of(call: Call) -> Any:
    """The slope of a gate where it is off: 0 for a ReLU, -1 for the absolute value, a weight for ``PReLU``."""
    if call.op == "aten::leaky_relu":
        return call.args["negative_slope"]
    if call.op == "aten::_prelu_kernel":
        return call.args["weight"]
    return -1.0 if call.op == "aten::abs" else 0.0


def is_random(call: Call) -> bool:
    """Whether a call draws random numbers; dropout with probability zero does not."""
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
