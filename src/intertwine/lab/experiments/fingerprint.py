"""Validity by behaviour: a result holds as long as today's code gives the values that it gave at smoke scale.

Beside each result stand its experiment's values at smoke scale, taken at the commit of the run: its fingerprint. A
redesign that keeps them keeps the results, whatever it does to files and names; another penalty, seed, rate or measure
changes them. What is finished at smoke scale counts for the very same source only, so that it is made anew after every
change; what is finished at larger scales counts as long as the fingerprint stays.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Literal

from ..runs import job_key
from ..runs.store import result_path
from .experiment import Experiment, measure
from .setting import Setting
from .values import Values, first_difference

Validity = Literal["valid", "older than its code", "not known here"]

# Of the largest number of a statistic: sums in another order change float32 by 1e-7, and what is taken out of a score
# can make it a hundred times as much. Training at smoke scale makes any other change far larger.
_ROUNDING = 1e-5
_SHOWING = ("cli", "report")  # rooms that measure nothing


@cache
def source_version() -> str:
    """A hash of the package's source: of all files but those that only show."""
    package, hashed = Path(__file__).parents[2], hashlib.blake2b(digest_size=8)
    for file in sorted(package.rglob("*.py")):
        inside = file.relative_to(package)
        if inside.parts[0] not in _SHOWING:
            hashed.update(f"{inside.as_posix()}\n".encode() + file.read_bytes())
    return hashed.hexdigest()


def fingerprints(chosen: Sequence[Experiment], setting: Setting) -> tuple[dict[str, Values], dict[str, str]]:
    """Values at smoke scale by today's code; finished jobs of the very same source are found.

    Args:
        chosen: Experiments.
        setting: ``folder`` holds everything, with one folder for each scale.

    Returns:
        Values by name, and errors of those that failed.
    """
    home = setting.folder / "smoke" / "work"
    for other in home.glob("*"):
        if other.name != source_version():
            shutil.rmtree(other, ignore_errors=True)
    own = replace(setting, scale="smoke", folder=home / source_version(), concepts="generated", device="cpu")
    return measure(chosen, own)


def compare(kept: Values, today: Values) -> tuple[Validity, str]:
    """Whether a fingerprint is today's, and where it is not.

    Numbers are the same where they differ by rounding only, 1e-5 of the largest of their statistic: a redesign may sum
    in another order. Larger differences lose a result with the same PyTorch and processor; with others, whose roundings
    training can make large, they leave it open.

    Returns:
        The state, and the first number that differs; also where rounding is all.
    """
    difference = first_difference(kept, today, _ROUNDING)
    if not difference:
        return "valid", first_difference(kept, today)
    same = all(kept.facts.get(name) == today.facts.get(name) for name in ("torch", "machine"))
    return ("older than its code" if same else "not known here"), difference


def set_aside(one: Experiment, setting: Setting, today: Values) -> list[str]:
    """Before a longer run: what code of another fingerprint left of an experiment is moved away, jobs and networks.

    ``setting`` works in the folder of its scale. Gives what was moved.
    """
    path = setting.folder / "fingerprints" / f"{one.name}.parquet"
    moved = list[str]()
    if path.is_file() and compare(Values.load(path), today)[0] == "older than its code":
        away, plan = setting.folder / "older" / Values.load(path).digest()[:8], one.planned(setting)
        results = [result_path(setting.folder / "runs" / "jobs", job_key(task.job)) for task in plan.tasks]
        made_by = lambda file: file.read_text(encoding="utf-8") if file.is_file() else ""
        zoos = [z.folder for z in plan.zoos if made_by(z.folder / "source.txt") != source_version()]
        for old in (*zoos, *results):
            if old.exists():
                (away / old.name).parent.mkdir(parents=True, exist_ok=True)
                old.rename(away / old.name)
                moved.append(old.name)
    for zoo in one.planned(setting).zoos:
        zoo.folder.mkdir(parents=True, exist_ok=True)
        if not (zoo.folder / "source.txt").is_file():
            (zoo.folder / "source.txt").write_text(source_version(), encoding="utf-8")
    today.save(path)
    return moved


def check_against(kept: Path, today: Mapping[str, Values]) -> dict[str, tuple[Validity, str]]:
    """Kept fingerprints ``kept / NAME.parquet`` against today's; experiments of which none is kept are left out."""
    files = {name: kept / f"{name}.parquet" for name in today}
    return {name: compare(Values.load(file), today[name]) for name, file in files.items() if file.is_file()}
