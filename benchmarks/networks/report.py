"""The verdicts on other libraries' networks as pages: counts by library and reason, and one line for each network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from .judge import Verdict
from .reasons import expected

__all__ = ["counts", "details"]

VERDICTS = ("right", "fixed", "path-only", "wrong", "refused", "crash", "slow", "unusable")
HEADINGS = (
    "right",
    "nothing moves",
    "wrong elsewhere",
    "wrong",
    "refused clearly",
    "crash",
    "too slow",
    "does not run",
)
REASONS = 15  # how many reasons are listed


def counts(verdicts: Iterable[Verdict]) -> str:
    """Two tables: verdicts by library, and units of axes by what becomes of them."""
    verdicts = list(verdicts)
    lines = [_row("library", "networks", *HEADINGS, "of the right ones, on the example's path"), _rule(11)]
    for library in [*dict.fromkeys(v.library for v in verdicts), "all"]:
        these = [v for v in verdicts if library in (v.library, "all")]
        found = Counter(v.verdict for v in these)
        paths = sum(v.verdict == "right" and bool(v.why) for v in these)
        lines.append(_row(library, len(these), *(found[k] for k in VERDICTS), paths))
    return "\n".join([*lines, "", *_reasons(verdicts)])


def _reasons(verdicts: list[Verdict]) -> Iterator[str]:
    units: Counter[str] = Counter()
    networks: Counter[str] = Counter()
    for verdict in verdicts:
        units.update(verdict.fixed)
        networks.update(verdict.fixed.keys())
    moved = sum(v.moved for v in verdicts)
    plain = sum(n for reason, n in units.items() if expected(reason))
    yield _row("units of axes", "units", "networks")
    yield _rule(3)
    yield _row("moved", f"{moved:,}", sum(v.moved > 0 for v in verdicts))
    yield _row("inputs, outputs, kernels, vocabularies, axes of size one", f"{plain:,}", len(verdicts))
    rest = [(reason, n) for reason, n in units.most_common() if not expected(reason)]
    for reason, n in rest[:REASONS]:
        yield _row(f"fixed: {reason}", f"{n:,}", networks[reason])
    if rest[REASONS:]:
        yield _row(f"fixed for {len(rest) - REASONS} other reasons", f"{sum(n for _, n in rest[REASONS:]):,}", "")


def details(verdicts: Iterable[Verdict]) -> str:
    """One line for each network."""
    lines = [
        _row("network", "library", "verdict", "parameters", "spaces", "dimension", "worst error", "runs compared",
             "units moved", "fixed though hidden", "seconds", "operations without a rule, or what went wrong"),
        _rule(12),
    ]  # fmt: skip
    for v in verdicts:
        hidden = sum(n for reason, n in v.fixed.items() if not expected(reason))
        said = v.why if v.verdict != "right" else ", ".join(v.unknown_ops).replace("aten::", "")
        lines.append(
            _row(
                v.name,
                v.library,
                v.verdict,
                f"{v.parameters:,}",
                v.spaces,
                v.dim,
                f"{v.error:.0e}",
                v.comparisons,
                f"{v.moved:,}",
                f"{hidden:,}",
                f"{v.seconds:.1f}",
                said.replace("|", "/"),
            )
        )
    return "\n".join(lines)


def _row(*cells: object) -> str:
    return f"| {' | '.join(str(c) for c in cells)} |"


def _rule(columns: int) -> str:
    return "|" + "---|" * columns
