"""Bases of linear spaces: balanced realisations, as of linear systems, and eigenvectors for orthogonal spaces.

Every general linear space has two quadratic forms. The *incoming* one collects what is written into it (for a chain of
linear maps ``P_l = W_l P_(l-1) W_l^T + b_l b_l^T``, the covariance of the features), the *outgoing* one what is read
from it (``Q_l = W_(l+1)^T Q_(l+1) W_(l+1)``). A change of basis ``M`` turns them into ``M P M^T`` and ``M^-T Q M^-1``
and keeps the eigenvalues of ``P Q``. In the balanced basis both are the same diagonal matrix, the singular values of
the composite map, largest first (Moore, Principal component analysis in linear systems, 1981). A tensor between two
linear spaces is read through the other space's form, so that neither basis depends on the other.
"""

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

from ..action import multiply
from ..blocks import Member, align, blocks, carrying, parent_dims
from ..spaces import Fixed, Space
from ..symmetry import Symmetry

_RANK = 1e-9  # smallest singular value, relative to the largest, that still counts in float64
_SEEN = 1e-7  # smallest norm along a unit of a normal basis, relative to the largest, that counts as nonzero
_GOLDEN = 0.6180339887498949

_Roots = dict[tuple[str, int], Tensor]
_Kept = dict[tuple[str, int], tuple[list[Tensor], Tensor]]


def least_passing(tolerance: float) -> float:
    """The smallest relative singular value that counts when log scales are determined to ``tolerance``."""
    return max(_RANK, 10 * tolerance)


def general_bases(
    sym: Symmetry, state: Mapping[str, Tensor], kept: _Kept | None = None, rank: float = _RANK
) -> dict[str, Tensor]:
    """The matrices ``(p..., n, n)`` of every GL(n) space whose tensors determine its balanced basis.

    With roots ``P = A^T A``, ``Q = B^T B`` and ``A B^T = U S V^T`` the basis is ``M = S^(-1/2) V^T B``. Directions that
    are written but never read, or read but never written, come last; they are orthonormalised, and distinguished by a
    second form with other weights. ``kept`` holds roots found before, with their tensors. Singular values below
    ``rank``, relative to the largest, do not count.
    """
    general = _general(sym)
    roots = _roots(sym, state, general, 1.0, kept)
    found = {}
    for name, (written, read) in _ends(general, roots).items():
        space = general[name]
        through = [_passing(a, b, rank) for a, b in zip(written, read)]
        bases = [rows for rows, _ in through]
        if any(len(rows) < space.size for rows in bases):
            other = _roots(sym, state, general, 2.0)
            seconds = [_second(sym, state, space, v, general, other) for v in (1, -1)]
            bases = [_completed(a, b, t, x, y, rank) for a, b, t, x, y in zip(written, read, through, *seconds)]
        found[name] = torch.stack(bases).reshape(*roots[name, 1].shape[:-2], space.size, space.size)
    return found


def _general(sym: Symmetry) -> dict[str, Space]:
    return {s.name: s for s in sym.spaces if s.group.is_general}


def _ends(general: Iterable[str], roots: _Roots) -> dict[str, list[Tensor]]:
    """Roots of both forms for each space that has both, with all units of the parents in a row."""
    known = (n for n in general if {(n, 1), (n, -1)} <= roots.keys())
    return {n: [_heads(roots[n, v]) for v in (1, -1)] for n in known}


def passing(sym: Symmetry, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """1 or 0 for each unit ``(p..., n)`` of a balanced basis: whether it is both written and read, and can matter."""
    roots = _roots(sym, state, _general(sym), 1.0)
    found = {}
    for name in (name for name, v in roots if v == 1 and (name, -1) in roots):
        norms = [roots[name, v].norm(dim=-2) for v in (1, -1)]
        seen = [n > _SEEN * n.amax(-1, keepdim=True) for n in norms]
        found[name] = (seen[0] & seen[1]).to(torch.float64)
    return found


def undetermined(sym: Symmetry, state: Mapping[str, Tensor], rank: float = _RANK) -> tuple[str, ...]:
    """General linear spaces whose basis the weights do not determine, in the order of the network.

    Either nothing is written or read there, or some directions do not pass and meet those of another such space.
    """
    general = _general(sym)
    known = _ends(general, _roots(sym, state, general, 1.0))
    partly = {
        n for n, ends in known.items() if any(len(_passing(a, b, rank)[0]) < general[n].size for a, b in zip(*ends))
    }
    every = (block for layout in sym.layouts.values() for block in blocks(layout))
    meeting = [{leaf.space for _, leaf in block.carried} & partly for block in every]
    return tuple(n for n in general if n not in known or any(n in some and len(some) > 1 for some in meeting))


def orthogonal_basis(sym: Symmetry, state: Mapping[str, Tensor], space: Space) -> Tensor | None:
    """The rotation ``(p..., n, n)`` onto the eigenvectors of ``X X^T``, ``X`` the slices of an O(n) space, if any."""
    x = _joined(_slices(state, m, {}, {}, 1.0) for m in _members(sym, state, space))
    if x is None:
        return None
    u, s, _ = torch.linalg.svd(x, full_matrices=False)
    if space.group.turns:
        u[..., -1] *= torch.linalg.slogdet(u).sign[..., None]
    fixed = u.shape[-1] == space.size and bool((s[..., -1] > _RANK * s[..., 0]).all())
    return u.mT if fixed else None


def _roots(
    sym: Symmetry, state: Mapping[str, Tensor], general: Mapping[str, Space], power: float, kept: _Kept | None = None
) -> _Roots:
    """A root ``R (p..., r, n)`` of the form ``R^T R`` of the slices of each variance, for each space."""
    members = {name: list(_members(sym, state, space)) for name, space in general.items()}
    roots: _Roots = {}
    for _ in range(len(general) + 1):
        known = len(roots)
        for variance, order in ((1, list(general)), (-1, list(general)[::-1])):
            for name in order:
                chosen = [m for m in members[name] if m.leaf.variance == variance]
                tensors = [state[m.tensor] for m in chosen]
                before, root = (kept or {}).get((name, variance), ([], None))
                if root is None or not all(map(torch.equal, tensors, before)):
                    x = _joined(_slices(state, m, general, roots, power) for m in chosen)
                    root = None if x is None else torch.linalg.qr(x.mT, mode="r").R
                if root is not None:
                    roots[name, variance] = root
                    others = (leaf for m in chosen for d, leaf in m.block.carried if d != m.dim)
                    if kept is not None and not any(leaf.space in general and leaf.variance for leaf in others):
                        kept[name, variance] = tensors, root  # it is read through no other form
        if len(roots) == known:  # this round used every form
            break
    return roots


def _members(sym: Symmetry, state: Mapping[str, Tensor], space: Space) -> Iterator[Member]:
    return (m for m in carrying(sym.layouts, space) if m.tensor in state and m.leaf.variance)


def _joined(parts: Iterable[Tensor | None]) -> Tensor | None:
    known = [part for part in parts if part is not None]
    return torch.cat(known, -1) if known else None


def _slices(
    state: Mapping[str, Tensor], m: Member, general: Mapping[str, Space], roots: _Roots, power: float
) -> Tensor | None:
    """A tensor as ``(p..., n, rest)``, other linear axes read through their forms; ``None`` if a form is unknown."""
    x = m.block.read(state[m.tensor]).double()
    if not set(m.space.parents) <= set(m.block.spaces):
        return None
    for d, leaf in enumerate(m.block.leaves):
        if isinstance(leaf, Fixed):
            x = x * align(_weights(leaf.size, power), [d], x.ndim)
        elif d != m.dim and leaf.space in general and leaf.variance:
            root = roots.get((leaf.space, -leaf.variance))
            if root is None:
                return None
            x = multiply(x, root, parent_dims(general[leaf.space], d, m.block.spaces))
    return m.view(x)


def _weights(size: int, power: float) -> Tensor:
    """Distinct weights along a fixed axis, since equal singular values would leave the basis open."""
    places = torch.arange(size, dtype=torch.float64)
    return (1 + 0.5 * torch.frac(places * _GOLDEN)) ** power if size > 1 else torch.ones(1, dtype=torch.float64)


def _heads(x: Tensor) -> Tensor:
    """Matrices of all units of the parents in a row, ``(P, ., .)``."""
    return x.reshape(-1, *x.shape[-2:])


def _passing(a: Tensor, b: Tensor, least: float) -> tuple[Tensor, Tensor]:
    """Rows ``(rank, n)`` that read what passes in balanced coordinates, and columns that write it, from two roots."""
    u, s, vh = torch.linalg.svd(a @ b.mT)
    rank = int((s > least * a.norm() * b.norm()).sum())
    return (vh[:rank] @ b) / s[:rank].sqrt()[:, None], (a.mT @ u[:, :rank]) / s[:rank].sqrt()


def _second(
    sym: Symmetry, state: Mapping[str, Tensor], space: Space, variance: int, general: Mapping[str, Space], roots: _Roots
) -> list[tuple[Tensor, Tensor]]:
    """Slices ``(n, R)`` of one variance with other weights along fixed axes, and 1 for slices of single units."""
    found, single = [], []
    for m in _members(sym, state, space):
        x = _slices(state, m, general, roots, 2.0) if m.leaf.variance == variance else None
        if x is not None:
            others = {s for d, s in enumerate(m.block.spaces) if d != m.dim}
            found.append(x)
            single.append(torch.full(x.shape[-1:], float(not others & sym.mixing), dtype=torch.float64))
    return [(x, torch.cat(single)) for x in _heads(torch.cat(found, -1))]


def _completed(
    a: Tensor,
    b: Tensor,
    through: tuple[Tensor, Tensor],
    second_a: tuple[Tensor, Tensor],
    second_b: tuple[Tensor, Tensor],
    least: float,
) -> Tensor:
    """The balanced basis of a space: first directions that pass, then those only written, only read, or neither."""
    rows, columns = through
    n = a.shape[1]
    if len(rows) == n:
        return rows
    aside = torch.eye(n, dtype=torch.float64) - columns @ rows  # projects onto directions that do not pass
    written = _orthonormal(aside @ a.mT, aside @ _weighted(rows, *second_a), least * a.norm(), n - len(rows))
    free = n - len(rows) - written.shape[1]  # what passes too little to count is both written and read: it counts once
    read = _orthonormal(aside.mT @ b.mT, aside.mT @ _weighted(columns.mT, *second_b), least * b.norm(), free).mT
    back = torch.cat([columns, written, aside @ torch.linalg.pinv(read)], 1)
    taken = torch.cat([rows, written.mT, read])
    idle = torch.linalg.svd(taken)[2][len(taken) :].mT if len(taken) < n else torch.zeros(n, 0, dtype=torch.float64)
    return torch.linalg.inv(torch.cat([back, idle], 1))


def _weighted(rows: Tensor, x: Tensor, single: Tensor) -> Tensor:
    """Slices ``x (n, R)``, with single ones weighted by the size of their passing part, which no basis alters."""
    size = (rows @ x).square().sum(0) * single
    return x * (1 + size / size.mean().clamp_min(1e-300))


def _orthonormal(x: Tensor, second: Tensor, floor: Tensor, most: int) -> Tensor:
    """At most ``most`` columns ``N`` that span ``x`` and make it orthonormal, ``x = N Q``; ``second`` orders them."""
    u, s, _ = torch.linalg.svd(x, full_matrices=False)
    rank = min(int((s > floor).sum()), most)
    columns = u[:, :rank] * s[:rank]
    turn = torch.linalg.svd((u[:, :rank] / s[:rank]).mT @ second, full_matrices=False)[0]
    return columns @ turn
