"""The canonical form of a network: one representative of all its symmetric copies.

Batch norms become their affine maps in eval mode. Statistics and gain share one scale, which either ``v`` or the gain
may take, so they are replaced by ``s = gamma / sqrt(v + eps)`` and ``t = beta - s m``, which do not depend on that
choice (binding correction 3).

Gradient norm and sharpness of a loss at the canonical form are the same for all copies. Without it, rescaled copies of
one network have the same loss but any gradient norm and sharpness (Dinh et al., 2017). The remaining symmetries are
permutations, signs and rotations, which move weights without changing lengths.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..._evaluation import in_usual_mode
from ..action import check_ties, moved, rewritable, tensors_of, write
from ..blocks import carrying
from ..coupling import coupled, restricted
from ..find import symmetries
from ..spaces import Axis, BatchNormTensors, Layout, Leaf, Part, Product, Sum
from ..symmetry import Symmetry
from ..tangent import project
from ..transformation import Transformation, element, identity, with_parts
from .bases import general_bases, least_passing, orthogonal_basis
from .scales import balancing_scales
from .signs import signing


@dataclass(frozen=True)
class Folded:
    """Weights with batch norms folded, and the symmetry that acts on them."""

    sym: Symmetry  # Acts on ``state``; it has no batch norms left
    state: dict[str, Tensor]  # Gains hold ``s``, biases ``t``; without a gain the variance holds ``v + eps``
    means: dict[str, tuple[str, Tensor]]  # For each ``t``: the name of its ``s``, and ``m``
    pinned: frozenset[str]  # Variances of batch norms without a gain, which the canonical form brings to 1

    def size(self, name: str) -> Tensor:
        """The size against which rounding is judged: the tensor itself, or of a ``t`` its terms, ``|beta| + |s m|``."""
        t = self.state[name]
        if name not in self.means:
            return t
        gain, mean = self.means[name]
        shift = self.state[gain] * mean
        return (t + shift).abs() + shift.abs()

    def with_gain(self, name: str, gain: Tensor) -> Tensor:
        """The ``t`` for another ``s``, with ``beta`` and mean unchanged."""
        s, mean = self.means[name]
        return self.state[name] + (self.state[s] - gain) * mean


def fold(sym: Symmetry, state: Mapping[str, Tensor], dtype: torch.dtype = torch.float64) -> Folded:
    """The tensors with a layout, on the CPU in some precision, with batch norms folded in float64; may share memory."""
    norms = {name for norm in sym.batch_norms for name in (norm.mean, norm.variance, norm.weight, norm.bias)}
    wide = {n: state[n].detach().to("cpu", torch.float64 if n in norms else dtype) for n in sym.layouts if n in state}
    layouts = dict(sym.layouts)
    means, pinned = dict[str, tuple[str, Tensor]](), set[str]()
    for norm in sym.batch_norms:
        if not {norm.mean, norm.variance} <= wide.keys():
            continue
        if norm.weight is None:
            wide[norm.variance] = wide[norm.variance] + norm.eps
            pinned.add(norm.variance)
            continue
        s = wide[norm.weight] * (wide.pop(norm.variance) + norm.eps).rsqrt()
        mean = wide.pop(norm.mean)
        exponents = layouts.pop(norm.variance).axes[0]
        layouts.pop(norm.mean)
        layouts[norm.weight] = Layout((_divided(layouts[norm.weight].axes[0], exponents),))
        wide[norm.weight] = s
        if norm.bias is not None:
            means[norm.bias] = norm.weight, mean.to(dtype)
            wide[norm.bias] = wide[norm.bias] - s * mean
    aliases = {alias: name for alias, name in sym.aliases.items() if name in layouts}
    layouts = {name: layout for name, layout in layouts.items() if name in wide}
    folded = replace(sym, layouts=layouts, batch_norms=(), aliases=aliases, dtype=dtype)
    return Folded(folded, {n: t.to(dtype) for n, t in wide.items()}, means, frozenset(pinned))


def unfold(folded: Mapping[str, Tensor], norms: tuple[BatchNormTensors, ...]) -> dict[str, Tensor]:
    """Folded weights in the form that a model takes: mean 0, variance ``1 - eps``, gain ``s`` and bias ``t``."""
    state = dict(folded)
    for norm in norms:
        if norm.weight is None:
            state[norm.variance] = folded[norm.variance] - norm.eps
        else:
            state[norm.mean] = torch.zeros_like(folded[norm.weight])
            state[norm.variance] = torch.full_like(folded[norm.weight], 1 - norm.eps)
    return state


def _divided(gain: Axis, variance: Axis) -> Axis:
    """The layout of ``gamma / sqrt(v + eps)``: scale exponents of the gain minus half those of the variance."""
    if isinstance(gain, Leaf) and isinstance(variance, Leaf):
        scale = tuple(a - b / Fraction(2) for a, b in zip(gain.scale, variance.scale))
        return replace(gain, scale=scale)
    if isinstance(gain, Product) and isinstance(variance, Product):
        return Product(tuple(_divided(a, b) for a, b in zip(gain.factors, variance.factors)))
    if isinstance(gain, Sum) and isinstance(variance, Sum):
        return Sum(tuple(Part(a.ranges, _divided(a.axis, b.axis)) for a, b in zip(gain.parts, variance.parts)))
    return gain


_ROUNDS = 100  # of bases and scales in turn
_DEPTH = 8  # rounds that determine where the next one begins
_LEAP = 2.0  # largest change of a log scale beyond the last round's result
_RANK = 1e-8  # singular values of their differences below it, relative to the largest, are rounding
_CONDITION = 1e4  # condition number of matrices beyond which a basis is better left alone
_SETTLED = 1e-9  # log scales, matrix entries and keys closer than this already count as canonical


@in_usual_mode
def canonical(model: nn.Module, example_inputs: Any, sym: Symmetry | None = None) -> nn.Module:
    """A copy of ``model`` in canonical form, which is equal, up to rounding, for all of its symmetric copies.

    Scales minimise the sum of squared weights, bases of linear spaces are balanced realisations, units are sorted by a
    key, and signs make an odd statistic positive. Batch norms are replaced by their affine map in eval mode (mean 0,
    variance 1 - eps): the function is kept exactly *in eval mode*, while training from there differs.

    Copies may keep different forms if a head has equal singular values, which leave its basis open, or in weights
    between two linear spaces that nothing reaches or reads (a purely linear network that widens).

    Args:
        model: The model. It is left as it is.
        example_inputs: One tensor, a tuple of positional arguments or a mapping of keyword arguments.
        sym: The model's symmetry, if it is already known.

    Examples:
        >>> import intertwine as iw
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).double()
        >>> x = torch.zeros(2, 4).double()
        >>> twin = iw.symmetries(model, x).random(seed=1)
        >>> twin = iw.symmetries(model, x).act(twin, model)
        >>> a, b = canonical(model, x), canonical(twin, x)
        >>> all(torch.allclose(p, q) for p, q in zip(a.parameters(), b.parameters()))
        True
    """
    if sym is None:
        sym = symmetries(model, example_inputs)
    twin = rewritable(sym, model)
    live = tensors_of(twin)
    check_weights(sym, live)
    check_ties(sym, live, written=True)
    folded = fold(sym, live)
    g = balanced(folded)  # scales and matrices, then order, then signs
    g = arranged(folded.sym, {**folded.state, **moved(folded.sym, g, folded.state)}) @ g
    return write(twin, unfold({**folded.state, **moved(folded.sym, g, folded.state)}, sym.batch_norms))


def arranged(sym: Symmetry, state: Mapping[str, Tensor], ordered: Collection[str] = ()) -> Transformation:
    """The part of the canonical element that orders units and sets their signs, for otherwise normalised weights.

    ``ordered`` spaces have sorted units already, as linear spaces sorted by singular values do.
    """
    order = _ordering(sym, state, ordered)
    return signing(sym, {**state, **moved(sym, order, state)}) @ order


def balanced(
    folded: Folded, tolerance: float = 1e-12, kinds: Collection[str] = ("scale", "linear"), rotations: bool = True
) -> Transformation:
    """The scales and matrices of the canonical element, found separately for each group of coupled tensors.

    The search ends when log scales change by less than ``tolerance``, which is finer than the weights' own precision.
    Without ``rotations``, matrices are symmetric and positive, which keeps bases as near as possible to the given ones.
    """
    sym = folded.sym
    g = identity(sym)
    for names in coupled(sym):
        part = restricted(sym, names)
        if not any(s.group.scales or s.group.mixes for s in part.spaces):
            continue
        h = _group_balanced(replace(folded, sym=part, state={n: folded.state[n] for n in names}), tolerance, kinds)
        h = _oriented(part, folded.state, h) if rotations and "linear" in kinds else _upright(h)
        for name, e in h.elements.items():
            linear = {} if e.linear is None else {"linear": e.linear}
            g = with_parts(g, name, scales=g[name].scales + e.scales, **linear)
    return g


def _group_balanced(folded: Folded, tolerance: float, kinds: Collection[str]) -> Transformation:
    """The scales and general matrices of one group of coupled tensors."""
    sym, state, bases = folded.sym, folded.state, "linear" in kinds
    rank = least_passing(tolerance)
    names = []  # tensors with a general linear space, if any of them also carries a scale
    if "scale" in kinds and bases:
        general = {s.name for s in sym.spaces if s.group.is_general}
        scaled = {s.name for s in sym.spaces if not s.group.mixes and s.group.scales}
        names = [n for n, layout in sym.layouts.items() if layout.spaces & general]
        names = names if any(sym.layouts[n].spaces & scaled for n in names) else []
    scales = balancing_scales(sym, state, folded.pinned, tolerance, bases=bases) if "scale" in kinds else {}
    kept: dict[tuple[str, int], tuple[list[Tensor], Tensor]] = {}
    rounds: list[tuple[Tensor, Tensor]] = []
    for _ in range(_ROUNDS if names else 0):  # norms depend on bases, and bases on scales
        found = general_bases(sym, {**state, **moved(sym, element(sym, scales=scales), state, names)}, kept, rank)
        here = {**state, **moved(sym, _turning(sym, found), state, names)}
        before, scales = scales, balancing_scales(sym, here, folded.pinned, tolerance, scales)
        start, end = (torch.cat([t.flatten() for t in logs.values()]) for logs in (before, scales))
        if bool(((end - start).abs() < tolerance).all()):
            break
        farther = rounds and bool((end - start).norm() > (rounds[-1][1] - rounds[-1][0]).norm())
        rounds = [*([] if farther else rounds[1 - _DEPTH :]), (start, end)]
        parts = _ahead(rounds).split([t.numel() for t in scales.values()])
        scales = {name: part.view_as(t) for (name, t), part in zip(scales.items(), parts)}
    g = element(sym, scales={n: t for n, t in scales.items() if not _near(t, torch.zeros(()))})
    return _turning(sym, general_bases(sym, {**state, **moved(sym, g, state)}, kept, rank)) @ g if bases else g


def _ahead(rounds: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """The start of the next round: the combination of ends whose rounds together move least (Anderson, 1965)."""
    starts, ends = (torch.stack(some) for some in zip(*rounds))
    turned = (ends - starts).diff(dim=0).mT
    shares = torch.linalg.pinv(turned, rtol=_RANK) @ (ends[-1] - starts[-1])
    beyond = shares @ ends.diff(dim=0)
    return ends[-1] - beyond if bool((beyond.abs() <= _LEAP).all()) else ends[-1]


def _oriented(sym: Symmetry, state: Mapping[str, Tensor], g: Transformation) -> Transformation:
    """An element, followed by the rotation of orthogonal spaces onto their eigenvectors."""
    for space in sym.spaces:
        if space.group.is_orthogonal:
            basis = orthogonal_basis(sym, {**state, **moved(sym, g, state)}, space)
            g = _turning(sym, {} if basis is None else {space.name: basis}) @ g
    return g


def _upright(g: Transformation) -> Transformation:
    """An element with each matrix ``M`` replaced by the symmetric ``(M^T M)^(1/2)``, which takes rotations out."""
    for name, e in g.elements.items():
        if e.linear is not None:
            _, sizes, rows = torch.linalg.svd(e.linear)
            if bool((sizes[..., 0] > _CONDITION * sizes[..., -1]).any()):
                sizes = torch.ones_like(sizes)  # these bases stay: they would use up all digits of float32 weights
            g = with_parts(g, name, linear=rows.mT @ (sizes[..., None] * rows))
    return g


def _turning(sym: Symmetry, bases: Mapping[str, Tensor]) -> Transformation:
    """The element with given matrices; those close to the identity are dropped, so that a normal form is unchanged."""
    eye = lambda basis: torch.eye(basis.shape[-1], dtype=torch.float64)
    return element(sym, linear={name: basis for name, basis in bases.items() if not _near(basis, eye(basis))})


def check_weights(sym: Symmetry, state: Mapping[str, Tensor]) -> None:
    """Refuse a state whose weights are missing or cannot be compared."""
    for name in sym.layouts:
        if name not in state:
            raise ValueError(f"state must hold every tensor of the symmetry. Got none named {name!r}.")
        comparable(state[name], repr(name))


def comparable(x: Tensor, title: str) -> Tensor:
    """Weights that can be compared with others: present, dense, not quantised, finite. All others are refused."""
    if x.is_meta:
        raise ValueError(f"weights must hold numbers. Got {title} on the meta device: load a checkpoint first.")
    if x.layout != torch.strided or x.is_quantized:
        raise ValueError(
            f"weights must be dense and not quantised. Got quantised or sparse numbers in {title}: dequantise first."
        )
    if x.is_floating_point() and x.dtype.itemsize < 2:
        raise ValueError(f"weights must have 16 bits or more. Got {x.dtype} in {title}: dequantise first.")
    finite = bool(torch.isfinite(x.sum())) or bool(torch.isfinite(x).all())  # the sum alone may overflow
    if x.is_floating_point() and not finite:
        raise ValueError(f"weights must be finite. Got NaN or infinity in {title}.")
    return x


def _ordering(sym: Symmetry, state: Mapping[str, Tensor], ordered: Collection[str]) -> Transformation:
    """Sort every space by the sum of |w|^1.5 over its slices, a key that no permutation or sign of others changes."""
    g = identity(sym)
    for space in sym.spaces:
        if not space.group.permutes or space.size < 2 or space.group.mixes or space.name in ordered:
            continue
        key = torch.zeros(g[space.name].permutation.shape, dtype=torch.float64)
        for m in carrying(sym.layouts, space):
            if m.tensor in state:
                sizes = m.read(state).abs()
                key += (sizes * sizes.sqrt()).sum(-1)
        settled = key[..., 1:] >= key[..., :-1] - _SETTLED * key.abs().amax().clamp_min(1e-300)
        if not bool(settled.all()):
            g = with_parts(g, space.name, permutation=key.argsort(dim=-1, stable=True))
    # keys of children are indexed by the parents' old units: map them to the new ones
    for space in sorted(sym.spaces, key=lambda s: len(s.parents)):
        if space.parents:
            g = Transformation({**g.elements, space.name: g[space.name].reindexed(g.elements)})
    return g


def _near(a: Tensor, b: Tensor) -> bool:
    return bool(((a - b).abs() < _SETTLED).all())


Loss = Callable[[dict[str, Tensor]], Tensor]


@in_usual_mode
def gradient_norm(sym: Symmetry, loss: Loss, state: Mapping[str, Tensor]) -> float:
    """Norm of the gradient in balanced coordinates.

    Args:
        sym: The symmetry of the architecture.
        loss: A function of the weights by name, such as one built with ``torch.func.functional_call``.
        state: The weights.
    """
    gradient = torch.func.grad(loss)(_balanced(sym, state))
    return float(sum(t.square().sum() for t in gradient.values())) ** 0.5


@in_usual_mode
def sharpness(sym: Symmetry, loss: Loss, state: Mapping[str, Tensor]) -> float:
    """Largest eigenvalue of the Hessian in balanced coordinates, on directions orthogonal to all symmetric copies.

    Args:
        sym: The symmetry of the architecture.
        loss: A function of the weights by name, twice differentiable there.
        state: The weights.
    """
    from scipy.sparse.linalg import LinearOperator, eigsh

    weights = _balanced(sym, state)
    sizes = {name: t.numel() for name, t in weights.items()}

    def split(flat: np.ndarray) -> dict[str, Tensor]:
        parts = torch.from_numpy(np.ascontiguousarray(flat).reshape(-1)).double().split(list(sizes.values()))
        return {name: part.reshape(weights[name].shape) for name, part in zip(sizes, parts)}

    def apply(flat: np.ndarray) -> np.ndarray:
        direction = project(sym, split(flat), weights)
        turned = torch.func.jvp(torch.func.grad(loss), (weights,), (direction,))[1]
        found = project(sym, turned, weights)
        return torch.cat([found[name].flatten() for name in sizes]).numpy()

    n = sum(sizes.values())
    start = np.random.default_rng(0).standard_normal(n)
    values = eigsh(LinearOperator((n, n), matvec=apply, dtype=np.float64), k=1, which="LA", v0=start, tol=1e-8)[0]
    return float(values[0])


def _balanced(sym: Symmetry, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All floating-point tensors in balanced coordinates, in float64."""
    check_weights(sym, state)
    wide = {n: t.detach().cpu().double() for n, t in state.items() if t.is_floating_point() and n not in sym.aliases}
    return {**wide, **moved(sym, balanced(fold(sym, wide)), wide)}
