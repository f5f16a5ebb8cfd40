"""The page of fidelity: ``python results/fidelity.py`` writes ``docs/fidelity.md`` from ``fidelity.csv`` and results.

Every item of both papers with the function that is it, the test that holds it, and, where an experiment measures it,
the scale at which that was run and the verdict on its claims, judged from the kept numbers.
"""

from __future__ import annotations

import csv
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from intertwine._io import write_atomically
from intertwine.lab.experiments import Reproduction, Values, experiment, values_path

HERE = Path(__file__).parent
if str(HERE.parent) not in sys.path:
    sys.path.insert(0, str(HERE.parent))

from studies import run  # noqa: E402 - scripts beside the package

_HEAD = "| item | function | held by | scale | verdict | note |"
_PAGE = HERE.parent / "docs" / "fidelity.md"
_INTRODUCTION = """# Fidelity

All definitions, theorems, tables, figures, recipes and claims of both papers, with the function that is it here, the
test that holds it, the scale at which it was measured, and the verdict. Mathematics is held by its test, at any size.
Made by `python results/fidelity.py` from `results/fidelity.csv` and the [results](results/README.md); nothing is
counted by hand.
"""


def main() -> None:
    """Write the page."""
    text = page()
    write_atomically(_PAGE, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def items() -> list[dict[str, str]]:
    """The rows of ``fidelity.csv``."""
    with (HERE / "fidelity.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter=";"))


def page() -> str:
    """The page as Markdown."""
    parts, verdicts = [_INTRODUCTION], list[str]()
    for paper, title in (("1", "Symmetries"), ("2", "Gates")):
        lines = [
            f"\n## Paper {paper}: {title}\n",
            "| item | function | held by | scale | verdict | note |",
            "|" + "---|" * 6,
        ]
        for item in items():
            if item["paper"] == paper:
                scale, verdict = judged(item)
                verdicts.append(verdict)
                cells = [item["item"], f"`{item['function']}`", f"`{item['test']}`", scale, verdict, item["note"]]
                lines.append("| " + " | ".join(cell.replace("|", "&#124;") for cell in cells) + " |")
        parts.append("\n".join(lines))
    kinds = Counter(re.sub(r"\d+ ", "", v) if v[0].isdigit() else v for v in verdicts)
    parts.insert(1, "; ".join(f"{count} item{'s' * (count > 1)}: {kind}" for kind, count in kinds.most_common()) + ".")
    return "\n".join([*parts, ""])


def judged(item: dict[str, str]) -> tuple[str, str]:
    """The scale at which an item was measured, and the verdict on those of its claims that have its words."""
    if item["note"].startswith("not run"):
        return "", "not run"
    if not item["experiment"]:
        return "any", "test"
    name = item["experiment"]
    one = run.studies()[name] if name in run.studies() else experiment(name)
    for scale in reversed(one.scales):
        path = run.HERE / "values" / f"{name}.parquet" if name in run.studies() else values_path(HERE, name, scale)
        if path.is_file() and (scale != "smoke" or len(one.scales) == 1):
            found = one.page(Values.load(path))
            return found.scale, _verdict(found, item["claims"])
    return "", "not run yet"


def _verdict(found: Reproduction, words: str) -> str:
    if words == "none":
        return "shown"
    chosen = [c.verdict for c in found.claims if re.search(words, c.text) and (words or not c.check)]
    counts = Counter(chosen)
    order: Sequence[str] = ("holds", "does not hold", "cannot be told")
    return ", ".join(f"{counts[v]} {v}" for v in order if counts[v]) or "not run"


if __name__ == "__main__":
    main()
