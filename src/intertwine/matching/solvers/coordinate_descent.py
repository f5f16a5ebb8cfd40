"""Coordinate descent over spaces with the Hungarian algorithm.

Git Re-Basin's weight matching (Ainsworth, Hayase and Srinivasa 2023, algorithm 1) for every space of a symmetry.
Differs from the paper: scales and general bases are removed first, signs are found with the assignment, linear spaces
take the closest rotation, the units inside a unit (a head's dimensions, a group's channels) are matched with it, and
there are better starts than the identity. The result is then shaken: one space is shuffled, the descent continues, and
the end is kept if it is better (iterated local search; Lourenço, Martin and Stützle 2003). If streams rotate, starts
are annealed instead: gains get noise that falls sweep by sweep.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import ClassVar, NamedTuple

import torch

from ..._random import mixed
from ...groups.assignment import assign_nearly
from ...symmetry.coupling import Joined
from ...symmetry.spaces import Space
from ...symmetry.transformation import Transformation, identity, random, with_parts
from ..coordinates.networks import Networks
from ..coordinates.problem import Problem, single_spaces
from ..costs import ROUNDING, Costs
from .solver import Findings, Solver
from .steps import best_parts, best_signs, nested_step, outwards, profiles

_COPY = 1e-6  # relative distance from the largest possible objective, |a| |b|, at which the search is done
_LARGE = 6_000_000  # weights
_SETTLING = 6  # sweeps after a shake
_COOLING, _HEAT = 40, 1.0  # sweeps of falling noise, and its initial deviation, in deviations of the gains
_TURNS = 1e-5  # relative gain per sweep with rotating streams: smaller gains lower no barrier
_NEARLY = 1e-3  # share of the objective that a copy in another basis may still miss when sweeps gain less than that
_STILL = {torch.float32: 1e-6, torch.float64: 1e-12}  # rotations closer to the identity than this count as none


@dataclass(frozen=True)
class CoordinateDescent(Solver):
    """Coordinate descent: maximises ``Σ <a, g b>`` in balanced coordinates, one space after another.

    Attributes:
        restarts: Largest number of starts: spaces placed from the input outwards and similar weight profiles (in that
            order if spaces form a tree, else in reverse), the identity, then random elements. The default is two, but
            one for networks of more than 6 million weights, for state dicts, and if streams rotate; then each start has
            similar profiles, annealed with other noise. A start that ends in a copy of ``a`` is the last one, since
            nothing can be better.
        shakes: How often the best end is shaken; by default 40 times, 4 for networks of more than 6 million weights,
            state dicts and networks whose streams rotate not at all.
        sweeps: Largest number of sweeps over all spaces.
        tolerance: Relative gain of a sweep below which the search ends; with 0, only when nothing changes. With
            rotating streams, whose search never quite ends, at least 1e-5.
        fast: Whether to use the assignment of the extra ``[fast]``.
    """

    name: ClassVar[str] = "weights"

    restarts: int | None = None
    shakes: int | None = None
    sweeps: int = 200
    tolerance: float = 0.0
    fast: bool = False

    def __post_init__(self) -> None:
        if self.restarts is not None and self.restarts < 1:
            raise ValueError(f"restarts must be positive. Got {self.restarts}.")

    def search(self, networks: Networks) -> Findings:
        """The best end of all starts."""
        stated = networks.stated
        large = networks.stored or sum(x.numel() for x in stated.b.values()) > _LARGE
        turns = networks.gauge is not None
        restarts = (1 if large or turns else 2) if self.restarts is None else self.restarts
        usual = 0 if turns or networks.stored else 4 if large else 40
        shakes = usual if self.shakes is None else self.shakes
        tolerance = max(self.tolerance, _TURNS if turns else 0.0)
        options = replace(self, restarts=restarts, shakes=shakes, tolerance=tolerance)
        starts = cooled(stated, networks.seed, self.fast) if turns else starts_of(stated, networks.seed, self.fast)
        best, reached = search(stated, options, networks.seed, starts)
        if turns and best.history[-1] >= (1 - _NEARLY) * stated.size:  # a copy in another basis: to the last digit
            exact = replace(options, tolerance=self.tolerance)
            best = descend(stated, best.g, torch.Generator().manual_seed(networks.seed), exact)
        return Findings(stated.sym, stated.objective, (best.g,), stated.lift, best.history, reached)


class Descent(NamedTuple):
    """The end of a coordinate descent."""

    g: Transformation  # The element
    history: tuple[float, ...]  # The objective at the start and after every sweep


def search(
    stated: Problem,
    options: CoordinateDescent,
    seed: int,
    starts: Iterable[Transformation],
    enough: float = _COPY,
) -> tuple[Descent, tuple[float, ...]]:
    """The best end of several starts, stopping once one is near ``enough`` to the optimum; and each objective."""
    restarts, shakes = options.restarts or 1, options.shakes or 0
    generator = torch.Generator().manual_seed(seed)
    found: list[Descent] = []
    alone = shakes if restarts == 1 else 0
    for start in islice(starts, restarts):
        found.append(descend(stated, start, generator, options, alone))
        if _copied(stated, found[-1].history[-1], enough):
            break
    best = max(found, key=lambda d: d.history[-1])
    if shakes and not alone and not _copied(stated, best.history[-1], enough):
        shaken = descend(stated, best.g, generator, options, shakes)
        best = Descent(shaken.g, (*best.history, *shaken.history[1:]))
    return best, tuple(d.history[-1] for d in found)


def starts_of(stated: Problem, seed: int, fast: bool) -> Iterator[Transformation]:
    """Starts: two from the weights, the identity, and random elements."""
    first = profiles(stated, fast)
    if _is_tree(stated):
        yield from sorted((first, outwards(stated, fast)), key=stated.objective, reverse=True)
    else:
        yield first
        yield outwards(stated, fast)
    yield identity(stated.sym)
    for number in count(2):
        yield random(stated.sym, seed + number)


def cooled(stated: Problem, seed: int, fast: bool) -> Iterator[Transformation]:
    """Ends of annealed sweeps from similar profiles: gains have noise that falls, and differs each time.

    With rotating streams the objective has many optima of about the same height. Noise leads across the ridges between
    them, to optima that are stable under it: their barrier is lower than that of other optima of the same height.
    """
    start, free = profiles(stated, fast), single_spaces(stated.sym)
    for number in count():
        generator, kept = torch.Generator().manual_seed(mixed(seed, "noise", number)), Costs(stated, start)
        for step in range(_COOLING):
            if _copied(stated, kept.value):
                break
            for space in _waiting(kept, generator, nested_first=not step):
                if space in free:
                    _draw(kept, space, _HEAT * (1 - step / _COOLING), generator, fast)
                else:
                    _improve(kept, space, fast)
        yield kept.g


def _draw(kept: Costs, space: Space, heat: float, generator: torch.Generator, fast: bool) -> None:
    """Move one space to the best assignment under noise of ``heat`` deviations of the gains."""
    if here := kept.of(space.name):
        gain, choose = best_signs(here, space.group.signs)
        noise = torch.randn(gain.shape, generator=generator).to(gain)
        order = assign_nearly(gain + heat * gain.std(correction=0) * noise, fast).cpu()
        step = with_parts(kept.still, space.name, permutation=order, signs=choose(order))
        kept.move(step, kept.gain(step))


def _is_tree(stated: Problem) -> bool:
    """Whether no two spaces are joined in two ways, which holds for layers in a chain but not for residual streams."""
    together = Joined(s.name for s in stated.sym.spaces)
    for layout in stated.sym.layouts.values():
        if len(together.parts(layout.spaces)) < len(layout.spaces):
            return False
        together.join(layout.spaces)
    return True


def _slack(stated: Problem) -> float:
    """A fall of the objective that rounding explains."""
    return ROUNDING[stated.dtype] * stated.size


def _copied(stated: Problem, value: float, enough: float = _COPY) -> bool:
    """Whether the objective is that of a copy, so that nothing is left to find."""
    return value >= (1 - enough) * stated.size


_DEFAULTS = CoordinateDescent()
_SHORT = CoordinateDescent(tolerance=_TURNS)


def descend(
    stated: Problem,
    start: Transformation,
    generator: torch.Generator | None,
    options: CoordinateDescent = _DEFAULTS,
    shakes: int = 0,
) -> Descent:
    """Solve space after space, in random or given order, until none improves, even with costs from scratch."""
    kept = Costs(stated, start)
    history = [kept.value]
    # Bases rotate a little by rounding in every sweep: there only values computed from scratch count.
    rigid = not any(space.group.mixes for space in stated.sym.spaces)
    again = False
    for number in range(options.sweeps):
        turned = _sweep(kept, generator, options.fast, nested_first=not number)
        gained = kept.value - history[-1]
        # rotations end up gaining less than rounding but go on for long: only a tolerance ends them
        turning = turned and not options.tolerance
        settled = not kept.dirty or (not turning and gained <= options.tolerance * abs(kept.value))
        history.append(kept.value)
        if not settled:
            again = False
            continue
        if shakes and not _copied(stated, kept.value):
            for _ in range(shakes):
                _shaken(kept, generator, options.fast)
            shakes, history[-1] = 0, kept.value
        if again or kept.fresh:
            break
        again = True
        kept.refresh()  # tracked costs must hold from scratch before this counts as converged
        if rigid and kept.value < max(history[0], history[-1]) - _slack(stated):
            raise RuntimeError(
                f"objective must not fall. Got {kept.value:.12g} after {history[-1]:.12g}: report this network."
            )
        history[-1] = kept.value
        if not kept.dirty:
            break
    return Descent(kept.g, tuple(history))


def default(stated: Problem, seed: int, fast: bool = False) -> Transformation:
    """The end of a short descent by weights, with which every other solver's end is compared."""
    return descend(stated, profiles(stated, fast), torch.Generator().manual_seed(seed), _SHORT).g


def _sweep(kept: Costs, generator: torch.Generator | None, fast: bool, nested_first: bool = False) -> bool:
    """Solve every space whose costs changed, in random or given order; returns whether a basis rotated."""
    turned = False
    for space in _waiting(kept, generator, nested_first):
        turned |= _improve(kept, space, fast)
    return turned


def _waiting(kept: Costs, generator: torch.Generator | None, nested_first: bool) -> Iterator[Space]:
    """The spaces whose costs have changed when their turn comes; each then counts as solved.

    Starts leave heads, experts and their inner spaces in place. These come first in the first sweep; otherwise the
    signs of a stream, which a start found, would be solved anew against unordered heads, and lost.
    """
    order = spaces = list(kept.problem.sym.spaces)
    if generator is not None:
        order = [spaces[index] for index in torch.randperm(len(spaces), generator=generator).tolist()]
    if nested_first:
        order.sort(key=lambda s: s.name not in kept.problem.sym.outer)
    for space in order:
        if space.name in kept.dirty:
            kept.dirty.discard(space.name)
            yield space


def _shaken(kept: Costs, generator: torch.Generator | None, fast: bool) -> None:
    """Shuffle one space and descend again; go back if that did not help."""
    spaces = [s for s in kept.problem.sym.spaces if s.group.permutes and not s.parents and s.size > 1]
    if not spaces:
        return
    saved, before = kept.saved(), kept.value
    space = spaces[int(torch.randint(len(spaces), (), generator=generator))]
    step = with_parts(kept.still, space.name, permutation=torch.randperm(space.size, generator=generator))
    kept.move(step, kept.gain(step))
    kept.dirty.discard(space.name)  # the others settle first, or this one would just go back
    for _ in range(_SETTLING):
        value = kept.value
        turned = _sweep(kept, generator, fast)
        if not kept.dirty or (not turned and kept.value <= value):
            break
    if kept.value <= before + _slack(kept.problem):
        kept.restore(saved)


def step_of(costs: Costs, space: Space, fast: bool = False) -> Transformation:
    """The best step of one space while all others stay."""
    here, still = costs.of(space.name), costs.still
    return with_parts(still, space.name, **best_parts(here, space.group, fast)) if here else still


def _improve(costs: Costs, space: Space, fast: bool) -> bool:
    """Move one space and its inner spaces if that raises the objective; returns whether a basis rotated."""
    steps = [step_of(costs, space, fast)]
    if space.name in costs.problem.sym.outer:
        steps.append(nested_step(costs, space, fast))
    still = _STILL[costs.problem.dtype]
    stays = [all(step[name].is_identity(still) for name in costs.moving(step)) for step in steps]
    gains = [0.0 if stay else costs.gain(step) for stay, step in zip(stays, steps)]
    best = max(range(len(steps)), key=lambda k: gains[k])
    turns = space.group.mixes and not stays[best]
    # the gain of a small rotation is below rounding
    if gains[best] > (-1 if turns else 1e-3) * _slack(costs.problem):
        costs.move(steps[best], gains[best])
    return turns
