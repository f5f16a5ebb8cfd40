"""Gates of a ReLU network: the on/off state of every ReLU and the choice of every max pooling, for each input.

Units of two networks are matched by when they are on.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .._evaluation import evaluating, in_usual_mode
from .._result import UNSAVED, Result
from ..matching import Gates, align
from ..matching.coordinates.problem import Problem
from ..matching.costs import Costs
from ..matching.solvers.responses import seeing
from ..programs import Call, Program, capture_dynamic
from ..programs.operations import MAX_POOLS, is_gate, slope_of
from ..programs.program import Handler
from ..symmetry import Symmetry, Transformation
from ..symmetry.transformation import identity
from .gated_network import GatedNetwork
from .relu_program import OTHERS, ReluProgram, capture_relu


@in_usual_mode
def gate_patterns(
    model: nn.Module, x: Tensor, batch_size: int = 500, *, others: Literal["refuse", "sign", "ratio"] = "refuse"
) -> dict[str, Tensor]:
    """Gates of every ReLU and max pooling: ``G(q) = 1{q > 0}`` (P2 section 2.2.1).

    Args:
        model: A ReLU network, in evaluation mode, or a gated network: then the gates that its value network receives.
        x: Inputs ``(N, C, *S)``.
        batch_size: Number of examples run at once.
        others: What to do about GELU, SiLU, tanh and the like. ``"ratio"`` gives ``act(q) / q``, with which paths still
            add up to the output, but which is neither on/off nor invariant to rescaled units; ``"sign"`` gives ``1{q >
            0}``, which is invariant, but says only where the unit would be on if it were a ReLU.

    Returns:
        Gates ``(N, C, *S)`` by module name (with ``#k`` if a module gates more than once): bool for ReLUs; numbers from
        0 to 1 for soft gates; 1 or the other slope for leaky and parametric ReLUs and absolute values (-1); for max
        pooling the flat position within the channel that each output took.

    Raises:
        ValueError: If ``others`` is none of the three, or ``batch_size`` below 1.

    Examples:
        >>> model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 1))
        >>> with torch.no_grad():
        ...     _ = model[0].weight.copy_(torch.eye(2))
        >>> gate_patterns(model, torch.tensor([[1.0, -1.0]]))
        {'1': tensor([[ True, False]])}
    """
    if others not in ("refuse", "sign", "ratio"):
        raise ValueError(f'others must be "refuse", "sign" or "ratio". Got {others!r}.')
    program = capture_relu(structure(model, "x")[0], x, others=others != "refuse")
    return dict(zip(program.names, observe(model, program, x, batch_size, ratio=others == "ratio")))


def structure(model: nn.Module, input: str) -> tuple[nn.Module, str]:
    """The network whose weights make the paths, and its input: ones if that is asked for or the network's own way."""
    if input not in ("x", "ones"):
        raise ValueError(f'input must be "x" or "ones". Got {input!r}.')
    if not isinstance(model, GatedNetwork):
        return model, input
    return model.value, "ones" if input == "ones" else model.input


def observe(
    model: nn.Module, program: ReluProgram, x: Tensor, batch_size: int = 500, ratio: bool = False
) -> list[Tensor]:
    """Gates of all examples, one tensor per gate of ``program``; for a gated network, those that its values use.

    With ``ratio``, activations that are not gates give ``act(q) / q``.

    Raises:
        ValueError: If ``batch_size`` is below 1.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1. Got {batch_size}.")
    if isinstance(model, GatedNetwork):
        return _gates_of(model, program, x, batch_size)
    reader = capture_dynamic(model, x)
    positions = _gate_positions(reader, program)
    unread = set(positions) - set(reader.ancestors(reader.outputs))
    wanted = [reader.outputs[0], *(out for i in unread for out in reader.calls[i].outputs[:1] if out is not None)]
    batches = []
    for batch in x.split(batch_size):
        gates: dict[int, Tensor] = {}
        handlers = {i: _noting(gates, i, ratio) for i in positions}
        with torch.no_grad():
            reader.run(batch, wanted, handlers=handlers)
        batches.append([gates[i] for i in positions])
    return [torch.cat(parts) for parts in zip(*batches)]


def _gate_positions(reader: Program, program: ReluProgram) -> tuple[int, ...]:
    """Calls of a program for any batch size that are the gates of a program for one example."""
    ops = {call.op for call in program.gate_calls}
    found = reader.find(lambda c: c.op in ops and (is_gate(c) or c.op in OTHERS) and c.inputs[0].id in reader.varying)
    described = [(c.op, reader.values[c.inputs[0].id].shape[1:]) for c in (reader.calls[i] for i in found)]
    if described != [(call.op, program.shape(call.inputs[0])[1:]) for call in program.gate_calls]:
        raise ValueError(
            "model must run the same gates for every example. Got another sequence of ReLUs and poolings for several "
            "examples than for one."
        )
    return found


def _noting(gates: dict[int, Tensor], position: int, ratio: bool) -> Handler:
    """Handler that runs a gating call and records the gates of its batch."""

    def run(call: Call, operation: Callable[..., Any], args: dict[str, Any]) -> Any:
        result = operation(**args)
        gates[position] = result[1] if call.op in MAX_POOLS else _gate(call, operation, args, ratio)
        return result

    return run


def _gate(call: Call, operation: Callable[..., Any], args: dict[str, Any], ratio: bool) -> Tensor:
    """On or off, or with two slopes the slope; with ``ratio`` ``act(q) / q``, at 0 the limit."""
    q = args["self"]
    if call.op in OTHERS and ratio:
        near = torch.where(q == 0, torch.full_like(q, 1e-4), q)
        return operation(**{**args, "self": near}) / near
    slope = slope_of(replace(call, args=args))
    if isinstance(slope, Tensor) or slope != 0:
        return torch.where(q > 0, torch.ones_like(q), torch.as_tensor(slope, dtype=q.dtype, device=q.device))
    return q > 0


def fixed_gates(program: ReluProgram, gates: Sequence[Tensor]) -> dict[int, Handler]:
    """Handlers that set the gates of a program, as :func:`observe` gives them, whatever its pre-activations."""
    return {i: _setting(gate) for i, gate in zip(program.gates, gates)}


def _setting(gate: Tensor) -> Handler:
    def run(call: Call, operation: Callable[..., Any], args: dict[str, Any]) -> Any:
        x = args["self"]
        if call.op not in MAX_POOLS:
            return x * gate
        return x.flatten(2).gather(2, gate.flatten(2)).view(gate.shape), gate

    return run


def _gates_of(network: GatedNetwork, program: ReluProgram, x: Tensor, batch_size: int) -> list[Tensor]:
    with evaluating(network), torch.no_grad():
        batches = [network.gates(x[i : i + batch_size]) for i in range(0, len(x), batch_size)]
    found = []
    for call, gate in zip(program.gate_calls, (torch.cat(parts) for parts in zip(*batches))):
        slope = slope_of(call)
        if slope and gate.dtype != torch.long:  # the value network multiplies by what is between the slope and 1
            gate = slope + (1 - slope) * gate
        found.append(gate.bool() if network.gate == "hard" and not slope and gate.dtype != torch.long else gate)
    return found


@dataclass(frozen=True)
class SpaceMatch:
    """The match of the units of one space."""

    space: str  # Name of the space
    layers: tuple[str, ...]  # The ReLUs that switch its units
    agreement: float  # Share of examples (and positions) for which matched units are both on or both off
    before: float  # The same with the units in their own order
    # Units whose gates equal those of another unit of the same network (above all units that are never on, or always):
    # gates cannot tell them apart
    ambiguous: int


@dataclass(frozen=True, repr=False)
class GateMatch(Result):
    """Result of ``match_gates``.

    Attributes:
        spaces: The match of each space.
        unmatched: Spaces that no gate switches, matched by weights alone.
        transformation: Moves A to B: units by gates, scales and signs by weights. It is not part of the saved result:
            use its own ``save``.
    """

    spaces: tuple[SpaceMatch, ...]
    unmatched: tuple[str, ...] = ()
    transformation: Transformation | None = field(default=None, metadata=UNSAVED)

    @property
    def agreement(self) -> float:
        """Mean agreement of the matched spaces."""
        return sum(s.agreement for s in self.spaces) / len(self.spaces)

    def summary(self) -> str:
        """The agreement of gates in every space."""
        lines = [f"{s.space}: {s.agreement:.1%} of gates agree (before {s.before:.1%})" for s in self.spaces]
        lines += [f"{name}: no gates, matched by weights" for name in self.unmatched]
        return "\n".join(lines)

    def _rows(self) -> list[dict[str, Any]]:
        """One row per matched space."""
        return [{**vars(s), "layers": ", ".join(s.layers)} for s in self.spaces]


@in_usual_mode
def match_gates(a: nn.Module, b: nn.Module, x: Tensor, *, sym: Symmetry | None = None) -> GateMatch:
    """Align two networks by their gates: pair units that are on for the same inputs.

    Gates do not change when units are rescaled. In each space that ReLUs switch (several of them, in a residual
    stream), the pairing with the largest number of agreeing gates is found exactly. Weights in balanced coordinates
    choose among pairings that gates leave open, signs in front of batch norms, and units of other spaces; scales are
    fitted to them. A copy that was permuted and rescaled is recovered exactly if gates or weights tell all units apart.
    Gates of ``|q|`` follow the signs of units and are not used.

    Args:
        a: A ReLU network, in evaluation mode.
        b: A network of the same architecture.
        x: Inputs ``(N, C, *S)`` that switch many units: the more, the fewer units look alike.
        sym: The symmetry of both, if it is known already.

    Returns:
        The match; ``iw.symmetries(a, x).act(match.transformation, a)`` is A in B's order.

    Raises:
        ValueError: If a network is gated, the architectures differ, or no gate switches any space.

    Examples:
        >>> import torch, intertwine as iw
        >>> _ = torch.manual_seed(0)
        >>> a, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(200, 4)
        >>> sym = iw.symmetries(a, x)
        >>> b = sym.act(sym.random(seed=1), a)
        >>> match = match_gates(a, b, x, sym=sym)
        >>> match.agreement, all(torch.allclose(p, q) for p, q in
        ...                      zip(sym.act(match.transformation, a).parameters(), b.parameters()))
        (1.0, True)
    """
    for model in (a, b):
        if isinstance(model, GatedNetwork):
            kind = "soft gates, which change when units are rescaled" if model.gate != "hard" else "a gated network"
            raise ValueError(
                f"a and b must be ReLU networks, whose gates are their own units'. Got {kind}. Give its .value or "
                ".gating.network, whichever is meant."
            )
    method = Gates(gate_patterns(b, x), gate_patterns(a, x))
    found = align(b, a, x[:2], method=method, sym=sym, chance=False)
    g = found.transformation
    plain, still = Problem.plain(found.symmetry, {}, {}), identity(found.symmetry)
    crosses, ours, theirs = (method.seen(found.symmetry, both) for both in (("a", "b"), ("a", "a"), ("b", "b")))
    cross, one, other = (seeing(plain, seen, 1.0, 0.0) for seen in (crosses, ours, theirs))
    tables = [Costs(*of) for of in ((cross, still), (cross, g), (one, still), (other, still))]
    matched, unmatched = [], []
    for space in found.symmetry.spaces:
        layers = tuple(name for name, seen in crosses.items() if space.name in seen.layout.spaces)
        if not layers:
            unmatched.append(space.name)
            continue
        gains = [gain for table in tables for gain in table.of(space.name).values()]
        before, after, most, _ = (float(gain.diagonal(dim1=-2, dim2=-1).sum()) for gain in gains)
        twins = ((gain == gain.diagonal(dim1=-2, dim2=-1)[..., None]).sum(-1) > 1 for gain in gains[2:])
        alike = max(int(some.sum()) for some in twins)
        end, start = ((1 + agreed / most) / 2 for agreed in (after, before))
        matched.append(SpaceMatch(space.name, layers, end, start, alike))
    return GateMatch(tuple(matched), tuple(unmatched), g)
