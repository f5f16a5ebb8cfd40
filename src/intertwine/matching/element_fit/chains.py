"""The bases of all linear spaces at once: where one tensor joins two of them, each depends on the other.

Between two fixed ends (inputs, outputs, matched units) the function of a linear chain is the product of its matrices.
The bases ``M`` that make one chain of another solve ``M_out A = B M_in`` for every tensor, which is linear in all of
them, so that they follow from the ends alone: no unit has to be matched and no sign to be chosen. Directions that no
input reaches, or no output reads, have no normal form; there any solution will do.
"""

from math import prod
from typing import Any

import torch
from torch import Tensor

from ...symmetry.action import multiply
from ...symmetry.blocks import Block
from ...symmetry.symmetry import Symmetry
from ...symmetry.transformation import Transformation, with_parts
from ..costs.weight_blocks import Member, members
from .refit import UNKNOWN, Fit, mean_square

_MOST = 1_000_000  # weights and entries of bases up to which all are solved for together
_ITERATIONS = 2000
_EXACT = 1e-14  # relative accuracy that is asked of a solution


def chained(sym: Symmetry) -> bool:
    """Whether a tensor joins two general linear spaces, of not too many weights."""
    pieces = _pieces(sym)
    size = sum(prod(block.shape) for _, block in pieces) + sum(s.size**2 for s in sym.spaces if s.group.is_general)
    return size <= _MOST and any(len(some) > 1 for some in pieces.values())


def upright(g: Transformation) -> Transformation:
    """An element with general bases as they came: solutions that change these least are well conditioned."""
    for name, e in g.elements.items():
        if e.linear is not None and g[name].group.is_general:
            g = with_parts(g, name, linear=torch.eye(e.linear.shape[-1]).to(e.linear).expand_as(e.linear).clone())
    return g


def join_bases(fit: Fit) -> None:
    """Move a fit by the matrices of all general linear spaces that bring all tensors closest at once.

    The least squares of ``M_out A - B M_in``, and to first order where several axes of one tensor are written, by
    LSMR. The unknowns of a space are scaled so that its own equations alone would be an identity.
    """
    from scipy.sparse.linalg import LinearOperator, lsmr

    system = _System(fit)
    shape = len(system.gaps), sum(system.sizes)
    operator = LinearOperator(shape, system.image, system.adjoint, dtype="float64")
    z = lsmr(operator, system.gaps.numpy(), atol=_EXACT, btol=_EXACT, conlim=1 / _EXACT, maxiter=_ITERATIONS)[0]
    for name, step in system.matrices(z).items():
        fit.put("linear", {name: step + torch.eye(step.shape[-1]).to(step)})


def _pieces(sym: Symmetry) -> dict[tuple[str, Block], list[Member]]:
    """The blocks of tensors that general linear spaces move, each with the dimensions that carry these."""
    found: dict[tuple[str, Block], list[Member]] = {}
    for space, some in members(sym).items():
        for m in some if sym.space(space).group.is_general else ():
            if m.leaf.variance:
                found.setdefault((m.tensor, m.block), []).append(m)
    return found


class _System:
    """Equations for what all bases change by, one for each entry of a tensor that they move."""

    def __init__(self, fit: Fit) -> None:
        # of a piece by each space that moves it: the sign, and what is written of the one network or read of the other
        self._terms: list[list[tuple[Member, float, Tensor]]] = []
        gaps, forms = [], dict[str, list[Tensor]]()
        for (name, block), some in _pieces(fit.sym).items():
            size = mean_square(fit.b[name]).sqrt()
            ours, theirs = (block.read(state[name]).double() / size for state in (fit.near, fit.b))
            gaps.append((theirs - ours).flatten())
            self._terms.append([(m, 1.0, ours) if m.leaf.variance == 1 else (m, -1.0, theirs) for m in some])
            for m, sign, x in self._terms[-1]:
                here = forms.setdefault(m.space, [torch.zeros(()), torch.zeros(())])
                here[sign < 0] = here[sign < 0] + m.view(x) @ m.view(x).mT
        self.gaps = torch.cat(gaps)
        self._scaled = {name: _scaled(*some) for name, some in forms.items()}
        self.sizes = [scale.numel() for _, scale, _ in self._scaled.values()]

    def matrices(self, unknowns: Any) -> dict[str, Tensor]:
        """What the matrix ``(p..., n, n)`` of every space changes by."""
        parts = torch.from_numpy(unknowns).flatten().split(self.sizes)
        return {n: u @ (scale * z.view_as(scale)) @ v.mT for (n, (u, scale, v)), z in zip(self._scaled.items(), parts)}

    def image(self, unknowns: Any) -> Any:
        """What every entry changes by."""
        steps, found = self.matrices(unknowns), []
        for some in self._terms:
            turned = [s * multiply(x, steps[m.space] if s > 0 else steps[m.space].mT, [*m.dims]) for m, s, x in some]
            found.append(torch.stack(turned).sum(0).flatten())
        return torch.cat(found).numpy()

    def adjoint(self, changes: Any) -> Any:
        """The transposed map."""
        found = {name: torch.zeros_like(scale) for name, (_, scale, _) in self._scaled.items()}
        parts = torch.from_numpy(changes).flatten().split([some[0][2].numel() for some in self._terms])
        for some, part in zip(self._terms, parts):
            for m, sign, x in some:
                product = m.view(part.view_as(x)) @ m.view(x).mT
                found[m.space] += product if sign > 0 else -product.mT
        return torch.cat([(s * (u.mT @ found[n] @ v)).flatten() for n, (u, s, v) in self._scaled.items()]).numpy()


def _scaled(written: Tensor, read: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Bases and scales in which ``M written + read M``, a space's own equations, is the identity on all that it moves.

    As in the Sylvester equation of one space alone.
    """
    zero = torch.zeros_like(written + read)
    (l1, v), (l2, u) = (torch.linalg.eigh(zero + x) for x in (written, read))
    sums = l2[..., :, None] + l1[..., None, :]
    known = sums > UNKNOWN * sums.amax((-2, -1), keepdim=True)
    return u, torch.where(known, sums.clamp_min(1e-300).rsqrt(), 0.0), v
