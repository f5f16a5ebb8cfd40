"""Joint alignment of several networks, each matched in turn to the mean of the others."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .._io.lazy import State
from .._progress import track
from .._result import UNSAVED, Result
from .._words import counted
from ..symmetry import Symmetry, Transformation
from ..symmetry.action import check_ties, moved, rewritable, tensors_of, write
from ..symmetry.find import symmetries
from ..symmetry.transformation import check_kinds, identity
from .coordinates.networks import Networks, check_matching, folded_by, gauge_of
from .solvers import Solver, solver_named

_SETTLED = 1e-6  # relative fall of the distance that justifies another sweep


@dataclass(frozen=True, eq=False, repr=False)
class Gathering(Result):
    """Several networks brought into one basis.

    Attributes:
        symmetry: The symmetry of the architecture.
        transformations: The element that moves each network into the common basis, which is near that of the first.
        distances: Root mean square distance of the moved networks from their mean, relative to the mean's norm, before
            the first sweep and after each.
        gains: Norm gains that had to be folded, with the value that each entry has since; empty if none had to be.
        gauge: How networks are folded first, so that streams can rotate, or ``None``. Not saved.
    """

    symmetry: Symmetry
    transformations: tuple[Transformation, ...]
    distances: tuple[float, ...]
    gains: Mapping[str, float] = field(default_factory=dict)
    gauge: Any = field(default=None, metadata=UNSAVED)

    _columns = ("sweep", "distance")

    def _rows(self) -> list[dict[str, Any]]:
        return [{"sweep": k, "distance": distance} for k, distance in enumerate(self.distances)]

    def summary(self) -> str:
        """The distance before and after, then after every sweep."""
        first, *rest = self.distances
        head = f"Gathering of {counted(len(self.transformations), 'network')}: distance from their mean {first:.3g}"
        lines = [f"sweep {k}: {distance:.3g}" for k, distance in enumerate(rest, 1)]
        return "\n".join([f"{head} -> {self.distances[-1]:.3g} of its norm", *lines])

    def apply(self, models: Sequence[nn.Module]) -> list[nn.Module]:
        """Copies of the networks in the common basis.

        Raises:
            ValueError: If their number differs from that of the gathered networks, or if a loaded result of folded
                networks is applied to one that is not folded.
        """
        if len(models) != len(self.transformations):
            raise ValueError(f"models must be the {len(self.transformations)} that were gathered. Got {len(models)}.")
        folded = [folded_by(self.gauge, self.gains, model) for model in models]
        return [self.symmetry.act(g, model) for g, model in zip(self.transformations, folded)]


def gather(
    models: Sequence[nn.Module],
    example_inputs: Any,
    method: str | Solver = "weights",
    *,
    loader: Iterable[Any] | None = None,
    sweeps: int = 10,
    seed: int = 0,
    kinds: Collection[str] = ("permutation", "sign", "linear"),
    progress: bool | None = None,
) -> Gathering:
    """Bring several networks into one basis (MergeMany): each is aligned in turn to the mean of the others.

    Every sweep goes through the networks in a new random order. The search ends when no network comes closer to the
    others, or after ``sweeps``. The first network is no centre: it moves like the rest. Scales stay unless ``kinds``
    asks for them: a mean of several networks has smaller weights than each of them, and scales that follow it reduce
    the distance but make the merged network worse.

    Args:
        models: At least two networks of one architecture. They are left as they are.
        example_inputs: See ``align``.
        method: How to align, see ``align``.
        loader: Batches, for methods that use data.
        sweeps: Largest number of sweeps through the networks.
        seed: Same seed, same result.
        kinds: Kinds of elements to search, see ``align``.
        progress: Whether to show progress.

    Raises:
        ValueError: If there are fewer than two networks, they differ in architecture, or ``sweeps`` is less than 1.

    References:
        - Ainsworth, S., Hayase, J. and Srinivasa, S. Git Re-Basin: Merging Models modulo Permutation Symmetries.
          ICLR 2023, Algorithm 3.
    """
    if len(models) < 2:
        raise ValueError(f"models must be at least two. Got {len(models)}.")
    if sweeps < 1:
        raise ValueError(f"sweeps must be at least 1. Got {sweeps}.")
    solver, chosen = solver_named(method), check_kinds(kinds)
    for k, model in enumerate(models[1:], start=1):
        check_matching(models[0], model, ("models[0]", f"models[{k}]"))
    sym = symmetries(models[0], example_inputs)
    gauge = gauge_of(models, example_inputs, sym) if {"permutation", "linear"} <= chosen else None
    if gauge is not None:
        sym, models = gauge.sym, [gauge(model) for model in models]
    for model in models:
        check_ties(sym, tensors_of(model), written=True)
    elements = [identity(sym) for _ in models]
    twins = [rewritable(sym, model) for model in models]
    states = [tensors_of(twin) for twin in twins]
    centre, names = rewritable(sym, models[0]), [name for name, _ in models[0].named_parameters()]
    distances = [_distance(states, names)]
    generator = torch.Generator().manual_seed(seed)
    for sweep in track(range(sweeps), "Gathering", enabled=progress):
        for k in torch.randperm(len(models), generator=generator).tolist():
            mean = mean_weights([state for i, state in enumerate(states) if i != k])
            pair = Networks(write(centre, mean), twins[k], sym, sym, chosen, loader, seed + sweep, gauge)
            found = solver.solve(pair).transformation
            new = moved(sym, found, states[k])
            if _apart(mean, {**states[k], **new}, names) < _apart(mean, states[k], names):
                elements[k] = found @ elements[k]
                write(twins[k], new)
        distances.append(_distance(states, names))
        if distances[-1] >= distances[-2] * (1 - _SETTLED):
            break
    return Gathering(sym, tuple(elements), tuple(distances), {} if gauge is None else gauge.gains, gauge)


def mean_weights(states: Sequence[State]) -> dict[str, Tensor]:
    """The mean of parameters and statistics by name; integers and shared values stay bit for bit."""
    found = dict(states[0])
    for name, first in states[0].items():
        others = [state[name].to(first.device) for state in states[1:]]
        real = first.is_floating_point() or first.is_complex()
        if real and not all(torch.equal(first, t) for t in others):
            work = torch.promote_types(first.dtype, torch.float32)
            found[name] = (sum((t.to(work) for t in others), first.to(work)) / len(states)).to(first.dtype)
    return found


def _distance(states: Sequence[State], names: Sequence[str]) -> float:
    """Root mean square distance from the mean, relative to the mean's norm."""
    centre = mean_weights(states)
    squares = sum(_apart(centre, state, names) for state in states) / len(states)
    norm = _apart(centre, dict.fromkeys(names, torch.zeros(())), names)
    return (squares / norm) ** 0.5 if norm else 0.0


def _apart(a: State, b: State, names: Sequence[str]) -> float:
    """Squared distance between tensors of two networks."""
    wide = {name: torch.promote_types(a[name].dtype, torch.float64) for name in names}
    gaps = (a[name].to(dtype) - b[name].to(a[name].device, dtype) for name, dtype in wide.items())
    return sum(float(torch.linalg.vector_norm(gap)) ** 2 for gap in gaps)
