"""Bases of linear spaces by singular vectors: per-head GL of attention, orthogonal residual streams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .blocks import blocks
from .element import parent_dims
from .spaces import Leaf, Space

if TYPE_CHECKING:
    from .symmetry import Symmetry

__all__ = ["linear_basis"]

_RANK = 1e-9  # smallest singular value, relative to the largest, that still fixes a basis


def linear_basis(sym: Symmetry, state: Mapping[str, Tensor], space: Space) -> Tensor | None:
    """The matrix that brings one linear space into its normal basis.

    GL(n): stack the slices of variance +1 as ``X`` (n x a), those of variance -1 as ``Y`` (n x b). ``X^T Y`` does not
    depend on the basis; with its singular value decomposition ``U S V^T`` the normal basis has ``X = S^(1/2) U^T`` and
    ``Y = S^(1/2) V^T``. O(n): the eigenvectors of ``X X^T``, largest first. Signs, and bases within equal
    singular values, remain open. Where the rank is deficient the basis is left as it is.

    Args:
        sym: The symmetry.
        state: Tensors in float64.
        space: One of its linear spaces.

    Returns:
        Matrices ``(p..., n, n)``, or ``None`` where the tensors do not determine a basis.
    """
    x, y = _stacks(sym, state, space)
    if x is None or (space.linear == "general" and y is None):
        return None
    n = space.size
    eye = torch.eye(n, dtype=torch.float64)
    heads = []
    flat_x = x.reshape(-1, *x.shape[-2:])
    flat_y = flat_x if y is None else y.reshape(-1, *y.shape[-2:])
    for left, right in zip(flat_x, flat_y):
        found = _orthogonal(left) if space.linear == "orthogonal" else _general(left, right)
        heads.append(eye if found is None else found)
    return torch.stack(heads).reshape(*x.shape[:-2], n, n)


def _orthogonal(x: Tensor) -> Tensor | None:
    u, s, _ = torch.linalg.svd(x, full_matrices=False)
    return u.mT if u.shape[0] == u.shape[1] and s[-1] > _RANK * s[0] else None


def _general(x: Tensor, y: Tensor) -> Tensor | None:
    if min(x.shape[1], y.shape[1]) < x.shape[0]:
        return None
    r1 = torch.linalg.qr(x.mT).R
    r2 = torch.linalg.qr(y.mT).R
    _, s, vh = torch.linalg.svd(r1 @ r2.mT)
    if not s[-1] > _RANK * s[0]:
        return None
    return (vh @ r2) / s.sqrt()[:, None]  # M with M^-T R2^T = S^(1/2) V^T


def _stacks(sym: Symmetry, state: Mapping[str, Tensor], space: Space) -> tuple[Tensor | None, Tensor | None]:
    """Slices of variance +1 and -1, ``(p..., n, a)``; for O(n) together, from blocks that no other scale touches."""
    restless = {s.name for s in sym.spaces if s.scales or s.linear != "none"} - {space.name}
    stacks: dict[int, list[Tensor]] = {1: [], -1: []}
    for name, layout in sym.layouts.items():
        for block in blocks(layout) if name in state else ():
            places = [d for d, s in enumerate(block.spaces) if s == space.name]
            if len(places) > 1 and space.linear == "general":
                return None, None
            if space.linear == "orthogonal" and (len(places) > 1 or restless & set(block.spaces)):
                continue
            for dim in places:
                leaf = block.leaves[dim]
                if isinstance(leaf, Leaf) and leaf.variance:
                    dims = parent_dims(space, dim, block.spaces)
                    x = block.read(state[name])
                    x = x.permute([*dims, *(d for d in range(x.ndim) if d not in dims)])
                    x = x.reshape(*x.shape[: len(dims)], -1)
                    stacks[1 if space.linear == "orthogonal" else leaf.variance].append(x)
    joined = {v: torch.cat(parts, -1) if parts else None for v, parts in stacks.items()}
    return joined[1], joined[-1]
