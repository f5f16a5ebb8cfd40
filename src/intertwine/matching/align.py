"""Alignment: one network brought into the basis of another."""

import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .._result import of_networks
from ..symmetry import Symmetry, Transformation
from ..symmetry.action import check_states
from ..symmetry.gauge.canonical import check_weights
from ..symmetry.transformation import KINDS, check_kinds, identity
from .alignment import Alignment
from .coordinates.gauge import gauge_of
from .coordinates.networks import Networks, common_symmetry
from .correspondence.correspond import carrier_of
from .judgement.agreement import agreement, cosines_by_chance, unweighted
from .solvers import CoordinateDescent, Solution, Solver, solver_named

_TURNS = {"permutation", "linear"}  # kinds without which streams are not rotated
_STREAMED = ("permutation", "sign")  # kinds that are searched tensor by tensor: what balances scales is all of them
_FEWER = {
    ("permutation", "sign", "linear"): "scales",
    ("permutation", "sign"): "scales and bases",
}  # what is left of an element, and what is then left as it is


@of_networks("a", "b", states=True)
def align(
    a: nn.Module | Mapping[str, Tensor],
    b: nn.Module | Mapping[str, Tensor],
    example_inputs: Any,
    method: str | Solver = "weights",
    loader: Iterable[Any] | None = None,
    seed: int = 0,
    kinds: Collection[str] | None = None,
    sym: Symmetry | None = None,
    chance: bool = True,
) -> Alignment:
    """Find the element of the symmetry group that moves ``b`` as close to ``a`` as the method can.

    Args:
        a: The network whose basis is kept. Both are left as they are. Of two state dicts, which may be read from disk
            when they are needed (``StoredState``), one tensor each is in memory, and units are permuted and flipped
            only (``method="weights"``, ``sym`` given, no ``chance``).
        b: The network that is to move; of the same architecture, or the same program in other code (see
            ``correspond``): its weights are carried into a copy of ``a`` then, and what is moved is that.
        example_inputs: One tensor, a tuple of positional arguments or a mapping of keyword arguments.
        method: A solver with its options, such as ``Sinkhorn(temperature=0.05)``, or the name of one with its
            defaults: ``"weights"`` (``CoordinateDescent``), ``"activations"`` (``Activations``), ``"mixed"``
            (``Activations(share=0.5)``), ``"frank-wolfe"``, ``"sinkhorn"``, ``"straight-through"`` or ``"learned"``.
        loader: Batches of inputs (or of inputs and targets), for methods that look at data.
        seed: Same seed, same alignment.
        kinds: Kinds of elements to search, among ``"permutation"``, ``"scale"``, ``"sign"`` and ``"linear"``; ``None``
            searches all that the spaces allow.
        sym: The symmetry of both where it is known already; the search then keeps to its group. Otherwise networks
            whose streams may rotate once gains of norms are folded (transformers) are folded first.
        chance: Whether to say what the mean cosine of matched units would be by chance: one short search more, against
            a network whose units are unrelated to those of ``b``.

    Returns:
        The alignment; ``alignment.apply(b)`` is the moved network, ``alignment.a`` the one that it is close to: ``a``
        itself where nothing was folded.

    Raises:
        TypeError: If only one is a state dict, or the symmetry of two is not given.
        ValueError: If the method is unknown, the architectures differ, or weights hold NaN.

    Examples:
        >>> import intertwine as iw
        >>> def net(seed):
        ...     torch.manual_seed(seed)
        ...     return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> a, b, x = net(0), net(1), torch.randn(5, 4)
        >>> found = iw.align(a, b, x)
        >>> moved = found.apply(b)  # as close to a as it can be
        >>> torch.allclose(moved(x), b(x), atol=1e-5), found.after < found.before
        (True, True)
    """  # noqa: DOC502 - raised by what it calls
    started = time.perf_counter()
    solver = solver_named(method)
    name = method if isinstance(method, str) else solver.name
    if isinstance(a, Mapping) or isinstance(b, Mapping):
        sym, (a, b) = check_states(sym, a=a, b=b)
        chosen, sym_b, gauge, carry, chance = _streamed_kinds(kinds, solver), sym, None, None, False
    else:
        chosen, given, carry = check_kinds(kinds), sym, carrier_of(a, b, example_inputs)
        b = b if carry is None else carry(b)
        sym, sym_b = common_symmetry(a, b, example_inputs, sym)
        gauge = gauge_of((a, b), example_inputs, sym) if given is None and chosen >= _TURNS else None
    networks = Networks(a, b, sym, sym_b, chosen, loader, seed)
    for whose, state in zip((sym, sym_b), networks.states):
        check_weights(whose, state)
    if gauge is not None:
        sym = gauge.sym
        networks = Networks(gauge(networks.a), gauge(networks.b), sym, sym, chosen, loader, seed, gauge)
    found = solver.solve(networks) if sym.spaces or solver.needs_units else Solution(identity(sym), 0.0, ())
    g, (quality, before, after), notes = _nearest(networks, found.transformation, solver.by_weights)
    if not solver.by_weights and after > before:
        notes.append("units were matched by what they do on data, not by weights, whose distance may grow")
    if kinds is not None and g.is_identity(0.0):
        notes.append(f"nothing moved: no space has or needs {' or '.join(sorted(chosen))}")
    if carry is not None:
        notes.append("b is in other code: its weights were carried into a's, as correspond(a, b) shows")
    if sym_b.path_only:
        notes.append(f"moved, b computes its function on {sym_b.certified}; other paths are not certified")
    if gauge is not None:
        more = f", with {', '.join(gauge.added)} of their own" if gauge.added else ""
        notes.append(f"gains of norms were folded in both{more}, so that streams rotate: the line starts at .a")
    return Alignment(
        method=name,
        symmetry=sym,
        transformation=g,
        a=networks.a,
        gauge=gauge,
        carry=carry,
        objective=found.objective,
        history=found.history,
        quality=quality,
        before=before,
        after=after,
        kinds=tuple(kind for kind in KINDS if kind in chosen),
        seconds=time.perf_counter() - started,
        seed=seed,
        starts=found.starts,
        notes=(*unweighted(quality), *_undetermined(networks), *found.notes, *notes),
        chance=cosines_by_chance(networks.problem(torch.float32), seed, solver.by_weights) if chance else {},
    )


def _nearest(
    networks: Networks, g: Transformation, by_weights: bool
) -> tuple[Transformation, tuple[dict[str, Tensor], float, float], list[str]]:
    """``g``, or what is left of it without scales or bases where these move ``b`` away; its agreement; a note on it."""
    found = agreement(networks, g)
    if not by_weights or found[2] <= found[1] or "scale" not in networks.kinds:
        return g, found, []
    parts = [(part := g.restrict(kinds=kept), agreement(networks, part), left) for kept, left in _FEWER.items()]
    part, other, left = min(parts, key=lambda one: one[1][2])
    if not other[2] < found[2]:
        return g, found, []
    return part, other, [f"{left} were left as they are: they would have moved b away, as units without weights do"]


def _undetermined(networks: Networks) -> list[str]:
    """A note where bases are searched that weights do not tell."""
    if "linear" not in networks.kinds:
        return []
    names = dict.fromkeys(name for side in networks.balanced for name in side.undetermined)
    said = "the weights do not determine the basis of {}, where not all that is written is read: a match may be missed"
    return [said.format(name) for name in names]


def _streamed_kinds(kinds: Collection[str] | None, solver: Solver) -> frozenset[str]:
    """The kinds that are searched in two state dicts, of which one tensor each is in memory."""
    chosen = check_kinds(_STREAMED if kinds is None else kinds)
    if not chosen <= set(_STREAMED):
        raise ValueError(
            f"kinds must be among {_STREAMED} for state dicts, which are read tensor by tensor. Got {sorted(chosen)}. "
            "Scales and bases need the whole network: align modules."
        )
    if not isinstance(solver, CoordinateDescent):
        raise ValueError(f"method must be 'weights' for state dicts, or its options. Got {solver.name!r}.")
    return chosen
