"""Batch norm as the affine map that it is in eval mode: what canonical forms and fingerprints look at.

Statistics and gain share one scale between them (``v`` may follow it, or the gain), so they are replaced by
``s = gamma / sqrt(v + eps)`` and ``t = beta - s m``, which do not depend on who took it (binding correction 3).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

import torch
from torch import Tensor

from ..spaces import Axis, BatchNormTensors, Layout, Leaf, Part, Product, Sum
from ..symmetry import Symmetry


@dataclass(frozen=True)
class Folded:
    """Weights with batch norms folded, and the symmetry that acts on them."""

    sym: Symmetry  # Acts on ``state``; it has no batch norms left
    state: dict[str, Tensor]  # Gains hold ``s``, biases ``t``; without a gain the variance holds ``v + eps``
    means: dict[str, tuple[str, Tensor]]  # For each ``t`` the name of its ``s``, and ``m``
    pinned: frozenset[str]  # Variances of batch norms without a gain, which canonical forms bring to 1

    def size(self, name: str) -> Tensor:
        """What rounding is judged by: a tensor, and of each ``t`` what was subtracted, ``|beta| + |s m|``."""
        t = self.state[name]
        if name not in self.means:
            return t
        gain, mean = self.means[name]
        shift = self.state[gain] * mean
        return (t + shift).abs() + shift.abs()

    def with_gain(self, name: str, gain: Tensor) -> Tensor:
        """A ``t`` as it would be with another ``s``, its ``beta`` and mean as they are."""
        s, mean = self.means[name]
        return self.state[name] + (self.state[s] - gain) * mean


def fold(sym: Symmetry, state: Mapping[str, Tensor], dtype: torch.dtype = torch.float64) -> Folded:
    """Fold the batch norms of a state dict.

    Args:
        sym: The symmetry of the architecture.
        state: Parameters and buffers by name; those without a layout are left out.
        dtype: Precision of the folded weights; batch norms are folded in float64.

    Returns:
        The weights on the CPU. Those that are there in that precision already, and belong to no batch norm, are shared.
    """
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
    """Folded weights as a model takes them: mean 0, variance ``1 - eps``, gain ``s`` and bias ``t``."""
    state = dict(folded)
    for norm in norms:
        if norm.weight is None:
            state[norm.variance] = folded[norm.variance] - norm.eps
        else:
            state[norm.mean] = torch.zeros_like(folded[norm.weight])
            state[norm.variance] = torch.full_like(folded[norm.weight], 1 - norm.eps)
    return state


def _divided(gain: Axis, variance: Axis) -> Axis:
    """The layout of ``gamma / sqrt(v + eps)``: scale exponents of the gain minus half of the variance's."""
    if isinstance(gain, Leaf) and isinstance(variance, Leaf):
        scale = tuple(a - b / Fraction(2) for a, b in zip(gain.scale, variance.scale))
        return replace(gain, scale=scale)
    if isinstance(gain, Product) and isinstance(variance, Product):
        return Product(tuple(_divided(a, b) for a, b in zip(gain.factors, variance.factors)))
    if isinstance(gain, Sum) and isinstance(variance, Sum):
        return Sum(tuple(Part(a.ranges, _divided(a.axis, b.axis)) for a, b in zip(gain.parts, variance.parts)))
    return gain
