"""The page of fidelity: ``python results/fidelity.py`` writes ``docs/fidelity.md`` from ``fidelity.csv`` and results.

Every item of both papers with the function that is it, the test that fails when it is broken, the mutant that shows it,
and, where an experiment measures it, the scale at which that was run and the verdict on its claims, judged from the
kept numbers. ``--check`` says of each row what it names that is not there.
"""

from __future__ import annotations

import ast
import csv
import importlib.util
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path

from intertwine._io import write_atomically
from intertwine.lab.experiments import Reproduction, Values, experiment, experiments, values_path

HERE = Path(__file__).parent
ROOT = HERE.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from studies import run  # noqa: E402 - scripts beside the package

Item = dict[str, str]

_PAGE = ROOT / "docs" / "fidelity.md"
_COLUMNS = (
    "item",
    "function",
    "fails when it is broken",
    "mutant",
    "scale",
    "verdict",
    "weaker than the paper",
    "note",
)
_OLDER = "older than its code"
_INTRODUCTION = """# Fidelity

All definitions, theorems, tables, figures, recipes and claims of both papers, with the function that is it here, the
tests that fail when it is broken, the mutant that shows it (a change to the experiments that
`benchmarks/mutate_experiments.py` makes and they must notice), the scale at which it was measured, the verdict, and in
what ours is weaker than the paper. Mathematics is held by its tests, at any size, at random points: a test is no proof.
Made by `python results/fidelity.py` from `results/fidelity.csv` and the [results](results/README.md); nothing is
counted by hand, and `--check` looks for everything that is named here.
"""


def main(words: Sequence[str] = ()) -> int:
    """Write the page, or with ``--check`` print what is wrong with the rows; 1 if something is."""
    if list(words) == ["--check"]:
        wrong = mistakes(items())
        print("\n".join(wrong) or f"{len(items())} rows: all that they name is there")
        return int(bool(wrong))
    if words:
        raise SystemExit(f"words must be --check or nothing. Got {' '.join(words)}.")
    text = page()
    write_atomically(_PAGE, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    return 0


def items() -> list[Item]:
    """The rows of ``fidelity.csv``; several tests stand beside a space, several mutants beside `` | ``."""
    with (HERE / "fidelity.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter=";"))


# --- what rows name --------------------------------------------------------------------------------


def mistakes(rows: Iterable[Item]) -> list[str]:
    """For each thing that a row names and that is not there, or is not valid, a line."""
    found = []
    for item in rows:
        wrong = [_function(item["function"]), *map(_test, item["test"].split(" ")), *map(_mutant, mutants(item))]
        found += [f"{item['item']}: {said}" for said in [*wrong, _result(item)] if said]
    return found


def mutants(item: Item) -> list[str]:
    """Those of a row, as ``FILE: TEXT``."""
    return [word for word in item["mutant"].split(" | ") if word]


def _function(name: str) -> str:
    """Why a function (class, module, constant) cannot be imported; empty where it can."""
    parts = name.split(".")
    if parts[0] not in ("intertwine", "studies"):
        return f"function must be of intertwine or studies. Got {name!r}."
    for end in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(parts[:end]))
        except ModuleNotFoundError as error:
            if error.name and ".".join(parts[:end]).startswith(error.name):
                continue
            raise
        for part in parts[end:]:
            if not hasattr(found, part):
                return f"function must exist. Got {name!r}, without {part!r}."
            found = getattr(found, part)
        return ""
    return f"function must exist. Got {name!r}."


@cache
def _tests(file: str) -> frozenset[str]:
    path = ROOT / file
    tree = ast.parse(path.read_text(encoding="utf-8")) if path.is_file() else ast.Module([], [])
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def _test(name: str) -> str:
    file, _, function = name.partition("::")
    right = file.startswith("tests/") and function.startswith("test_") and function in _tests(file)
    return "" if right else f"test must exist, as tests/FILE.py::test_NAME. Got {name!r}."


@cache
def mutations() -> tuple[tuple[str, str], ...]:
    """File and changed text of every mutation of the experiments."""
    spec = importlib.util.spec_from_file_location("mutations", ROOT / "benchmarks" / "mutate_experiments.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return tuple((file, old) for file, old, *_ in module.MUTATIONS)


def _mutant(name: str) -> str:
    file, _, text = name.partition(": ")
    there = bool(text) and any(path.endswith(f"/{file}") and text in old for path, old in mutations())
    return "" if there else f"mutant must be FILE: TEXT of one in benchmarks/mutate_experiments.py. Got {name!r}."


def _result(item: Item) -> str:
    """Why the result of a row does not count: its experiment, its fingerprint, or claims that it has not."""
    name = item["experiment"]
    if not name:
        return "" if not item["claims"] else "claims must be of an experiment. Got none."
    if name not in experiments() and name not in run.studies():
        return f"experiment must exist. Got {name!r}."
    if (found := _kept(name)) is None:
        return ""
    if _is_older(found):
        return f"result of {name} at scale {found.scale} must be valid. Got one that is {_OLDER}: make it again."
    verdict = _verdict(found, item["claims"])
    return "" if verdict else f"claims must be some of {name}. Got none with {item['claims']!r}."


# --- the page --------------------------------------------------------------------------------------


def page() -> str:
    """The page as Markdown."""
    parts, verdicts = [_INTRODUCTION], list[str]()
    for paper, title in (("1", "Symmetries"), ("2", "Gates")):
        lines = [f"\n## Paper {paper}: {title}\n", f"| {' | '.join(_COLUMNS)} |", "|" + "---|" * len(_COLUMNS)]
        for item in items():
            if item["paper"] == paper:
                scale, verdict = judged(item)
                verdicts.append(verdict)
                cells = [item["item"], _code([item["function"]]), _code(item["test"].split(" ")), _code(mutants(item)),
                         scale, verdict, item["weaker"], item["note"]]  # fmt: skip
                lines.append("| " + " | ".join(cell.replace("|", "&#124;") for cell in cells) + " |")
        parts.append("\n".join(lines))
    kinds = Counter(re.sub(r"\d+ ", "", v) if v[0].isdigit() else v for v in verdicts)
    counted = [f"{count} item{'s' * (count > 1)}: {kind}" for kind, count in kinds.most_common()]
    weaker = sum(bool(item["weaker"]) for item in items())
    parts.insert(1, f"{'; '.join(counted)}. Of {len(verdicts)} items {weaker} are weaker than in the paper.")
    return "\n".join([*parts, ""])


def _code(names: Iterable[str]) -> str:
    return "<br>".join(f"`{name}`" for name in names if name)


def judged(item: Item) -> tuple[str, str]:
    """The scale at which an item was measured, and the verdict on those of its claims that have its words."""
    if item["note"].startswith("not run"):
        return "", "not run"
    if not item["experiment"]:
        return "any", "test"
    if (found := _kept(item["experiment"])) is None:
        return "", "not run yet"
    verdict = _verdict(found, item["claims"]) or "not stated"
    return found.scale, f"{verdict} ({_OLDER})" if _is_older(found) else verdict


@cache
def _kept(name: str) -> Reproduction | None:
    """The result at the largest scale that is kept; those at smoke scale count for mathematics alone."""
    one = run.studies()[name] if name in run.studies() else experiment(name)
    for scale in reversed(one.scales):
        path = run.HERE / "values" / f"{name}.parquet" if name in run.studies() else values_path(HERE, name, scale)
        if path.is_file() and (scale != "smoke" or len(one.scales) == 1):
            return one.page(Values.load(path))
    return None


def _is_older(found: Reproduction) -> bool:
    """Whether an experiment's result names another fingerprint than the one beside it, or none is there."""
    if found.scale == "smoke" or found.name in run.studies():
        return False
    path = values_path(HERE, found.name, "smoke")
    return not path.is_file() or Values.load(path).digest() != found.facts.get("fingerprint")


def _verdict(found: Reproduction, words: str) -> str:
    """How many claims with these words hold and do not; empty where there is no such claim."""
    if words == "none":
        return "shown"
    chosen = [c.verdict for c in found.claims if re.search(words, c.text) and not c.check]  # checks are of a run
    counts = Counter(chosen)
    order: Sequence[str] = ("holds", "does not hold", "cannot be told")
    return ", ".join(f"{counts[v]} {v}" for v in order if counts[v])


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
