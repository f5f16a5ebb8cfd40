"""``intertwine runs``: the state of long runs, and how to resume or clean them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import typer

from ..._words import counted
from .._command import FAILED
from .._options import Options, advanced, argument, option
from .._outputs import print_json, print_table, say, tell
from . import inputs, iw


class Runs(Options):
    """List runs, show the jobs of one, resume one that was stopped, or remove results that no plan needs any more.

    A run is a folder with a log and one file for each finished job. It may be killed at any moment; 'resume' runs
    what is missing, and ends with exit code 1 if jobs failed in all their attempts. A plan may come from anyone, so
    classes of your own modules are imported only if --import names the module.

    Example:
      intertwine runs
      intertwine runs show fig1-stitching-myrtle --runs reproduction/runs
      intertwine runs resume my-plan --workers 4
      intertwine runs clean my-plan
    """

    python = 'iw.lab.runs.overviews("runs"); iw.lab.runs.run(iw.lab.runs.load_plan("runs/name"), "runs")'

    action: Literal["list", "show", "resume", "clean"] = argument("list, show, resume or clean.", "list")
    name: str | None = argument("Name of the run; every action but list needs it.", metavar="NAME")
    folder: Path = option("Folder that holds the runs.", Path("runs"), "--runs", metavar="DIR")
    workers: int | None = option("Resume: number of processes. Default: one for each core.", min=1)
    threads: int = advanced("Resume: threads for each process.", 1, min=1)
    ray: str | None = advanced("Resume on Ray: local, auto, or HOST:PORT of a cluster.", metavar="ADDRESS")
    timeout: float | None = advanced("Resume: time limit of each attempt on this machine, in seconds.", min=0)
    retries: int = advanced("Resume: further attempts of a job that fails.", 2, min=0)
    everything: bool = option("Clean: remove the whole run, results too.", False, "--all")
    imported: list[str] | None = advanced(
        "Resume: a module of yours that defines classes of the plan.", None, "--import", metavar="MODULE"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name is None and self.action != "list":
            raise ValueError(f"NAME must be given to {self.action}. Got none. 'intertwine runs' lists the runs.")

    def __call__(self) -> None:
        runs = iw.lab.runs
        if self.action == "list":
            return self._list(runs.overviews(self.folder))
        home = self.folder / runs.plan_name(str(self.name))
        if self.action == "clean":
            count = runs.clean(home, self.everything)
            left = "" if self.everything else " of earlier plans and earlier code"
            return print_json({"removed": count}) if self.as_json else say(f"removed {counted(count, 'result')}{left}")
        if self.action == "show":
            return self._show(runs.overview(home))
        modules = self.imported or []
        executor = runs.choose_executor(self.workers, self.threads, self.ray, self.timeout or None)
        for module in modules:
            inputs.import_module_of_user(module)
        report = runs.run(runs.load_plan(home, modules), self.folder, executor=executor, retries=self.retries)
        facts = {"plan": report.plan, "ran": report.ran, "found": report.found, "failed": report.failed}
        print_json(facts) if self.as_json else say(report)
        for label, error in report.failed.items():
            tell(f"failed: {label}: {error}")
        if report.failed:
            raise typer.Exit(FAILED)
        return None

    def _list(self, found: list[iw.lab.runs.Overview]) -> None:
        states = ("done", "waiting", "running", "failed")
        rows = [{"name": o.name, **{s: o.count(s) for s in states}, "stale": o.stale} for o in found]
        if self.as_json:
            return print_json(rows)
        if not found:
            return say(f"no runs in {self.folder}")
        more = [{"time": f"{o.seconds:.1f} s", "plan": o.plan} for o in found]
        return print_table([{"run": row.pop("name"), **row, **rest} for row, rest in zip(rows, more)])

    def _show(self, found: iw.lab.runs.Overview) -> None:
        rows = [
            {"job": e.label, "state": e.state, "attempts": e.attempts,
             "time": "" if e.seconds is None else f"{e.seconds:.2f} s", "worker": e.worker,
             "last error": e.error.splitlines()[-1] if e.error else ""}
            for e in found.entries
        ]  # fmt: skip
        if not self.as_json:
            return print_table(rows, found.plan)
        jobs = [{key: value for key, value in row.items() if key != "time"} for row in rows]
        return print_json({"plan": found.plan, "stale": found.stale, "jobs": jobs})
