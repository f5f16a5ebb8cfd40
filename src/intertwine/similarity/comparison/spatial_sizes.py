"""Feature maps of different sizes, brought to one size for measures that need it."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Protocol

from torch import Tensor
from torch.nn import functional as F

_POOLS: dict[int, Callable[..., Any]] = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}


class _Sized(Protocol):
    @property
    def space(self) -> tuple[int, ...]: ...


def common_space(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """The spatial size at which features of sizes ``a`` and ``b`` are compared.

    The paper compares layers of equal size only (v2 D.7.1, v1 D.3.1). Here the finer side is averaged down to the
    coarser one, axis by axis. Tokens and a map of as many positions are matched in row-major order; for any other
    difference in the number of axes (a vector against a map) space is averaged away.

    Examples:
        >>> common_space((32, 32), (16, 16)), common_space((8, 8), ()), common_space((64,), (8, 8))
        ((16, 16), (), (64,))
    """
    if len(a) == len(b) and len(a) in {0, *_POOLS}:
        return tuple(map(min, a, b))
    if 1 in (len(a), len(b)) and prod(a) == prod(b):
        return (prod(a),)
    return a if a == b else ()


def pool(x: Tensor, space: tuple[int, ...]) -> Tensor:
    """Features ``(N, C, *S)`` at the spatial size ``space``, as :func:`common_space` gives it."""
    if tuple(x.shape[2:]) == space:
        return x
    if not space:
        return x.flatten(2).mean(2)
    if x.ndim - 2 != len(space):
        return x.flatten(2)
    return _POOLS[len(space)](x, space if len(space) > 1 else space[0])


def pooling_note(measure: str, a: Sequence[_Sized], b: Sequence[_Sized]) -> str | None:
    """Say which sizes were averaged to which for a measure; ``None`` where all are equal."""
    sizes = dict.fromkeys((x.space, y.space) for x in a for y in b if x.space != y.space)
    if not sizes:
        return None
    pairs = {" with ".join(sorted((_words(s), _words(t)))): common_space(s, t) for s, t in sizes}
    listed = "; ".join(f"{pair} at {_words(space)}" if space else f"{pair} by mean" for pair, space in pairs.items())
    return f"{measure} compares feature maps of different sizes after averaging the finer one: {listed}."


def _words(space: tuple[int, ...]) -> str:
    """A spatial size in words, such as ``16x16``."""
    return "x".join(map(str, space)) or "no map"
