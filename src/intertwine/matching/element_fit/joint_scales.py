"""Gauss-Newton steps for the log scales of all spaces at once, towards the scales of another network.

Where one tensor joins two spaces, fits of one space after the other hardly move.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor

from ...symmetry.gauge.scales import Key, LogScales
from ..judgement.deviation import gap

__all__ = ["scale_steps"]

_STEPS = 12  # Gauss-Newton steps: each leaves a hundredth of an error that scales explain, and rounding is 1e-16
_GAIN = 1e-3  # share of the error that a step must explain to be followed by another: noise stays, copies lose all
_LEAP = 1.0  # largest change of a log scale in one step, beyond which the linear model is wrong
_SETTLED = 1e-13  # steps below it are rounding


def scale_steps(
    system: LogScales, a: Mapping[str, Tensor], b: Mapping[str, Tensor], votes: Mapping[str, Tensor]
) -> Iterator[dict[str, Tensor]]:
    """Steps towards the scales for which ``Σ v |g a - b|²`` is smallest; the caller moves ``a`` between them.

    Args:
        system: The scales.
        a: Tensors, read anew for every step.
        b: Tensors to meet.
        votes: The weight ``v`` of each tensor.

    Yields:
        Name of each space to the change of its log scales ``(k, p..., n)``.
    """
    for _ in range(_STEPS if system.pieces else 0):
        squares, slope, error = _sums(system, a, b, votes)
        step = system.solved(squares, slope)
        if not float(step.abs().max()) > _SETTLED:
            return
        yield system.split(step.clamp(-_LEAP, _LEAP))
        if not float(step @ slope) > _GAIN * error:
            return


def _sums(
    system: LogScales, a: Mapping[str, Tensor], b: Mapping[str, Tensor], votes: Mapping[str, Tensor]
) -> tuple[dict[Key, Tensor], Tensor, float]:
    """Sums of ``v x²``, blocks that join the same spaces added up, the descent ``Σ v x (y - x)``, the error."""
    squares: dict[Key, Tensor] = {}
    slope, error = system.zero(), 0.0
    for piece in system.pieces:
        vote = votes[piece.tensor]
        x, y = piece.block.read(a[piece.tensor]), piece.block.read(b[piece.tensor])
        error += float(vote) * gap(x, y) ** 2
        slope += system.gathered(system.totals({piece.key: vote * piece.summed(x, y, less=x)}))
        total = vote * piece.summed(x, x)
        squares[piece.key] = squares[piece.key].add_(total) if piece.key in squares else total
    return squares, slope, error
