"""Verdicts on all networks, one line of JSON each, kept with the state of the source that they were found with."""

from __future__ import annotations

import gc
import hashlib
import importlib
import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path

import intertwine as iw

from .case import Case
from .judge import Verdict, judge
from .operators import ready

__all__ = ["LIBRARIES", "cases", "load", "source_state", "verdicts"]

LIBRARIES = {
    "timm": "timm_models",
    "transformers": "transformers_models",
    "torchvision": "torchvision_models",
    "torch_geometric": "graph_models",
}


def cases(libraries: Iterable[str]) -> list[Case]:
    """The networks of some libraries."""
    ready()
    found: list[Case] = []
    for library in libraries:
        found += importlib.import_module(f".{LIBRARIES[library]}", __package__).CASES
    return found


def source_state() -> str:
    """A short digest of the code that finds and applies symmetries: a verdict holds for that code alone."""
    root = Path(iw.__file__).parent
    digest = hashlib.sha256()
    rooms = [path for room in ("symmetry", "programs", "groups") for path in (root / room).rglob("*.py")]
    for path in sorted([*rooms, *Path(__file__).parent.glob("*.py")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def verdicts(libraries: Iterable[str], cache: Path, only: str = "", budget: float = 0.4) -> Iterator[Verdict]:
    """Judge every network whose verdict is not known for the present source, and add it to ``cache``.

    Args:
        libraries: Which libraries.
        cache: A file of lines, which is read first and appended to: an interrupted run goes on where it was.
        only: Part of the names to be tried.
        budget: Seconds of processor time for comparisons beyond the first of each kind.

    Yields:
        The verdicts in the order of the lists.
    """
    state = source_state()
    known = load(cache, state)
    for case in cases(libraries):
        if only not in case.name:
            continue
        key = (case.library, case.name)
        if key not in known:
            start = time.process_time()
            known[key] = judge(case, budget=budget)
            line = {"source": state, "total": round(time.process_time() - start, 1), **known[key].to_dict()}
            cache.parent.mkdir(parents=True, exist_ok=True)
            with cache.open("a") as file:
                file.write(json.dumps(line) + "\n")
            gc.collect()
        yield known[key]


def load(cache: Path, state: str) -> dict[tuple[str, str], Verdict]:
    """Verdicts that were found with one state of the source."""
    names = {f.name for f in fields(Verdict)}
    found = {}
    for line in cache.read_text().splitlines() if cache.exists() else ():
        record = json.loads(line)
        if record["source"] == state:
            verdict = Verdict(**{k: v for k, v in record.items() if k in names})
            found[verdict.library, verdict.name] = verdict
    return found
