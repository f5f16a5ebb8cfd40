"""All experiments by name, their runs, and whether results are still valid. To add one: a file, a line in ``_MODULES``.

A result is valid as long as today's code gives the same values at smoke scale as the code that made it. Those values,
taken at the commit of the run and kept beside the result, are its fingerprint. A redesign that keeps them keeps the
result, whatever it does to files and names; another penalty, seed, rate or measure changes them. Finished work at
smoke scale counts for exactly the same source only, so that it is redone after every change; finished work at larger
scales counts as long as the fingerprint stays.
"""

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Literal

import torch

from ..._words import near
from ..runs import job_key
from ..runs.store import result_path
from .experiment import Experiment, measure
from .plan import Setting
from .values import Values, first_difference

# Files that hold a tuple EXPERIMENTS, in the order in which the page shows them.
_MODULES: tuple[str, ...] = (
    "paper1.group_tables",
    "paper1.dissimilarity",
    "paper1.rotation_figure",
    "paper1.stitching",
    "paper1.alpha_choice",
    "paper1.dissection_figure",
    "paper1.demonstrations",
    "paper2.tables",
    "paper2.chain",
    "paper2.width_sweep",
    "paper2.block_removal",
)
Validity = Literal["valid", "older than its code", "not known here"]

# Relative to the largest number of a statistic: sums in another order change float32 by 1e-7, and subtracting chance
# from a score can amplify that a hundredfold. Training at smoke scale makes any other change far larger.
_ROUNDING = 1e-5
_SHOWING = ("cli", "report")  # packages that measure nothing


@cache
def experiments() -> dict[str, Experiment]:
    """All experiments, by name."""
    found = [e for module in _MODULES for e in import_module(f"{__package__}.{module}").EXPERIMENTS]
    return {e.name: e for e in found}


def experiment(name: str) -> Experiment:
    """The experiment of this name; a ``ValueError`` if there is none."""
    known = experiments()
    if name not in known:
        raise ValueError(f"experiment must be one of {', '.join(known)}. Got {name!r}.{near(name, known)}")
    return known[name]


def run_experiments(chosen: Sequence[Experiment], setting: Setting) -> tuple[dict[str, Values], dict[str, str]]:
    """Values of experiments at one scale, saved as ``SCALE/NAME.parquet``; those at smoke scale are their fingerprints.

    An experiment without this scale runs at the nearest that it has. Returns values by name, and error messages of
    experiments that failed; finished work is kept. If something needed is missing, a ``ValueError`` precedes any work.
    """
    for one in chosen:
        one.check(setting)
    with torch.random.fork_rng(devices=[]):  # the caller's random numbers stay as they were
        found, failed = fingerprints(chosen, setting)
        for values in found.values():
            values.facts["source"] = source_version()
            values.save(values_path(setting.folder, str(values.frame["experiment"].iloc[0]), "smoke"))
        larger = [one for one in chosen if one.at(setting).scale != "smoke" and one.name in found]
        if larger:
            own = replace(setting, folder=setting.folder / setting.scale)
            today = {one.name: found.pop(one.name) for one in larger}
            for one in larger:
                set_aside(one, one.at(own), today[one.name])
            measured, errors = measure(larger, own)
            for name, values in measured.items():
                values.facts["fingerprint"] = today[name].digest()
                values.save(values_path(setting.folder, name, setting.scale))
            found, failed = found | measured, failed | errors
    return found, failed


def values_path(folder: Path, name: str, scale: str) -> Path:
    """Path of an experiment's values."""
    return folder / scale / f"{name}.parquet"


def validity(folder: Path, name: str, scale: str) -> str:
    """Whether values in a folder are ``valid`` or ``older than its code``, by the fingerprint beside them.

    They are ``not checked`` if the fingerprint was not taken with today's source.
    """
    values, kept = (Values.load(values_path(folder, name, s)) for s in (scale, "smoke"))
    if kept.facts.get("source") != source_version():
        return "not checked: run it at smoke scale"
    return "valid" if scale == "smoke" or values.facts.get("fingerprint") == kept.digest() else "older than its code"


def reproduce(name: str, setting: Setting | None = None) -> Values:
    """Values of one experiment, run at the scale of the setting, or the nearest that it has; by default at smoke scale.

    ``experiment(name).page(values)`` judges the values.

    Raises:
        RuntimeError: If a network or job failed; finished work is kept.
    """
    found, failed = run_experiments([experiment(name)], setting or Setting())
    if failed:
        raise RuntimeError(f"jobs must all finish. Got {failed[name]}.")
    return found[name]


@cache
def source_version() -> str:
    """A hash of the package's source, without the packages that measure nothing."""
    package, hashed = Path(__file__).parents[2], hashlib.blake2b(digest_size=8)
    for file in sorted(package.rglob("*.py")):
        inside = file.relative_to(package)
        if inside.parts[0] not in _SHOWING:
            hashed.update(f"{inside.as_posix()}\n".encode() + file.read_bytes())
    return hashed.hexdigest()


def fingerprints(chosen: Sequence[Experiment], setting: Setting) -> tuple[dict[str, Values], dict[str, str]]:
    """Values of today's code at smoke scale, by name, and errors; finished jobs of exactly this source are reused."""
    home = setting.folder / "smoke" / "work"
    for other in home.glob("*"):
        if other.name != source_version():
            shutil.rmtree(other, ignore_errors=True)
    own = replace(setting, scale="smoke", folder=home / source_version(), concepts="generated", device="cpu")
    return measure(chosen, own)


def compare(kept: Values, today: Values) -> tuple[Validity, str]:
    """Whether a kept fingerprint equals today's, and the first number that differs, even if only by rounding.

    Differences up to 1e-5 of the largest number of their statistic are rounding: a redesign may sum in another order.
    Larger ones invalidate a result if PyTorch and processor are the same. Otherwise training may have amplified
    different roundings, and the question stays open.
    """
    difference = first_difference(kept, today, _ROUNDING)
    if not difference:
        return "valid", first_difference(kept, today)
    same = all(kept.facts.get(name) == today.facts.get(name) for name in ("torch", "machine"))
    return ("older than its code" if same else "not known here"), difference


def set_aside(one: Experiment, setting: Setting, today: Values) -> list[str]:
    """Move away jobs and networks that code with another fingerprint left of an experiment, before a longer run.

    ``setting`` has the folder of its scale. Returns the names of what was moved.
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
    """Comparison of kept fingerprints ``kept / NAME.parquet`` with today's, without experiments that have none."""
    files = {name: kept / f"{name}.parquet" for name in today}
    return {name: compare(Values.load(file), today[name]) for name, file in files.items() if file.is_file()}
