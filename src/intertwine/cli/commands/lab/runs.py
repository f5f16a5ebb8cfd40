"""``intertwine runs``: what long runs have done, and what to do with them."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ..._options import Json, Options, advanced


class RunsAction(StrEnum):
    """What to do."""

    LIST = "list"
    SHOW = "show"
    RESUME = "resume"
    CLEAN = "clean"


@dataclass(frozen=True)
class RunsOptions(Options):
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

    def check(self) -> None:
        """Refuse what cannot be right, before torch is imported.

        Raises:
            ValueError: If no run is named.
        """
        super().check()
        if self.name is None and self.action is not RunsAction.LIST:
            raise ValueError(f"NAME must be given to {self.action.value}. Got none. 'intertwine runs' lists the runs.")

    action: Annotated[RunsAction, typer.Argument(help="list, show, resume or clean.")] = RunsAction.LIST
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Of the run, for all but list.")] = None
    folder: Annotated[Path, typer.Option("--runs", metavar="DIR", help="Folder of runs.")] = Path("runs")
    workers: Annotated[int | None, typer.Option(min=1, help="Resume: processes; one for each core otherwise.")] = None
    threads: Annotated[int, advanced(min=1, help="Resume: threads of each process.")] = 1
    ray: Annotated[
        str | None, advanced(metavar="ADDRESS", help="Resume on Ray: local, auto, or HOST:PORT of a cluster.")
    ] = None
    timeout: Annotated[
        float | None, advanced(min=0, help="Resume: seconds that an attempt may take, on this machine.")
    ] = None
    retries: Annotated[int, advanced(min=0, help="Resume: further attempts of a job that fails.")] = 2
    everything: Annotated[bool, typer.Option("--all", help="Clean: remove the whole run, results too.")] = False
    imported: Annotated[
        list[str] | None,
        advanced("--import", metavar="MODULE", help="Resume: a module of yours that the plan's classes are in."),
    ] = None
    as_json: Json = False
