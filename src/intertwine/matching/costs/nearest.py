"""Nearest units of large spaces by sketches, without the inner products of all pairs.

A sketch sums groups of a unit's weights with random signs, divided by the root of their number: an orthonormal map, so
that it shortens every distance. A unit whose distance from its partner is below its sketched distances from all other
units has no nearer one. Where that holds for all units, their pairing is the best assignment.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import Tensor

from ...groups.assignment import assign_nearly
from ...symmetry.blocks import inner_products
from ..coordinates.problem import Both, Row

LARGE = 512  # units of a space from which on sketches cost less than all inner products
_SKETCH = 128  # numbers that a sketch keeps of one block: of 10,000 weights, enough for noise of a tenth
_ROWS = 512  # units that are worked on at once
_UNSURE = 0.125  # share of units that may be compared in full
_ROUNDING = {torch.float32: 1e-5, torch.float64: 1e-12}  # of squared distances, relative to the squares of both units
_EXACT = _ROUNDING[torch.float64]

Units = Iterable[tuple[Row, Tensor, Tensor]]


def sketched(x: Tensor, entries: int | None = None) -> Tensor:
    """The sketches ``(n, k)`` of units ``(n, K)``, or of some of their ``entries``; short units are their own."""
    group = (x.shape[1] if entries is None else entries) // _SKETCH
    if group < 2 or x.shape[1] < group:
        return x.clone()  # nothing that is held keeps a tensor in memory
    signs = torch.randint(0, 2, (x.shape[1],), generator=torch.Generator().manual_seed(x.shape[1]))
    signs = ((2 * signs - 1) / group**0.5).to(x)
    kept = x.shape[1] // group * group
    return torch.cat([(some * signs)[:, :kept].unflatten(1, (-1, group)).sum(2) for some in x.split(_ROWS)])


def paired(blocks: Iterable[Both], fast: bool = False) -> Tensor | None:
    """The permutation that pairs units with near ones, by sketches whose squared distances add up; ``None`` of none."""
    every = list(blocks)
    if not every:
        return None
    left, right = (torch.cat([both[side] for both in every], 1) for side in (0, 1))
    squares = right.square().sum(1)
    nearest = torch.cat([torch.addmm(squares, x, right.mT, alpha=-2).argmin(1) for x in left.split(_ROWS)])
    if len(nearest.unique()) == len(nearest):
        return nearest
    return assign_nearly(torch.addmm(squares, left, right.mT, alpha=-2).neg_(), fast)


def certified(read: Callable[[], Units], permutes: bool = True) -> bool:
    """Whether no unit of one network is nearer to another unit than to the one in its place, whatever their signs.

    ``read`` yields, for every block of a space, the parities of its signs and the units ``(n, K)`` of both networks.
    Where units may not change places only their signs are looked at.
    """
    apart = ours = theirs = torch.zeros(())
    inner: dict[Row, Tensor] = {}
    short: dict[Row, list[Both]] = {}
    for row, x, y in read():
        ours, theirs = ours + inner_products(x, x, [1]), theirs + inner_products(y, y, [1])
        apart = apart + torch.cat([(p - q).square().sum(1) for p, q in zip(x.split(_ROWS), y.split(_ROWS))])
        inner[row] = inner.get(row, 0) + inner_products(x, y, [1])
        if permutes:
            short.setdefault(row, []).append((sketched(x), sketched(y)))
    # Comparisons are put so that NaN, also of squares beyond the numbers of their type, never certifies.
    if not inner or not all(bool((x >= 0).all()) for row, x in inner.items() if any(row)):
        return False
    if not permutes:
        return True
    slack = _ROUNDING[apart.dtype] * (ours + theirs)
    unsure = []
    for first, nearest in _nearest_others(short):
        some = slice(first, first + len(nearest))
        unsure.append(first + (~(nearest > apart[some] + slack[some])).nonzero()[:, 0])
        if sum(map(len, unsure)) > _UNSURE * len(apart):
            return False
    chosen = torch.cat(unsure)
    if not len(chosen):
        return True
    # By distances as well: some by distances and some by inner products would not make the assignment the best.
    near = 2 * _gains(read(), chosen) - theirs
    own = near.gather(1, chosen[:, None])[:, 0]
    return bool((own >= near.amax(1) - _EXACT * (ours + theirs)[chosen]).all())


def _nearest_others(short: Mapping[Row, list[Both]]) -> Iterator[tuple[int, Tensor]]:
    """Some units at a time: the first one's number, and the squared sketched distances from their nearest others."""
    sides = {row: [torch.cat([both[k] for both in some], 1) for k in (0, 1)] for row, some in short.items()}
    squares = [torch.stack([x[k].square().sum(1) for x in sides.values()]).sum(0) for k in (0, 1)]
    for first in range(0, len(squares[0]), _ROWS):
        some = slice(first, first + _ROWS)
        distances = squares[0][some, None] + squares[1]
        for row, (x, y) in sides.items():
            products = x[some] @ y.mT
            distances.sub_(products.abs_() if any(row) else products, alpha=2)
        distances.diagonal(first).fill_(torch.inf)
        yield first, distances.amin(1)


def _gains(units: Units, chosen: Tensor) -> Tensor:
    """The largest inner products, over all signs, of chosen units with all units of the other network, in float64."""
    found: dict[Row, Tensor] = {}
    for row, x, y in units:
        some = x[chosen].double()
        found[row] = found.get(row, 0) + torch.cat([some @ other.double().mT for other in y.split(_ROWS)], 1)
    return torch.stack([x.abs() if any(row) else x for row, x in found.items()]).sum(0)
