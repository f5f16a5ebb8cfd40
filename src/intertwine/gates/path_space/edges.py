"""What each call of a captured ReLU network does between scalar nodes, found by trying it on every basis vector.

Slow and obvious on purpose: it knows no operation but batch norm, pooling and the gates, and checks every call against
what the network computed. Fast kernels have their own rules, so that one can be tested against the other.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...programs import Call, Ref
from ..relu_program import BATCH_NORMS, MAX_POOLS, POOLS, ReluProgram, is_gate

__all__ = ["Edges", "Linearised", "linearise", "runner", "states", "tensors"]


@dataclass(frozen=True)
class Edges:
    """Edges of one call from the nodes of one value to those of its result.

    Attributes:
        ref: The value that they leave; ``None`` for the constant-1 node.
        src: Where each edge begins ``(E,)``.
        dst: Where it ends ``(E,)``.
        coefficient: A constant on the edge ``(E,)``.
        slot: Which column of path weights the edge fills, if any.
        weight: Flat index of the weight on the edge ``(E,)``.
        offset: For max pooling, what must be added to a position within its channel to get a node, for each output.
    """

    ref: int | None
    src: Tensor
    dst: Tensor
    coefficient: Tensor
    slot: int | None = None
    weight: Tensor | None = None
    offset: Tensor | None = None


@dataclass(frozen=True)
class Linearised:
    """All edges by position of the call, and what stands in each slot."""

    edges: dict[int, list[Edges]]
    slots: tuple[str, ...]
    slot_values: tuple[Tensor, ...]
    input_nodes: Tensor


class _Slots:
    def __init__(self) -> None:
        self.names: list[str] = []
        self.values: list[Tensor] = []

    def new(self, name: str, values: Tensor) -> int:
        self.names.append(name)
        self.values.append(values.detach().flatten().double())
        return len(self.names) - 1


def linearise(model: nn.Module, program: ReluProgram, x: Tensor) -> Linearised:
    """Find the edges of every call of ``program``, which was captured on the one example ``x``."""
    values = states(model, program) | {program.program.inputs[0].id: x.detach()}
    edges: dict[int, list[Edges]] = {}
    slots = _Slots()
    with torch.no_grad():
        for i, call in enumerate(program.program.calls):
            run = runner(call, values, program)
            results = tensors(run({}))
            if any(r.id in program.activations for r in call.inputs):
                edges[i] = _edges_of(call, run, results[0], values, program, slots)
                _check(call, edges[i], results[0], values, slots)
            values.update({o.id: t for o, t in zip(call.outputs, results) if o is not None})
    nodes = torch.arange(x.numel(), device=x.device)
    return Linearised(edges, tuple(slots.names), tuple(slots.values), nodes)


def states(model: nn.Module, program: ReluProgram) -> dict[int, Tensor]:
    """Parameters, buffers and constants of a program, by value."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    values = {ref.id: tensors[name].detach() for name, ref in program.program.states.items()}
    kept = enumerate(program.program.values)
    return {i: v.data.to(_device(model)) for i, v in kept if v.kind == "constant" and v.data is not None} | values


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def runner(call: Call, values: dict[int, Tensor], program: ReluProgram) -> Callable[[dict[int, Tensor]], Any]:
    """A function that runs a call."""

    def run(replaced: dict[int, Tensor]) -> Any:
        """Run the call with some of its tensors replaced; nothing is overwritten."""
        fill = lambda r: (replaced[r.id] if r.id in replaced else values[r.id]).clone()
        return call.func(**{name: _fill(argument, fill) for name, argument in call.args.items()})

    return run


def _fill(argument: Any, fill: Callable[[Ref], Tensor]) -> Any:
    if isinstance(argument, Ref):
        return fill(argument)
    return [_fill(a, fill) for a in argument] if isinstance(argument, list | tuple) else argument


def tensors(result: Any) -> list[Tensor]:
    """The tensors that a call returned."""
    return [result] if isinstance(result, Tensor) else [t for t in result if isinstance(t, Tensor)]


def _edges_of(
    call: Call, run: Callable, result: Tensor, values: dict[int, Tensor], program: ReluProgram, slots: _Slots
) -> list[Edges]:
    inputs = list(dict.fromkeys(r.id for r in call.inputs if r.id in program.activations))
    weights = [r.id for r in call.inputs if r.id in program.weights]
    first = values[inputs[0]]
    if is_gate(call):
        return [_window(call, first, result) if call.op in MAX_POOLS else _identity(inputs[0], first)]
    if call.op in BATCH_NORMS:
        return _batch_norm(call, run, inputs[0], first, slots)
    zeros = {i: torch.zeros_like(values[i]) for i in [*inputs, *weights]}

    def apply(replaced: dict[int, Tensor]) -> Tensor:
        return tensors(run({**zeros, **replaced}))[0].flatten().double()

    def along(i: int, fixed: dict[int, Tensor]) -> Tensor:
        return _jacobian(lambda t: apply({**fixed, i: t}), values[i])

    constant = apply({})
    found = [_constant(constant)]
    for i in inputs:
        plain = along(i, {}) - constant
        found.append(_pooled(call, i, plain, slots) if call.op in POOLS else _dense(i, plain))
    for w in weights:
        numbers = torch.arange(1, values[w].numel() + 1, device=first.device).to(values[w]).view_as(values[w])
        slot = slots.new("/".join(program.weights[w]), values[w])
        shift = apply({w: numbers}) - constant
        found.append(_numbered(None, shift[None], slot))
        for i in inputs:
            found.append(_numbered(i, along(i, {w: numbers}) - along(i, {}) - shift, slot))
    return [e for e in found if len(e.src)]


def _jacobian(f: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """Rows ``f(e_i)`` for every basis vector."""
    basis = torch.zeros_like(at, memory_format=torch.contiguous_format)
    rows = []
    for i in range(at.numel()):
        basis.view(-1)[i] = 1
        rows.append(f(basis))
        basis.view(-1)[i] = 0
    return torch.stack(rows) if rows else f(basis)[None][:0]


def _dense(ref: int, jacobian: Tensor) -> Edges:
    src, dst = jacobian.nonzero(as_tuple=True)
    return Edges(ref, src, dst, jacobian[src, dst])


def _constant(values: Tensor) -> Edges:
    dst = values.nonzero()[:, 0]
    return Edges(None, torch.zeros_like(dst), dst, values[dst])


def _numbered(ref: int | None, jacobian: Tensor, slot: int) -> Edges:
    """Edges whose entries number the weight that stands on them."""
    src, dst = jacobian.nonzero(as_tuple=True)
    return Edges(ref, src, dst, torch.ones(len(src), dtype=torch.float64, device=src.device), slot,
                 jacobian[src, dst].round().long() - 1)  # fmt: skip


def _pooled(call: Call, ref: int, jacobian: Tensor, slots: _Slots) -> Edges:
    """An average: its 1/size is a weight; sizes may differ, at borders or where they do not divide the map."""
    src, dst = jacobian.nonzero(as_tuple=True)
    sizes, which = jacobian[src, dst].unique(return_inverse=True)
    slot = slots.new(call.where, sizes)
    return Edges(ref, src, dst, torch.ones_like(jacobian[src, dst]), slot, which)


def _identity(ref: int, x: Tensor) -> Edges:
    nodes = torch.arange(x.numel(), device=x.device)
    return Edges(ref, nodes, nodes, torch.ones(len(nodes), dtype=torch.float64, device=x.device))


def _window(call: Call, x: Tensor, result: Tensor) -> Edges:
    """All positions that each output of a max pooling may take: where a single 1 among zeros is the maximum."""
    options = {k: v for k, v in call.args.items() if k != "self"}
    edges = _dense(0, _jacobian(lambda t: call.func(t, **options)[0].flatten(), x))
    per_channel = result[0, 0].numel()
    offset = torch.arange(result.numel(), device=x.device) // per_channel * x[0, 0].numel()
    return Edges(call.inputs[0].id, edges.src, edges.dst, torch.ones_like(edges.coefficient).double(), offset=offset)


def _batch_norm(call: Call, run: Callable, ref: int, x: Tensor, slots: _Slots) -> list[Edges]:
    """In evaluation mode ``y_c = s_c x_c + t_c``: the gain is a weight and the shift a bias."""
    apply = lambda t: tensors(run({ref: t}))[0].double()
    shift = apply(torch.zeros_like(x))
    gain = apply(torch.ones_like(x)) - shift
    nodes = torch.arange(x.numel(), device=x.device)
    channel = nodes // x[0, 0].numel()
    once = channel.new_tensor([int((channel == c).nonzero()[0]) for c in range(x.shape[1])])
    ones = torch.ones(len(nodes), dtype=torch.float64, device=x.device)
    name = call.where
    return [
        Edges(ref, nodes, nodes, ones, slots.new(f"gain of {name}", gain.flatten()[once]), channel),
        Edges(
            None, torch.zeros_like(nodes), nodes, ones, slots.new(f"shift of {name}", shift.flatten()[once]), channel
        ),
    ]


def _are_numbers(weight: Tensor, values: Tensor) -> bool:
    return int(weight.min()) >= 0 and int(weight.max()) < len(values)


def _check(call: Call, edges: list[Edges], result: Tensor, values: dict[int, Tensor], slots: _Slots) -> None:
    """Check that the edges give what the network computed.

    Raises:
        ValueError: If they do not: the call is neither linear nor a gate.
    """
    if is_gate(call) or not result.numel():
        return
    total = torch.zeros(result.numel(), dtype=torch.float64, device=result.device)
    for e in edges:
        if e.slot is not None and e.weight is not None and not _are_numbers(e.weight, slots.values[e.slot]):
            total.fill_(math.nan)  # what stands on the edges is no weight
            break
        start = values[e.ref].flatten()[e.src].double() if e.ref is not None else 1.0
        weight = slots.values[e.slot][e.weight] if e.slot is not None else 1.0
        total.index_add_(0, e.dst, start * weight * e.coefficient)
    error = float((total - result.flatten()).abs().max())
    if not error <= 1e3 * torch.finfo(result.dtype).eps * max(1.0, float(result.abs().max())):
        raise ValueError(
            f"model must be linear between its gates, with one weight between two nodes. Got {call.where} at "
            f"{call.line}, which is not (error {error:.2g})."
        )
