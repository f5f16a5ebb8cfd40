"""Edges of a call between scalar nodes, by the node that they end in, without trying every basis vector.

What only chooses and scales (views, paddings, additions, batch norms) is found by running it on the numbers of its
nodes; convolutions and matrices are read from their arguments; poolings are tried on one channel. What is none of
these falls back to the obvious way of :mod:`.edges`. Every step is checked against what the network computed.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...programs import Call
from ..relu_program import BATCH_NORMS, MAX_POOLS, POOLS

__all__ = ["EdgeStep", "Step", "WindowStep", "steps_of", "taken_by"]

_AT_ONCE = 1 << 22  # edges looked at together


@dataclass(frozen=True)
class Step(ABC):
    """Edges of one call from the nodes of one value to those of its result.

    Attributes:
        ref: The value that they leave; ``None`` for the constant-1 node.
        start: For edges from the constant-1 node, what the constant is: a bias, the shift of a batch norm.
    """

    ref: int | None
    start: str

    @property
    @abstractmethod
    def most(self) -> int:
        """The largest number of edges that end in one node."""

    @abstractmethod
    def incoming(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Where the edges to some nodes begin, and their weights, ``(nodes, most)``; weight 0 where there is none."""

    def apply(self, before: Tensor | None, size: int, of: Callable[[Tensor], Tensor]) -> Tensor:
        """Sum over edges of ``of(weight)`` times what stands at their beginning ``(size,)``."""
        parts = []
        for nodes in torch.arange(size, device=self.device).split(max(1, _AT_ONCE // max(1, self.most))):
            src, weight = self.incoming(nodes)
            parts.append((of(weight) if before is None else before[src] * of(weight)).sum(1))
        return torch.cat(parts)

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the edges lie."""


@dataclass(frozen=True)
class EdgeStep(Step):
    """Edges one by one, as lists for each node in which they end."""

    src: Tensor
    weight: Tensor

    @property
    def most(self) -> int:  # noqa: D102 - as in the base
        return self.src.shape[1]

    @property
    def device(self) -> torch.device:  # noqa: D102
        return self.src.device

    def incoming(self, nodes: Tensor) -> tuple[Tensor, Tensor]:  # noqa: D102
        return self.src[nodes], self.weight[nodes]

    @classmethod
    def of(cls, ref: int | None, src: Tensor, dst: Tensor, weight: Tensor, size: int, start: str = "") -> "EdgeStep":
        """Sort edges ``(E,)`` by the node of ``size`` in which they end."""
        order = dst.argsort(stable=True)
        node = dst[order]
        place = torch.arange(len(order), device=order.device) - torch.searchsorted(node, node)
        most = int(place.max()) + 1 if len(place) else 0
        table = order.new_zeros(size, most)
        weights = torch.zeros(size, most, dtype=torch.float64, device=order.device)
        table[node, place], weights[node, place] = src[order], weight[order].double()
        return cls(ref, start, table, weights)


@dataclass(frozen=True)
class WindowStep(Step):
    """A convolution: every output channel of a group reads the same windows, so that no edge is ever listed.

    Attributes:
        windows: Source nodes for each group, place in the window and position ``(G, D, P)``; -1 for padding.
        kernel: Weights ``(C, D)``.
    """

    windows: Tensor
    kernel: Tensor

    @property
    def most(self) -> int:  # noqa: D102 - as in the base
        return self.kernel.shape[1]

    @property
    def device(self) -> torch.device:  # noqa: D102
        return self.kernel.device

    def incoming(self, nodes: Tensor) -> tuple[Tensor, Tensor]:  # noqa: D102
        groups, _, positions = self.windows.shape
        channel, position = nodes // positions, nodes % positions
        src = self.windows[channel // (len(self.kernel) // groups), :, position]
        return src.clamp(min=0), torch.where(src >= 0, self.kernel[channel], 0.0)


def taken_by(call: Call, gates: Tensor, given: Tensor, size: int) -> EdgeStep:
    """The edges of a gate that are on: those of a ReLU, or the one position that each maximum took."""
    nodes = torch.arange(size, device=given.device)
    if call.op not in MAX_POOLS:
        return EdgeStep(call.inputs[0].id, "", nodes[:, None], gates.flatten().double()[:, None])
    channel = nodes // gates[0, 0].numel() * given[0, 0].numel()
    ones = torch.ones(size, 1, dtype=torch.float64, device=given.device)
    return EdgeStep(call.inputs[0].id, "", (gates.flatten() + channel)[:, None], ones)


def steps_of(
    call: Call, run: Callable[[dict[int, Tensor]], Tensor], values: dict[int, Tensor], inputs: Sequence[int],
    weights: dict[int, str], result: Tensor, room: float,
) -> tuple[Step, ...]:  # fmt: skip
    """Find the edges of a call that does not gate.

    Args:
        call: What is run.
        run: Runs it with some of its tensors replaced.
        values: What stands at each of its tensors.
        inputs: Which of them depend on the input.
        weights: Which are weights, with their names.
        result: What the network computed.
        room: Bytes that a table of edges may take.

    Returns:
        One step for each input and each constant.

    Raises:
        ValueError: If the call is not linear, or its table of edges takes more room.
    """
    zeros = {i: torch.zeros_like(values[i]) for i in inputs}
    linear = _Linear(call, lambda given: run({**zeros, **given}).flatten().double(), zeros, values)
    steps = [*_constants(linear, weights), *(_along(linear, i, result.numel(), room) for i in inputs)]
    total = sum(s.apply(None if s.ref is None else values[s.ref].flatten().double(), result.numel(), _same)
                for s in steps)  # fmt: skip
    error = float((total - result.flatten()).abs().max()) if result.numel() else 0.0
    if not error <= 1e3 * torch.finfo(result.dtype).eps * max(1.0, float(result.abs().max())):
        raise ValueError(
            f"model must be linear between its gates. Got {call.where} at {call.line}, which is not "
            f"(error {error:.2g})."
        )
    return tuple(s for s in steps if s.most)


def _same(weight: Tensor) -> Tensor:
    return weight


@dataclass(frozen=True)
class _Linear:
    """A call as a function of its inputs: ``apply`` takes 0 for those that it is not given."""

    call: Call
    apply: Callable[[dict[int, Tensor]], Tensor]
    zeros: dict[int, Tensor]
    values: dict[int, Tensor]


def _constants(linear: _Linear, weights: dict[int, str]) -> Iterator[Step]:
    """Edges from the constant-1 node, one step for each weight that is added."""
    every = rest = linear.apply({})
    if linear.call.op in BATCH_NORMS:
        yield _constant(every, f"shift of {linear.call.where}")
        return
    for w, name in weights.items():
        added = every - linear.apply({w: torch.zeros_like(linear.values[w])})
        yield _constant(added, name)
        rest = rest - added
    yield _constant(rest, "constant")


def _constant(values: Tensor, start: str) -> EdgeStep:
    dst = values.nonzero()[:, 0]
    return EdgeStep.of(None, torch.zeros_like(dst), dst, values[dst], len(values), start)


def _along(linear: _Linear, i: int, size: int, room: float) -> Step:
    """Edges from one input."""
    call, given = linear.call, linear.zeros[i]
    window = _convolution(call, linear.values, given) if call.op == "aten::convolution" else _matrix(call, linear, i)
    if window is not None:
        return WindowStep(i, "", *window)
    if call.op in POOLS and _over_space(call, linear.zeros[i]):
        return _pooling(linear, i, size)
    zero = linear.apply({})
    return _choice(linear, i, zero) or _tried(linear, i, zero, room)


def _convolution(call: Call, values: dict[int, Tensor], given: Tensor) -> tuple[Tensor, Tensor] | None:
    """Windows and kernel of a convolution; ``None`` for kinds that are tried instead."""
    arguments: Any = call.args
    if arguments["transposed"] or given.dim() not in (3, 4) or arguments["input"].id not in values:
        return None
    kernel = values[arguments["weight"].id]
    numbers = torch.arange(1, given.numel() + 1, dtype=torch.float64, device=given.device).view(given.shape)
    options: list[Any] = [
        list(kernel.shape[2:]),
        *(list(arguments[name]) for name in ("dilation", "padding", "stride")),
    ]
    if given.dim() == 3:
        numbers, options = numbers[:, :, None], [[fill, *o] for o, fill in zip(options, (1, 1, 0, 1))]
    windows = F.unfold(numbers, *map(tuple, options))[0].long() - 1
    return windows.view(arguments["groups"], -1, windows.shape[1]), kernel.flatten(1).double()


def _matrix(call: Call, linear: _Linear, i: int) -> tuple[Tensor, Tensor] | None:
    """A matrix applied to one vector is a window over all of it, read off column by column where it is not given."""
    names = {"aten::addmm": ("mat1", "mat2"), "aten::mm": ("self", "mat2")}.get(call.op)
    if names is None or call.args[names[0]].id != i or linear.zeros[i].shape[0] != 1:
        return None
    matrix = linear.values[call.args[names[1]].id].double().T
    if call.op == "aten::addmm":
        matrix = matrix * float(call.args.get("alpha", 1))
    windows = torch.arange(matrix.shape[1], device=matrix.device)[None, :, None]
    return windows, matrix.contiguous()


def _over_space(call: Call, given: Tensor) -> bool:
    """Whether a pooling leaves examples and channels as they are."""
    return call.op != "aten::mean" or not {d % given.dim() for d in call.args["dim"] or (0,)} & {0, 1}


def _pooling(linear: _Linear, i: int, size: int) -> Step:
    """An average, tried on one channel: all are alike."""
    given = linear.zeros[i]
    one = given[:, :1].clone()
    run = lambda t: linear.apply({i: t.expand_as(given).contiguous()}).view(given.shape[1], -1)[0]
    rows = torch.stack([run(_basis(one, k)) for k in range(one.numel())])
    src, dst = rows.nonzero(as_tuple=True)
    channel = torch.arange(given.shape[1], device=given.device)[:, None]
    flat = lambda t, step: (t + step * channel).flatten()
    weight = rows[src, dst].repeat(given.shape[1])
    return EdgeStep.of(i, flat(src, one.numel()), flat(dst, size // given.shape[1]), weight, size)


def _basis(like: Tensor, k: int) -> Tensor:
    vector = torch.zeros_like(like, memory_format=torch.contiguous_format)
    vector.view(-1)[k] = 1
    return vector


def _choice(linear: _Linear, i: int, zero: Tensor) -> Step | None:
    """What reads at most one node for each of its own, found from node numbers; ``None`` where that is not so."""
    given = linear.zeros[i]
    numbers = torch.arange(1, given.numel() + 1, device=given.device).view(given.shape)
    ones = linear.apply({i: torch.ones_like(given)}) - zero
    high, low = numbers // 1024, numbers % 1024  # exact in float32 whatever the coefficient
    read = [linear.apply({i: part.to(given)}) - zero for part in (high, low)]
    weight = torch.where(ones == 0, 1.0, ones)
    src = ((read[0] / weight).round() * 1024 + (read[1] / weight).round()).long() - 1
    if bool(((src < 0) & (ones != 0)).any()) or bool((src >= given.numel()).any()):
        return None
    trial = torch.rand(given.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(given)
    expected = trial.flatten().double()[src.clamp(min=0)] * ones
    found = linear.apply({i: trial}) - zero
    if not torch.allclose(found, expected, rtol=1e-4, atol=1e-5 * float(ones.abs().max())):
        return None
    return EdgeStep(i, "", src.clamp(min=0)[:, None], ones[:, None])


def _tried(linear: _Linear, i: int, zero: Tensor, room: float) -> Step:
    """Every basis vector.

    Raises:
        ValueError: If the table takes too much room.
    """
    given = linear.zeros[i]
    needed = 16.0 * given.numel() * len(zero)
    if needed > room:
        raise ValueError(
            f"every layer's table of edges must fit in memory = {room:.1e} bytes. Got {needed:.1e} for "
            f"{linear.call.where}, {given.numel()} by {len(zero)} nodes. Give smaller inputs, or more memory."
        )
    rows = torch.stack([linear.apply({i: _basis(given, k)}) - zero for k in range(given.numel())])
    src, dst = rows.nonzero(as_tuple=True)
    return EdgeStep.of(i, src, dst, rows[src, dst], len(zero))
