r"""Infinitesimal symmetries: directions in weight space that keep the function, without forming any matrix.

Coefficients are one number for every scale of every unit, and a matrix for every linear space: ``A`` for general ones,
``A - A^T`` for orthogonal ones. They define the direction ``dW = (sum_k e_k c_k) W + A W`` of every tensor, with the
exponents of its axes, and with ``-A^T W`` if the axis reads. Permutations and signs have no directions.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import torch
from torch import Tensor

from .._result import APART, Result
from .._words import counted
from .action import check_headers, multiply
from .blocks import Block, align, blocks, parent_dims
from .description import Description
from .spaces import Space

Direction = dict[str, Tensor]


@dataclass(frozen=True, eq=False, repr=False)
class Tangent(Result):
    """The tangent space of a network's symmetric copies, as the linear map from coefficients to directions.

    Args:
        sym: The symmetry.
        state: Parameters and buffers by name.

    Raises:
        ValueError: If the tensors do not belong to the symmetry.
    """

    sym: Description
    state: Mapping[str, Tensor] = field(metadata=APART)

    def __post_init__(self) -> None:
        check_headers(self.sym, self.state)
        object.__setattr__(self, "state", dict(self.state))

    @property
    def dim(self) -> int:
        """Dimension of the space."""
        return self.sym.dim

    def summary(self) -> str:
        """The number of directions and of coefficients, and the coefficients of each space."""
        said = (
            f"{counted(self.dim, 'direction')} along which the function stays, in {counted(len(self), 'coefficient')}"
        )
        if len(self) > self.dim:
            said += f"; {len(self) - self.dim:,} are dependent: orthogonal spaces hold each rotation twice, and "
            said += "scales may do the same as others"
        parts = (f"{row['space']}: {row['kind']}, {row['coefficients']:,} coefficients" for row in self._rows())
        return "\n".join([said, *parts])

    _columns = ("space", "name", "kind", "coefficients")

    def _rows(self) -> list[dict[str, Any]]:
        return [
            {"space": self.sym.titles[s.name], "name": s.name, "kind": kind, "coefficients": prod(shape)}
            for s, kind, shape in self._parts
        ]

    @cached_property
    def weights(self) -> Direction:
        """The moving tensors, in float64."""
        moves = [n for n, layout in self.sym.layouts.items() if layout.spaces]
        return {n: self.state[n].detach().cpu().double() for n in moves}

    @cached_property
    def _parts(self) -> tuple[tuple[Space, str, tuple[int, ...]], ...]:
        parts: list[tuple[Space, str, tuple[int, ...]]] = []
        for space in self.sym.spaces:
            shape = self.sym.unit_shape(space)
            parts += [(space, "scales", (space.group.scales, *shape))] if space.group.scales else []
            parts += [(space, "linear", (*shape, space.size))] if space.group.mixes else []
        return tuple(parts)

    def __len__(self) -> int:
        """Number of coefficients; ``dim`` counts the independent ones."""
        return sum(prod(shape) for _, _, shape in self._parts)

    def __getitem__(self, j: int) -> Direction:
        """The direction of the coefficient numbered ``j``."""
        one = torch.zeros(len(self), dtype=torch.float64)
        one[j] = 1
        return self.direction(one)

    def __iter__(self) -> Iterator[Direction]:
        return (self[j] for j in range(len(self)))

    def direction(self, coefficients: Tensor) -> Direction:
        """``J c``: the first-order change of the tensors for coefficients ``(len(self),)``."""
        made = self._made(coefficients)
        eps = {norm.variance: norm.eps for norm in self.sym.batch_norms}
        found = {}
        for name, weight in self.weights.items():
            total = torch.zeros_like(weight)
            for block in blocks(self.sym.layouts[name]):
                if block.carried:
                    piece = block.read(weight + eps.get(name, 0.0))  # v' = a^2 (v + eps) - eps
                    total = block.write(total, _changed(piece, block, made, self.sym))
            found[name] = total
        return found

    def adjoint(self, gradient: Mapping[str, Tensor]) -> Tensor:
        """``J^T g``: inner products of the directions with named tensors, ``(len(self),)``; missing ones count as 0."""
        with torch.enable_grad():
            coefficients = torch.zeros(len(self), dtype=torch.float64, requires_grad=True)
            made = self.direction(coefficients)
            total = sum((t * gradient[n].detach().cpu().double()).sum() for n, t in made.items() if n in gradient)
            if not isinstance(total, Tensor) or not total.requires_grad:
                return torch.zeros(len(self), dtype=torch.float64)
            return torch.autograd.grad(total, coefficients)[0]

    def _made(self, coefficients: Tensor) -> dict[tuple[str, str], Tensor]:
        if coefficients.shape != (len(self),):
            raise ValueError(f"coefficients must have shape {(len(self),)}. Got {tuple(coefficients.shape)}.")
        found, at = {}, 0
        for space, kind, shape in self._parts:
            part = coefficients[at : at + prod(shape)].reshape(shape)
            at += prod(shape)
            found[space.name, kind] = part - part.mT if kind == "linear" and space.group.is_orthogonal else part
        return found


_RESIDUAL = 1e-10  # of ``J^T (g - J c)``, relative to ``J^T g``, at which a projection is found
_ITERATIONS = 2000


def project(sym: Description, gradient: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> Direction:
    """The part of a gradient, an update or a momentum that is orthogonal to all directions of the symmetry.

    The gradient of a function that the symmetry keeps is already orthogonal; weight decay, noise and the updates of
    adaptive methods are not. The result is ``g - J c`` with the least-squares solution ``c``, found by conjugate
    gradients. Running statistics may be left out: in training mode batch norms do not read them, and the loss is
    constant along the other directions (up to their epsilon).

    Args:
        sym: The symmetry.
        gradient: A tensor for every parameter that the symmetry moves, by name; others are returned unchanged.
        state: The weights at which the gradient was taken.

    Raises:
        ValueError: If a parameter that moves has no gradient.
        RuntimeError: If 2,000 iterations do not suffice.
    """
    tangent = Tangent(sym, state)
    names = [name for name in tangent.weights if name in gradient or name not in sym.statistics]
    for name in names:
        if name not in gradient or gradient[name].shape != state[name].shape:
            raise ValueError(
                f"gradient must hold every parameter that the symmetry moves, in its shape. Got none for {name!r}."
            )
    rest = {name: gradient[name].detach().cpu().double() for name in names}
    residual = tangent.adjoint(rest)
    search, size = residual.clone(), residual.square().sum()
    limit = _RESIDUAL**2 * max(float(size), 1e-300)
    length = lambda tensors: sum(float(t.square().sum()) for t in tensors.values())
    floor = 1e-28 * length(rest) * length(tangent.weights)
    for _ in range(_ITERATIONS):
        if float(size) <= max(limit, floor):
            break
        step = tangent.direction(search)
        share = size / sum(t.square().sum() for name, t in step.items() if name in rest)
        rest = {name: t - share * step[name] for name, t in rest.items()}
        residual = tangent.adjoint(rest)
        size, before = residual.square().sum(), size
        search = residual + size / before * search
    else:
        raise RuntimeError(f"projection must converge within {_ITERATIONS} iterations. Got {float(size):.1e}.")
    return {n: rest[n].to(t) if n in rest else t for n, t in gradient.items()}


def _changed(piece: Tensor, block: Block, made: Mapping[tuple[str, str], Tensor], sym: Description) -> Tensor:
    """The change of one block."""
    total = torch.zeros_like(piece)
    for dim, leaf in block.carried:
        dims = parent_dims(sym.space(leaf.space), dim, block.spaces)
        scales, matrix = made.get((leaf.space, "scales")), made.get((leaf.space, "linear"))
        if scales is not None and any(leaf.scale):
            exponents = torch.tensor([float(e) for e in leaf.scale], dtype=torch.float64)
            total = total + piece * align(torch.tensordot(exponents, scales, 1), dims, piece.ndim)
        if matrix is not None and leaf.variance:
            total = total + multiply(piece, matrix if leaf.variance == 1 else -matrix.mT, dims)
    return total
