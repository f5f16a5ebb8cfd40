"""Balanced scales: of all rescaled copies of a network, those of the copy with (almost) the smallest squared weights.

    minimise  Σ_x exp(2 s_x) x²  −  2 κ Σ_x w_x s_x      over the log scales of all units

where ``s_x = Σ e t`` is what log scales ``t`` add to the logarithm of the weight ``x``, and ``w_x`` shares one vote
among the entries of a slice. The second term (``κ = 0.01``) keeps weights whose scale is not bounded below, such as the
directions of a weight norm, from vanishing. The function is convex; its minimum does not depend on the network's
original scales, and little on noise. The normal equations ``Σ_x c_x s_x(t) e = r`` have one block for every two spaces
that share a tensor; they are solved by preconditioned conjugate gradients.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..blocks import Block, blocks, inner_products, parent_dims
from ..spaces import Leaf

if TYPE_CHECKING:
    from ..symmetry import Symmetry

_ITERATIONS = 200  # of conjugate gradients, a bound for nearly singular systems
_FORCING = 1e-2  # relative gradient norm that ends them: the next step has new curvatures anyway
_FLAT = 1e-13  # share of the diagonal's curvature below which a direction counts as flat and nothing moves along it
_RANK = 1e-9  # singular values below it, relative to the largest, are zero

_LETTERS = string.ascii_letters

Key = int
Factors = dict[Key, list[Tensor]]  # one number per unit, ``(p..., n)``, for every site of a key


@dataclass(frozen=True, eq=False)
class _Site:
    """One dimension of a sum that carries a scaled space: the space, its exponents, and where its axes are."""

    space: str
    row: Tensor
    dims: str  # a letter for each, as in einsum


@dataclass(frozen=True)
class ScaledBlock:
    """One block of a tensor that scales move."""

    tensor: str  # Name of the tensor
    block: Block  # The block
    rest: tuple[int, ...]  # Its dimensions that no scale moves; sums run over them
    sites: tuple[_Site, ...]  # The other dimensions, which carry scales
    key: Key  # Equal for blocks whose sums scale alike

    def summed(self, x: Tensor, y: Tensor, less: Tensor | None = None) -> Tensor:
        """``x y``, or ``x (y - less)``, of the block's shape, summed in float64 over dimensions that no scale moves."""
        return inner_products(x, y, self.rest, less)


class LogScales:
    """The log scales that move some tensors, with batch norms folded; combinations that move nothing are left out.

    With ``bases``, so are combinations that general linear spaces inside a unit (a head) can absorb.
    """

    def __init__(self, sym: Symmetry, names: Iterable[str], bases: bool = True) -> None:
        # Scales of a general linear space are part of its bases if these are fitted too.
        self._spaces = {
            s.name: s for s in sym.spaces if s.group.scales and not (bases if s.group.is_general else s.group.mixes)
        }
        self._shapes = {n: torch.Size((s.group.scales, *sym.unit_shape(s))) for n, s in self._spaces.items()}
        self._free = _free(sym, self._spaces, bases)
        self._keys: dict[tuple[tuple[str, tuple[object, ...]], ...], Key] = {}
        self.pieces = [
            piece for n in names for block in blocks(sym.layouts[n]) if (piece := self._piece(n, block)) is not None
        ]
        self._sites = {piece.key: piece.sites for piece in self.pieces}

    def zero(self) -> Tensor:
        """The zero vector of log scales, which moves nothing."""
        return torch.zeros(sum(prod(shape) for shape in self._shapes.values()), dtype=torch.float64)

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """The part of a vector for each space, ``(k, p..., n)``, by name."""
        parts = flat.split([prod(shape) for shape in self._shapes.values()])
        return {name: part.reshape(shape) for (name, shape), part in zip(self._shapes.items(), parts)}

    def factors(self, flat: Tensor) -> Factors:
        """``exp(2 s)`` of the exponent that log scales have at every site: the factors of squared weights."""
        logs = self.split(flat)
        return {key: [(2 * self._term(site, logs)).exp() for site in sites] for key, sites in self._sites.items()}

    def totals(self, values: Mapping[Key, Tensor], factors: Factors | None = None) -> Factors:
        """For every site ``(p..., n)``: values times the factors of all sites, summed over everything else."""
        found: Factors = {}
        for key, value in values.items():
            known = dict(enumerate(factors[key])) if factors else {}
            found[key] = [
                self._contracted(key, value, at, known) * known.get(at, 1.0) for at in range(len(self._sites[key]))
            ]
        return found

    def gathered(self, totals: Factors, squared: bool = False) -> Tensor:
        """Totals for every scale that moves them, times its exponent (or the exponent squared), as one vector."""
        found = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in self._shapes.items()}
        for key, some in totals.items():
            for site, total in zip(self._sites[key], some):
                e = site.row.square() if squared else site.row
                found[site.space] += e.reshape(-1, *[1] * total.ndim) * total
        return torch.cat([t.flatten() for t in found.values()])

    def solved(self, curvatures: Mapping[Key, Tensor], right: Tensor, factors: Factors | None = None) -> Tensor:
        """The ``t`` with ``Σ_x c_x s_x(t) e = right``, curvatures ``c`` times ``factors``, by conjugate gradients."""
        totals = self.totals(curvatures, factors)
        curve = self.gathered(totals, squared=True)
        known = torch.where(curve > 0, 1.0 / curve.clamp_min(1e-300), 0.0)
        bent_by = self._curvature(curvatures, totals, factors)
        x, residual = torch.zeros_like(right), right
        direction = ahead = known * residual
        size = first = float(residual @ ahead)
        for _ in range(_ITERATIONS):
            if not size > _FORCING**2 * first:
                break
            image = bent_by(direction)
            bent = float(direction @ image)
            if not bent > _FLAT * float(curve @ direction.square()):
                break
            x, residual = x + size / bent * direction, residual - size / bent * image
            ahead = known * residual
            size, before = float(residual @ ahead), size
            direction = ahead + size / before * direction
        return x

    def _curvature(
        self, curvatures: Mapping[Key, Tensor], totals: Factors, factors: Factors | None
    ) -> Callable[[Tensor], Tensor]:
        """The product with ``Σ_x c_x e e^T``: a matrix for every two spaces that share a tensor."""
        own = {name: torch.zeros(shape[0], *shape, dtype=torch.float64) for name, shape in self._shapes.items()}
        joint: dict[tuple[str, str], Tensor] = {}
        for key, value in curvatures.items():
            sites = self._sites[key]
            for site, total in zip(sites, totals[key]):
                squares = torch.outer(site.row, site.row)
                own[site.space] += squares.reshape(*squares.shape, *[1] * total.ndim) * total
            known = dict(zip(sites, factors[key])) if factors else {}
            for one, other in combinations(sites, 2):
                block = torch.kron(torch.outer(one.row, other.row), _between(value, one.dims, other.dims, known))
                if one.space == other.space:
                    block = block + block.mT
                elif (other.space, one.space) in joint:
                    one, other, block = other, one, block.mT
                at = one.space, other.space
                joint[at] = joint[at].add_(block) if at in joint else block

        def image(direction: Tensor) -> Tensor:
            logs = self.split(direction)
            flat = {name: x.flatten() for name, x in logs.items()}
            found = {name: (own[name] * x).sum(1).flatten() for name, x in logs.items()}
            for (one, other), block in joint.items():
                found[one] = torch.addmv(found[one], block, flat[other])
                if one != other:
                    found[other] = torch.addmv(found[other], block.mT, flat[one])
            return torch.cat([*found.values()])

        return image

    def _contracted(self, key: Key, value: Tensor, at: int, vectors: Mapping[int, Tensor]) -> Tensor:
        """Values times the vectors of all sites except one, summed for every unit of that one."""
        sites, others = self._sites[key], [k for k in vectors if k != at]
        given = ",".join([_LETTERS[: value.ndim], *(sites[k].dims for k in others)])
        return torch.einsum(f"{given}->{sites[at].dims}", value, *(vectors[k] for k in others))

    def _term(self, site: _Site, logs: Mapping[str, Tensor]) -> Tensor:
        """The contribution of log scales at one site."""
        return (site.row @ logs[site.space].flatten(1)).reshape(logs[site.space].shape[1:])

    def _piece(self, name: str, block: Block) -> ScaledBlock | None:
        moving = {x.space for x in block.leaves if isinstance(x, Leaf) and x.space in self._spaces and any(x.scale)}
        kept = moving | {p for s in moving for p in self._spaces[s].parents}
        inside = [d for d, s in enumerate(block.spaces) if s in kept]
        if not moving:
            return None
        names = tuple(block.spaces[d] for d in inside)
        sites = []
        for at, d in enumerate(inside):
            leaf = block.leaves[d]
            if isinstance(leaf, Leaf) and leaf.space in moving and any(leaf.scale):
                dims = "".join(_LETTERS[i] for i in parent_dims(self._spaces[leaf.space], at, names))
                row = torch.tensor([float(e) for e in leaf.scale], dtype=torch.float64) @ self._free[leaf.space]
                sites.append(_Site(leaf.space, row, dims))
        rest = tuple(d for d in range(len(block.leaves)) if d not in inside)
        kind = tuple((x.space, x.scale) for d in inside if isinstance(x := block.leaves[d], Leaf))
        return ScaledBlock(name, block, rest, tuple(sites), self._keys.setdefault(kind, len(self._keys)))


def _between(value: Tensor, one: str, other: str, factors: Mapping[_Site, Tensor]) -> Tensor:
    """Values times the factors of all sites, summed for every pair of units of two sites, as a matrix."""
    shared = [x for x in other if x in one]  # shared parents: units with different ones share no tensor
    sizes = dict(zip(_LETTERS, value.shape))
    names = [_LETTERS[: value.ndim], *(x + x.upper() for x in shared), *(site.dims for site in factors)]
    given = [value, *(torch.eye(sizes[x], dtype=value.dtype) for x in shared), *factors.values()]
    columns = "".join(x.upper() if x in shared else x for x in other)
    found = torch.einsum(f"{','.join(names)}->{one}{columns}", given)
    return found.reshape(prod(sizes[x] for x in one), -1).contiguous()


def _free(sym: Symmetry, spaces: Iterable[str], bases: bool) -> dict[str, Tensor]:
    """The projection ``(k, k)`` onto the combinations of generators that matter, for every space."""
    general = {s.name for s in sym.spaces if s.group.is_general} if bases else set()
    inside = {name: {s.name for s in sym.spaces if name in s.parents and s.name in general} for name in spaces}
    rows: dict[str, list[list[float]]] = {name: [] for name in inside}
    for block in (block for layout in sym.layouts.values() for block in blocks(layout)):
        for leaf in block.leaves:
            if isinstance(leaf, Leaf) and leaf.space in rows and not inside[leaf.space] & {*block.spaces}:
                rows[leaf.space].append([float(e) for e in leaf.scale])
    found = {}
    for name, table in rows.items():
        _, sizes, vh = torch.linalg.svd(
            torch.tensor(table or [[0.0] * sym.space(name).group.scales], dtype=torch.float64), full_matrices=False
        )
        basis = vh[sizes > _RANK * sizes.max().clamp_min(1.0)]
        onto = basis.mT @ basis
        found[name] = onto.where(onto.abs() > _RANK, 0.0)  # rounding would look like curvature
    return found


_KAPPA = 0.01
_PIN = 1e6  # weight of a variance that must become 1
_STEPS = 200  # of Newton's method; a few suffice from balanced weights, a dozen from elsewhere
_LEAP = 2.0  # largest change of a log scale in one step
_SURE = 1e-3  # steps below it are taken without checking that the sum falls
_NOISE = 1e-9  # steps below it that do not shrink are rounding


def balancing_scales(
    sym: Symmetry,
    state: Mapping[str, Tensor],
    pinned: frozenset[str] = frozenset(),
    tolerance: float = 1e-12,
    start: Mapping[str, Tensor] | None = None,
    bases: bool = True,
) -> dict[str, Tensor]:
    """The log scales ``(k, p..., n)`` of each space that balance a network, found by Newton's method, by name.

    Entries of ``pinned`` tensors must become 1 instead; with ``bases``, scales that bases absorb are left alone.
    """
    system = LogScales(sym, [name for name in sym.layouts if name in state], bases)
    logs = system.zero()
    if not system.pieces:
        return system.split(logs)
    if start is not None:
        logs = torch.cat([start[name].flatten() for name in system.split(logs)])
    squares, votes = _sums(system, state, pinned)

    def scaled(at: Tensor) -> tuple[Factors, Tensor, float]:
        """The factors of squares under the scales, the sums for each scale, and the objective."""
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
