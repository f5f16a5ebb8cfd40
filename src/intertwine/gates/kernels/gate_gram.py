"""Grams of gates: how many gates two inputs share, in whole numbers where gates are on or off."""

from collections.abc import Iterator, Sequence
from functools import cache

import torch
from torch import Tensor

_LARGEST = {torch.float32: 1 << 24, torch.int32: (1 << 31) - 1}  # whole numbers up to it are exact


def gram(a: Tensor, b: Tensor, hard: bool | None = None) -> Tensor:
    """``a b^T`` of gates ``(n, w)`` and ``(m, w)``.

    Of hard gates these are counts, exact in int32 where the processor multiplies bytes (about seven times as fast as
    float32) and in float32 elsewhere; of all others, sums in float64. Gates are hard if they are bool, or ``ready``
    made them of such.
    """
    if hard or (hard is None and a.dtype == b.dtype == torch.bool):
        if a.dtype == torch.bool and a.shape[1] > 1 and _in_bytes(a):  # of width 1 it leaves memory as it was
            return torch._int_mm(a.contiguous().view(torch.int8), b.contiguous().view(torch.int8).T)
        if a.shape[1] <= _LARGEST[torch.float32]:
            return a.float() @ b.float().T
    return a.double() @ b.double().T


def ready(gates: Sequence[Tensor], room: int) -> list[Tensor]:
    """Gates for many products: bool ones in float32 where bytes are not multiplied, if that takes ``room`` bytes."""
    bits = [g for g in gates if g.dtype == torch.bool and not _in_bytes(g)]
    if not bits or 4 * sum(g.numel() for g in bits) > room:
        return list(gates)
    return [g.float() if g.dtype == torch.bool else g for g in gates]


def exact_products(pairs: Sequence[tuple[Tensor, Tensor]], hard: bool | None = None) -> Iterator[Tensor]:
    """Grams of all layers, multiplied with each other as long as their widths say that the counts stay exact."""
    held, largest = gram(*pairs[0], hard), pairs[0][0].shape[1]
    for a, b in pairs[1:]:
        g = gram(a, b, hard)
        if held.dtype == g.dtype and largest * a.shape[1] <= _LARGEST.get(g.dtype, 0):
            held.mul_(g)
            largest *= a.shape[1]
        else:
            yield held
            held, largest = g, a.shape[1]
    yield held


def tile_size(gates: Sequence[Tensor]) -> int:
    """Examples on each side of a tile: what stays in the cache of a processor, or what fills an accelerator."""
    return 256 if gates[0].device.type == "cpu" else 2048


def _in_bytes(gates: Tensor) -> bool:
    return gates.device.type == "cpu" and _bytes_are_exact()


@cache
def _bytes_are_exact() -> bool:
    """Whether products of bytes are fast here, and right: tried once on counts that fill several blocks."""
    supported = getattr(torch.cpu, "_is_vnni_supported", None)
    if supported is None or not supported() or not hasattr(torch, "_int_mm"):
        return False
    i, j = torch.arange(33, device="cpu")[:, None], torch.arange(1030, device="cpu")
    trial = (i * j + j) % 7 < 4
    try:
        found = torch._int_mm(trial.view(torch.int8), trial.view(torch.int8).T)
    except RuntimeError:
        return False
    return bool((found == (trial.double() @ trial.double().T)).all())
