"""Alignment: bringing one network into the basis of another."""

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .._result import UNSAVED, Result, of_networks
from .._words import columns, counted, listed
from ..symmetry import Symmetry, Transformation, symmetries
from ..symmetry.action import check_states
from ..symmetry.gauge.canonical import check_weights
from ..symmetry.transformation import KINDS, check_kinds, identity
from .coordinates.networks import Networks, common_symmetry, folded_by, gauge_of
from .correspondence.correspond import carrier_of
from .judgement.agreement import agreement, cosines_by_chance, unweighted
from .solvers import CoordinateDescent, Solution, Solver, solver_named

_APART = 0.5  # relative distance beyond which networks are no noisy copies of each other
_TURNS = {"permutation", "linear"}  # kinds needed to rotate streams
_STREAMED = ("permutation", "sign")  # kinds that can be searched tensor by tensor: balancing scales needs all tensors
_FEWER = {
    ("permutation", "sign", "linear"): "scales",
    ("permutation", "sign"): "scales and bases",
}  # kinds that remain in an element, and what is then left alone


@dataclass(frozen=True, eq=False, repr=False)
class Alignment(Result):
    """The alignment of network ``b`` to the basis of network ``a``.

    ``transformation`` acts on ``b``: ``symmetry.act(transformation, b)`` computes the function of ``b`` with the unit
    order, scales and bases of ``a``. ``~transformation`` moves ``a`` into the basis of ``b``.

    If streams rotate, both act on networks whose gains are folded (``folded``): ``apply(b)`` folds ``b`` and then moves
    it close to ``alignment.a``.

    Attributes:
        method: Name of the solver.
        symmetry: The symmetry of the architecture.
        transformation: The element that moves ``b``.
        objective: The value that the solver maximised; when aligning by weights, the sum of ``<a, g b>`` over tensors
            in balanced coordinates.
        history: The objective along the path of the best start.
        starts: The objective that each start reached.
        quality: By space, for every unit of ``a``, the cosine in [-1, 1] between its weights and those of the unit of
            ``b`` moved to its place, ``(p..., n)``; NaN for a unit without weights.
        before: Distance ``|a - b| / |a|`` of the weights in balanced coordinates, before alignment.
        after: The same distance after ``b`` was moved.
        kinds: The kinds of elements searched.
        seconds: Time taken; not saved, so that the same seed gives the same file.
        seed: Seed of starts and orders.
        notes: Remarks that matter to the reader.
        chance: By space, the mean cosine that the same kind of search reaches between unrelated networks: ``a``, and
            ``b`` with its weights mixed; empty if not requested. Only a mean cosine above this level is meaningful.
        a: The network ``a`` in the gauge of the alignment: unchanged if nothing was folded. Not saved.
        gains: Norm gains that had to be folded, with the value that each entry has since; empty if none had to be.
        gauge: How networks are folded, or ``None``. Not saved: a loaded alignment's ``apply`` takes folded networks.
        carry: The function that first carries weights of ``b`` into the code of ``a``, if these differ. Not saved.

    Examples:
        >>> import torch, intertwine as iw
        >>> a = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> sym = iw.symmetries(a, torch.zeros(2, 4))
        >>> b = sym.act(sym.random(seed=1), a)
        >>> found = iw.align(a, b, torch.zeros(2, 4))
        >>> iw.testing.assert_same_function(b, found.apply(b), torch.randn(5, 4))
        >>> all(torch.allclose(x, y, atol=1e-6) for x, y in zip(a.parameters(), found.apply(b).parameters()))
        True
    """

    method: str
    symmetry: Symmetry
    transformation: Transformation
    objective: float
    history: tuple[float, ...]
    quality: Mapping[str, Tensor]
    before: float
    after: float
    kinds: tuple[str, ...]
    seconds: float = field(default=0.0, metadata=UNSAVED)
    seed: int = 0
    starts: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()
    chance: Mapping[str, float] = field(default_factory=dict)
    gains: Mapping[str, float] = field(default_factory=dict)
    a: Any = field(default=None, metadata=UNSAVED)
    gauge: Any = field(default=None, metadata=UNSAVED)
    carry: Any = field(default=None, metadata=UNSAVED)

    def apply(self, b: Any) -> Any:
        """A copy of ``b`` in the basis of ``a``: new weights, the same function.

        Args:
            b: The network that was aligned, or another checkpoint in the same basis. It is left as it is. A state dict
                is moved lazily: each tensor when it is asked for.

        Raises:
            ValueError: If a loaded alignment of folded networks is applied to a ``b`` that is not folded.
        """  # noqa: DOC502 - raised by the check
        return self.symmetry.act(self.transformation, self.folded(b))

    def folded(self, model: nn.Module) -> nn.Module:
        """``a``, ``b`` or another checkpoint, in the code of ``a`` and the gauge of the alignment."""
        return folded_by(self.gauge, self.gains, model if self.carry is None else self.carry(model))

    def _rows(self) -> list[dict[str, Any]]:
        """One row per space: its group, the number of moved units, and the quality of the match."""
        rows = []
        for space in self.symmetry.spaces:
            cosines = self.quality[space.name].flatten()
            known = cosines[~cosines.isnan()]
            e = self.transformation[space.name]
            rows.append(
                {
                    "space": self.symmetry.titles[space.name],
                    "name": space.name,
                    "units": e.permutation.numel(),
                    "group": space.symbol,
                    "moved": e.displaced if e.linear is None else e.permutation.numel(),
                    "flipped": int((e.signs < 0).sum()),
                    "scale": float(e.scales.abs().amax()) if e.scales.numel() else 0.0,
                    "cosine": float(known.mean()) if len(known) else float("nan"),
                    "worst": float(known.min()) if len(known) else float("nan"),
                    "chance": self.chance.get(space.name, float("nan")),
                }
            )
        return rows

    @property
    def cosines(self) -> tuple[float, float]:
        """The mean cosine over all matched units, and its level by chance; NaN where unknown."""
        known = {name: x[~x.isnan()] for name, x in self.quality.items()}
        total = sum(len(x) for x in known.values())
        if not total:
            return float("nan"), float("nan")
        levels = (self.chance.get(name, float("nan")) * len(x) for name, x in known.items() if len(x))
        return sum(float(x.sum()) for x in known.values()) / total, sum(levels) / total

    def summary(self) -> str:
        """The solver, the distance of the networks before and after, and a line for every space."""
        head = f"Alignment by {self.method}: relative distance {self.before:.3g} -> {self.after:.3g}"
        if len(self.kinds) < len(KINDS):
            head += f" ({', '.join(self.kinds)} only)"
        mean, chance = self.cosines
        said = f", {chance:.3f} by chance" if chance == chance else ""
        head += f"; mean cosine of matched units {mean:.3f}{said}"
        kept = ["cosine", "worst", *(["chance"] if self.chance else [])]
        table = [("space", "units", "group", "moved", *kept, "name")]
        for row in (rows := self._rows()):
            mixed = self.transformation[row["name"]].linear is not None
            title = row["space"].removesuffix(f" ({row['name']})")
            cells = (title, str(row["units"]), row["group"], "new basis" if mixed else str(row["moved"]))
            table.append((*cells, *("" if row[key] != row[key] else f"{row[key]:.3f}" for key in kept), row["name"]))
        notes = [*self.notes]
        if low := [row["space"] for row in rows if row["cosine"] < row["chance"]]:
            said = f"units no more alike than those of unrelated networks in {counted(len(low), 'space')}"
            notes.append(f"{said}: {listed(low)}")
        return "\n".join([head, *columns(table), *(f"Note: {note}" for note in notes)])


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
        a: The network whose basis is kept. Both are left as they are. Of two state dicts (``StoredState``), one tensor
            each is in memory; units are only permuted and flipped (``method="weights"``, ``sym``, no ``chance``).
        b: The network to move, of the same architecture; or the same program in other code, whose weights are then
            carried into a copy of ``a`` (``correspond``).
        example_inputs: One tensor, a tuple of positional arguments or a mapping of keyword arguments.
        method: A solver with its options, such as ``Sinkhorn(temperature=0.05)``, or the name of one with its
            defaults: ``"weights"`` (``CoordinateDescent``), ``"activations"`` (``Activations``), ``"mixed"``
            (``Activations(share=0.5)``), ``"frank-wolfe"``, ``"sinkhorn"``, ``"straight-through"`` or ``"learned"``.
        loader: Batches of inputs (or of inputs and targets), for methods that use data.
        seed: Same seed, same alignment.
        kinds: Kinds of elements to search, among ``"permutation"``, ``"scale"``, ``"sign"`` and ``"linear"``; ``None``
            searches all that the spaces allow.
        sym: The symmetry of both, if already known; the search then stays within its group. Otherwise networks whose
            streams may rotate once norm gains are folded (transformers) are folded first.
        chance: Whether to estimate the mean cosine of matched units by chance, with one more short search.

    Raises:
        TypeError: If only one is a state dict, or two are given without their symmetry.
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
        turns = given is None and chosen >= _TURNS
        gauge = gauge_of((a, b), example_inputs, symmetries(a, example_inputs)) if turns else None
        if gauge is not None:  # heads that are tied in only one of them are then free in both
            sym = sym_b = gauge.sym
            a, b = gauge(a), gauge(b)
        else:
            sym, sym_b = common_symmetry(a, b, example_inputs, sym)
    networks = Networks(a, b, sym, sym_b, chosen, loader, seed, gauge)
    for whose, state in zip((sym, sym_b), networks.states):
        check_weights(whose, state)
    found = solver.solve(networks) if sym.spaces or solver.needs_units else Solution(identity(sym), 0.0, ())
    g, (quality, before, after), notes = _nearest(networks, found.transformation, solver.by_weights)
    if not solver.by_weights and after > before:
        notes.append("units were matched by their responses on data, not by weights, whose distance may grow")
    if solver.by_weights and sym.batch_norms and after > _APART:
        by_data = "method='mixed', or --method mixed on the command line"
        notes.append(f"in all measurements, networks with batch norms were better aligned by data: {by_data}")
    if kinds is not None and g.is_identity(0.0):
        notes.append(f"nothing moved: no space has or needs {' or '.join(sorted(chosen))}")
    if carry is not None:
        notes.append("b is in other code: its weights were carried into a's, as correspond shows")
    if sym_b.path_only:
        notes.append(f"moved, b computes its function on {sym_b.certified}; other paths are not certified")
    if gauge is not None:
        notes.append(f"{gauge.note('both')}: the line starts at the folded a (.a, or base of 'intertwine align')")
    return Alignment(
        method=name,
        symmetry=sym,
        transformation=g,
        a=networks.a,
        gains={} if gauge is None else gauge.gains,
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
    """``g``, without scales or bases if these move ``b`` away; its agreement; and a note if any were dropped."""
    found = agreement(networks, g)
    if not by_weights or found[2] <= found[1] or "scale" not in networks.kinds:
        return g, found, []
    parts = [(part := g.restrict(kinds=kept), agreement(networks, part), left) for kept, left in _FEWER.items()]
    part, other, left = min(parts, key=lambda one: one[1][2])
    if not other[2] < found[2]:
        return g, found, []
    return part, other, [f"{left} were left as they are: they would have moved b away, as units without weights do"]


def _undetermined(networks: Networks) -> list[str]:
    """A note if bases are searched that the weights do not determine."""
    if "linear" not in networks.kinds:
        return []
    names = dict.fromkeys(name for side in networks.balanced for name in side.undetermined)
    said = "the weights do not determine the basis of {}, where not all that is written is read: a match may be missed"
    return [said.format(name) for name in names]


def _streamed_kinds(kinds: Collection[str] | None, solver: Solver) -> frozenset[str]:
    """The kinds searched between two state dicts that are read tensor by tensor."""
    chosen = check_kinds(_STREAMED if kinds is None else kinds)
    if not chosen <= set(_STREAMED):
        raise ValueError(
            f"kinds must be among {_STREAMED} for state dicts, which are read tensor by tensor. Got {sorted(chosen)}. "
            "Scales and bases need the whole network: align modules."
        )
    if not isinstance(solver, CoordinateDescent):
        raise ValueError(f"method must be 'weights' for state dicts, or its options. Got {solver.name!r}.")
    return chosen
