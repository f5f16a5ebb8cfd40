"""Units of two networks matched by when they are on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from .._evaluation import copied
from .._result import UNSAVED, Result
from ..groups.assignment import assign
from ..matching.refit import refit
from ..matching.units import match_units, monomial
from ..programs import capture_dynamic
from ..programs.operations import MAX_POOLS, is_gate
from ..symmetry import Space, Symmetry, Transformation, symmetries
from ..symmetry.action import act, moved, tensors_of
from ..symmetry.gauge.canonical import balanced, signing
from ..symmetry.gauge.folding import Folded, fold
from ..symmetry.transformation import identity, with_parts
from .networks.gated import GatedNetwork
from .patterns import observe
from .relu_program import ReluProgram, capture_relu

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["GateMatch", "SpaceMatch", "match_gates"]


@dataclass(frozen=True)
class SpaceMatch:
    """How one space's units were matched.

    Attributes:
        space: Name of the space.
        layers: The ReLUs that switch its units.
        agreement: Share of examples (and positions) for which matched units are both on or both off.
        before: The same with the units as they come.
        ambiguous: Units whose gates are those of another unit of the same network (above all units that are never on,
            or always): gates cannot tell them apart.
    """

    space: str
    layers: tuple[str, ...]
    agreement: float
    before: float
    ambiguous: int


@dataclass(frozen=True, repr=False)
class GateMatch(Result):
    """What ``match_gates`` found.

    Attributes:
        spaces: Space by space.
        unmatched: Spaces that no gate switches, or that lie inside others: they are left in place.
        transformation: Brings A's units into B's order, with scales fitted to B's weights. It is not part of the saved
            result: use its own ``save``.
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
        lines += [f"{name}: left in place" for name in self.unmatched]
        return "\n".join(lines)

    def to_frame(self) -> pd.DataFrame:
        """One row per matched space."""
        import pandas as pd

        return pd.DataFrame([{**vars(s), "layers": ", ".join(s.layers)} for s in self.spaces])


def match_gates(
    a: nn.Module, b: nn.Module, x: Tensor, *, sym: Symmetry | None = None, batch_size: int = 500
) -> GateMatch:
    """Align two networks by their gates: pair units that are on for the same inputs.

    Gates do not change when units are rescaled, so they match what weights match only after scales were removed. In
    each space of ``iw.symmetries`` the pairing with the largest number of agreeing gates is found (one assignment,
    exactly); a space that several ReLUs switch, such as that of a residual stream, is matched by all of them together.
    Then scales (and signs in front of batch norms, which no gate shows)
    are fitted to the weights, which also choose among units that no gate tells apart. A copy that was permuted and
    rescaled is recovered exactly where gates or weights tell all units apart. Two slopes of opposite sign (``abs``) are
    on or off as their units' signs are: such units are matched by weights (``iw.same``), not here.

    Args:
        a: A ReLU network, in evaluation mode.
        b: A network of the same architecture.
        x: Inputs ``(N, C, *S)`` that switch many units: the more, the fewer units look alike.
        sym: The symmetry of both where it is known already.
        batch_size: Examples that run at once.

    Returns:
        The match; ``iw.symmetries(a, x).act(match.transformation, a)`` is A in B's order.

    Raises:
        ValueError: If a network is gated with soft gates, the architectures differ, or no gate switches any space.

    Examples:
        >>> import intertwine as iw
        >>> _ = torch.manual_seed(0)
        >>> a, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(200, 4)
        >>> sym = iw.symmetries(a, x)
        >>> b = sym.act(sym.random(seed=1), a)
        >>> match = match_gates(a, b, x, sym=sym)
        >>> match.agreement, all(torch.allclose(p, q) for p, q in
        ...                      zip(sym.act(match.transformation, a).parameters(), b.parameters()))
        (1.0, True)
    """
    _check_hard(a, b)
    shapes = [{name: tuple(t.shape) for name, t in tensors_of(model).items()} for model in (a, b)]
    if shapes[0] != shapes[1]:
        differ = next(n for n in [*shapes[0], *shapes[1]] if shapes[0].get(n) != shapes[1].get(n))
        both = " and ".join(str(s.get(differ, "none")) for s in shapes)
        raise ValueError(f"a and b must be of one architecture. Got {differ!r} of shapes {both}.")
    program = capture_relu(a, x)
    sym = symmetries(a, x[:2]) if sym is None else sym
    gates_a, gates_b = observe(a, program, x, batch_size), observe(b, capture_relu(b, x), x, batch_size)
    carriers = _carriers(a, sym, program, x)
    g = identity(sym)
    found: dict[str, SpaceMatch] = {}
    agree: dict[str, Tensor] = {}
    for space in sym.spaces:
        if carriers.get(space.name):
            order, agree[space.name], one = _match(space, carriers[space.name], gates_a, gates_b, program.names)
            g = with_parts(g, space.name, permutation=order)
            found[space.name] = one
    if not found:
        raise ValueError("a must have hidden units that ReLUs switch and a symmetry may permute. Got none.")
    left, right = fold(sym, tensors_of(a)), fold(sym, tensors_of(b))
    open_spaces = {name for name, one in found.items() if one.ambiguous}
    if open_spaces:
        g = _by_weights(left, right, g, {name: agree[name] for name in open_spaces})
    fitted = ~_normal(right, identity(right.sym)) @ _normal(left, g)  # scales by norms, then by every weight
    for _ in range(2):  # the scales of one space depend on those of the next
        fitted = refit(left.sym, left.state, right.state, fitted, right.spread)
    unmatched = tuple(s.name for s in sym.spaces if not carriers.get(s.name))
    return GateMatch(tuple(found.values()), unmatched, fitted)


def _by_weights(a: Folded, b: Folded, g: Transformation, agree: Mapping[str, Tensor]) -> Transformation:
    """``g`` with units that no gate tells apart in the order that weights tell, where as many gates agree."""
    signed = monomial(a.sym)
    normal_a, normal_b = (
        {**side.state, **moved(side.sym, _normal(side, identity(side.sym)), side.state)} for side in (a, b)
    )
    start = identity(signed)
    for space in a.sym.spaces:
        start = with_parts(start, space.name, permutation=g[space.name].permutation)
    better = match_units(signed, normal_a, normal_b, start=start).g
    for name, counts in agree.items():
        order = better[name].permutation
        of = lambda which, counts=counts: float(counts.gather(1, which[:, None]).sum())
        if of(order) >= of(g[name].permutation):
            g = with_parts(g, name, permutation=order)
    return g


def _normal(folded: Folded, g: Transformation) -> Transformation:
    """Scales and signs in normal form, after the units were put in order by ``g``."""
    g = g @ balanced(folded)
    return signing(folded.sym, {**folded.state, **moved(folded.sym, g, folded.state)}) @ g


def _check_hard(*models: nn.Module) -> None:
    """Refuse gates that a rescaling changes.

    Raises:
        ValueError: If a network has soft gates, or gates from another network.
    """
    for model in models:
        if isinstance(model, GatedNetwork):
            kind = "soft gates, which change when units are rescaled" if model.gate != "hard" else "a gated network"
            raise ValueError(
                f"a and b must be ReLU networks, whose gates are their own units'. Got {kind}. Give its .value or "
                ".gating.network, whichever is meant."
            )


def _carriers(model: nn.Module, sym: Symmetry, program: ReluProgram, x: Tensor) -> dict[str, list[tuple[int, Tensor]]]:
    """For each space the gates whose channels are its units: number of the gate, and the channel of each unit.

    Found by trial: on a copy with random weights every space in turn is shifted by one unit, and the channels of the
    pre-activations that move are its own. Random weights, because in the given ones units may be dead or equal.
    """
    probe = _randomised(model)
    examples = torch.randn(8, *x.shape[1:], dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    relus = [i for i, call in enumerate(program.gate_calls) if call.op not in MAX_POOLS]
    before = _pre_activations(probe, examples)
    found: dict[str, list[tuple[int, Tensor]]] = {}
    for space in sym.spaces:
        if space.parents or not space.group.permutes or space.size < 2:
            continue
        shift = torch.arange(space.size).roll(1)
        twin = act(sym, with_parts(identity(sym), space.name, permutation=shift), probe)
        for gate, q, r in zip(relus, before, _pre_activations(twin, examples)):
            channels = (_differs(q, r)).nonzero()[:, 0]
            whole = len(channels) > 0 and len(channels) % space.size == 0
            for part in channels.split(space.size) if whole else ():
                if not _differs(q[:, part[shift]], r[:, part]).any():
                    found.setdefault(space.name, []).append((gate, part))
    return found


def _randomised(model: nn.Module) -> nn.Module:
    probe = copied(model).cpu().double().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in probe.parameters():
            fan_in = max(1, p[0].numel()) if p.dim() > 1 else 1
            p.copy_(torch.randn(p.shape, dtype=p.dtype, generator=generator) / fan_in**0.5)
    return probe


def _pre_activations(model: nn.Module, x: Tensor) -> list[Tensor]:
    """What goes into every ReLU."""
    program = capture_dynamic(model, x)
    relus = program.find(lambda call: is_gate(call) and call.op not in MAX_POOLS)
    return list(program.run(x, [program.calls[i].inputs[0] for i in relus]))


def _differs(a: Tensor, b: Tensor) -> Tensor:
    """Which channels of ``(N, C, *S)`` are not the same, beyond rounding."""
    error = (a - b).abs().transpose(0, 1).flatten(1).amax(1)
    return error > 1e-7 * (1 + b.abs().max())


def _match(
    space: Space, carriers: list[tuple[int, Tensor]], a: list[Tensor], b: list[Tensor], names: tuple[str, ...]
) -> tuple[Tensor, Tensor, SpaceMatch]:
    """For each new place the old unit, by the assignment that makes most gates agree; and how many agree for each."""
    n = space.size
    agree, twins_a, twins_b = (torch.zeros(n, n, dtype=torch.float64) for _ in range(3))
    total = 0
    for gate, channels in carriers:
        left, right = (_on(g[gate][:, channels.to(g[gate].device)]) for g in (a, b))
        agree += _agreements(right, left)
        twins_a += _agreements(left, left)
        twins_b += _agreements(right, right)
        total += left.shape[1]
    order = assign(agree)
    alike = lambda t: int(((t == total).sum(1) > 1).sum())
    matched = float(agree.gather(1, order[:, None]).sum()) / (n * total)
    layers = tuple(dict.fromkeys(names[gate] for gate, _ in carriers))
    before = float(agree.diagonal().sum()) / (n * total)
    return order, agree, SpaceMatch(space.name, layers, matched, before, max(alike(twins_a), alike(twins_b)))


def _on(gates: Tensor) -> Tensor:
    """Gates as rows of units ``(C, N P)``; a leaky ReLU is on where its slope is 1."""
    return (gates if gates.dtype == torch.bool else gates == 1).transpose(0, 1).flatten(1)


def _agreements(a: Tensor, b: Tensor) -> Tensor:
    """How often each unit of ``a`` is as each of ``b``: both on, or both off; exact while counts are below 2^24."""
    x, y = a.float() * 2 - 1, b.float() * 2 - 1
    parts = ((p @ q.T).double() for p, q in zip(x.split(1 << 20, 1), y.split(1 << 20, 1)))
    return (sum(parts, torch.zeros(len(a), len(b), dtype=torch.float64).to(a.device)) + a.shape[1]).cpu() / 2
