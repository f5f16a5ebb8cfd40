"""Path kernels of fully connected networks: products of Grams of gates (theorem 3.1), whole numbers for hard gates."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from ... import _memory
from ..._evaluation import in_usual_mode
from ..._progress import track

LARGEST = {torch.float32: 1 << 24, torch.int32: (1 << 31) - 1}  # whole numbers up to this are exact


def gram(a: Tensor, b: Tensor, hard: bool | None = None) -> Tensor:
    """``a b^T`` of gates ``(n, w)`` and ``(m, w)``: for ``hard`` ones counts, exact in int32 or float32; else float64.

    Products of bytes are about seven times as fast as float32.
    """
    if hard or (hard is None and a.dtype == b.dtype == torch.bool):
        if a.dtype == torch.bool and a.shape[1] > 1 and _in_bytes(a):  # of width 1 it leaves memory as it was
            return torch._int_mm(a.contiguous().view(torch.int8), b.contiguous().view(torch.int8).T)
        if a.shape[1] <= LARGEST[torch.float32]:
            return a.float() @ b.float().T
    return a.double() @ b.double().T


def ready(gates: Sequence[Tensor], room: int) -> list[Tensor]:
    """Gates for many products: bool ones in float32 where bytes are not multiplied, if that fits in ``room`` bytes."""
    bits = [g for g in gates if g.dtype == torch.bool and not _in_bytes(g)]
    if not bits or 4 * sum(g.numel() for g in bits) > room:
        return list(gates)
    return [g.float() if g.dtype == torch.bool else g for g in gates]


def exact_products(pairs: Sequence[tuple[Tensor, Tensor]], hard: bool | None = None) -> Iterator[Tensor]:
    """Grams of all layers, multiplied with each other as long as their widths guarantee exact counts."""
    held, largest = gram(*pairs[0], hard), pairs[0][0].shape[1]
    for a, b in pairs[1:]:
        g = gram(a, b, hard)
        if held.dtype == g.dtype and largest * a.shape[1] <= LARGEST.get(g.dtype, 0):
            held.mul_(g)
            largest *= a.shape[1]
        else:
            yield held
            held, largest = g, a.shape[1]
    yield held


def _in_bytes(gates: Tensor) -> bool:
    return gates.device.type == "cpu" and _bytes_are_exact()


@cache
def _bytes_are_exact() -> bool:
    """Whether products of bytes are fast here, and right: tested once on counts that fill several blocks."""
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


_TILES, _LARGE_TILE = {"cpu": 256}, 2048
"""Examples on each side of a tile: as many as stay in a processor's cache, or fill an accelerator."""
_ROOM = 690.0
"""e^690 < 1.8e308: logarithm of the largest number that a product may reach."""


@in_usual_mode
def product_kernel(
    x: Tensor, gates: Sequence[Tensor], y: Tensor | None = None, gates_y: Sequence[Tensor] | None = None, *,
    input: str = "x", log: bool = False, biases: Sequence[bool] | None = None, progress: bool | None = None,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """``NPK(x, y) = <x, y> prod_l <G_l(x), G_l(y)>`` (P2 theorem 3.1, lemma 2.1), for fully connected networks.

    With constant input 1 the first factor is ``d_in``. The order of layers does not matter, except with biases (the
    paper has none): paths then also begin at a constant 1 in each layer, ``K_l = K_(l-1) <G_l(x), G_l(y)> + 1``.

    Besides the gates and the result, only tiles of 256 by 256 (2,048 on a GPU) are held; if the processor does not
    multiply bytes, float32 copies of either side too.

    Args:
        x: Inputs ``(N, d_in)``.
        gates: Gates of each layer ``(N, w_l)``: bool, or numbers (soft gates).
        y: Inputs ``(M, d_in)``; by default ``x`` itself.
        gates_y: Their gates, to be given together with ``y``.
        input: ``"x"`` or ``"ones"``.
        log: Return ``(log |K|, sign)``: exact at any width and depth.
        biases: For each layer of weights, so one more than gates, whether it has biases; by default none has.
        progress: Whether to show progress.

    Returns:
        The kernel ``(N, M)`` in float64. Products of hard gates are exact integers below 2^53.

    Raises:
        ValueError: If shapes do not match, x is not finite, an option is unknown, or the kernel overflows or does not
            fit in memory.

    Examples:
        >>> x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> gates = [torch.tensor([[True, True], [True, False]])]
        >>> product_kernel(x, gates)
        tensor([[10., 11.],
                [11., 25.]], dtype=torch.float64)
    """
    if input not in ("x", "ones"):
        raise ValueError(f'input must be "x" or "ones". Got {input!r}.')
    if (y is None) != (gates_y is None):
        raise ValueError("y and gates_y must be given together. Got one of them.")
    z, right = x if y is None else y, _other(gates, gates_y)
    for name, given, side in (("x", x, gates), ("y", z, right)):
        if given.dim() != 2 or any(len(g) != len(given) for g in side):
            shapes = [tuple(g.shape) for g in side]
            raise ValueError(
                f"{name} and its gates must be (N, d_in) and (N, w). Got {tuple(given.shape)} and {shapes}."
            )
    if not all(z.isfinite().all() for z in (x, y) if z is not None):
        raise ValueError("x and y must be finite. Got NaN or infinite entries.")
    biases = (False,) * (len(gates) + 1) if biases is None else tuple(biases)
    if len(biases) != len(gates) + 1:
        raise ValueError(f"biases must have one entry for each of {len(gates) + 1} layers. Got {len(biases)}.")
    check_fits((len(x), len(z)), 9 if log else 8, x.device)
    dtypes = (torch.float64, torch.int8) if log else (torch.float64,)
    found = tuple(torch.empty(len(x), len(z), dtype=dtype, device=x.device) for dtype in dtypes)
    kernel = found[0]
    hard = all(g.dtype == torch.bool for g in (*gates, *right))
    left = ready(gates, kernel.nbytes)
    right = left if right is gates else ready(right, kernel.nbytes)
    size = _TILES.get(x.device.type, _LARGE_TILE)
    for i, j in track(list(tiles(len(x), len(z), y is None, size)), "path kernel", enabled=progress):
        first = x[i].double() @ z[j].double().T if input == "x" else torch.full_like(kernel[i, j], x.shape[1])
        pairs = [(a[i], b[j]) for a, b in zip(left, right)]
        first, factors = first.add_(1) if biases[0] else first, _factors(pairs, biases, hard)
        for g, bias in () if log else factors:
            first = first.mul_(g).add_(1) if bias else first.mul_(g)
        for whole, part in zip(found, _logarithm(first, factors) if log else [first]):
            whole[i, j] = part
            if y is None and i != j:
                whole[j, i] = part.T
    if not log and not kernel.sum().isfinite() and not kernel.isfinite().all():  # one fast pass
        raise ValueError("the kernel must fit in float64. Got infinite entries. Use log=True.")
    return (kernel, found[1]) if log else kernel


def base_kernels(gates: Sequence[Tensor], gates_y: Sequence[Tensor] | None = None) -> Tensor:
    """Correlation of the gates of each layer, ``<G_l(x), G_l(y)> / w_l`` (P2 section 3.1.1).

    Args:
        gates: Gates of each layer ``(N, w_l)``.
        gates_y: Gates ``(M, w_l)``; by default ``gates`` themselves.

    Returns:
        Kernels ``(layers, N, M)``, between 0 and 1 for hard gates.

    Examples:
        >>> base_kernels([torch.tensor([[True, True], [True, False]])])
        tensor([[[1.0000, 0.5000],
                 [0.5000, 0.5000]]], dtype=torch.float64)
    """
    other = _other(gates, gates_y)
    return torch.stack([gram(a, b).double() / a.shape[1] for a, b in zip(gates, other)])


def _other(gates: Sequence[Tensor], gates_y: Sequence[Tensor] | None) -> Sequence[Tensor]:
    """Gates of the other side, for the same layers."""
    other = gates if gates_y is None else gates_y
    shapes = [[tuple(g.shape) for g in side] for side in (gates, other)]
    if not gates or [s[1:] for s in shapes[0]] != [s[1:] for s in shapes[1]] or any(len(s) != 2 for s in shapes[0]):
        raise ValueError(f"gates must be layers (N, w_l), and gates_y (M, w_l) of the same widths. Got {shapes}.")
    return other


def tiles(n: int, m: int, same: bool, size: int) -> Iterator[tuple[slice, slice]]:
    """Tiles of pairs of ``n`` and ``m`` examples, ``size`` on each side; one triangle where both are the ``same``."""
    for i in range(0, n, size):
        for j in range(i if same else 0, m, size):
            yield slice(i, i + size), slice(j, j + size)


def _factors(
    pairs: Sequence[tuple[Tensor, Tensor]], biases: Sequence[bool], hard: bool
) -> Iterator[tuple[Tensor, bool]]:
    """Grams, and whether a bias follows each; without biases layers may be multiplied with each other first."""
    if not any(biases[1:]):
        return ((g, False) for g in exact_products(pairs, hard))
    return ((gram(a, b, hard), bias) for (a, b), bias in zip(pairs, biases[1:]))


def _logarithm(kernel: Tensor, factors: Iterator[tuple[Tensor, bool]]) -> tuple[Tensor, Tensor]:
    """``log |K|`` and the sign of K, with an exponent for each entry: numbers are rescaled before they overflow."""
    exponent = torch.zeros_like(kernel)  # K = kernel 2^exponent
    room, scaled = _ROOM - math.log(max(float(kernel.abs().max()), 1.0) + 1), False
    for g, bias in factors:
        size = math.log(float(g.abs().max()) + 1)
        if size > room or g.dtype == torch.float64:  # soft gates may be small as well as large
            kernel, more = torch.frexp(kernel)
            exponent.add_(more)
            room, scaled = _ROOM, True
        kernel.mul_(g)
        room -= size
        if bias:
            kernel.add_(exponent.masked_fill_(kernel == 0, 0).neg().exp2_() if scaled else 1)
    return kernel.abs().log_().add_(exponent, alpha=math.log(2)), kernel.sign().to(torch.int8)


@dataclass(frozen=True)
class Budget:
    """Budget of a path kernel.

    Attributes:
        memory: Bytes of one tile, besides gates and result.
        max_operations: Multiply-adds above which the work is refused.
        batch_size: Examples that run through the network at once, for their gates.
    """

    memory: float = 2**28
    max_operations: float = 1e14
    batch_size: int = 500


DEFAULT = Budget()


def check_fits(shape: Sequence[int], bytes_each: int, device: torch.device, beside: int = 0) -> None:
    """Check that a kernel fits into the free memory of a device, with what is held ``beside`` it (bytes)."""
    _memory.check_fits(
        math.prod(shape) * bytes_each + beside,
        "the kernel",
        f"shape {tuple(shape)} with its gates",
        "Take fewer examples, or one block of rows at a time: x[:k] against y = x.",
        device,
    )
