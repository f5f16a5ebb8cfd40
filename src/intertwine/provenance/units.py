"""Units of every space: their features, read one tensor at a time, also between networks of different widths.

Spaces are taken in order, parents before their inner spaces. A tensor shows its units along one space: its fixed axes
and those of earlier spaces are features in place, while axes of later spaces are summed out. So the result for a space
depends only on the order of its own units and of earlier spaces. If the networks are independent, so are the p-values
of the spaces.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from .._io.lazy import LazyState, State
from .._words import counted, listed
from ..groups.assignment import assign
from ..matching.coordinates.problem import Problem, searched, within
from ..matching.solvers.coordinate_descent import descend
from ..symmetry import Symmetry
from ..symmetry.blocks import Block, blocks, parent_dims, summed, unit_rows
from ..symmetry.coupling import kept_rows, narrowed
from ..symmetry.spaces import Axis, Fixed, Layout, Leaf, Part, Product, Space, Sum, axis_size, spaces_of
from ..symmetry.transformation import Transformation, identity

_ROUNDS = 3  # of normalising columns and rows in turn


@dataclass(frozen=True, eq=False)
class View:
    """Units of one space along one axis of one block of a tensor."""

    space: str  # Name of the space
    block: Block  # The block
    dims: tuple[int, ...]  # The dimensions of the space's parents, then of its units
    summed: tuple[int, ...]  # Dimensions of later spaces
    square: int | None  # A dimension of an earlier space with as many units, if there are no parents

    def rows(self, tensor: Tensor) -> Tensor:
        """Features ``(P, n, d)`` of ``n`` units for each of ``P`` units of the parents."""
        x = self.block.read(tensor)
        if self.summed:
            x = x.float().square().sum(self.summed, keepdim=True).sqrt()
        x = unit_rows(x, self.dims)
        return x.reshape(-1, *x.shape[-2:])

    def trace(self, tensor: Tensor) -> Tensor | None:
        """Mean over all other axes of the block as a square matrix, units along rows, if it is square."""
        return None if self.square is None else summed(self.block.read(tensor).float().abs(), (*self.dims, self.square))


def ordered_spaces(sym: Symmetry) -> list[Space]:
    """Spaces whose units may be permuted, parents before their inner spaces."""
    some = [s for s in sym.spaces if s.size > 1 and s.group.permutes]
    names = {s.name for s in some}
    return sorted(some, key=lambda s: len(names & {*s.parents}))


def views(sym: Symmetry, name: str, order: Iterable[str]) -> Iterator[View]:
    """Views of one tensor along every axis of every block that carries a space, those of later spaces first.

    Blocks in which a parent occurs twice have none.
    """
    places = {space: k for k, space in enumerate(order)}
    for block in blocks(sym.layouts[name]):
        carried = [(places[s], d, s) for d, s in enumerate(block.spaces) if s in places]
        for place, dim, space in sorted(carried, reverse=True):
            parents = sym.space(space).parents
            if all(block.spaces.count(parent) == 1 for parent in parents):
                dims = parent_dims(sym.space(space), dim, block.spaces)
                later = [d for k, d, _ in carried if k >= place and d not in dims]
                same = [d for k, d, _ in carried if k < place and block.shape[d] == block.shape[dim] and d not in dims]
                square = same[0] if same and not later and not parents else None
                yield View(space, block, tuple(dims), tuple(later), square)


def by_unit(sym: Symmetry, name: str, *tensors: Tensor) -> Iterator[tuple[str, list[Tensor]]]:
    """Sums, for every unit, of tensors laid out like a named one: ``(p..., n)`` for each axis that carries a space."""
    for block in blocks(sym.layouts[name]):
        for dim, leaf in block.carried:
            space = sym.space(leaf.space)
            if all(block.spaces.count(parent) == 1 for parent in space.parents):
                dims = parent_dims(space, dim, block.spaces)
                yield space.name, [summed(block.read(x), dims) for x in tensors]


def similarity(x: Tensor, y: Tensor) -> Tensor:
    """Similarity of units, comparable between tensors: cosines minus the means of their row and column.

    Rows and columns are first normalised in turn, so that positive scales of units do not matter. Single numbers are
    compared by their distance. Features ``(P, n, d)`` of both networks give similarities ``(P, n, n)`` of root mean
    square 1, or all zero if units cannot be distinguished.
    """
    x, y = x.float(), y.float()
    if x.shape[-1] == 1:
        found = -(x / _size(x, [-2]) - (y / _size(y, [-2])).mT).abs()
    else:
        found = _levelled(x, (-1, -2), 1) @ _levelled(y, (-1, -2), 1).mT / x.shape[-1]
    found = found - found.mean(-1, keepdim=True) - found.mean(-2, keepdim=True) + found.mean((-2, -1), keepdim=True)
    size = found.square().mean().sqrt()
    return found / size if float(size) > 1e-6 else torch.zeros_like(found)


def _levelled(x: Tensor, dims: Iterable[int], first: int = 0) -> Tensor:
    """Slices along some dimensions normalised in turn to mean square one; the first dimensions are a batch."""
    for _ in range(_ROUNDS):
        for dim in dims:
            x = x / _size(x, [d for d in range(first, x.ndim) if d != dim % x.ndim])
    return x


def _size(x: Tensor, dims: list[int]) -> Tensor:
    return x.square().mean(dims, keepdim=True).sqrt().clamp_min(1e-30)


_SAID = 3
Rows = Mapping[str, Mapping[int, Tensor]]  # by tensor and axis
Sizes = Mapping[str, int]


def with_rows(state: State, rows: Rows, lengths: Mapping[str, Sequence[int]] | None = None) -> State:
    """Tensors restricted to some rows of some axes; with ``lengths`` of axes, the rows are padded with zeros."""

    def changed(name: str, x: Tensor) -> Tensor:
        for dim, some in rows.get(name, {}).items():
            if lengths is None:
                x = x.index_select(dim, some)
            else:
                shape = [*x.shape[:dim], lengths[name][dim], *x.shape[dim + 1 :]]
                x = x.new_zeros(shape).index_copy(dim, some, x)
        return x

    return LazyState.changed(state, changed)


@dataclass(frozen=True, eq=False)
class Widths:
    """Two networks of one architecture that differ in the sizes of some spaces."""

    sym: Symmetry  # The symmetry of the tensors that can be compared
    a: State  # Tensors of one network
    b: State  # Tensors of the other; both restricted to common labels (classes, tokens)
    sizes: tuple[Sizes, Sizes]  # Units of every space in each
    notes: tuple[str, ...]  # Differences of size, in words

    @property
    def differing(self) -> list[str]:
        """Spaces of which one network has more units, parents before their inner spaces."""
        left, right = self.sizes
        return [s.name for s in ordered_spaces(self.sym) if left[s.name] != right[s.name]]

    def cut(self) -> tuple[Symmetry, State, State]:
        """Both networks restricted to units that have a partner, in their own order.

        The wider network keeps the units to which the best assignment gives a partner. Which these are does not depend
        on the order of the other's units, so all orders stay equally probable, and the exact test stays exact.
        """
        return self._cut[:3]

    @cached_property
    def _cut(self) -> tuple[Symmetry, State, State, dict[str, Tensor]]:
        states, sizes, places = [self.a, self.b], [dict(some) for some in self.sizes], dict[str, Tensor]()
        for space in self.differing:
            syms = [resized(self.sym, some) for some in sizes]
            wide = int(sizes[1][space] > sizes[0][space])
            gain = _likeness(space, [s.name for s in ordered_spaces(self.sym)], syms, states)  # later spaces summed out
            gain = gain if wide else gain.mT
            square = torch.cat([gain, gain.new_zeros(gain.shape[1] - len(gain), gain.shape[1])])
            places[space] = assign(square)[: len(gain)].sort().values
            states[wide] = with_rows(states[wide], kept_rows(syms[wide], space, places[space].tolist()))
            sizes[wide][space] = sizes[1 - wide][space]
        return resized(self.sym, sizes[0]), states[0], states[1], places

    @property
    def places(self) -> Mapping[str, Tensor]:
        """The units of the wider network to which the best assignment gives a partner, in order, by space."""
        return self._cut[3]

    def padded(self, places: Mapping[str, Tensor] | None = None) -> tuple[Symmetry, State, State]:
        """Both networks, padded with zeros for units that one of them lacks: after its own, or around given places."""
        states, most = [self.a, self.b], {name: max(n, self.sizes[1][name]) for name, n in self.sizes[0].items()}
        sym = resized(self.sym, most)
        lengths = {n: layout.shape for n, layout in sym.layouts.items()}
        for k, some in enumerate(self.sizes):
            for space in (s for s in self.differing if some[s] < most[s]):
                own = places[space].tolist() if places else range(some[space])
                states[k] = with_rows(states[k], kept_rows(sym, space, own), lengths)
        return sym, states[0], states[1]

    def partnered(self, g: Transformation, sym: Symmetry, near: State, met: State) -> "Widths":
        """Both networks restricted to units with a partner after matching by ``g``, which moves padded ``a`` to ``b``.

        Zeros match whatever is small, so units are matched again after normalising sizes: those of ``near``, the padded
        ``a`` moved by ``g`` and balanced, to those of ``met``, the padded ``b``, both folded.
        """
        free = searched(sym, {"permutation"})
        axes = {n: [d for d, axis in enumerate(layout.axes) if spaces_of([axis])] for n, layout in free.layouts.items()}
        levelled = lambda state: {n: _levelled(state[n], dims) for n, dims in axes.items()}
        stated = Problem.counted(free, meet=levelled(met), move=levelled(near))
        g = within(descend(stated, identity(free), torch.Generator().manual_seed(0)).g, sym) @ g
        states, sizes = [self.a, self.b], [dict(some) for some in self.sizes]
        for space in self.differing:
            order, (left, right) = g[space].permutation, (some[space] for some in sizes)
            kept = order[:right] if left > right else (order < left).nonzero()[:, 0]
            wide = int(right > left)
            rows = kept_rows(resized(self.sym, sizes[wide]), space, kept.tolist())
            states[wide], sizes[wide][space] = with_rows(states[wide], rows), min(left, right)
        return Widths(resized(self.sym, sizes[0]), states[0], states[1], (sizes[0], sizes[1]), self.notes)


def widths(sym: Symmetry, a: State, b: State) -> Widths:
    """The numbers of units of two networks, from the shapes of their tensors."""
    shapes = {n: (tuple(a[n].shape), tuple(b[n].shape)) for n in sym.layouts if n in a and n in b}
    shapes = {n: pair for n, pair in shapes.items() if {*map(len, pair)} == {len(sym.layouts[n].axes)}}
    layouts, rows = dict(sym.layouts), dict[str, dict[int, Tensor]]()
    for name in shapes:
        axes = list(sym.layouts[name].axes)
        for dim, axis in enumerate(axes):
            one, other = shapes[name]
            if isinstance(axis, Fixed):
                size = min(one[dim], other[dim])
                axes[dim] = replace(axis, size=size)
                shapes[name] = tuple((*x[:dim], size, *x[dim + 1 :]) for x in (one, other))  # type: ignore[assignment]
                if one[dim] != other[dim]:
                    rows.setdefault(name, {})[dim] = torch.arange(size)
        layouts[name] = Layout(tuple(axes))
    states = (with_rows(a, rows), with_rows(b, rows)) if rows else (a, b)
    whole = replace(sym, layouts=layouts)
    left, right = (_sizes(whole, {n: pair[k] for n, pair in shapes.items()}) for k in (0, 1))
    ours, theirs = (resized(whole, sizes).layouts for sizes in (left, right))
    fitting = [n for n, pair in shapes.items() if (ours[n].shape, theirs[n].shape) == pair]
    return Widths(narrowed(whole, fitting), *states, (left, right), tuple(_said(sym, left, right, rows)))


def thinned(sym: Symmetry, state: State, sizes: Sizes) -> State:
    """A network with at most ``sizes`` units in every space: those with the largest weights, as in pruning."""
    own = dict(_sizes(sym, {n: tuple(state[n].shape) for n in sym.layouts if n in state}))
    for space in [s.name for s in ordered_spaces(sym) if own[s.name] > sizes[s.name]]:
        here = resized(sym, own)
        total = torch.zeros(own[space])
        for name in here.layouts.keys() & state.keys():
            if here.layouts[name].shape == tuple(state[name].shape):
                for view in views(here, name, [space]):
                    total = total + view.rows(state[name]).float().square().sum((0, 2))
        kept = total.topk(sizes[space]).indices.sort().values
        state, own[space] = with_rows(state, kept_rows(here, space, kept.tolist())), sizes[space]
    return state


def _likeness(space: str, order: Sequence[str], syms: Sequence[Symmetry], states: Sequence[State]) -> Tensor:
    """Similarity of a space's units over all tensors, with rows for the first network and columns for the second."""
    total = torch.zeros(*(sym.space(space).size for sym in syms))
    for name in (n for n in syms[0].layouts if all(n in state for state in states)):
        for left, right in zip(*(views(sym, name, order) for sym in syms)):
            if left.space == space:
                total = total + similarity(left.rows(states[0][name]), right.rows(states[1][name])).sum(0)
    return total


def _sizes(sym: Symmetry, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Units of every space from tensor shapes; on an axis of factors, the outermost may have another size."""
    whole = {s.name: s.size for s in sym.spaces}
    sizes, told = dict(whole), set()
    axes = [
        (axis, n)
        for name in sym.layouts.keys() & shapes.keys()
        for axis, n in zip(sym.layouts[name].axes, shapes[name])
    ]
    for axis, size in sorted(axes, key=lambda pair: isinstance(pair[0], Product)):  # axes of one space first
        factors = axis.factors if isinstance(axis, Product) else (axis,)
        free = next((f for f in factors if isinstance(f, Leaf) and f.space not in told), None)
        if free is not None and free.size == whole[free.space]:
            others = prod(axis_size(_resized_axis(f, sizes)) for f in factors if f is not free)
            if size % others == 0 and (size != others * sizes[free.space] or len(factors) == 1):
                sizes[free.space] = size // others
                told.add(free.space)
    return sizes


def resized(sym: Symmetry, sizes: Sizes) -> Symmetry:
    """The symmetry of the same architecture with other widths."""
    if all(sizes[s.name] == s.size for s in sym.spaces):
        return sym
    spaces = tuple(replace(s, group=s.group.on(sizes[s.name])) for s in sym.spaces)
    layouts = {n: Layout(tuple(_resized_axis(axis, sizes) for axis in x.axes)) for n, x in sym.layouts.items()}
    return replace(sym, spaces=spaces, layouts=layouts)


def _resized_axis(axis: Axis, sizes: Sizes) -> Axis:
    if isinstance(axis, Leaf):
        return replace(axis, size=sizes[axis.space])
    if isinstance(axis, Product):
        return Product(tuple(_resized_axis(f, sizes) for f in axis.factors))
    if isinstance(axis, Sum) and all(len(part.ranges) == 1 for part in axis.parts):
        parts, start = [], 0
        for part in sorted(axis.parts, key=lambda p: p.ranges[0]):
            inner = _resized_axis(part.axis, sizes)
            parts.append(Part(((start, start + axis_size(inner)),), inner))
            start += axis_size(inner)
        return Sum(tuple(parts))
    return axis


def _said(sym: Symmetry, left: Sizes, right: Sizes, rows: Rows) -> list[str]:
    """Differences of size between two networks, in words; shapes give numbers of heads only if their size is known."""
    alike = lambda s: ", if they are of one size" if s in sym.outer else ""
    said = [f"{sym.titles[s]}: {left[s]} in a, {right[s]} in b{alike(s)}" for s in left if left[s] != right[s]]
    more = [f"and so on in {counted(len(said), 'space')}"] if len(said) > _SAID else []
    labels = [f"of another size in b, compared as far as both reach: {listed(rows)}"] if rows else []
    return [*(["of another width, " + "; ".join([*said[:_SAID], *more])] if said else []), *labels]
