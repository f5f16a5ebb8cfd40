"""Results of commands: files, and text or JSON."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..._result import Result
from ...similarity import Comparison
from ...similarity.comparison.verdict import best_partners, headline, lead, measure_title, paired, searched
from ..inputs.networks import Opened
from .show import print_json, print_table, say, tell


def annotate(
    comparison: Comparison, networks: Sequence[Opened], data: dict[str, Any], command: str, notes: Sequence[str] = ()
) -> Comparison:
    """Add to a result what only the command line knows, where the report looks for it."""
    a, b = (network.facts for network in networks)
    settings = {**comparison.settings, "network_a": a, "network_b": b, "data": data, "command": command}
    return replace(comparison, settings=settings, notes=(*notes, *comparison.notes))


def present(
    result: Result,
    out: Path,
    as_json: bool,
    show: Callable[[Any], object],
    data: Mapping[str, Any] | None = None,
    files: Mapping[str, Path] | None = None,
) -> dict[str, Path]:
    """Write ``results.json``, ``results.parquet`` and ``report.html``, and print the result.

    Args:
        result: What was found.
        out: The folder.
        as_json: Whether to print JSON.
        show: Prints the result for people.
        data: The JSON; the result's own otherwise.
        files: Further files that were written, by name.

    Returns:
        Where all files are, by name.
    """
    paths = {name: result.save(out / name) for name in ("results.json", "results.parquet")}
    paths |= {"report.html": result.to_html(out / "report.html"), **(files or {})}
    if as_json:
        print_json({"kind": type(result).__name__, **(result.to_dict() if data is None else data), "files": paths})
    else:
        show(result)
        tell_written(paths)
    return paths


def write_one(found: Any, out: Path | None, save: Callable[[Path], Path] | None = None) -> None:
    """Write one file, the page or the data (by ``save``, where not by the result's own), where one was asked for."""
    if out is not None:
        tell(f"wrote {(found.to_html if out.suffix in ('.html', '.htm') else save or found.save)(out)}")


def show(found: Any, as_json: bool, **more: Any) -> None:
    """Print a result: its summary, or its JSON with more in it."""
    print_json({**found.to_dict(), **more}) if as_json else say(found.summary())


def tell_written(paths: Mapping[str, Path]) -> None:
    """Tell the person at the terminal what was written."""
    tell(f"wrote {', '.join(str(path) for path in paths.values())}")


def print_comparison(comparison: Comparison) -> None:
    """Print every layer of A: its scores with its partner, chance in brackets, and its best match."""
    first = lead(comparison)
    ordered = [first, *[m for m in comparison.measures if m != first]]
    by = next((m for m in ordered if searched(comparison, m)), first)
    own, best = (best_partners(comparison.scores[name]) for name in (first, by))
    rows: list[list[Any]] = []
    for i, layer in enumerate(comparison.layers_a):
        partner = i if paired(comparison) else int(own[i])
        cells = [_score(comparison, m, i, partner) for m in ordered]
        match = comparison.layers_b[int(best[i])]
        rows.append([layer, *cells, match, float(comparison.scores[by][i, best[i]])])
    columns = ["layer of A", *map(measure_title, ordered), "best match in B", f"its {measure_title(by)}"]
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
