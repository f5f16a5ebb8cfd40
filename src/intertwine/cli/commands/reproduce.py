"""``intertwine reproduce``: the papers' tables and figures, ours beside theirs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from .._command import FAILED, one_thread
from .._options import Options, argument, option
from .._outputs import RESULTS, claim_folder, print_json, print_table, say, tell
from . import iw

if TYPE_CHECKING:
    from ...lab.experiments import Reproduction, Setting


class Scale(StrEnum):
    """How big."""

    SMOKE = "smoke"
    SMALL = "small"
    PAPER = "paper"


@dataclass(frozen=True)
class ReproduceOptions(Options):
    """Reproduce tables and figures of the papers: their numbers, ours, the difference, and a verdict in words.

    Everything may be interrupted: the same command goes on from what is finished. Exit code 1 if an experiment failed,
    or a statement did not hold that must hold at this scale.

    Example:
      intertwine reproduce
      intertwine reproduce table1-groups demonstrations
      intertwine reproduce --all --scale smoke
      intertwine reproduce table2-dissimilarity --scale small --data cifar10:PATH
      intertwine reproduce --all --scale paper --dry-run
    """

    names: list[str] | None = argument(None, "Experiments; none lists them.", metavar="NAME")
    scale: Scale = option(
        Scale.SMOKE, "smoke: seconds on digits; small: what a CPU can train; paper: the papers' sizes."
    )
    everything: bool = option(False, "Every experiment, on one page.", "--all")
    data: str = option("cifar10", "CIFAR-10 for small and paper, such as cifar10:PATH.", metavar="DATA")
    concepts: str = option("generated", "Labelled images for dissection, such as parquet:FILE.", metavar="SET")
    cifar100: str = option("", "CIFAR-100 for tables that have it: cifar100:PATH.", metavar="DATA")
    dry_run: bool = option(False, "Say what would be trained and run, and about how long; do nothing.")
    seed: int = 0
    workers: int = option(0, "Processes for jobs; 0 runs them in this one.", min=0)
    device: str = "auto"
    out: Path = option(Path("reproduction"), "Folder for zoos, finished jobs, results and pages.", metavar="DIR")


def run(asked: ReproduceOptions) -> None:
    """Reproduce tables and figures of the papers: their numbers, ours, the difference, and a verdict in words."""
    from ...lab.experiments import Setting, experiment, experiments

    if not asked.names and not asked.everything:
        known = [[e.name, e.papers, e.title, ", ".join(e.scales)] for e in experiments().values()]
        columns = ["experiment", "papers", "title", "scales"]
        if asked.as_json:
            print_json([dict(zip(columns, row)) for row in known])
        else:
            print_table(columns, known)
        return
    chosen = [experiment(name).name for name in asked.names or experiments()]
    setting = Setting(
        asked.scale.value,
        asked.out,
        asked.data,
        asked.seed,
        asked.device,
        asked.workers,
        progress=True,
        concepts=asked.concepts,
        cifar100=asked.cifar100,
    )
    if asked.dry_run:
        _tell_plans(chosen, setting, asked.as_json)
        return
    for name in chosen:
        within = setting.scale if setting.scale in experiment(name).scales else experiment(name).scales[-1]
        experiment(name).check(replace(setting, scale=within))  # what is missing is said before any work
    claim_folder(
        asked.out / asked.scale.value, ["report.html", *(f"{name}/{file}" for name in chosen for file in RESULTS)]
    )
    if asked.scale is Scale.SMOKE:
        one_thread()
    done, failed = _all(chosen, setting, asked.line)
    paths = _write(done, failed, asked.out, asked.scale.value)
    if asked.as_json:
        print_json({"results": {r.name: _timeless(r) for r in done}, "failed": failed, "files": paths})
    else:
        print_table(
            ["experiment", "verdict", "seconds"],
            [[r.name, r.verdict + ("" if r.passed else " (what must hold does NOT)"), r.facts["seconds"]] for r in done]
            + [[name, f"failed: {error}", ""] for name, error in failed.items()],
        )
        say(f"wrote {paths['page']}")
    if failed or not all(r.passed for r in done):
        raise typer.Exit(FAILED)


def _tell_plans(names: list[str], setting: Setting, as_json: bool) -> None:
    """What would be done, about how long it takes here, and every job in words; nothing is done."""
    from ...lab.experiments import experiment
    from ...lab.experiments.plans import listed, outlook, total

    plans = {name: listed(experiment(name).plan(setting)) for name in names}
    ahead = {}
    for name in names:  # each as it is known: a timed step of every network takes a while
        ahead[name] = outlook(experiment(name), setting)
        if not as_json:
            say(f"{name}: {ahead[name]}")
    if as_json:
        print_json({name: {**asdict(ahead[name]), "plan": plans[name]} for name in names})
        return
    for name, lines in plans.items():
        say("\n  ".join([name, *lines]))
    say(f"all: {total(list(ahead.values()))}")


def _all(names: list[str], setting: Setting, command: str) -> tuple[list[Reproduction], dict[str, str]]:
    """Run them one after the other; one of several that fails does not stop the others."""
    from ...lab.experiments import experiment, reproduce
    from ...lab.experiments.plans import outlook

    done: list[Reproduction] = []
    failed: dict[str, str] = {}
    for k, name in enumerate(names, 1):
        scales = experiment(name).scales
        only = "" if setting.scale in scales else f", which has only the scale {' and '.join(scales)}"
        tell(f"{name} ({k} of {len(names)}){only}: {outlook(experiment(name), setting)}")
        try:
            found = reproduce(name, setting)
        except (RuntimeError, ValueError, OSError, ImportError) as error:
            if len(names) == 1:
                raise
            failed[name] = " ".join(str(error).split())
            tell(f"{name} failed: {failed[name]}")
            continue
        done.append(replace(found, facts={**found.facts, "command": command}))
        tell(str(done[-1]))
    return done, failed


def _timeless(found: Reproduction) -> dict[str, Any]:
    """What was found, without day and duration: the same in every run of one seed on one machine."""
    said = found.to_dict()
    return {**said, "facts": {k: v for k, v in said["facts"].items() if k not in ("date", "seconds")}}


def _write(done: list[Reproduction], failed: dict[str, str], out: Path, scale: str) -> dict[str, Any]:
    from ...report.pages.reproduce import write_all_page

    folder = out / scale
    for r in done:
        r.save(folder / r.name / "results.json")
        r.save(folder / r.name / "results.parquet")
        iw.report.write_page(r, folder / r.name / "report.html")
    return {"folder": folder, "page": write_all_page(done, failed, folder / "report.html")}
