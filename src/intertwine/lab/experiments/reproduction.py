"""The page of an experiment: our numbers beside those that the papers print, judged statements, maps and notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from ..._result import Result
from ..statistics import Claim, Estimate, Sample
from .plan import Scale

Printed = tuple[float, float | None]
"""A printed number and its ±, ``None`` if it has none."""

_RELUS = ("relu1", "relu2", "relu3", "relu4")  # the papers' layers 3, 6, 10, 14
COLUMNS = ("DNN", "DGN(x, x)", "DGN(x, 1)", "DLGN(x, x)", "DLGN(x, 1)")


def _row(names: tuple[str, ...], numbers: str) -> dict[str, Printed]:
    cells = [cell.split("±") for cell in numbers.split()]
    return {name: (float(c[0]), float(c[1]) if len(c) > 1 else None) for name, c in zip(names, cells, strict=True)}


TABLE_2 = {  # paper 1, v2
    "g_relu_procrustes": _row(_RELUS, "0.6208±0.008 0.5106±0.005 0.4432±0.004 0.4899±0.002"),
    "orthogonal_procrustes": _row(_RELUS, "0.7724±0.028 0.5743±0.040 0.5087±0.016 0.5825±0.019"),
}
V1_FIG_5 = {
    "g_relu_procrustes": _row(_RELUS, "0.645±0.017 0.521±0.008 0.447±0.003 0.483±0.002"),
    "orthogonal_procrustes": _row(_RELUS, "0.810±0.006 0.662±0.004 0.530±0.003 0.601±0.001"),
}
TABLE_4 = {
    "g_relu_procrustes": _row(_RELUS, "0.8176±0.007 0.7602±0.005 0.5691±0.005 0.4971±0.003"),
    "orthogonal_procrustes": _row(_RELUS, "0.8460±0.008 0.6735±0.005 0.5409±0.003 0.6050±0.002"),
}
TABLE_3 = _row(  # v1 Table 1; in our copy of v2 Table 3 the numbers are lost
    tuple(f"slope {s}" for s in ("0.0001", "0.001", "0.01", "0.1", "0.5", "0.9", "1")),
    "89.3±0.2 89.4±0.2 89.2±0.2 89.4±0.1 86.6±0.1 73.0±0.2 41.8±0.1",
)
# v1, captions of Figs 1, 8 and 9 (v2 Figs 1, 6 and 7)
ZOO_ACCURACY: Mapping[str, Printed] = {"myrtle_cnn": (0.905, 0.002), "resnet20": (0.896, 0.012),
                                       "resnet18": (0.910, 0.016)}  # fmt: skip

TABLE_I = {  # paper 2, percent; 5 runs
    "cifar10": _row(COLUMNS, "80.5±0.4 77.4±0.3 77.5±0.2 75.4±0.3 75.4±0.2"),
    "cifar100": _row(COLUMNS, "51.8±0.4 47.4±0.2 47.3±0.3 47.4±0.1 48.0±0.2"),
}
TABLE_I_PERMUTED = {  # over the 23 permutations
    "cifar10": _row(COLUMNS[1:], "77.3±0.5 77.9±0.6 75.9±0.5 76.0±0.5"),
    "cifar100": _row(COLUMNS[1:], "48.4±0.8 49.2±0.9 47.5±1.0 48.4±0.9"),
}
TABLE_II = {
    "cifar10": {
        "vgg16": _row(COLUMNS, "93.6±0.2 93.0±0.1 93.0±0.1 87.0±0.1 87.0±0.2"),
        "resnet110": _row(COLUMNS, "94.0±0.2 93.3±0.2 93.2±0.1 87.9±0.2 87.8±0.1"),
    },
    "cifar100": {
        "vgg16": _row(COLUMNS, "73.4±0.3 70.3±0.1 70.5±0.2 61.5±0.2 61.5±0.1"),
        "resnet110": _row(COLUMNS, "72.7±0.2 70.8±0.2 70.8±0.4 62.3±0.2 62.7±0.3"),
    },
}
FIG_2_CHAIN = _row(("FR gates", "CNTK-GAP", "FL gates", "network"), "67.09 77.43 79.68 80.32")


@dataclass(frozen=True)
class Row:
    """One number: the paper's and ours.

    Args:
        what: What it is, such as ``"relu3"``.
        ours: Our value; ``None`` if it was not run.
        paper: The paper's value; ``None`` if the text has none.
        low: Lower end of our 95 % interval; ``None`` with too few networks.
        high: Upper end.
        tolerance: Largest difference that is allowed, for numbers that should agree exactly or nearly so.
        group: Name of the table that shows the row together with others.
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
        """A number with its interval beside what the paper prints."""
        known = found.estimate() if isinstance(found, Sample) else found
        number, spread = paper or (None, None)
        low, high = known.interval() or (None, None)
        return cls(what, known.value if isfinite(known.value) else None, number, low, high, group=group, spread=spread)

    @property
    def printed(self) -> str:
        """The paper's number with its "±"; empty if there is none."""
        plus = "" if self.spread is None else f" ± {self.spread:g}"
        return "" if self.paper is None else f"{self.paper:#.4g}{plus}"

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.ours is None or self.paper is None else self.ours - self.paper

    @property
    def shown(self) -> str:
        """Our number and its interval, to three digits each."""
        if self.ours is None:
            return "not run"
        ends = "" if self.low is None or self.high is None else f" [{self.low:#.3g}, {self.high:#.3g}]"
        return f"{self.ours:#.3g}{ends}"

    @property
    def verdict(self) -> str:
        """The comparison in words; empty if the paper has no number."""
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
    """A measure of every layer of one network against every layer of another, averaged over pairs of networks."""

    title: str  # What was measured
    layers: tuple[str, ...]  # Of both, in order
    values: tuple[tuple[float, ...], ...]  # One row for each layer of the first


@dataclass(frozen=True, repr=False)
class Reproduction(Result):
    """One table or figure, reproduced: numbers beside the paper's, and judged claims.

    Args:
        name: Name of the experiment.
        title: What it is about.
        papers: Which table or figure of which version, such as ``"v2 Table 2 (v1 Fig. 5)"``.
        scale: ``smoke``, ``small`` or ``paper``.
        rows: Numbers.
        claims: Statements, judged.
        comparable: Whether the numbers should equal the paper's, with the same networks, data and training. Otherwise
            only the claims count, and the page says so.
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
        """The claims, without the checks of the run itself."""
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
