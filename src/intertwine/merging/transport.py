"""Optimal transport between networks of one architecture and different widths (OT fusion, Singh and Jaggi 2020).

Differs from the paper: couplings are found for every space of the symmetry rather than for a list of layers, over all
weights that write it and, from the second sweep on, all that read it. And weights that read a space are spread by
couplings whose *rows* sum to one, so that a network widened by copies of its units computes the same function (with the
paper's column sums it does not: a unit that became two is read twice). What writes and what reads is taken from the
operations that the network runs (``symmetry.duplication``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import gcd, lcm, prod
from typing import Any

import torch
from torch import Tensor, nn

from .._evaluation import copied, in_usual_mode
from .._words import counted
from ..features.spectral_norms import spectral_norms
from ..groups.assignment import couple, stochastic
from ..matching.coordinates.problem import members, single_spaces
from ..symmetry import Symmetry
from ..symmetry.action import multiply, rewritable, tensors_of, write
from ..symmetry.blocks import Block, Member, align, blocks, unit_rows
from ..symmetry.find import copy_degrees, symmetries
from ..symmetry.proof import Wide, in_float64
from ..symmetry.spaces import Fixed, Layout, axis_size
from ..testing import relative_error

_SWEEPS = 10
_LARGEST = 2048  # units up to which a coupling is solved exactly, as an assignment of copies
_SMOOTH = 0.01  # entropy of larger couplings, as a share of the mean cost
_ITERATIONS = 2000
_NOISE, _DRAWS = 0.5, 8  # noise on weights that checks copies: as a share of their size, and how many draws

_Degrees = Mapping[tuple[str, int, str], Fraction]
_Sizes = Mapping[str, tuple[int, int]]


@dataclass(frozen=True, eq=False, repr=False)
class Transport:
    """The sharing of the units of ``b`` among those of a network of another width.

    Attributes:
        symmetry: The symmetry of ``a``.
        couplings: For every space the masses ``(n_a, n_b)`` moved between units; rows sum to ``1 / n_a``, columns to
            ``1 / n_b``.
        costs: The transport cost of every space.
        model: A network of the width of ``a``, whose weights ``apply`` replaces.
        sizes: For every space its numbers of units in ``a`` and in ``b``.
        degrees: For every tensor, axis and space that changes its width, the power of the number of units with which
            entries scale: 0 where they write units, -1 where they read them.
        layouts_b: The layouts of ``b``.
    """

    symmetry: Symmetry
    couplings: Mapping[str, Tensor]
    costs: Mapping[str, float]
    model: nn.Module
    sizes: _Sizes
    degrees: _Degrees
    layouts_b: Mapping[str, Any]
    method: str = "transport"

    def apply(self, b: nn.Module) -> nn.Module:
        """``b`` at the width of ``a``: every unit is a mean of units of ``b``, and what reads them is shared out.

        Returns:
            A new network; it computes the same function if each unit of ``b`` became equally many units.
        """
        state, sym = tensors_of(b), self.symmetry
        moved = {name: self._moved(name, state[name]) for name in sym.layouts}
        fixed = {name: tensor for name, tensor in state.items() if name not in {*sym.layouts, *sym.aliases}}
        aliases = {alias: moved[name] for alias, name in sym.aliases.items()}
        return write(rewritable(sym, self.model), {**fixed, **moved, **aliases})

    def _moved(self, name: str, tensor: Tensor) -> Tensor:
        """A tensor of ``b`` at the width of ``a``."""
        ours, theirs = self.symmetry.layouts[name], self.layouts_b[name]
        wide = tensor.double() if tensor.device.type != "mps" else tensor.cpu().double()
        wide = _shared(wide, name, theirs, self.sizes, self.degrees)
        new = torch.zeros([axis_size(axis) for axis in ours.axes], dtype=torch.float64, device=wide.device)
        for block, other in zip(blocks(ours), blocks(theirs)):
            new = block.write(new, _brought(other, wide, self.couplings))
        return new.to(tensor.device, tensor.dtype)

    def __repr__(self) -> str:
        return f"<{self.summary().partition(chr(10))[0]}>"

    def summary(self) -> str:
        """Numbers of units of each space in both networks, and what it costs to share them."""
        sizes = ((name, *of, self.costs[name]) for name, of in self.sizes.items())
        lines = [f"{name}: {counted(b, 'unit')} of b onto {a} of a, cost {cost:.4g}" for name, a, b, cost in sizes]
        return "\n".join([f"Transport of {counted(len(self.couplings), 'space')}", *lines])


@in_usual_mode
def transport(
    a: nn.Module, b: nn.Module, example_inputs: Any, *, entropy: float = 0.0, sweeps: int = _SWEEPS
) -> Transport:
    """Couple the units of two networks of one architecture whose widths may differ.

    Space by space along the network, units are coupled with equal masses so that the squared distance between their
    weights is least, given the earlier spaces in the widths of ``a``; then in turn with what reads them, until the
    couplings no longer change. Equal widths give permutations. Scales are not searched, and heads and groups stay in
    place: their numbers and sizes must be equal.

    Args:
        a: The network whose widths are kept. Both are left as they are.
        b: The other network.
        example_inputs: See ``symmetries``; it must fit both.
        entropy: Strength of the entropy that smooths couplings (Sinkhorn), as a share of the mean cost; 0 for exact
            couplings up to common multiples of 2,048 units, and 0.01 beyond.
        sweeps: Largest number of sweeps through the spaces.

    Returns:
        The transport; ``merge(a, b, transport)`` takes it.

    Raises:
        ValueError: If the architectures differ in more than widths, or a space that would change its width lies inside
            another one or contains others (heads, groups), has a linear group, or is used in a way that copies of its
            units would change: a weight that both writes and reads it, a sum over it without weights behind something
            that no scale passes, a factor that depends on the width; or if widths without a common factor lie behind a
            norm whose gain and bias cannot be checked.

    References:
        - Singh, S. P. and Jaggi, M. Model Fusion via Optimal Transport. NeurIPS 2020.

    Examples:
        >>> net = lambda n: nn.Sequential(nn.Linear(3, n), nn.ReLU(), nn.Linear(n, 2))
        >>> a, b = net(6), net(4)
        >>> found = transport(a, b, torch.zeros(2, 3))
        >>> found.apply(b)[0].weight.shape, found.couplings["0.weight[0]"].shape
        (torch.Size([6, 3]), torch.Size([6, 4]))
    """
    if entropy < 0 or sweeps < 1:
        raise ValueError(f"entropy must not be negative and sweeps at least 1. Got {entropy} and {sweeps}.")
    ours, theirs = symmetries(a, example_inputs), symmetries(b, example_inputs)
    sizes = _checked(ours, theirs)
    degrees = _degrees(ours, sizes, [n for norm in spectral_norms(a).values() for n in (norm.u_name, norm.v_name)])
    found = Transport(ours, {}, {}, copied(a).eval(), sizes, degrees, theirs.layouts)
    if any(n != m for n, m in sizes.values()):
        _check_copies(found, theirs, b, example_inputs)
    left, right = ({k: t.double().cpu() for k, t in tensors_of(m).items()} for m in (a, b))
    right |= {name: _shared(right[name], name, x, sizes, degrees) for name, x in theirs.layouts.items()}
    carried, carried_b, free = members(ours), members(theirs), single_spaces(ours)
    couplings: dict[str, Tensor] = {}
    costs: dict[str, float] = {}
    for _ in range(sweeps):
        before = dict(couplings)
        for space in ours.spaces:
            known = {name: found for name, found in couplings.items() if name != space.name}
            pairs = zip(carried[space.name], carried_b[space.name], strict=True)
            cost = torch.zeros(sizes[space.name], dtype=torch.float64)
            cost = sum((_distances(*pair, left, right, known) for pair in pairs), cost).clamp_min(0)
            still = torch.eye(space.size, dtype=torch.float64) / space.size  # left in place: of equal widths
            couplings[space.name] = coupling(cost, entropy) if space in free else still
            costs[space.name] = float((couplings[space.name] * cost).sum())
        if before and all(torch.allclose(before[k], couplings[k], atol=1e-9) for k in couplings):
            break
    return replace(found, couplings=couplings, costs=costs)


def coupling(cost: Tensor, entropy: float = 0.0) -> Tensor:
    """The cheapest way to move equal masses of ``m`` units onto equal masses of ``n`` units.

    ``min <T, cost>`` over ``T >= 0`` with row sums ``1 / n`` and column sums ``1 / m``. Exact up to common multiples of
    2,048 units; beyond, or with an entropy, by Sinkhorn's iteration on logarithms.

    Args:
        cost: ``(n, m)``.
        entropy: Strength of the entropy, as a share of the mean cost.

    Returns:
        ``T``, float64 ``(n, m)`` on the CPU.

    Raises:
        RuntimeError: If Sinkhorn's iteration does not settle.

    Examples:
        >>> coupling(torch.tensor([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]]))
        tensor([[0.2500, 0.0000],
                [0.2500, 0.0000],
                [0.0000, 0.2500],
                [0.0000, 0.2500]], dtype=torch.float64)
    """
    cost, (n, m) = cost.detach().cpu().double(), cost.shape
    if entropy == 0 and lcm(n, m) <= _LARGEST:
        return couple(-cost)
    entropy = entropy or _SMOOTH
    logs, settled = stochastic(-cost / (entropy * cost.mean().clamp_min(1e-300)), _ITERATIONS)
    if not settled:
        raise RuntimeError(
            f"entropy must be large enough for Sinkhorn's iteration to settle. Got {entropy}. Use a larger one."
        )
    return logs.exp() / n


def _shared(x: Tensor, name: str, layout: Layout, sizes: _Sizes, degrees: _Degrees) -> Tensor:
    """A tensor of ``b`` with entries scaled to the size that they have among as many units as ``a`` has."""
    for k, axis in enumerate(layout.axes):
        shares = torch.ones(axis_size(axis), dtype=x.dtype, device=x.device)
        for block in blocks(Layout((axis,))):
            powers = {s: float(degrees.get((name, k, s), 0)) for s in block.spaces if s is not None}
            share = prod((sizes[s][0] / sizes[s][1]) ** power for s, power in powers.items())
            shares = block.write(shares, block.read(shares) * share)
        x = x * align(shares, [k], x.ndim)
    return x


def _brought(block: Block, tensor: Tensor, couplings: Mapping[str, Tensor]) -> Tensor:
    """A block of ``b`` with every coupled dimension at the width of ``a``: means of its units."""
    x = block.read(tensor)
    for dim, leaf in block.carried:
        if leaf.space in couplings:
            coupling = couplings[leaf.space]
            x = multiply(x, (len(coupling) * coupling).to(x), [dim])
    return x


def _distances(
    ours: Member, theirs: Member, a: Mapping[str, Tensor], b: Mapping[str, Tensor], known: Mapping[str, Tensor]
) -> Tensor:
    """Squared distances between units of both in one block; none while another dimension is not at the width."""
    others = {s for d, s in enumerate(ours.block.spaces) if s is not None and d != ours.dim}
    if not others <= known.keys():
        return torch.zeros((), dtype=torch.float64)
    x, y = ours.block.read(a[ours.tensor]), _brought(theirs.block, b[theirs.tensor], known)
    x, y = (unit_rows(piece, [ours.dim]) for piece in (x, y))
    return x.square().sum(1)[:, None] + y.square().sum(1) - 2 * x @ y.mT


def _checked(ours: Symmetry, theirs: Symmetry) -> dict[str, tuple[int, int]]:
    """The sizes of every space in both networks."""
    alone = sorted(ours.layouts.keys() ^ theirs.layouts.keys())
    if alone:
        whose = "a" if alone[0] in ours.layouts else "b"
        raise _unlike(f"{counted(len(alone), 'tensor')} of one alone, such as {alone[0]!r} of {whose}: other depths")
    names, others = ({space.name: space.size for space in sym.spaces} for sym in (ours, theirs))
    for name in sorted(names.keys() ^ others.keys()):
        sym, whose = (ours, "a") if name in names else (theirs, "b")
        raise _unlike(
            f"{sym.titles[name]!r} of {whose} alone: heads that share keys, a single head, or other settings. Give b "
            "the numbers of heads and of key/value heads (num_attention_heads, num_key_value_heads in transformers) "
            "that a has"
        )
    sizes, free = {name: (size, others[name]) for name, size in names.items()}, single_spaces(ours)
    for space in ours.spaces:
        n, m = sizes[space.name]
        if n != m and space not in free:
            raise ValueError(
                "heads, groups and what lies inside them must be equal in number and size. Got "
                f"{ours.titles[space.name]!r} with {n} in a and {m} in b, and a mean of heads is no head. Widths of "
                "streams, MLPs and channels may differ: give b the number of heads and the size of a head (head_dim "
                "in transformers) that a has."
            )
    outline = lambda layout: [[getattr(x, "space", x.size) for x in block.leaves] for block in blocks(layout)]
    for name, layout in ours.layouts.items():
        pairs = zip(layout.axes, theirs.layouts[name].axes)
        if outline(layout) == outline(theirs.layouts[name]):
            continue
        for x, y in pairs:
            if isinstance(x, Fixed) and isinstance(y, Fixed) and x.size != y.size:
                raise ValueError(
                    f"sizes of inputs, outputs and tables must be equal. Got {x.size:,} in a and {y.size:,} in b for "
                    f"{name!r} ({x.reason}): what no symmetry moves stands for the same things in both. Bring b to "
                    f"{x.size:,} in a's order first; of tokens, keep the rows of a's vocabulary."
                )
        raise _unlike(f"{name!r}, where spaces lie otherwise")
    return sizes


def _degrees(sym: Symmetry, sizes: _Sizes, lengths: Sequence[str]) -> _Degrees:
    """``copy_degrees`` of the spaces that change width."""
    resized = {space for space, (n, m) in sizes.items() if n != m}
    program = sym.origin.program
    if not resized or program is None:
        return {}
    found = {}
    for key, degree in copy_degrees(program, lengths).items():
        if key[2] in resized and degree is None:
            raise _uncopied(f"{key[0]!r} in axis {key[1]}, for which no scaling of its weights makes up")
        if key[2] in resized and degree:
            found[key] = degree
    return found


def _check_copies(found: Transport, theirs: Symmetry, b: nn.Module, example_inputs: Any) -> None:
    """Refuse a transport unless both widths compute one function when units of ``b`` are made equal in both."""
    wide_a, wide_b = in_float64(found.model, example_inputs), in_float64(b, example_inputs)
    generator, start = torch.Generator().manual_seed(0), [p.detach().clone() for p in wide_b.model.parameters()]
    untold = {name for name, _, space in found.degrees if gcd(*found.sizes[space]) == 1}

    def equal_units(sym: Symmetry, model: nn.Module, sizes: _Sizes) -> nn.Module:
        couplings = {}
        for name, (n, m) in sizes.items():  # all units of each block are made equal
            count = gcd(*found.sizes[name])
            block = torch.full((n // count, m // count), count / (n * m), dtype=torch.float64)
            couplings[name] = torch.block_diag(*[block] * count)
        return replace(found, symmetry=sym, couplings=couplings, model=model, sizes=sizes).apply(wide_b.model)

    for _ in range(_DRAWS):
        for p, x in zip(wide_b.model.parameters(), start):  # zeros, as of biases at the start, hide what reads them
            noise = torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device)
            p.data = x + _NOISE * (x.square().mean().sqrt() or 1.0) * noise
        narrow = equal_units(theirs, wide_b.model, {name: (m, m) for name, (_, m) in found.sizes.items()})
        wide = equal_units(found.symmetry, wide_a.model, found.sizes)
        error = relative_error(wide_b.outputs(narrow), wide_a.outputs(wide))
        if not error <= max(wide_a.rtol, wide_b.rtol):
            raise _uncopied(f"outputs that differ by {error:.2g}")
        # a norm removes what is equal in all units
        untold = {n for n in untold if not _doubled(wide_b, narrow, n) and _doubled(wide_b, wide_b.model, n)}
        if not untold:
            return
    raise _uncopied(f"{min(untold)!r} between widths without a common factor, which equal units cannot check")


def _doubled(wide: Wide, model: nn.Module, name: str) -> bool:
    """Whether doubling a tensor changes the outputs."""
    twin = copied(model)
    tensors_of(twin)[name].mul_(2)
    return relative_error(wide.outputs(model), wide.outputs(twin)) > wide.rtol


def _unlike(what: str) -> ValueError:
    return ValueError(f"a and b must be of one architecture, but for widths. Got {what}.")


def _uncopied(what: str) -> ValueError:
    return ValueError(
        f"units must be ones whose copies compute the same function. Got {what}: fold parametrisations such as weight "
        "norm first, untie weights, or give both networks the same width there."
    )
