"""Balanced scales: of all copies of a network that scales connect, the one with (almost) the smallest squared weights.

    minimise  Σ_x exp(2 s_x) x²  −  2 κ Σ_x w_x s_x      over the log scales of all units

where ``s_x`` is what the scales add to the logarithm of the weight ``x`` and ``w_x`` shares one vote among the entries
of a slice. The second term (``κ = 0.01``) keeps weights whose scale is not bounded below, such as the directions of a
weight norm, from vanishing; it is zero along changes that move no weight. The function is convex, and what it says of a
network depends on neither the scales that it came in nor, much, on noise: a network that was trained with weight decay
is there already, and slices with small norms, such as biases near zero, hardly count.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .log_scales import Factors, Key, LogScales

if TYPE_CHECKING:
    from ..symmetry import Symmetry

_KAPPA = 0.01
_PIN = 1e6  # votes of a variance that must become 1
_STEPS = 200  # of Newton's method; a few are needed from balanced weights on, a dozen from elsewhere
_LEAP = 2.0  # largest change of a log scale in one step
_SURE = 1e-3  # steps below it are taken without asking whether the sum falls
_NOISE = 1e-9  # steps below it that do not shrink are rounding


def balancing_scales(
    sym: Symmetry,
    state: Mapping[str, Tensor],
    pinned: frozenset[str] = frozenset(),
    tolerance: float = 1e-12,
    start: Mapping[str, Tensor] | None = None,
    bases: bool = True,
) -> dict[str, Tensor]:
    """The log scales that balance a network, by Newton's method.

    Args:
        sym: The symmetry, batch norms folded; bases of linear spaces stay.
        state: Tensors.
        pinned: Tensors whose entries must become 1 instead.
        tolerance: Change of a log scale below which the search ends.
        start: Log scales that are nearly right.
        bases: Whether bases of linear spaces take up what scales of the units around them do; those scales stay then.

    Returns:
        Name of each space with scales to its log scales ``(k, p..., n)``.
    """
    system = LogScales(sym, [name for name in sym.layouts if name in state], bases)
    logs = system.zero()
    if not system.pieces:
        return system.split(logs)
    if start is not None:
        logs = torch.cat([start[name].flatten() for name in system.split(logs)])
    squares, votes = _sums(system, state, pinned)

    def scaled(at: Tensor) -> tuple[Factors, Tensor, float]:
        """The factors of squares under scales, the sums for each scale, and what is to be minimised."""
        factors = system.factors(at)
        totals = system.totals(squares, factors)
        value = sum(float(some[0].sum()) for some in totals.values()) - 2 * float(votes @ at)
        return factors, system.gathered(totals), value

    here = scaled(logs)
    before = float("inf")
    for _ in range(_STEPS):
        step = system.solved(squares, votes - here[1], here[0]) / 2
        size = float(step.abs().max())
        share = min(1.0, _LEAP / max(size, 1e-300))
        new = scaled(logs + share * step)
        while not new[2] <= here[2] and share * size > _SURE:
            share /= 2
            new = scaled(logs + share * step)
        logs, here = logs + share * step, new
        if size < tolerance or (size < _NOISE and size > 0.5 * before):
            break
        before = size
    return system.split(logs)


def _sums(system: LogScales, state: Mapping[str, Tensor], pinned: frozenset[str]) -> tuple[dict[Key, Tensor], Tensor]:
    """Sums of squares, and the votes for each scale."""
    squares: dict[Key, Tensor] = {}
    votes = system.zero()
    for piece in system.pieces:
        x = piece.block.read(state[piece.tensor])
        x = piece.summed(x, x)
        share = _KAPPA * max(x.shape, default=1) / max(x.numel(), 1)
        if piece.tensor in pinned:
            x, share = _PIN * x, _PIN
        votes += share * system.gathered(system.totals({piece.key: (x > 0).float()}))
        squares[piece.key] = squares[piece.key].add_(x) if piece.key in squares else x
    return squares, votes
