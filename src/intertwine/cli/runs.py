"""``intertwine runs``: what long runs have done, and what to do with them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .._words import counted
from ._command import FAILED
from ._options import Json
from ._show import say

if TYPE_CHECKING:
    from ..lab.runs import Executor, Overview, Plan

__all__ = ["runs"]


class Action(StrEnum):
    """What to do."""

    LIST = "list"
    SHOW = "show"
    RESUME = "resume"
    CLEAN = "clean"


def runs(
    action: Annotated[Action, typer.Argument(help="list, show, resume or clean.")] = Action.LIST,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Of the run, for all but list.")] = None,
    folder: Annotated[Path, typer.Option("--runs", metavar="DIR", help="Folder of runs.")] = Path("runs"),
    workers: Annotated[int | None, typer.Option(min=1, help="Resume: processes; one for each core otherwise.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="Resume: threads of each process.")] = 1,
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Resume on Ray: local, auto, or HOST:PORT of a cluster.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="Resume: seconds that an attempt may take, on this machine.")
    ] = None,
    retries: Annotated[int, typer.Option(min=0, help="Resume: further attempts of a job that fails.")] = 2,
    everything: Annotated[bool, typer.Option("--all", help="Clean: remove the whole run, results too.")] = False,
    imported: Annotated[
        list[str] | None,
        typer.Option("--import", metavar="MODULE", help="Resume: a module of yours that the plan's classes are in."),
    ] = None,
    as_json: Json = False,
) -> None:
    """List runs, show the jobs of one, go on with one that was stopped, or remove results that nobody plans any more.

    A run is a folder with a ledger and one file for each finished job. It may be killed at any moment; 'resume' runs
    what is missing, and ends with exit code 1 if jobs failed after all their attempts. A plan is data that may be of
    anyone: classes of your own modules are imported only if --import names the module.

    Example:
      intertwine runs
      intertwine runs show fig1-stitching-myrtle --runs reproduction/runs
      intertwine runs resume my-plan --workers 4
      intertwine runs clean my-plan
    """  # noqa: DOC501
    from ..lab import runs as lab
    from ._show import print_json, tell

    if action is Action.LIST:
        _list(lab.overviews(folder), folder, as_json)
        return
    if name is None:
        raise ValueError(f"NAME must be given to {action}. Got none. 'intertwine runs' lists them.")
    home = folder / lab.plan_name(name)
    if action is Action.SHOW:
        _show(lab.overview(home), as_json)
        return
    if action is Action.CLEAN:
        count = lab.clean(home, everything)
        if as_json:
            print_json({"removed": count})
        else:
            say(f"removed {counted(count, 'result')}" + ("" if everything else " of earlier plans and earlier code"))
        return
    lab.overview(home)
    executor = _executor(workers, threads, ray, timeout)
    report = lab.run(_plan(home, imported or []), folder, executor=executor, retries=retries)
    if as_json:
        print_json({"plan": report.plan, "ran": report.ran, "found": report.found, "failed": report.failed})
    else:
        say(report)
    for label, error in report.failed.items():
        tell(f"failed: {label}: {error}")
    if report.failed:
        raise typer.Exit(FAILED)


def _plan(home: Path, modules: list[str]) -> Plan:
    from ..lab import runs as lab
    from ._models import import_module_of_user

    for module in modules:
        import_module_of_user(module)
    return lab.load_plan(home, modules)


def _executor(workers: int | None, threads: int, ray: str | None, timeout: float | None) -> Executor:
    from ..lab.runs import Local, OnRay

    if ray is None:
        return Local(workers, threads, timeout=timeout or None)
    return OnRay(None if ray == "local" else ray, threads, workers if ray == "local" else None)


def _list(found: list[Overview], folder: Path, as_json: bool) -> None:
    from ._show import print_json, print_table

    states = ("done", "waiting", "running", "failed")
    if as_json:
        print_json([{"name": o.name, **{s: o.count(s) for s in states}, "stale": o.stale} for o in found])
    elif found:
        rows = [[o.name, *(o.count(s) for s in states), o.stale, f"{o.seconds:.1f} s", o.plan] for o in found]
        print_table(["run", *states, "stale", "time", "plan"], rows)
    else:
        say(f"no runs in {folder}")


def _show(found: Overview, as_json: bool) -> None:
    from ._show import print_json, print_table

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
