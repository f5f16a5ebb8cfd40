"""Networks that are weighted sums of two others, as averaging and spherical interpolation leave them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

_SHARE = 0.05  # weight of a parent from which on it counts
_ROUNDED = 0.02  # of the parents' distance: what rounding leaves of a merge
_MOST = 12  # relatives of one network of which pairs are looked at


@dataclass(frozen=True)
class Merge:
    """A network with weights of two others.

    Attributes:
        child: The network.
        parents: The two.
        weights: Their weights in it, the mean over tensors by how far the parents are apart there.
        residual: What is left of it, over the distance of the parents: rounding, or what it was trained since.
        told: Whether it is between them (up to rounding), or related to both, which are unrelated. Neither tells which
            is later: what both come from lies between them, too, and a network may be extrapolated from two others.
    """

    child: str
    parents: tuple[str, str]
    weights: tuple[float, float]
    residual: float
    told: str


def merges(
    states: Mapping[str, Mapping[str, Tensor]], related: Collection[frozenset[str]], names: Sequence[str]
) -> tuple[Merge, ...]:
    """Networks that hold weights of two of their relatives: merges, or what these were made from.

    Either a network is ``w a + v b`` tensor by tensor with positive weights, up to rounding; or it is related to two
    networks that are not related to each other, and so holds weights of both.

    Args:
        states: Tensors by the name of a network.
        related: Pairs that are not independent.
        names: Tensors to look at; those that networks hold in other shapes are left out.
    """
    kin: dict[str, list[str]] = {}
    for one, other in sorted(sorted(pair) for pair in related):
        kin.setdefault(one, []).append(other)
        kin.setdefault(other, []).append(one)
    found = []
    for child, relatives in kin.items():
        if len(relatives) < 2:
            continue
        members = [child, *relatives[:_MOST]]
        best = None
        for (i, a), (j, b) in combinations(enumerate(members[1:], 1), 2):
            grams = _grams([states[m] for m in members], names) if best is None else best[0]
            merge = _merge(child, (a, b), [g[[0, i, j]][:, [0, i, j]] for g in grams], frozenset((a, b)) in related)
            if best is None or (merge is not None and (best[1] is None or merge.residual < best[1].residual)):
                best = grams, merge
        if best is not None and best[1] is not None:
            found.append(best[1])
    return tuple(found)


def _grams(states: Sequence[Mapping[str, Tensor]], names: Sequence[str]) -> list[Tensor]:
    """Inner products of all networks, tensor by tensor."""
    found = []
    for name in names:
        if all(name in state for state in states):
            tensors = [state[name] for state in states]
            if tensors[0].is_floating_point() and len({t.shape for t in tensors}) == 1:
                x = torch.stack([t.flatten().double() for t in tensors])
                found.append(x @ x.mT)
    return found


def _merge(child: str, parents: tuple[str, str], grams: list[Tensor], related: bool) -> Merge | None:
    """The merge of two parents, by least squares tensor by tensor; ``None`` where it is none."""
    left = apart = 0.0
    weights = []
    for g in grams:
        pair, target = g[1:, 1:], g[1:, 0]
        w = torch.linalg.lstsq(pair, target, driver="gelsd").solution
        left += max(float(g[0, 0] - 2 * w @ target + w @ pair @ w), 0.0)
        gap = max(float(pair[0, 0] - 2 * pair[0, 1] + pair[1, 1]), 0.0)
        apart += gap
        weights.append(w * gap)
    if apart <= 0:
        return None
    first, second = (torch.stack(weights).sum(0) / apart).tolist()
    residual = (left / apart) ** 0.5
    if min(first, second) < _SHARE or (related and residual > _ROUNDED):
        return None
    told = "a weighted sum of both, up to rounding" if residual <= _ROUNDED else "related to both, which are unrelated"
    return Merge(child, parents, (first, second), residual, f"{told}: a merge, or they come from it")
