"""Soft elements: permutations relaxed to doubly stochastic matrices, so that the objective can be differentiated.

A space with signs has one matrix for every pattern of parities in which its signs reach a tensor: ``P`` where no sign
does, and ``diag(s) P`` where one does. They are relaxed together: the entries of ``diag(s) P`` may shrink below those
of ``P``. Orthogonal matrices are relaxed to contractions. With all cost matrices being gradients, the linear problem
at a point is one assignment (or one singular value decomposition) for each space.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from ...groups import Representation
from ...symmetry.action import multiply
from ...symmetry.blocks import Block
from ...symmetry.spaces import Space
from ...symmetry.transformation import Transformation, identity, with_parts
from ..coordinates.problem import Problem
from ..costs.weight_blocks import Member
from .block_update import best_parts

Row = tuple[int, ...]
Soft = dict[tuple[str, Row], Tensor]  # space and parities -> (p..., n, n)


def of_element(stated: Problem, g: Transformation) -> Soft:
    """The matrices of a hard element, on the device and in the precision of the problem."""
    return {
        (name, row): g[name].matrix(Representation(sign=row, variance=1)).to(like)
        for (name, row), like in _keys(stated).items()
    }


def barycentre(stated: Problem) -> Soft:
    """The mean of all elements; spaces that are not permuted start at the identity."""
    spaces = {s.name: s for s in stated.sym.spaces}
    found = of_element(stated, identity(stated.sym))
    for (name, row), matrix in found.items():
        if spaces[name].group.permutes and not spaces[name].group.mixes:
            found[name, row] = torch.full_like(matrix, (not any(row)) / matrix.shape[-1])
    return found


def mixed(x: Soft, y: Soft, ratio: float) -> Soft:
    """``(1 - ratio) x + ratio y``."""
    return {key: torch.lerp(matrix, y[key], ratio) for key, matrix in x.items()}


def moved_softly(stated: Problem, soft: Mapping[tuple[str, Row], Tensor]) -> dict[str, Tensor]:
    """The tensors of ``b`` moved by a soft element; differentiable in its matrices."""
    by_tensor: dict[str, list[tuple[Space, Member]]] = {}
    for space in sorted(stated.sym.spaces, key=lambda s: len(s.parents)):
        for member in stated.members[space.name]:
            by_tensor.setdefault(member.tensor, []).append((space, member))
    found = dict(stated.b)
    for name, moving in by_tensor.items():
        result = stated.b[name]
        for block in {m.block: None for _, m in moving}:
            piece = block.read(stated.b[name])
            for space, m in moving:
                if m.block is block:
                    piece = multiply(piece, soft[space.name, m.row], list(m.dims))
            result = _written(result, block, piece)
        found[name] = result
    return found


def objective(stated: Problem, soft: Soft) -> Tensor:
    """``Σ <a, soft b>``, differentiable."""
    near = moved_softly(stated, soft)
    terms = [(x * near[name]).sum(dtype=torch.float64) for name, x in stated.a.items()]
    return torch.stack(terms).sum() if terms else torch.zeros((), dtype=torch.float64)


def gradient(stated: Problem, soft: Soft) -> tuple[float, Soft]:
    """The objective and its gradient: the cost matrices at a soft element."""
    leaves = {key: matrix.detach().requires_grad_() for key, matrix in soft.items()}
    with torch.enable_grad():
        value = objective(stated, leaves)
        slopes = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
    found = {k: torch.zeros_like(x) if slope is None else slope for (k, x), slope in zip(leaves.items(), slopes)}
    return float(value.detach()), found


def vertex(stated: Problem, costs: Soft, fast: bool = False) -> Transformation:
    """The hard element with the largest inner product with the given matrices: the closest one to a soft element."""
    g = identity(stated.sym)
    for space in stated.sym.spaces:
        here = {row: matrix.detach() for (name, row), matrix in costs.items() if name == space.name}
        if here:
            g = with_parts(g, space.name, **best_parts(here, space.group, fast))
    return g


def _keys(stated: Problem) -> dict[tuple[str, Row], Tensor]:
    return {
        (name, member.row): stated.a[member.tensor].new_zeros(())
        for name, members in stated.members.items()
        for member in members
    }


def _written(tensor: Tensor, block: Block, piece: Tensor) -> Tensor:
    partial = any(rows is not None for rows in block.rows)
    return block.write(tensor.clone() if partial else tensor, piece)
