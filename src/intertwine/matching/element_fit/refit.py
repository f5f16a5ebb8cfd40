"""Least-squares fits of scales and bases for matched units: space by space, or for whole chains at once."""

from collections.abc import Callable, Iterable, Mapping
from math import prod

import torch
from torch import Tensor

from ..._nested import by_key
from ...groups import Element
from ...groups.dense import polar_factor
from ...symmetry.action import multiply, transform
from ...symmetry.blocks import Block, Member, inner_products
from ...symmetry.gauge.canonical import Folded
from ...symmetry.gauge.scales import Key, LogScales
from ...symmetry.spaces import Leaf, Space
from ...symmetry.symmetry import Symmetry
from ...symmetry.transformation import Transformation, identity, with_parts
from ..coordinates.problem import members
from ..judgement.deviation import gap

_CONDITION = 1e6  # a fitted basis with a larger condition number is unidentifiable: float32 weights leave it no digit
_UNKNOWN = 1e-12  # relative sums of eigenvalues below which the weights determine nothing
_STEPS = 12  # Gauss-Newton steps: each leaves a hundredth of the error that scales explain, and rounding is 1e-16
_GAIN = 1e-3  # share of the error that a step must remove to be followed by another: noise stays, copies lose all
_LEAP = 1.0  # largest change of a log scale in one step, beyond which the linear model is wrong
_SETTLED = 1e-13  # steps below it are rounding
_MOST = 1_000_000  # most weights and basis entries that are solved for together
_ITERATIONS = 2000
_EXACT = 1e-14  # relative accuracy of a solution


class Fit:
    """A network moved by an element whose scales and matrices are being fitted to another network.

    Balanced forms fix scales by norms, with one vote per slice; here every weight votes, so that rounding averages out.
    Tensors keep the networks' precision, and sums over them are in float64. Without votes, all tensors count equally.
    """

    def __init__(self, a: Folded, b: Folded, g: Transformation) -> None:
        self.sym, self.b, self.g = a.sym, b.state, g
        self._a, self._cancelled = a.state, {n: b.size(n) for n in b.means}
        self._members = members(a.sym)
        free = (s for s in a.sym.spaces if s.group.scales or s.group.mixes)
        self._spaces = [s for s in free if self._members[s.name]]
        self._still = identity(a.sym)
        moving = {n: x for n, x in a.sym.layouts.items() if any(any(y.scale) or y.variance for y in x.leaves)}
        # the tensors that scales or matrices move, moved by the current element ``g``; others are not held
        self.near = {name: transform(a.state[name], layout, g) for name, layout in moving.items()}
        self._joint = LogScales(a.sym, self.near, bases=False)  # heads absorb at once what bases would in steps
        self._kept: dict[str, float] = {}

    def measured(self, measure: Callable[[str, Tensor], float]) -> dict[str, float]:
        """A measure of every moved tensor; always pass the same one, since values that no fit changes are kept."""
        for name, layout in self.sym.layouts.items():
            if name not in self.near and name not in self._kept:
                self._kept[name] = measure(name, transform(self._a[name], layout, self.g))
        return {n: self._kept[n] if n in self._kept else measure(n, self.near[n]) for n in self.sym.layouts}

    def each_space(self, votes: Mapping[str, float] | None = None, scales: bool = True) -> None:
        """Fit space after space: matrices by least squares, scales by log ratios of slices."""
        for space in self._spaces:
            if space.group.mixes:
                self.put("linear", {space.name: self._matrix(space, votes)})
            elif scales:
                self.put("scales", {space.name: self._log_ratios(space, votes)})

    def round(self, votes: Mapping[str, float] | None = None) -> None:
        """Fit the matrices space by space, then all scales at once: Gauss-Newton for ``Σ v |g a - b|²``."""
        self.each_space(votes, scales=False)
        system = self._joint
        weights = {n: _vote(votes, n) / _mean_square(self.b[n]) for n in self.near}
        before = float("inf")
        for _ in range(_STEPS if system.pieces else 0):
            error, squares, falls = 0.0, dict[Key, Tensor](), dict[Key, Tensor]()  # ``v x²``, and ``v x (y - x)``
            for piece in system.pieces:
                vote = weights[piece.tensor]
                x, y = piece.block.read(self.near[piece.tensor]), piece.block.read(self.b[piece.tensor])
                error += float(vote) * gap(x, y) ** 2
                for sums, less in ((squares, None), (falls, x)):  # blocks that join the same spaces are summed
                    one = piece.summed(x, x if less is None else y, less).mul_(vote)
                    sums[piece.key] = sums[piece.key].add_(one) if piece.key in sums else one
            if not error < (1 - _GAIN) * before:  # only rounding is left, or undetermined scales run away
                return
            slope, before = system.gathered(system.totals(falls)), error
            step = system.solved(squares, slope)
            if not float(step.abs().max()) > _SETTLED:
                return
            self.put("scales", system.split(step.clamp(-_LEAP, _LEAP)))
            if not float(step @ slope) > _GAIN * error:
                return

    def put(self, kind: str, parts: Mapping[str, Tensor | None]) -> None:
        """Compose known steps with the element; tensors move by the whole element, since steps accumulate rounding."""
        known = {name: x for name, x in parts.items() if x is not None}
        step = self._still
        for name, x in known.items():
            step = with_parts(step, name, **{kind: x})
        self.g = Transformation({**self.g.elements, **{n: step[n] @ self.g[n] for n in known}}, self.g.certified)
        for name in self.near.keys() & {m.tensor for space in known for m in self._members[space]}:
            self.near[name] = transform(self._a[name], self.sym.layouts[name], self.g)

    def _log_ratios(self, space: Space, votes: Mapping[str, float] | None) -> Tensor:
        """Log scales ``(k, p..., n)`` by least squares on log ratios of slices, weighted by their sizes."""
        terms = []
        for m, x, y in self._slices(space):
            squares, inner = (inner_products(x, other, [x.ndim - 1]) for other in (x, y))
            usable = (squares > 0) & (inner > 0)
            ratio = torch.where(usable, inner / squares.clamp_min(1e-300), 1.0).log()
            there = trust = x != 0
            if (size := self._cancelled.get(m.tensor)) is not None:  # small folded biases have most rounding
                left = (self.b[m.tensor] / size.clamp_min(torch.finfo(size.dtype).tiny)).square()
                trust = m.view(m.block.read(left))
            weight = inner_products(there, trust, [x.ndim - 1])
            terms.append((m.leaf, _vote(votes, m.tensor) * weight * usable, ratio))
        return log_scales(self._still[space.name], terms)

    def _matrix(self, space: Space, votes: Mapping[str, float] | None) -> Tensor | None:
        """Matrices ``(p..., n, n)`` that bring all slices of ``a`` closest to those of ``b``, weight by weight.

        With ``X`` of variance +1 and ``Y`` of variance -1, the errors ``M X_a - X_b`` and ``M^T Y_b - Y_a`` are both
        linear in ``M``: least squares lead to the Sylvester equation
        ``M X_a X_a^T + Y_b Y_b^T M = X_b X_a^T + Y_b Y_a^T``.
        """
        n = space.size
        written, read, right = (torch.zeros(n, n, dtype=torch.float64) for _ in range(3))
        for m, x, y in self._slices(space):
            leaf = m.leaf
            x, y = x.double(), y.double()
            vote = _vote(votes, m.tensor) / _mean_square(self.b[m.tensor])
            if space.group.is_orthogonal or leaf.variance == 1:
                written = written + vote * x @ x.mT
            elif leaf.variance == -1:
                read = read + vote * y @ y.mT
            if space.group.is_orthogonal or leaf.variance:
                right = right + vote * y @ x.mT
        if space.group.is_orthogonal:
            return polar_factor(right, space.group.turns)
        u, v, sums, known = _eigenbases(written, read)  # undetermined parts stay unchanged
        fitted = u @ torch.where(known, u.mT @ right @ v / sums.clamp_min(1e-300), u.mT @ v) @ v.mT
        return fitted if bool((torch.linalg.cond(fitted) < _CONDITION).all()) else None

    def _slices(self, space: Space) -> list[tuple[Member, Tensor, Tensor]]:
        """The slices of a space in both networks, ``(p..., n, rest)``."""
        return [(m, m.read(self.near), m.read(self.b)) for m in self._members[space.name] if m.tensor in self.near]


def log_scales(still: Element, terms: Iterable[tuple[Leaf, Tensor, Tensor]]) -> Tensor:
    """Log scales ``(k, p..., n)`` of a space by least squares, from exponents, weights and log ratios ``(p..., n)``."""
    shape = (*still.permutation.shape, len(still.scales))
    normal, right = (torch.zeros(*some, dtype=torch.float64) for some in ((*shape, shape[-1]), shape))
    for leaf, weight, ratio in terms:
        e = torch.tensor([float(v) for v in leaf.scale] or [0.0] * shape[-1], dtype=torch.float64)
        normal += weight[..., None, None] * torch.outer(e, e)
        right += (weight * ratio)[..., None] * e
    return (torch.linalg.pinv(normal, rtol=1e-9, hermitian=True) @ right[..., None])[..., 0].movedim(-1, 0)


def _mean_square(x: Tensor) -> Tensor:
    """The mean of squared entries, bounded away from zero."""
    return (inner_products(x, x, range(x.ndim)) / max(x.numel(), 1)).clamp_min(1e-300)


def _vote(votes: Mapping[str, float] | None, name: str) -> float:
    return 1.0 if votes is None else votes[name]


def _eigenbases(written: Tensor, read: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Bases ``u, v`` in which ``M written + read M`` is diagonal, the multipliers, and where they are nonzero."""
    zero = torch.zeros_like(written + read)
    (l1, v), (l2, u) = (torch.linalg.eigh(zero + x) for x in (written, read))
    sums = l2[..., :, None] + l1[..., None, :]
    return u, v, sums, sums > _UNKNOWN * sums.amax((-2, -1), keepdim=True)


def chained(sym: Symmetry) -> bool:
    """Whether a tensor joins two general linear spaces with not too many weights."""
    pieces = _pieces(sym)
    size = sum(prod(block.shape) for _, block in pieces) + sum(s.size**2 for s in sym.spaces if s.group.is_general)
    return size <= _MOST and any(len(some) > 1 for some in pieces.values())


def upright(g: Transformation) -> Transformation:
    """An element with general bases unchanged: solutions that change them least are well conditioned."""
    for name, e in g.elements.items():
        if e.linear is not None and g[name].group.is_general:
            g = with_parts(g, name, linear=torch.eye(e.linear.shape[-1]).to(e.linear).expand_as(e.linear).clone())
    return g


def join_bases(fit: Fit) -> None:
    """Move a fit by the matrices of all general linear spaces that jointly bring all tensors closest.

    If a tensor joins two of these spaces, each depends on the other. Between two fixed ends (inputs, outputs, matched
    units) the function of a linear chain is the product of its matrices. The bases ``M`` that turn one chain into
    another solve ``M_out A = B M_in`` for every tensor, and follow from the ends alone. Directions that no input
    reaches, or no output reads, have no normal form; there any solution will do.

    ``M_out A - B M_in`` is minimised in least squares by LSMR, to first order if several axes of one tensor are
    written. The unknowns of a space are scaled so that its own equations alone would be the identity.
    """
    from scipy.sparse.linalg import LinearOperator, lsmr

    system = _System(fit)
    shape = len(system.gaps), sum(system.sizes)
    adjoint = torch.func.vjp(system.image, torch.zeros(shape[1], dtype=torch.float64))[1]
    flat = lambda array: torch.from_numpy(array).flatten()
    operator = LinearOperator(
        shape, lambda z: system.image(flat(z)).numpy(), lambda y: adjoint(flat(y))[0].numpy(), dtype="float64"
    )
    z = lsmr(operator, system.gaps.numpy(), atol=_EXACT, btol=_EXACT, conlim=1 / _EXACT, maxiter=_ITERATIONS)[0]
    for name, step in system.matrices(flat(z)).items():
        fit.put("linear", {name: step + torch.eye(step.shape[-1]).to(step)})


def _pieces(sym: Symmetry) -> dict[tuple[str, Block], list[Member]]:
    """The blocks of tensors that general linear spaces move, each with the dimensions that carry these."""
    every, general = members(sym), [s.name for s in sym.spaces if s.group.is_general]
    return by_key(((m.tensor, m.block), m) for name in general for m in every[name] if m.leaf.variance)


class _System:
    """Equations for the changes of all bases, one for each entry of the tensors that they move."""

    def __init__(self, fit: Fit) -> None:
        # by piece and moving space: the sign, and what is written in one network or read in the other
        self._terms: list[list[tuple[Member, float, Tensor]]] = []
        gaps, forms = [], dict[str, list[Tensor]]()
        for (name, block), some in _pieces(fit.sym).items():
            size = _mean_square(fit.b[name]).sqrt()
            ours, theirs = (block.read(state[name]).double() / size for state in (fit.near, fit.b))
            gaps.append((theirs - ours).flatten())
            self._terms.append([(m, 1.0, ours) if m.leaf.variance == 1 else (m, -1.0, theirs) for m in some])
            for m, sign, x in self._terms[-1]:
                here = forms.setdefault(m.space.name, [torch.zeros(()), torch.zeros(())])
                here[sign < 0] = here[sign < 0] + m.view(x) @ m.view(x).mT
        self.gaps = torch.cat(gaps)
        # bases and scales in which a space's own equations are the identity on everything it moves
        self._scaled = {}
        for name, (written, read) in forms.items():
            u, v, sums, known = _eigenbases(written, read)
            self._scaled[name] = u, torch.where(known, sums.clamp_min(1e-300).rsqrt(), 0.0), v
        self.sizes = [scale.numel() for _, scale, _ in self._scaled.values()]

    def matrices(self, unknowns: Tensor) -> dict[str, Tensor]:
        """The change of every space's matrix ``(p..., n, n)``."""
        parts = unknowns.split(self.sizes)
        return {n: u @ (scale * z.view_as(scale)) @ v.mT for (n, (u, scale, v)), z in zip(self._scaled.items(), parts)}

    def image(self, unknowns: Tensor) -> Tensor:
        """The change of every entry."""
        steps, found = self.matrices(unknowns), []
        for some in self._terms:
            own = ((steps[m.space.name], m, s, x) for m, s, x in some)
            turned = [s * multiply(x, step if s > 0 else step.mT, [*m.dims]) for step, m, s, x in own]
            found.append(torch.stack(turned).sum(0).flatten())
        return torch.cat(found)
