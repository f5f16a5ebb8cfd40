"""Second moments of a network's signals over random weights of independent signs, with the gates held fixed.

A signal is a sum of terms ``mask * source``: the mask holds gates and constants, for each example; the source is a
random field whose channels are independent. ``E[z_n(c, p) z_m(c, q)]`` is the sum over terms of
``mask_n(c, p) mask_m(c, q) kernel(n, p, m, q)``. Masks travel along skip connections, so that a ReLU after an addition
gives Grams of *products of masks*.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from .gate_products import LARGEST, gram


class Uncovered(ValueError):
    """A network that the rules do not cover."""


@dataclass(frozen=True)
class Layout:
    """Memory layout of kernels of ``n`` by ``m`` examples: ``(n, P, m, P)`` with ``pairs``, else ``(P, n, m)``.

    Each position against itself is enough if nothing averages or chooses among positions.
    """

    n: int
    m: int
    pairs: bool
    device: torch.device

    def ones(self, positions: int) -> Tensor:
        """The kernel of a constant."""
        shape = (self.n, positions, self.m, positions) if self.pairs else (positions, self.n, self.m)
        return torch.ones(shape, dtype=torch.float64, device=self.device)

    def gram(self, left: Tensor, right: Tensor) -> Tensor:
        """Sum over channels of mask products; ``left`` is ``(n, C, P)``, ``right`` ``(m, C, P)``."""
        n, channels, p = left.shape
        if self.pairs:
            a, b = (m.transpose(1, 2).reshape(-1, channels) for m in (left, right))
            return gram(a, b).view(n, p, len(right), p)
        exact = left.dtype == right.dtype == torch.bool and channels < LARGEST[torch.float32]
        dtype = torch.float32 if exact else torch.float64
        return left.permute(2, 0, 1).to(dtype) @ right.permute(2, 1, 0).to(dtype)

    def outer(self, left: Tensor, right: Tensor) -> Tensor:
        """Mask products of each channel, channels first."""
        a, b = left.double(), right.double()
        return torch.einsum("ncp,mcq->cnpmq" if self.pairs else "ncp,mcp->cpnm", a, b)

    def move(self, kernel: Tensor, matrix: Tensor) -> Tensor:
        """Apply a linear map of positions ``(P', P)`` on both sides; without pairs it must choose positions."""
        if self.pairs:
            return torch.einsum("ap,...npmq,bq->...namb", matrix, kernel, matrix)
        return torch.einsum("ap,...pnm->...anm", matrix, kernel)

    def applied(self, kernel: Tensor, post: Tensor | None) -> Tensor:
        """Apply a map of positions on both sides: see ``Term.post``."""
        if post is None or post.dim() == 2:
            return kernel if post is None else self.move(kernel, post)
        padded = torch.nn.functional.pad(kernel, (1, 0, 0, 0, 1, 0) if self.pairs else (0, 0, 0, 0, 1, 0))
        moved = padded.index_select(-3, post)
        return moved.index_select(-1, post) if self.pairs else moved

    def slide(self, kernel: Tensor, space: tuple[int, ...], grid: "Grid") -> Tensor:
        """Sum over a convolution's window, one axis after the other, by views."""
        shape = (self.n, *space, self.m, *space) if self.pairs else (*space, self.n, self.m)
        kernel = kernel.reshape(shape)
        for axis in range(len(space)):
            kernel = _window_sum(kernel, (1 + axis, 2 + axis + len(space)) if self.pairs else (axis,), grid, axis)
        positions = math.prod(kernel.shape[1 : 1 + len(space)] if self.pairs else kernel.shape[: len(space)])
        return kernel.reshape((self.n, positions, self.m, positions) if self.pairs else (positions, self.n, self.m))

    def trace(self, kernel: Tensor) -> Tensor:
        """Sum over positions against themselves, kept as one position."""
        if self.pairs:
            return torch.einsum("npmp->nm", kernel)[:, None, :, None]
        return kernel.sum(0, keepdim=True)


@dataclass(frozen=True)
class Grid:
    """Placement of a convolution's window on its input, for each axis."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]


def _window_sum(kernel: Tensor, dims: tuple[int, ...], grid: Grid, axis: int) -> Tensor:
    """Sum over one axis of the window, which moves along ``dims`` together; padding adds nothing, and is not made."""
    size, stride = kernel.shape[dims[0]], grid.stride[axis]
    reach = grid.dilation[axis] * (grid.size[axis] - 1)
    count = (size + 2 * grid.padding[axis] - reach - 1) // stride + 1
    total = kernel.new_zeros([count if d in dims else n for d, n in enumerate(kernel.shape)])
    for place in range(grid.size[axis]):
        offset = place * grid.dilation[axis] - grid.padding[axis]
        first, end = max(0, -(offset // stride)), min(count, (size - 1 - offset) // stride + 1)
        if first < end:
            into = slice(first, end)
            read = slice(first * stride + offset, (end - 1) * stride + offset + 1, stride)
            places = [tuple(part if d in dims else slice(None) for d in range(kernel.dim())) for part in (into, read)]
            total[places[0]] += kernel[places[1]]
    return total


@dataclass(eq=False)
class Source:
    """A random field: its kernel times ``exp(log_scale)``."""

    kernel: Tensor  # In the layout of its tile; with channels first if ``per_channel``
    log_scale: float = 0.0
    per_channel: bool = False
    constant: bool = False  # Not random at all: the 1 that the input and constants of the model are multiples of
    # The field that this one is read from, through a map of positions or a choice of channels, so that the two are not
    # independent
    root: "Source | None" = None
    # Which channel of its root each channel is, -1 for none; all in order if ``None``
    taken: tuple[int, ...] | None = None

    @property
    def origin(self) -> "Source":
        """The field that it comes from."""
        return self if self.root is None else self.root

    def meets(self, other: "Source", channels: int) -> bool:
        """Whether some channel of both is the same channel of one field: sums are then correlated."""
        if self.origin is not other.origin:
            return False
        mine, theirs = (s.taken or tuple(range(channels)) for s in (self, other))
        return any(c == d != -1 for c, d in zip(mine, theirs))

    def of_channels(self, taken: tuple[int, ...], kernel: Tensor) -> "Source":
        """The same field read in other channels; -1 is none."""
        mine = tuple(c if self.taken is None or c < 0 else self.taken[c] for c in taken)
        return replace(self, kernel=kernel, root=self.origin, taken=mine)


@dataclass(frozen=True)
class Term:
    """A masked source.

    ``post`` is a map of positions still to be applied after the mask: a matrix ``(P', P)``, or ``(P',)`` where each
    position takes one other, counted from 1; 0 is padding. Masks are ``(n, C, P)`` and ``(m, C, P)``; both or none.
    """

    source: Source
    left: Tensor | None = None
    right: Tensor | None = None
    post: Tensor | None = None


@dataclass(frozen=True)
class Signal:
    """A sum of terms over ``channels`` and positions of shape ``space``."""

    terms: tuple[Term, ...]
    channels: int
    space: tuple[int, ...] = field(default=())
    # The positions have been flattened into channels, so that weights of the next layer differ between them
    flat: bool = False

    @property
    def positions(self) -> int:
        """Number of positions."""
        return math.prod(self.space)


def sum_of(parts: Iterator[Tensor]) -> Tensor:
    """Sum of new tensors, accumulated in the first one without a list of all of them."""
    total = next(parts)
    for part in parts:
        total += part
    return total


def multiply(signal: Signal, left: Tensor, right: Tensor, layout: Layout) -> Signal:
    """Multiply by masks ``(n, C, P)`` and ``(m, C, P)``."""
    signal = settle(signal, layout)
    terms = tuple(replace(t, left=_times(t.left, left), right=_times(t.right, right)) for t in signal.terms)
    return replace(signal, terms=terms)


def renewed(signal: Signal) -> Signal:
    """The signal times new independent values: terms that shared a source still do."""
    new: dict[int, Source] = {}
    for t in signal.terms:  # fields of one origin still have one
        new.setdefault(id(t.source.origin), replace(t.source.origin, constant=False))
    for t in signal.terms:
        new.setdefault(id(t.source), replace(t.source, constant=False, root=new[id(t.source.origin)]))
    return replace(signal, terms=tuple(replace(t, source=new[id(t.source)]) for t in signal.terms))


def add(a: Signal, b: Signal, layout: Layout, apart: bool = False) -> Signal:
    """Sum of two signals: terms with one source add their masks, others are independent.

    ``apart`` says that they live in different channels, where nothing that they share meets.

    Raises:
        Uncovered: If terms are one field read in two ways, which share more than masks tell.
    """
    terms = list(a.terms)

    def plus(x: Tensor | None, y: Tensor | None, n: int) -> Tensor:
        one = torch.ones((), dtype=torch.float64, device=layout.device).expand(n, a.channels, a.positions)
        return (one if x is None else x.double()) + (one if y is None else y.double())

    for term in b.terms:
        same = next((i for i, t in enumerate(terms) if t.source is term.source and t.post is term.post), None)
        if same is None:
            if not apart and any(t.source.meets(term.source, a.channels) for t in terms):
                raise Uncovered(
                    "model must not add up one activation read in two ways, such as z + max_pool(z) or two crops of "
                    "it: the path kernel does not know what they have in common. Use paths or neural_tangent_kernel."
                )
            terms.append(term)
            continue
        old = terms[same]
        terms[same] = replace(
            term, left=plus(old.left, term.left, layout.n), right=plus(old.right, term.right, layout.m)
        )
    return replace(a, terms=tuple(terms))


def settle(signal: Signal, layout: Layout) -> Signal:
    """Apply the maps that wait behind the masks, at the price of one kernel for each channel."""
    return replace(signal, terms=tuple(_settled(t, signal.channels, layout) for t in signal.terms))


def contract(signal: Signal, layout: Layout) -> tuple[Tensor, float]:
    """Sum over channels, as a layer of independent weights does: a kernel and its log scale."""
    scale = max(t.source.log_scale for t in signal.terms)
    kernels = (
        _channel_sum(t, signal.channels, layout).mul_(math.exp(t.source.log_scale - scale)) for t in signal.terms
    )
    return sum_of(kernels), scale


def in_channels(signal: Signal, taken: Sequence[int], layout: Layout) -> Signal:
    """The signal read in other channels, each of them at most once; -1 is a silent one."""
    if list(taken) == [*range(signal.channels)]:
        return signal
    index = torch.tensor(taken, dtype=torch.long, device=layout.device)
    silent = bool((index < 0).any())

    def chosen(t: Tensor, dim: int) -> Tensor:
        if silent:
            t = torch.cat([t, t.new_zeros(*t.shape[:dim], 1, *t.shape[dim + 1 :])], dim)
        return t.index_select(dim, index % t.shape[dim])

    def read(term: Term) -> Term:
        source, masks = term.source, (term.left, term.right)
        if not source.constant:
            kernel = chosen(source.kernel, 0) if source.per_channel else source.kernel
            source = source.of_channels(tuple(taken), kernel)
        if silent and term.left is None:
            one = torch.ones(1, signal.channels, signal.positions, dtype=torch.bool, device=layout.device)
            masks = one.expand(layout.n, -1, -1), one.expand(layout.m, -1, -1)
        left, right = (None if m is None else chosen(m, 1) for m in masks)
        return replace(term, source=source, left=left, right=right)

    return replace(signal, terms=tuple(map(read, signal.terms)), channels=len(taken))


def _settled(term: Term, channels: int, layout: Layout) -> Term:
    if term.post is None:
        return term
    source, kernel = term.source, term.source.kernel
    kernel = kernel if source.per_channel else kernel[None].expand(channels, *kernel.shape)
    if term.left is not None and term.right is not None:
        kernel = layout.outer(term.left, term.right) * kernel
    kernel = layout.applied(kernel, term.post)
    return Term(Source(kernel, source.log_scale, per_channel=True, root=source.origin, taken=source.taken))


def _channel_sum(term: Term, channels: int, layout: Layout) -> Tensor:
    kernel = term.source.kernel
    if term.left is None or term.right is None:
        kernel = kernel.sum(0) if term.source.per_channel else kernel * channels
    elif not term.source.per_channel:
        kernel = kernel * layout.gram(term.left, term.right)
    else:  # channel by channel, so that no kernel of all channels is made beside the source's own
        left, right = term.left, term.right
        outer = lambda c: layout.outer(left[:, c : c + 1], right[:, c : c + 1])[0]
        kernel = sum_of(kernel[c] * outer(c) for c in range(channels))
    return layout.applied(kernel, term.post)


def _times(mask: Tensor | None, by: Tensor) -> Tensor:
    if mask is None:
        return by
    if mask.dtype == by.dtype == torch.bool:
        return mask & by
    return mask.double() * by.double()
