"""``intertwine runs``: what long runs have done, and what to do with them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import typer

from ..._words import counted
from .._command import FAILED
from .._options import Options, advanced, argument, option
from .._outputs import print_json, print_table, say, tell
from . import inputs, iw


@dataclass(frozen=True, kw_only=True)
class Runs(Options):
    """List runs, show the jobs of one, go on with one that was stopped, or remove results that nobody plans any more.

    A run is a folder with a log and one file for each finished job. It may be killed at any moment; 'resume' runs
    what is missing, and ends with exit code 1 if jobs failed after all their attempts. A plan is data that may be of
    anyone: classes of your own modules are imported only if --import names the module.

    Example:
      intertwine runs
      intertwine runs show fig1-stitching-myrtle --runs reproduction/runs
      intertwine runs resume my-plan --workers 4
      intertwine runs clean my-plan
    """

    python = 'iw.lab.runs.overviews("runs"); iw.lab.runs.run(iw.lab.runs.load_plan("runs/name"), "runs")'

    action: Literal["list", "show", "resume", "clean"] = argument("list", "list, show, resume or clean.")
    name: str | None = argument(None, "Of the run, for all but list.", metavar="NAME")
    folder: Path = option(Path("runs"), "Folder of runs.", "--runs", metavar="DIR")
    workers: int | None = option(None, "Resume: processes; one for each core otherwise.", min=1)
    threads: int = advanced(1, "Resume: threads of each process.", min=1)
    ray: str | None = advanced(None, "Resume on Ray: local, auto, or HOST:PORT of a cluster.", metavar="ADDRESS")
    timeout: float | None = advanced(None, "Resume: seconds that an attempt may take, on this machine.", min=0)
    retries: int = advanced(2, "Resume: further attempts of a job that fails.", min=0)
    everything: bool = option(False, "Clean: remove the whole run, results too.", "--all")
    imported: list[str] | None = advanced(
        None, "Resume: a module of yours that the plan's classes are in.", "--import", metavar="MODULE"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name is None and self.action != "list":
            raise ValueError(f"NAME must be given to {self.action}. Got none. 'intertwine runs' lists the runs.")

    def __call__(self) -> None:
        runs = iw.lab.runs
        if self.action == "list":
            _list(runs.overviews(self.folder), self.folder, self.as_json)
            return
        home = self.folder / runs.plan_name(str(self.name))
        if self.action == "clean":
            count = runs.clean(home, self.everything)
            left = "" if self.everything else " of earlier plans and earlier code"
            print_json({"removed": count}) if self.as_json else say(f"removed {counted(count, 'result')}{left}")
            return
        found = runs.overview(home)
        if self.action == "show":
            _show(found, self.as_json)
            return
        modules = self.imported or []
        executor = _executor(self)
        for module in modules:
            inputs.import_module_of_user(module)
        report = runs.run(runs.load_plan(home, modules), self.folder, executor=executor, retries=self.retries)
        if self.as_json:
            print_json({"plan": report.plan, "ran": report.ran, "found": report.found, "failed": report.failed})
        else:
            say(report)
        for label, error in report.failed.items():
            tell(f"failed: {label}: {error}")
        if report.failed:
            raise typer.Exit(FAILED)


def _executor(asked: Runs) -> iw.lab.runs.Executor:
    if asked.ray is None:
        return iw.lab.runs.Local(asked.workers, asked.threads, timeout=asked.timeout or None)
    local = asked.ray == "local"
    return iw.lab.runs.OnRay(None if local else asked.ray, asked.threads, asked.workers if local else None)


def _list(found: list[iw.lab.runs.Overview], folder: Path, as_json: bool) -> None:
    states = ("done", "waiting", "running", "failed")
    if as_json:
        print_json([{"name": o.name, **{s: o.count(s) for s in states}, "stale": o.stale} for o in found])
    elif found:
        rows = [[o.name, *(o.count(s) for s in states), o.stale, f"{o.seconds:.1f} s", o.plan] for o in found]
        print_table(["run", *states, "stale", "time", "plan"], rows)
    else:
        say(f"no runs in {folder}")


def _show(found: iw.lab.runs.Overview, as_json: bool) -> None:
    rows: list[list[Any]] = []
    for e in found.entries:
        said = e.error.splitlines()[-1] if e.error else ""
        rows.append([e.label, e.state, e.attempts, "" if e.seconds is None else f"{e.seconds:.2f} s", e.worker, said])
    columns = ["job", "state", "attempts", "time", "worker", "last error"]
    if as_json:
        jobs = [{k: v for k, v in zip(columns, row) if k != "time"} for row in rows]
        print_json({"plan": found.plan, "stale": found.stale, "jobs": jobs})
    else:
        print_table(columns, rows, found.plan)
