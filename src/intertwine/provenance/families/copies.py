"""Copies in other coordinates: numbers of a network that its symmetry group does not change, and what they find."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ...matching.closest import normalised
from ...symmetry import Symmetry
from ...symmetry.blocks import blocks
from ...symmetry.coupling import components, restricted
from ...symmetry.gauge.folding import fold
from ..compared import compared

_COMPONENT = 16_000_000  # weights that are balanced at once
_POWERS = 4


def invariants(sym: Symmetry, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """For every block of every tensor ``log tr(X Xᵀ)^k / k`` for ``k = 1, ..., 4`` in balanced coordinates.

    Permutations, signs and rotations of units leave them as they are, and balancing takes the scales out.
    """
    part, *_ = compared(sym, state, state).padded()
    found = {}
    for names in components(part, _COMPONENT).names:
        here = restricted(part, names) if len(names) < len(part.layouts) else part
        normal = normalised(fold(here, {n: state[n] for n in here.layouts}, torch.float32))
        for name, layout in normal.sym.layouts.items():
            for k, block in enumerate(blocks(layout)):
                x = block.read(normal.state[name]).double()
                x = x.flatten(1) if x.ndim > 1 else x[:, None]
                x = x if x.shape[0] <= x.shape[1] else x.mT
                if block.moved and bool(x.any()):
                    found[f"{name} {k}"] = _moments(x)
    return found


def closest_pairs(found: Sequence[Mapping[str, Tensor]], close: float) -> list[tuple[int, int]]:
    """Pairs of which each is the other's nearest by far: nearer than ``close`` times the median of all pairs.

    With few networks there is no median to speak of, and nearest pairs all count.
    """
    count = len(found)
    gaps = torch.full((count, count), torch.inf, dtype=torch.float64)
    for i in range(count):
        for j in range(i):
            names = [n for n in found[i] if n in found[j] and found[i][n].shape == found[j][n].shape]
            if names:
                each = [float((found[i][n] - found[j][n]).abs().mean()) for n in names]
                gaps[i, j] = gaps[j, i] = sum(each) / len(each)
    known = gaps[gaps.isfinite()]
    if not len(known):
        return []
    most = float(known.median()) * close if count > 3 else torch.inf
    return [(i, j) for i in range(count) for j in range(i) if float(gaps[i, j]) <= most and torch.isfinite(gaps[i, j])]


def _moments(x: Tensor) -> Tensor:
    gram, power, found = x @ x.mT, torch.eye(len(x), dtype=x.dtype), []
    for k in range(1, _POWERS + 1):
        power = power @ gram
        found.append(power.trace().clamp_min(1e-300).log() / k)
    return torch.stack(found)
