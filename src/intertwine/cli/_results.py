"""Results of commands that compare: a table, files, JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .._result import Result
from ..similarity import Comparison
from ..similarity.comparison.verdict import best_partners, headline, lead, measure_title, paired
from ._networks import Opened
from ._show import print_json, print_table, say, tell


def annotate(
    comparison: Comparison, networks: Sequence[Opened], data: dict[str, Any], command: str, notes: Sequence[str] = ()
) -> Comparison:
    """Add to a result what only the command line knows, where the report looks for it."""
    a, b = (network.facts for network in networks)
    settings = {**comparison.settings, "network_a": a, "network_b": b, "data": data, "command": command}
    return replace(comparison, settings=settings, notes=(*notes, *comparison.notes))


def present(comparison: Comparison, out: Path, as_json: bool) -> dict[str, Path]:
    """Write ``results.json``, ``results.parquet`` and ``report.html``, and print the result."""
    paths = write_results(comparison, out)
    if as_json:
        print_json({"kind": "Comparison", **comparison.to_dict(), "files": paths})
    else:
        print_comparison(comparison)
        tell_written(paths)
    return paths


def write_results(result: Result, out: Path) -> dict[str, Path]:
    """Write ``results.json``, ``results.parquet`` and ``report.html``; return where they are, by file name."""
    paths = {name: result.save(out / name) for name in ("results.json", "results.parquet")}
    return {**paths, "report.html": result.to_html(out / "report.html")}


def tell_written(paths: Mapping[str, Path]) -> None:
    """Tell the person at the terminal what was written."""
    tell(f"wrote {', '.join(str(path) for path in paths.values())}")


def print_comparison(comparison: Comparison) -> None:
    """Print every layer of A: its scores with its partner, chance in brackets, and its best match."""
    first = lead(comparison)
    best = best_partners(comparison.scores[first])
    ordered = [first, *[m for m in comparison.measures if m != first]]
    rows: list[list[Any]] = []
    for i, layer in enumerate(comparison.layers_a):
        partner = i if paired(comparison) else int(best[i])
        cells = [_score(comparison, m, i, partner) for m in ordered]
        match = comparison.layers_b[int(best[i])]
        rows.append([layer, *cells, match, float(comparison.scores[first][i, best[i]])])
    columns = ["layer of A", *map(measure_title, ordered), "best match in B", f"its {measure_title(first)}"]
    whose = "the same layer of B" if paired(comparison) else "its best match in B"
    levels = [
        *(["chance"] if comparison.chance[first] is not None else []),
        *(["untrained networks"] if comparison.untrained else []),
    ]
    chance = f" (in brackets {', '.join(levels)})" if levels else ""
    print_table(columns, rows, f"Score with {whose}{chance}, on {comparison.examples:,} examples")
    say(headline(comparison))
    for note in comparison.notes:
        say(f"Note: {note}")


def _score(comparison: Comparison, measure: str, i: int, j: int) -> str:
    score = float(comparison.scores[measure][i, j])
    if score != score:
        return "-"
    levels = [m for m in (comparison.chance[measure], comparison.untrained.get(measure)) if m is not None]
    said = ", ".join(f"{round(float(level[i, j]), 3) + 0.0:.3f}" for level in levels)
    return f"{score:.3f} ({said})" if said else f"{score:.3f}"
