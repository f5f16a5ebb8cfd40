"""Features in the form that all measures take: checked, channels first, with per-channel moments in float64."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..features import Point
from ..features.moments import ChannelMoments, double

_MIN_EXAMPLES = 4  # the unbiased estimators divide by N (N - 3)
_BLOCK = 1 << 21  # elements that are upcast to float64 at a time: 16 MB


def channels_first(x: Tensor, channel_dim: int = 1, name: str = "features") -> Tensor:
    """Features, checked, as a detached view ``(N, C, *S)``."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a tensor (N, C, *S). Got {type(x).__name__}. Use torch.as_tensor(...).")
    if not x.is_floating_point():
        instead = "torch.view_as_real(...) or .abs()" if x.is_complex() else ".float()"
        raise TypeError(f"{name} must be floating point. Got {x.dtype}. Use {instead}.")
    if x.dtype.itemsize < 2:
        raise TypeError(f"{name} must have 16 bits or more. Got {x.dtype}, which has no arithmetic. Use .float().")
    if x.layout != torch.strided:
        raise TypeError(f"{name} must be a dense tensor. Got layout {x.layout}. Use .to_dense().")
    if x.ndim < 2:
        raise ValueError(f"{name} must have an example axis and a channel axis (N, C, *S). Got shape {tuple(x.shape)}.")
    if not -x.ndim <= channel_dim < x.ndim or channel_dim % x.ndim == 0:
        shape = tuple(x.shape)
        at = f"Got {channel_dim} for shape {shape}. Transpose features that have channels first."
        raise ValueError(f"channel_dim must be an axis of {name} other than 0, the axis of examples. {at}")
    if x.shape[0] < _MIN_EXAMPLES:
        raise ValueError(
            f"{name} must hold at least {_MIN_EXAMPLES} examples: with 3 or fewer the unbiased estimators divide by "
            f"zero and every score is chance. Got {x.shape[0]}. Use more data."
        )
    if x.numel() == 0:
        raise ValueError(f"{name} must not be empty. Got shape {tuple(x.shape)}.")
    return x.detach().movedim(channel_dim, 1)


def check_same_examples(n: int, m: int) -> None:
    """Refuse two sides that do not hold the same examples."""
    if n != m:
        raise ValueError(
            f"x and y must hold the same examples in the same order, along their first axis. Got {n} and {m} examples. "
            "Collect both from one loader that does not shuffle; transpose arrays that have channels first."
        )


def check_distinct(index: Tensor, of: Tensor, n: int) -> tuple[Tensor, bool]:
    """A checked index of ``n`` examples on the device of ``of``, and whether it permutes all; repeats are refused."""
    if index.ndim != 1 or index.numel() < _MIN_EXAMPLES:
        shape = tuple(index.shape)
        raise ValueError(f"index must be a vector of at least {_MIN_EXAMPLES} examples. Got shape {shape}.")
    ordered = index.sort().values
    if ordered[0] < 0 or ordered[-1] >= n:
        raise ValueError(f"index must name examples 0 to {n - 1}. Got {int(ordered[0])} to {int(ordered[-1])}.")
    if (ordered[1:] == ordered[:-1]).any():
        raise ValueError(
            "index must name each example at most once. Got repeated examples, which put an example's similarity to "
            "itself off the diagonal (resampling with replacement lifts unbiased CKA of independent data from 0 to "
            "0.97). Subsample without replacement."
        )
    return index.to(of.device), index.numel() == n


def working_dtype(x: Tensor | Point) -> torch.dtype:
    """Type in which features are kept and kernels are computed: float64 stays, everything else is float32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def subtract(x: Tensor, shift: Tensor) -> Tensor:
    """Subtract a float64 ``shift`` from ``x`` in place, at the precision of the difference.

    A mean rounded to float32 is off by a tenth of a channel's spread if the channel's offset is a million times that
    spread. So the part of the shift that rounding loses is subtracted too.
    """
    first = shift.to(x)
    x -= first
    if x.dtype != torch.float64:
        x -= (shift - first.to(shift)).to(x)
    return x


def is_constant(low: Tensor, high: Tensor) -> Tensor:
    """Whether channels are constant, by their extremes: up to two last places of the larger one, for any count."""
    size = torch.maximum(-low, high).to(working_dtype(low))
    return (high - low).to(size) <= 2 * torch.finfo(size.dtype).eps * size


def positions_last(x: Tensor) -> Tensor:
    """Features ``(N, C, *S)`` as ``(N, C, P)``, with one position if there is no space."""
    return x.flatten(2) if x.ndim > 2 else x[:, :, None]


def example_blocks(x: Tensor) -> Iterator[slice]:
    """Slices of examples whose float64 copies stay small."""
    step = max(1, _BLOCK // max(1, x[0].numel()))
    return (slice(start, min(len(x), start + step)) for start in range(0, len(x), step))


@dataclass(frozen=True)
class Moments:
    """Sums over examples and space of every channel, ``(C,)`` in float64, and which channels carry no information."""

    mean: Tensor
    norm: Tensor  # root of the sum of squares
    spread: Tensor  # the same about the mean; exactly 0 for constant channels
    dead: Tensor  # zero everywhere, bool
    constant: Tensor  # vary by no more than their own rounding, bool; dead ones included
    negative: bool  # whether any value is negative


def moments(x: Tensor, name: str = "features") -> Moments:
    """Moments of ``x``, ``(N, C, *S)``, without cancellation; refused if a value or its square is not finite."""
    others = [d for d in range(x.ndim) if d != 1]
    count = x.numel() // x.shape[1]
    low, high = x.amin(others), x.amax(others)  # NaN spreads to both
    bad = ~(torch.isfinite(low) & torch.isfinite(high))
    if bad.any():
        raise ValueError(
            f"{name} must be finite. Got NaN or infinite values in {int(bad.sum())} of {x.shape[1]} channels. "
            "Look for overflow (half precision?) or a division by zero in the model."
        )
    constant, low, high = is_constant(low, high), double(low), double(high)
    size = torch.maximum(-low, high)
    if size.max() ** 2 * count == torch.inf:
        raise ValueError(f"{name} must be small enough for their squares, below 1e150. Got {float(size.max()):.1e}.")
    unit = torch.where(size < 1e-100, unit_scale(size[:, None])[:, 0], 1)  # squares of tiny values would be 0
    units, tiny, found = unit.view(1, -1, *[1] * (x.ndim - 2)), bool((unit != 1).any()), ChannelMoments()
    for b in example_blocks(x):
        found.add(double(x[b]) * units if tiny else x[b])
    norm = (found.squares + count * found.mean**2).sqrt() / unit
    spread = torch.where(constant, 0.0, found.squares.sqrt() / unit)
    return Moments(found.mean / unit, norm, spread, size == 0, constant, bool((low < 0).any()))


def unit_scale(sizes: Tensor) -> Tensor:
    """The power of 2 ``(..., 1)`` that brings the largest of sizes ``(..., n)`` to 1 or a little below; 1 for 0."""
    largest = sizes.amax(-1, keepdim=True)
    return torch.ldexp(torch.ones_like(largest), -torch.frexp(largest).exponent.clamp(min=-1000, max=1000))
