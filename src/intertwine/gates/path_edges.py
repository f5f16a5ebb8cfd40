"""Edges between scalar nodes that each call of a captured ReLU network makes, found with basis vectors.

A call is run on every basis vector, and its edges are checked on random numbers. The rules of path kernels share none
of this code, so that one can be tested against the other.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..programs import Call
from ..programs.operations import AVERAGE_POOLS, BATCH_NORMS, MAX_POOLS, is_gate
from .relu_program import ReluProgram

_LARGEST = 2.0**31  # most bytes of a table of edges


@dataclass(frozen=True)
class Edges:
    """Edges of one call from the nodes of one value to those of its result, as lists."""

    ref: int | None  # The value that they leave; ``None`` for the constant-1 node
    src: Tensor  # Where each edge begins ``(E,)``
    dst: Tensor  # Where it ends ``(E,)``
    coefficient: Tensor  # A constant on the edge ``(E,)``
    slot: int | None = None  # Which column of path weights the edge fills, if any
    weight: Tensor | None = None  # Flat index of the weight on the edge ``(E,)``
    # For max pooling, what must be added to a position within its channel to get a node, for each output
    offset: Tensor | None = None


@dataclass(frozen=True)
class Linearised:
    """All edges by position of the call, and the content of each slot: its name and its numbers."""

    edges: dict[int, list[Edges]]
    slots: tuple[str, ...]
    slot_values: tuple[Tensor, ...]


def linearise(program: ReluProgram, x: Tensor) -> Linearised:
    """Edges of every call that depends on the input, at one example ``x`` ``(1, C, *S)``."""
    slots: _Slots = []
    with torch.no_grad():
        values = _values(program, x.detach())
        edges = {
            i: _edges_of(_Linear(program, call, values), slots)
            for i, call in enumerate(program.calls)
            if any(r.id in program.varying for r in call.inputs)
        }
    return Linearised(edges, tuple(name for name, _ in slots), tuple(values for _, values in slots))


def _values(program: ReluProgram, x: Tensor) -> dict[int, Tensor]:
    """Contents of every value except constants."""
    read = {r.id for call in program.calls for r in call.inputs}
    outputs = [out for call in program.calls for out in call.outputs if out is not None and out.id in read]
    states = {program.states[name].id: tensor for name, tensor in program.contents.items()}
    results = program.run(x, outputs)
    return {**states, program.inputs[0].id: x, **{out.id: tensor for out, tensor in zip(outputs, results)}}


_Slots = list[tuple[str, Tensor]]  # name and content of each


def _new(slots: _Slots, name: str, values: Tensor) -> int:
    slots.append((name, values.detach().flatten().double()))
    return len(slots) - 1


class _Linear:
    """A call as a function of the activations and weights that it reads."""

    def __init__(self, program: ReluProgram, call: Call, values: dict[int, Tensor]) -> None:
        self.call, self.values = call, values
        self.alone = replace(program, calls=(call,))
        read = {r.id: r for r in call.inputs if r.id in values}
        self.refs = sorted(read.values(), key=lambda r: r.id not in program.varying)  # the batch is read off the first
        self.inputs = [i for i in read if i in program.varying]
        self.weights = {i: "/".join(program.weights[i]) for i in read if i in program.weights}
        self.zeros = {i: torch.zeros_like(values[i]) for i in (*self.inputs, *self.weights)}
        self.constant = torch.empty(0) if is_gate(call) else self.apply({})

    def run(self, given: dict[int, Tensor]) -> Tensor:
        """The first result, with some of its tensors replaced."""
        tensors = [given.get(r.id, self.values[r.id]) for r in self.refs]
        return self.alone.run(tensors, self.call.outputs[:1], start=self.refs)[0]  # type: ignore[arg-type]

    def apply(self, given: dict[int, Tensor]) -> Tensor:
        """The result at ``given``, with 0 for all other activations and weights."""
        return self.run({**self.zeros, **given}).flatten().double()

    def along(self, i: int, w: int | None = None) -> Callable[[Tensor], Tensor]:
        """The linear part in one activation; with ``w`` the bilinear part, with weights replaced by their numbers."""
        if w is None:
            return lambda t: self.apply({i: t}) - self.constant
        numbers = self.numbers(w)
        shift = self.apply({w: numbers}) - self.constant
        return lambda t: self.apply({i: t, w: numbers}) - self.apply({i: t}) - shift

    def numbers(self, w: int) -> Tensor:
        """Each weight's number, from 1."""
        weight = self.values[w]
        return torch.arange(1, weight.numel() + 1, device=weight.device).to(weight).view_as(weight)


def _edges_of(linear: _Linear, slots: _Slots) -> list[Edges]:
    call = linear.call
    if is_gate(call):
        return [_maxima(linear) if call.op in MAX_POOLS else Edges(linear.inputs[0], *_all_nodes(linear))]
    if call.op in BATCH_NORMS:
        found = _batch_norm(linear, slots)
    else:
        found = [_from_constant(linear.constant)]
        for w, name in linear.weights.items():  # edges that carry a weight
            slot = _new(slots, name, linear.values[w])
            shift = linear.apply({w: linear.numbers(w)}) - linear.constant
            found.append(_numbered(_from_constant(shift), slot))
            found += [_numbered(Edges(i, *_sparse(linear, i, linear.along(i, w))), slot) for i in linear.inputs]
        for i in linear.inputs:
            along = _sparse(linear, i, linear.along(i))
            found.append(_pooled(linear, i, along, slots) if call.op in AVERAGE_POOLS else Edges(i, *along))
        found = [e for e in found if len(e.src)]
    _check(linear, found, slots)
    return found


_Sparse = tuple[Tensor, Tensor, Tensor]  # where entries begin and end, and the entries


def _sparse(linear: _Linear, i: int, f: Callable[[Tensor], Tensor]) -> _Sparse:
    """A linear map of one activation as a sparse matrix, from a one at each of its nodes in turn."""
    given, found = linear.zeros[i], list[_Sparse]()
    for node in range(given.numel()):
        values = f(given.flatten().index_fill(0, torch.tensor(node, device=given.device), 1).view(given.shape))
        dst = values.nonzero()[:, 0]
        found.append((torch.full_like(dst, node), dst, values[dst]))
        if (needed := 16.0 * given.numel() * len(dst)) > _LARGEST:
            raise ValueError(
                f"every layer's table of edges must take at most {_LARGEST:.0e} bytes. Got {needed:.1e} for "
                f"{linear.call.where}, {given.numel()} by {len(values)} nodes. Give smaller inputs."
            )
    none = torch.zeros(0, dtype=torch.long, device=given.device)
    src, dst, value = map(torch.cat, zip(*found)) if found else (none, none, none.double())
    return src, dst, value


def _from_constant(values: Tensor) -> Edges:
    dst = values.nonzero()[:, 0]
    return Edges(None, torch.zeros_like(dst), dst, values[dst])


def _numbered(edges: Edges, slot: int) -> Edges:
    """Edges whose coefficients number the weights that they carry."""
    ones = torch.ones_like(edges.coefficient)
    return replace(edges, coefficient=ones, slot=slot, weight=edges.coefficient.round().long() - 1)


def _pooled(linear: _Linear, i: int, along: _Sparse, slots: _Slots) -> Edges:
    """An average: its 1/size is a weight; sizes may differ, at borders or where they do not divide the map."""
    src, dst, value = along
    sizes, which = value.unique(return_inverse=True)
    return Edges(i, src, dst, torch.ones_like(value), _new(slots, linear.call.where, sizes), which)


def _all_nodes(linear: _Linear) -> _Sparse:
    """Edges from every node to itself."""
    x = linear.values[linear.inputs[0]]
    nodes = torch.arange(x.numel(), device=x.device)
    return nodes, nodes, torch.ones(len(nodes), dtype=torch.float64, device=x.device)


def _maxima(linear: _Linear) -> Edges:
    """All positions that each output of a max pooling may take: where a single 1 among zeros is the maximum."""
    (i,) = linear.inputs
    x, result = linear.values[i], linear.run({})
    src, dst, ones = _sparse(linear, i, lambda t: linear.run({i: t}).flatten())
    offset = torch.arange(result.numel(), device=x.device) // result[0, 0].numel() * x[0, 0].numel()
    return Edges(i, src, dst, torch.ones_like(ones).double(), offset=offset)


def _batch_norm(linear: _Linear, slots: _Slots) -> list[Edges]:
    """In evaluation mode ``y_c = s_c x_c + t_c``: the gain is a weight and the shift a bias."""
    (i,) = linear.inputs
    x, where = linear.values[i], linear.call.where
    shift = linear.run({i: torch.zeros_like(x)}).double()
    gain = linear.run({i: torch.ones_like(x)}).double() - shift
    channels, (nodes, _, ones) = x.shape[1], _all_nodes(linear)
    channel = nodes // (x.numel() // channels)
    once = lambda t: t.view(channels, -1)[:, 0]
    return [
        Edges(i, nodes, nodes, ones, _new(slots, f"gain of {where}", once(gain)), channel),
        Edges(None, torch.zeros_like(nodes), nodes, ones, _new(slots, f"shift of {where}", once(shift)), channel),
    ]


def _check(linear: _Linear, edges: list[Edges], slots: _Slots) -> None:
    """Check on random numbers that the edges reproduce the call."""
    call, generator = linear.call, torch.Generator().manual_seed(0)
    given = {
        i: torch.randn(linear.values[i].shape, generator=generator, dtype=torch.float64).to(linear.values[i])
        for i in linear.inputs
    }
    result = linear.run(given)
    if not result.numel():
        return
    total = torch.zeros(result.numel(), dtype=torch.float64, device=result.device)
    for e in edges:
        before = None if e.ref is None else given[e.ref].flatten().double()
        total += _contribution(e, before, slots, result.numel())
    error = float((total - result.flatten()).abs().max())
    if not error <= 1e3 * torch.finfo(result.dtype).eps * max(1.0, float(result.abs().max())):
        raise ValueError(
            f"model must be linear between its gates, with one weight between two nodes. Got {call.where} at "
            f"{call.line}, which is not (error {error:.2g})."
        )


def _contribution(edges: Edges, before: Tensor | None, slots: _Slots, size: int) -> Tensor:
    """What edges add to the nodes in which they end; NaN if what they carry is not a weight."""
    value = edges.coefficient.double()
    if edges.slot is not None and edges.weight is not None:
        _, known = slots[edges.slot]
        if len(edges.weight) and not 0 <= int(edges.weight.min()) <= int(edges.weight.max()) < len(known):
            return torch.full((size,), math.nan, dtype=torch.float64, device=value.device)
        value = value * known[edges.weight]
    start = value if before is None else before[edges.src] * value
    return torch.zeros(size, dtype=torch.float64, device=value.device).index_add_(0, edges.dst, start)
