"""The page of an experiment: numbers beside the paper's, statements judged, maps, notes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from ..._result import Result
from ..statistics import Claim, Estimate, Sample
from .printed import Printed
from .setting import Scale


@dataclass(frozen=True)
class Row:
    """One number: the paper's and ours.

    Args:
        what: What it is, such as ``"relu3"``.
        ours: Our value; ``None`` where it was not run.
        paper: The paper's; ``None`` where the text has none.
        low: Lower end of our 95 % interval; ``None`` where there are too few networks.
        high: Upper end.
        tolerance: For numbers that should agree exactly or nearly so: the largest difference.
        group: Rows of one group are shown as one table.
        spread: The paper's "±".
    """

    what: str
    ours: float | None
    paper: float | None = None
    low: float | None = None
    high: float | None = None
    tolerance: float | None = None
    group: str = ""
    spread: float | None = None

    @classmethod
    def of(cls, what: str, found: Estimate | Sample, paper: Printed | None = None, group: str = "") -> Row:
        """A number with its interval beside what the paper prints.

        Examples:
            >>> Row.of("relu1", Estimate(0.2, 0.05, 8), paper=(0.15, 0.01)).verdict
            'paper inside our interval'
        """
        known = found.estimate() if isinstance(found, Sample) else found
        number, spread = paper or (None, None)
        low, high = known.interval() or (None, None)
        return cls(what, known.value if isfinite(known.value) else None, number, low, high, group=group, spread=spread)

    @property
    def printed(self) -> str:
        """The paper's number with its "±"; empty where it has none."""
        plus = "" if self.spread is None else f" ± {self.spread:g}"
        return "" if self.paper is None else f"{self.paper:#.4g}{plus}"

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.ours is None or self.paper is None else self.ours - self.paper

    @property
    def shown(self) -> str:
        """Our number and its interval, three digits each.

        Examples:
            >>> Row("relu1", 0.61234, low=0.6, high=0.7).shown
            '0.612 [0.600, 0.700]'
        """
        if self.ours is None:
            return "not run"
        ends = "" if self.low is None or self.high is None else f" [{self.low:#.3g}, {self.high:#.3g}]"
        return f"{self.ours:#.3g}{ends}"

    @property
    def verdict(self) -> str:
        """The comparison in words; empty where there is nothing to compare with."""
        if self.ours is None:
            return "not run"
        if self.difference is None or self.paper is None:
            return ""
        if self.tolerance is not None:
            return "equal" if abs(self.difference) <= self.tolerance else "differs"
        if self.low is not None and self.high is not None and self.low <= self.paper <= self.high:
            return "paper inside our interval"
        return "ours is higher" if self.difference > 0 else "ours is lower" if self.difference < 0 else "equal"


@dataclass(frozen=True)
class Map:
    """Every layer of one network against every layer of another, mean over pairs of networks."""

    title: str  # What was measured
    layers: tuple[str, ...]  # Of both, in order
    values: tuple[tuple[float, ...], ...]  # One row for each layer of the first


@dataclass(frozen=True, repr=False)
class Reproduction(Result):
    """One table or figure: numbers beside the paper's, claims checked.

    Args:
        name: Name of the experiment.
        title: What it is about.
        papers: Which table or figure of which version, such as ``"v2 Table 2 (v1 Fig. 5)"``.
        scale: ``smoke``, ``small`` or ``paper``.
        rows: Numbers.
        claims: Statements, judged.
        comparable: Whether the numbers should be the paper's: same networks, data and training. Otherwise only the
            claims speak, and the page says so.
        notes: What a reader must know: what was made smaller, which data.
        facts: Provenance and settings: networks, data, seeds, hours.
        maps: Layer-by-layer matrices.
    """

    name: str
    title: str
    papers: str
    scale: Scale
    rows: Sequence[Row] = ()
    claims: Sequence[Claim] = ()
    comparable: bool = False
    notes: Sequence[str] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    maps: Sequence[Map] = ()

    @property
    def passed(self) -> bool:
        """Whether every required claim holds, and every row with a tolerance is within it."""
        exact = all(row.verdict != "differs" for row in self.rows)
        return exact and all(claim.held is True for claim in self.claims if claim.required)

    @property
    def statements(self) -> list[Claim]:
        """The claims without checks of the run itself."""
        return [c for c in self.claims if not c.check]

    @property
    def verdict(self) -> str:
        """One sentence on claims and numbers."""
        parts = []
        if held := [c.held for c in self.statements]:
            no, unsure = held.count(False), held.count(None)
            some = ((no, "does not" if no == 1 else "do not"), (unsure, "cannot be told"))
            words = [f"{held.count(True)} of {len(held)} claims hold", *(f"{n} {what}" for n, what in some if n)]
            parts.append("no claim could be told" if unsure == len(held) else ", ".join(words))
        beside = [row for row in self.rows if row.difference is not None]
        if verdicts := [row.verdict for row in beside if self.comparable or row.tolerance is not None]:
            agree = sum(v in ("equal", "paper inside our interval") for v in verdicts)
            parts.append(f"{agree} of {len(verdicts)} numbers agree with the paper's")
        elif beside:
            parts.append("the numbers are of other networks or data than the paper's, and are shown beside them")
        return "; ".join(parts) or "nothing to compare: see the table"

    def summary(self) -> str:
        """The verdict, and every claim."""
        lines = [f"{self.title} ({self.papers}), {self.scale}: {self.verdict}."]
        told = lambda c: "; ".join(filter(None, [c.detail, c.why]))
        lines += [f"  {c.verdict}: {c.text}" + (f" ({told(c)})" if told(c) else "") for c in self.claims]
        return "\n".join(lines)

    _columns = ("group", "what", "paper", "ours", "low", "high", "difference", "verdict")

    def _rows(self) -> list[dict[str, Any]]:
        """One row for each number: group, what, paper, ours, low, high, difference, verdict."""
        return [{name: getattr(row, name) for name in self._columns} for row in self.rows]
