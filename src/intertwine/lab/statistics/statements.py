"""Statements of a paper as tests of numbers, the one rule that judges all statements of a page, and power.

Power: the smallest effect that a plan can detect, and the networks that an effect needs, from an earlier estimate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from .estimates import Estimate, Sample, all_but, holm, student_quantile

LEVEL = 0.05
_MOST_NETWORKS = 10_000
_SHOWN = 8  # most numbers listed for a statement
_SATURATED = 0.995  # of the ceiling
# Share of the way from the trivial baseline to the accuracy after longer training: a network with more than a fifth
# left to learn is no yardstick for claims that another reaches 83.5 % of it, or loses nothing within a point
_LEARNT = 0.8


@dataclass(frozen=True)
class Guard:
    """Condition for judging a statement: its networks beat the trivial baseline, and not all are at the ceiling."""

    # Accuracies (or other scores from 0 to 1) of the networks that the statement is about, by arm
    reached: Mapping[str, Estimate]
    floor: float = 0.0  # What the trivial baseline reaches, such as logistic regression on pixels
    # What the same networks reach when trained to the end; ``None`` unless the statement compares arms by what they
    # reach
    ceiling: float | None = None
    least: float = 0.0  # Accuracy from which networks count as trained, declared for each data set
    # What the same networks reach when trained to the end, by arm, where known
    ends: Mapping[str, float] = field(default_factory=dict)
    also: str = ""  # A further reason not to judge the statement, such as untrained maps

    @property
    def why(self) -> str:
        """Why the statement cannot be judged; empty if it can."""
        if not self.reached or any(math.isnan(e.value) for e in self.reached.values()):
            return "the accuracy of the networks is not known"
        said = lambda names: ", ".join(f"{name} {100 * self.reached[name].value:.1f} %" for name in names)
        ends = {name: e.interval() or (e.value, e.value) for name, e in self.reached.items()}
        if low := [name for name, (end, _) in ends.items() if end <= self.floor]:
            return f"no better than the trivial baseline ({100 * self.floor:.1f} %): {said(low)}"
        if few := [name for name, e in self.reached.items() if e.value < self.least]:
            return f"not trained: {said(few)}, {100 * self.least:.0f} % needed"
        ways = {a: (self.reached[a].value - self.floor) / (end - self.floor)
                for a, end in self.ends.items() if end > self.floor}  # fmt: skip
        if short := [a for a, way in ways.items() if way < _LEARNT]:
            far = ", ".join(f"{100 * ways[a]:.0f} % of the way to {100 * self.ends[a]:.1f} %" for a in short)
            return f"not trained to the end: {said(short)}, which is {far}, {100 * _LEARNT:.0f} % needed"
        if self.ceiling is not None and all(end >= _SATURATED * self.ceiling for _, end in ends.values()):
            return f"all arms are at the ceiling ({100 * self.ceiling:.1f} %): {said(self.reached)}"
        return self.also


@dataclass(frozen=True)
class Statement:
    """A claim of a paper: numbers that lie above one limit and below another if the paper is right."""

    text: str  # The statement in words
    effects: Mapping[str, Estimate]  # The numbers, by name. A statement about every layer has one for each layer
    # Lower limit; one limit is a one-sided test, two are a test of equivalence (two one-sided tests)
    above: float = -math.inf
    below: float = math.inf  # Upper limit
    but: int = 0  # How many of the numbers may lie outside the limits
    guard: Guard | None = None  # Condition under which it can be judged
    # Whether it must hold: mathematics must, at every scale; a trend among a few networks need not
    required: bool = False
    # Whether it checks the run itself, such as that frozen weights did not change: required, and no claim of a paper
    check: bool = False

    @property
    def p_holds(self) -> float:
        """P-value of "the statement holds": that of the least certain number, or the ``but + 1``-th least certain."""
        inside = [max(e.p_above(self.above), e.p_below(self.below)) for e in self.effects.values()]
        return all_but(inside, self.but) if inside else 1.0

    @property
    def p_fails(self) -> float:
        """P-value of "the statement does not hold": more than ``but`` numbers lie outside the limits."""
        sides = sum(map(math.isfinite, (self.above, self.below)))
        outside = [
            min(1.0, sides * min(e.p_below(self.above) if math.isfinite(self.above) else 1.0,
                                 e.p_above(self.below) if math.isfinite(self.below) else 1.0))
            for e in self.effects.values()
        ]  # fmt: skip
        # more than ``but`` of n outside: all but n - but - 1 of them
        return all_but(outside, len(outside) - self.but - 1) if len(outside) > self.but else 1.0

    @property
    def met(self) -> int:
        """How many numbers lie between the limits as measured, whatever their errors."""
        return sum(self.above < e.value < self.below for e in self.effects.values())

    @property
    def detail(self) -> str:
        """The numbers that decide the statement, and the limits, in words."""
        known = (("above", self.above), ("below", self.below))
        limits = " and ".join(f"{word} {limit:g}" for word, limit in known if math.isfinite(limit))
        named = self.effects
        shown = {n: e for n, e in named.items() if len(named) <= _SHOWN or not self.above < e.value < self.below}
        listed = [f"{name}: {e}" if name else str(e) for name, e in list(shown.items())[:_SHOWN]]
        if len(named) > _SHOWN:
            listed = [f"{self.met} of {len(named)} as wanted{', not ' if listed else ''}" + ", ".join(listed)]
        return f"{', '.join(listed)}; {'wanted' if len(named) < 2 else 'each'} {limits}" if named else ""

    def needed(self, statements: int) -> int | None:
        """Networks that would decide it, with power 0.8 for its least certain number; ``None`` if none would."""
        if not self.effects:
            return None
        found = [self._needed(e, LEVEL / statements) for e in self.effects.values()]
        known = sorted(math.inf if n is None else n for n in found)
        # It holds once all but ``but`` numbers are told inside, or fails once the first ``but + 1`` are told outside.
        if self.met >= len(known) - self.but:
            chosen = known[len(known) - self.but - 1]
        else:
            lying = [e for e in self.effects.values() if not self.above < e.value < self.below]
            outside = sorted(math.inf if (n := self._needed(e, LEVEL)) is None else n for e in lying)
            chosen = outside[self.but] if len(outside) > self.but else known[-1]
        return None if math.isinf(chosen) else int(chosen)

    def _needed(self, found: Estimate, level: float) -> int | None:
        limits = [limit for limit in (self.above, self.below) if math.isfinite(limit)]
        # Between two limits both tests must succeed: with power 0.9 each, both do with power 0.8.
        power = 0.9 if len(limits) == 2 and self.above < found.value < self.below else 0.8
        nearest = min(limits, key=lambda limit: abs(found.value - limit), default=math.nan)
        return networks_needed(found, nearest, level, power) if limits else 2

    def smallest(self, networks: int, statements: int) -> float:
        """Smallest distance from a limit that this many networks detect, for the number that varies most."""
        return max((detectable(e, networks, LEVEL / statements) for e in self.effects.values()), default=math.inf)


@dataclass(frozen=True)
class Claim:
    """A statement, judged."""

    text: str  # In words
    held: bool | None  # Whether it holds here; ``None`` where the run cannot tell
    detail: str = ""  # The numbers it was judged by
    p: float | None = None  # P-value of the verdict that the numbers point to; ``None`` where there is none
    adjusted: float | None = None  # The same, adjusted for all statements of the page (Holm)
    why: str = ""  # Why it cannot be told, and what the numbers as measured would say
    # Fewest networks behind any of its numbers; ``None`` for mathematical facts, which have none
    networks: int | None = field(default=None, kw_only=True)
    # Number of networks that would decide it; ``None`` if it is decided, or no number would
    needed: int | None = field(default=None, kw_only=True)
    required: bool = field(default=False, kw_only=True)  # Whether it must hold
    check: bool = field(default=False, kw_only=True)  # Whether it checks the run itself, and is no claim of a paper

    @property
    def verdict(self) -> str:
        """``holds``, ``does not hold`` or ``cannot be told``."""
        return "cannot be told" if self.held is None else "holds" if self.held else "does not hold"


def judge(statements: Sequence[Statement]) -> list[Claim]:
    """Verdicts on all statements of one page.

    A statement holds if its p-value, adjusted for all statements of the page (Holm), is at most 5 %: among pages whose
    statements are all false, one in twenty says that any of them holds. It does not hold if the p-value of the
    opposite, adjusted in the same way, is at most 5 %. Otherwise, or if its guard objects, it cannot be told. Checks
    of the run are judged separately, without this adjustment.
    """
    judged = [s for s in statements if not s.check and not (s.guard and s.guard.why)]
    holds = dict(zip(map(id, judged), holm([s.p_holds for s in judged])))
    fails = dict(zip(map(id, judged), holm([s.p_fails for s in judged])))
    return [_claim(s, holds.get(id(s)), fails.get(id(s)), max(len(judged), 1)) for s in statements]


def _claim(s: Statement, holds: float | None, fails: float | None, count: int) -> Claim:
    blocked = s.guard.why if s.guard else ""
    holds, fails = (s.p_holds if holds is None else holds), (s.p_fails if fails is None else fails)
    held = None if blocked else True if holds <= LEVEL else False if fails <= LEVEL else None
    towards = held if held is not None else s.met >= len(s.effects) - s.but
    p, adjusted = (s.p_holds, holds) if towards else (s.p_fails, fails)
    why = ""
    if held is None:
        why = blocked or _unsure(s)
        if len(s.effects) == 1:
            why += f"; as measured it would {'hold' if s.met else 'not hold'}"
        elif s.effects:
            enough = ", which is enough" if len(s.effects) - s.but <= s.met < len(s.effects) else ""
            why += f"; as measured {s.met} of {len(s.effects)} would hold{enough}"
    exact = all(e.error == 0 and not e.networks for e in s.effects.values())
    return Claim(
        s.text, held, s.detail, None if exact or blocked else p, None if exact or blocked or s.check else adjusted, why,
        networks=min((e.networks for e in s.effects.values() if e.networks), default=None),
        needed=s.needed(count) if held is None and not blocked else None, required=s.required or s.check, check=s.check,
    )  # fmt: skip


def _unsure(s: Statement) -> str:
    if not s.effects:
        return "no such numbers in this result"
    if unknown := [name for name, e in s.effects.items() if not math.isfinite(e.value)]:
        return f"no finite number {unknown[0]}".rstrip()
    if all(e.error is None for e in s.effects.values()):
        return "too few independent networks"
    if min(s.p_holds, s.p_fails) <= LEVEL:
        return "significant by itself, but not after correction for all statements of this page"
    return "the numbers vary too much among networks"


def estimates(found: Mapping[str, Sample | Estimate] | Sample | Estimate) -> dict[str, Estimate]:
    """Estimates by name, from samples or estimates by name, or from a single one, which gets an empty name."""
    named = found if isinstance(found, Mapping) else {"": found}
    return {name: one.estimate() if isinstance(one, Sample) else one for name, one in named.items()}


def detectable(found: Estimate, networks: int | None = None, level: float = 0.05, power: float = 0.8) -> float:
    """Smallest distance from a limit that a plan detects with the given power, in the units of the number.

    It is the ``d`` with ``P(t' > t_{1 - level}) = power`` for ``t'`` of noncentrality ``d / error``; infinity if the
    spread is unknown. The spread is that of an earlier estimate of the same number; ``networks`` replaces its number
    of networks. For the first step of Holm's rule, ``level`` is 0.05 divided by the number of statements of the page.

    Examples:
        >>> round(detectable(Estimate(0.0, 1.0, 5, 6)), 2), round(detectable(Estimate(0.0, 1.0, 5, 6), 24), 2)
        (2.9, 1.28)
    """
    if found.error is None or not found.networks:
        return math.inf if found.error is None else 0.0
    error, freedom = _scaled(found, networks or found.networks)
    return error * _noncentrality(freedom, level, power)


def networks_needed(found: Estimate, limit: float, level: float = 0.05, power: float = 0.8) -> int | None:
    """Number of networks that would tell a number from a limit with the given power, if its estimate is right.

    ``None`` if 10,000 would not: the test images are too few, the number is at the limit, or the spread is unknown.

    Examples:
        >>> networks_needed(Estimate(1.0, 0.5, 5, 6), 0.0), networks_needed(Estimate(1.0, 0.5, 5, 6), 1.0)
        (11, None)
    """
    distance = abs(found.value - limit)
    if found.error is None or not found.networks or not math.isfinite(distance):
        return None
    enough = lambda n: detectable(found, n, level, power) <= distance
    if not enough(_MOST_NETWORKS):
        return None
    low, high = 2, _MOST_NETWORKS
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return low


def _scaled(found: Estimate, networks: int) -> tuple[float, float]:
    """Standard error and degrees of freedom with another number of networks."""
    assert found.error is not None
    assert found.networks
    before = max(found.error**2 - found.fixed**2, 0.0)
    moving = before * found.networks / networks
    total = moving + found.fixed**2
    if not moving:
        return math.sqrt(total), math.inf
    each = found.freedom * (before / found.error**2) ** 2 / max(found.networks - 1, 1)  # gained by one more network
    return math.sqrt(total), max((networks - 1) * each * (total / moving) ** 2, 1.0)


@cache
def _noncentrality(freedom: float, level: float, power: float) -> float:
    """Distance in standard errors that a one-sided test detects with this power."""
    from scipy.optimize import brentq
    from scipy.stats import nct, norm

    if freedom > 1e6:
        return float(norm.ppf(1 - level) + norm.ppf(power))
    critical = student_quantile(1 - level, freedom)
    missing = lambda distance: float(nct.sf(critical, freedom, distance)) - power
    return float(brentq(missing, 0.0, 4 * critical + 10))
