"""Runs on disk: which there are, how far they are, and removing what is no longer wanted."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .job import saved_plan
from .log import FILE, Entry, read_log
from .store import finished, remove

_LONGEST = 40  # characters of a setting


@dataclass(frozen=True)
class Overview:
    """One run as its folder has it.

    Args:
        name: Of the plan.
        folder: Where it lies.
        plan: Class and settings of the plan, as text.
        entries: Its jobs.
        stale: Results of earlier plans or earlier code.
    """

    name: str
    folder: Path
    plan: str
    entries: Sequence[Entry]
    stale: int

    def count(self, state: str) -> int:
        """Number of jobs in a state."""
        return sum(entry.state == state for entry in self.entries)

    @property
    def seconds(self) -> float:
        """Time that the finished jobs took, added up."""
        return sum(entry.seconds or 0.0 for entry in self.entries if entry.state == "done")


def overviews(folder: str | Path = "runs") -> list[Overview]:
    """All runs in a folder."""
    return [overview(plan.parent) for plan in sorted(Path(folder).glob("*/plan.json"))]


def overview(folder: str | Path) -> Overview:
    """One run.

    Returns:
        What its log says. Jobs that were running when a driver was killed are still called running.

    Raises:
        ValueError: If there is no run.
    """
    folder = Path(folder)
    if not (folder / "plan.json").is_file() or not (folder / FILE).is_file():
        raise ValueError(f"folder must be of a run, with plan.json and {FILE}. Got {str(folder)!r}.")
    said = saved_plan(folder)
    settings = ", ".join(f"{key}={_short(value)}" for key, value in said["config"].items())
    entries = read_log(folder / FILE)
    stale = len(finished(folder) - {entry.key for entry in entries})
    return Overview(folder.name, folder, f"{said['plan'].partition(':')[2]}({settings})", entries, stale)


def _short(value: Any) -> str:
    return f"{len(value)} of them" if isinstance(value, list | dict) and len(str(value)) > _LONGEST else str(value)


def clean(folder: str | Path, everything: bool = False) -> int:
    """Remove results of earlier plans and earlier code, or with ``everything`` the whole run.

    Raises:
        RunError: If a driver is at work there.
        ValueError: If there is no run.
    """  # noqa: DOC502 - helpers raise them
    from .driver import only_driver

    found = overview(folder)
    there = finished(found.folder)
    with only_driver(found.folder):
        if everything:
            shutil.rmtree(found.folder)
            return len(there)
        stale = there - {entry.key for entry in found.entries}
        remove(found.folder, stale)
    return len(stale)
