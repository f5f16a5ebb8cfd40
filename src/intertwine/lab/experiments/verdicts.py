"""Verdicts: the one rule by which every statement of every experiment is judged, from estimates with intervals."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from .estimates import Estimate, exact

_SHOWN = 8  # estimates that a claim lists


@dataclass(frozen=True)
class Claim:
    """A statement of a paper, or about a question that it leaves open, that was checked.

    Args:
        text: The statement in words.
        held: Whether it holds here; ``None`` where the run cannot tell.
        detail: The numbers it was judged by.
        required: Whether it must hold: mathematics must at every scale, a trend among a few networks need not.
        why: Why it cannot be told, and what it would be by the numbers as measured; empty where it is told.
        check: Whether it is of the run itself, such as that what is frozen did not change: no statement, and required.
    """

    text: str
    held: bool | None
    detail: str = ""
    required: bool = False
    why: str = ""
    check: bool = False

    @property
    def verdict(self) -> str:
        """``holds``, ``does not hold`` or ``cannot be told``."""
        return "cannot be told" if self.held is None else "holds" if self.held else "does not hold"


@dataclass(frozen=True)
class Trained:
    """Networks that a statement is about, and the accuracy from which they count as trained.

    Args:
        accuracy: Test accuracies by kind of network, 0 to 1.
        least: Fewer cannot tell.
    """

    accuracy: Mapping[str, Estimate]
    least: float

    @property
    def short(self) -> str:
        """The networks that did not train, in words; empty if all did."""
        few = [f"{name} {100 * e.value:.1f} %" for name, e in self.accuracy.items() if not e.value >= self.least]
        return f"not trained: {', '.join(few)}, {100 * self.least:.0f} % needed" if few else ""


def verdict(estimates: Sequence[Estimate], above: float, below: float, but: int = 0) -> bool | None:
    """Whether numbers lie above one limit and below another.

    It holds where the intervals of all (all but ``but``) lie between the limits: where they exclude the opposite. It
    does not hold where more than ``but`` intervals lie outside; those are widened (Bonferroni), since among many
    numbers one lies outside by chance. Otherwise, and without intervals, it cannot be told.

    Args:
        estimates: The numbers.
        above: Lower limit.
        below: Upper limit.
        but: How many numbers may lie elsewhere.

    Examples:
        >>> verdict([Estimate(0.3, 0.1, 0.5)], 0, math.inf), verdict([Estimate(0.3, -0.1, 0.7)], 0, math.inf)
        (True, None)
        >>> verdict([Estimate(-0.3, -0.4, -0.1)], 0, math.inf), verdict([Estimate(0.3)], 0, math.inf)
        (False, None)
    """
    inside = lambda e: e.low is not None and e.high is not None and e.tells and above < e.low and e.high < below
    outside = lambda e: e.low is not None and e.high is not None and e.tells and (e.high <= above or e.low >= below)
    if estimates and sum(map(inside, estimates)) >= len(estimates) - but:
        return True
    return False if sum(outside(e.widened(len(estimates))) for e in estimates) > but else None


def claim(
    text: str,
    estimates: Mapping[str, Estimate] | Estimate,
    *,
    above: float = -math.inf,
    below: float = math.inf,
    but: int = 0,
    trained: Trained | None = None,
    required: bool = False,
    check: bool = False,
) -> Claim:
    """A statement that numbers lie above one limit and below another (see ``verdict``).

    Args:
        text: The statement in words.
        estimates: The numbers by name, or one.
        above: Lower limit; two limits make a test of equivalence.
        below: Upper limit.
        but: How many numbers may lie elsewhere.
        trained: The networks that it is about, without whose accuracy it cannot be told.
        required: Whether it must hold.
        check: Whether it is of the run itself.
    """
    named = {"": estimates} if isinstance(estimates, Estimate) else dict(estimates)
    held = verdict(list(named.values()), above, below, but)
    limits = " and ".join(f"{word} {x:g}" for word, x in (("above", above), ("below", below)) if math.isfinite(x))
    detail = f"{_listed(named, above, below)}; {'wanted' if len(named) < 2 else 'each'} {limits}"
    why = trained.short if trained is not None else ""
    if why or held is None:
        held, why = None, f"{why or _unsure(named, above, below)}{_as_measured(named, above, below, but)}"
    return Claim(text, held, detail if named else "", required or check, why, check)


def fact(text: str, held: bool, detail: str = "", required: bool = True) -> Claim:
    """A statement without error, such as one of mathematics."""
    return replace(claim(text, exact(held), above=0.5, required=required), detail=detail)


def _unsure(named: Mapping[str, Estimate], above: float, below: float) -> str:
    """What keeps numbers from telling."""
    if not named:
        return "no such numbers in this result"
    if all(e.low is None for e in named.values()):
        return "no interval: too few independent networks"
    over = sum(verdict([e], above, below) is None for e in named.values())
    if not over:
        return "some intervals lie on either side, and those outside could by chance"
    return "the interval is too wide" if len(named) < 2 else f"{over} of {len(named)} intervals are too wide"


def _as_measured(named: Mapping[str, Estimate], above: float, below: float, but: int) -> str:
    """The direction in which numbers point, whatever their intervals."""
    if not named:
        return ""
    met = sum(above < e.value < below for e in named.values())
    if len(named) == 1:
        return f"; as measured it would {'hold' if met else 'not hold'}"
    enough = ", which is enough" if len(named) - but <= met < len(named) else ""
    return f"; as measured {met} of {len(named)} would hold{enough}"


def _listed(named: Mapping[str, Estimate], above: float, below: float) -> str:
    shown = [f"{name}: {e}" if name else str(e) for name, e in named.items()]
    if len(shown) <= _SHOWN:
        return ", ".join(shown)
    unsure = {n: e for n, e in named.items() if not verdict([e], above, below)}
    few = ", ".join(f"{name}: {e}" for name, e in list(unsure.items())[:_SHOWN])
    return f"{len(named) - len(unsure)} of {len(named)} surely" + (f", not {few}" if few else "")
