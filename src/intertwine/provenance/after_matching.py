"""Test after matching: whether moved units agree more than those of networks known to be independent.

No exact test can see through laundering: it may only use what is the same for all orders and bases of the units, so
permuting them leaves nothing to compare with. Moreover, networks of one task learn similar units, so that they agree
beyond chance once matched. How much they agree is measured on independent networks, whose spread gives the p-value.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log

import torch
from torch import Tensor

from .._io.lazy import State
from ..matching.components import Pair, matched
from ..symmetry import Symmetry
from ..symmetry.action import moved
from ..symmetry.spaces import Layout
from ..symmetry.transformation import Transformation
from .comparable import Compared, compared
from .in_place import SpaceAgreement, TensorAgreement
from .p_values import log_exceedance
from .units import by_unit

_ROUNDING = 1e-12  # share of the weights' squares that float32 leaves
FEWEST = 4  # independent networks


@dataclass(frozen=True)
class Likeness:
    """Similarity of two networks after matching, in balanced coordinates."""

    explained: float  # Share of the weights' squares that the matched network explains
    tensors: Mapping[str, float]  # Cosine of every tensor of three entries or more
    units: Mapping[str, Tensor]  # Cosine of every unit with its partner, by space


@dataclass(frozen=True)
class Calibrated:
    """The result of matching, beside that for independent networks."""

    found: Likeness  # Likeness of the two networks
    independent: tuple[Likeness, ...]  # Likeness of the first with each independent network
    log_p: float  # Logarithm of the p-value
    # Agreement by space: units agree if their cosine is above that in all independent networks
    spaces: tuple[SpaceAgreement, ...]
    tensors: tuple[TensorAgreement, ...]  # Agreement by tensor


def likeness(pair: Compared, g: Transformation | None = None) -> Likeness:
    """Match two networks over the whole group of their architecture, as ``same`` does, and compare the result.

    ``g`` is the element that moves the first, if already known.
    """
    whole = pair.padded()
    g = matched(whole).g if g is None else g
    if pair.widths.differing:
        layouts: dict[str, Layout] = {}
        near: dict[str, Tensor] = {}
        met: dict[str, Tensor] = {}
        for sym, left, right in _moved(whole, g):
            layouts, near, met = {**layouts, **sym.layouts}, near | left, met | right
        sym = replace(whole.sym, layouts=layouts, batch_norms=())
        pair = replace(pair, widths=pair.widths.partnered(g, sym, near, met))
        whole = pair.padded()
        g = matched(whole).g
    tensors: dict[str, float] = {}
    sizes: dict[str, int] = {}
    sums: dict[str, Tensor] = {}
    for sym, near, met in _moved(whole, g):
        for name, layout in sym.layouts.items():
            x, y = near[name], met[name]
            if layout.spaces and y.numel() > 2:
                inner, norms = float((x * y).sum(dtype=torch.float64)), float(x.double().norm() * y.double().norm())
                tensors[name], sizes[name] = (inner / norms if norms > 0 else 0.0), y.numel()
            for space, products in by_unit(sym, name, x * y, x * x, y * y):
                sums[space] = sums.get(space, 0) + torch.stack(products)
    share = sum(max(cosine, 0.0) ** 2 * sizes[n] for n, cosine in tensors.items()) / max(sum(sizes.values()), 1)
    units = {s: (t[0] / (t[1] * t[2]).sqrt().clamp_min(1e-30)).flatten() for s, t in sums.items()}
    return Likeness(share, tensors, units)


def _moved(pair: Pair, g: Transformation) -> Iterator[tuple[Symmetry, dict[str, Tensor], dict[str, Tensor]]]:
    """Components in turn: the symmetry, the first network moved by ``g``, and the second, both balanced."""
    for index in range(len(pair.parts)):
        a, b, _ = pair.read(index)
        _, met = pair.normal(index, a, b)
        here = Transformation({s.name: g[s.name] for s in a.sym.spaces})
        yield met.sym, {**a.state, **moved(a.sym, met.to @ here, a.state)}, dict(met.state)


def calibrated(
    sym: Symmetry, a: State, pair: Compared, independent: Sequence[State], g: Transformation | None = None
) -> Calibrated:
    """Compare the likeness of ``a`` and another network (``pair``) after matching with that of independent ones.

    These were trained as the other would have been. If it has fewer units, they are thinned to as many.
    """
    found = likeness(pair, g)
    rest = [likeness(compared(sym, a, state, pair.widths.sizes[1])) for state in independent]
    spaces = []
    for name, cosines in found.units.items():
        others = [r.units[name] for r in rest if name in r.units]
        if len(others) < FEWEST:
            continue
        share = float((cosines > torch.stack([u.max() for u in others]).max()).double().mean())
        log_p = log_chance(float(cosines.mean()), [float(u.mean()) for u in others])
        spaces.append(SpaceAgreement(sym.titles[name], len(cosines), share, log_p, 1.0, 0.0))
    tensors = []
    for name, cosine in found.tensors.items():
        known = [r.tensors[name] for r in rest if name in r.tensors]
        alone = log_chance(cosine, known) if len(known) >= FEWEST else None
        tensors.append(TensorAgreement(name, cosine, False, alone))
    log_p = log_chance(found.explained, [r.explained for r in rest])
    return Calibrated(found, tuple(rest), log_p, tuple(spaces), tuple(tensors))


def log_chance(likeness: float, independent: Sequence[float]) -> float:
    """Logarithm of the probability that another independent network is as similar, from ``-log(1 - likeness)``.

    The likeness is a share of all weights' squares, or a cosine. For a cosine ``c`` of three or more entries in random
    directions, the hazard rate of ``-log(1 - c)`` never falls. For its square it would, with a density infinite at 0.
    """
    u, *others = (-log(max(1 - x, _ROUNDING)) for x in (likeness, *independent))
    return log_exceedance(u, others)
