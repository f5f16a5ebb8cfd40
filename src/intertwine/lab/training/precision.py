"""Check that this machine multiplies in bfloat16."""

from typing import Literal

import torch

from .accuracy import choose_device

_UNITS = ("amx_tile", "avx512_bf16")  # of CPUs


def fast_precision(device: str | torch.device = "auto") -> Literal["float32", "bfloat16"]:
    """The precision in which training is fastest here: bfloat16 where the hardware multiplies in it.

    Elsewhere bfloat16 is emulated, and slower than float32.

    Args:
        device: ``"auto"`` is CUDA where there is one.

    Returns:
        A value for ``Recipe.precision``.

    Raises:
        ValueError: If this machine has no such device.

    Examples:
        >>> fast_precision("cpu") in ("float32", "bfloat16")
        True
    """  # noqa: DOC502 - raised by choose_device()
    kind = choose_device(device).type
    if kind == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        asks = (getattr(torch.cpu, f"_is_{unit}_supported", None) for unit in _UNITS)  # absent in some builds
        native = kind == "cpu" and any(ask() for ask in asks if ask)
    return "bfloat16" if native else "float32"
