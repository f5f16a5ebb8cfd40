"""Work of ``intertwine runs``."""

from pathlib import Path
from typing import Any

import typer

from ...._words import counted
from ....lab import runs as lab
from ....lab.runs import Executor, Local, OnRay, Overview, Plan
from ..._command import FAILED
from ...commands.lab.runs import RunsAction, RunsOptions
from ...inputs.models import import_module_of_user
from ...outputs.show import print_json, print_table, say, tell


def run(asked: RunsOptions) -> None:
    """List runs, show the jobs of one, go on with one that was stopped, or remove stale results."""
    if asked.action is RunsAction.LIST:
        _list(lab.overviews(asked.folder), asked.folder, asked.as_json)
        return
    home = asked.folder / lab.plan_name(str(asked.name))
    if asked.action is RunsAction.SHOW:
        _show(lab.overview(home), asked.as_json)
        return
    if asked.action is RunsAction.CLEAN:
        count = lab.clean(home, asked.everything)
        if asked.as_json:
            print_json({"removed": count})
        else:
            say(
                f"removed {counted(count, 'result')}"
                + ("" if asked.everything else " of earlier plans and earlier code")
            )
        return
    lab.overview(home)
    executor = _executor(asked.workers, asked.threads, asked.ray, asked.timeout)
    report = lab.run(_plan(home, asked.imported or []), asked.folder, executor=executor, retries=asked.retries)
    if asked.as_json:
        print_json({"plan": report.plan, "ran": report.ran, "found": report.found, "failed": report.failed})
    else:
        say(report)
    for label, error in report.failed.items():
        tell(f"failed: {label}: {error}")
    if report.failed:
        raise typer.Exit(FAILED)


def _plan(home: Path, modules: list[str]) -> Plan:
    for module in modules:
        import_module_of_user(module)
    return lab.load_plan(home, modules)


def _executor(workers: int | None, threads: int, ray: str | None, timeout: float | None) -> Executor:
    if ray is None:
        return Local(workers, threads, timeout=timeout or None)
    return OnRay(None if ray == "local" else ray, threads, workers if ray == "local" else None)


def _list(found: list[Overview], folder: Path, as_json: bool) -> None:
    states = ("done", "waiting", "running", "failed")
    if as_json:
        print_json([{"name": o.name, **{s: o.count(s) for s in states}, "stale": o.stale} for o in found])
    elif found:
        rows = [[o.name, *(o.count(s) for s in states), o.stale, f"{o.seconds:.1f} s", o.plan] for o in found]
        print_table(["run", *states, "stale", "time", "plan"], rows)
    else:
        say(f"no runs in {folder}")


def _show(found: Overview, as_json: bool) -> None:
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
