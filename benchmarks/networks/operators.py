"""torchvision beside another build of PyTorch: its compiled operators are declared, so that its Python part imports."""

from __future__ import annotations

import functools
import importlib.util
from typing import Any

import torch

__all__ = ["ready"]

_ROI = "Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width"
_MISSING = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align": f"({_ROI}, int sampling_ratio, bool aligned) -> Tensor",
    "roi_pool": f"({_ROI}) -> (Tensor, Tensor)",
    "deform_conv2d": (
        "(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, SymInt stride_w, "
        "SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, SymInt offset_groups, "
        "bool use_mask) -> Tensor"
    ),
}


@functools.cache
def ready() -> Any:
    """Make ``import torchvision`` work.

    A wheel of torchvision built for CUDA leaves its compiled operators out where PyTorch is a CPU build, and then
    fails to import, because it registers shapes for operators that do not exist. The networks tried here use none of
    them, so their signatures are enough. Where torchvision's own operators load, nothing is declared.

    Returns:
        The library that holds the declarations, or ``None``.
    """
    if importlib.util.find_spec("torchvision") is None or hasattr(torch.ops.torchvision, "nms"):
        return None
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        declared = torch.library.Library("torchvision", "FRAGMENT")
        for name, signature in _MISSING.items():
            declared.define(name + signature)
        return declared
    return None
