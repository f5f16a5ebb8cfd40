"""``intertwine runs``: what long runs have done, and what to do with them."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from ..._options import Options, advanced, argument, option


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

    action: RunsAction = argument(RunsAction.LIST, "list, show, resume or clean.")
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
    as_json: bool = False
