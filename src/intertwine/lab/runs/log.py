"""Log of a run: state, attempts, times and errors of every job, for people, in one JSON file that the driver writes.

Whether a job is finished is decided by its result on disk alone, so a lost log loses no work.
"""

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ..._io import write_json
from ..._io.codec import decode, encode
from ..._untrusted.files import json_of
from ...errors import StorageError
from .job import saved_plan
from .store import RunError, finished, only_driver, remove

FILE = "jobs.json"
State = Literal["waiting", "running", "done", "failed"]

_EVERY = 5.0  # seconds between writes while jobs run
_LONGEST = 40  # characters of a setting


@dataclass(frozen=True)
class Entry:
    """One job in the log.

    Args:
        key: Of its result.
        label: For people.
        state: ``waiting``, ``running``, ``done``, or ``failed`` after the last retry.
        attempts: How often it was started, over all runs.
        seconds: Of its last attempt.
        error: Of its last attempt.
        worker: Who made it.
    """

    key: str
    label: str
    state: State
    attempts: int = 0
    seconds: float | None = None
    error: str = ""
    worker: str = ""


def read_log(path: Path) -> tuple[Entry, ...]:
    """The jobs of the last plan, in its order."""
    data = json_of(path, FILE)
    try:
        entries: tuple[Entry, ...] = decode(data, tuple[Entry, ...])
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{FILE} must be a file that a run wrote. Got another one at {str(path)!r} ({error})."
        ) from None
    return entries


class Log:
    """The log of one run, as its driver keeps it: of the plan's jobs, labels by key, some of which are done."""

    def __init__(self, path: Path, jobs: Mapping[str, str], done: set[str]) -> None:
        self._path = path
        try:
            before = {entry.key: entry for entry in read_log(path)}
        except ValueError:  # missing or damaged: attempts are counted anew
            before = {}
        self._entries = {
            key: replace(
                before.get(key, Entry(key, label, "waiting")), label=label, state="done" if key in done else "waiting"
            )
            for key, label in jobs.items()
        }
        self._written = 0.0
        self.write()

    def enter(self, key: str, state: State, **attempt: Any) -> None:
        """A job was given to a worker, or an attempt ended, with its ``seconds``, ``error`` and ``worker``."""
        entry = self._entries[key]
        attempts = entry.attempts + (state == "running")
        self._entries[key] = replace(entry, state=state, attempts=attempts, **attempt)

    def write(self, now: bool = True) -> None:
        """Write the file; without ``now`` only if the last time was some seconds ago."""
        if not now and time.monotonic() - self._written < _EVERY:
            return
        try:
            write_json(self._path, encode(tuple(self._entries.values()), tuple[Entry, ...]))
        except StorageError as error:
            raise RunError(f"runs folder must be writable and have space left. {error}") from None
        self._written = time.monotonic()


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
    long = lambda value: isinstance(value, list | dict) and len(str(value)) > _LONGEST
    settings = ", ".join(f"{k}={f'{len(v)} of them' if long(v) else v}" for k, v in said["config"].items())
    entries = read_log(folder / FILE)
    stale = len(finished(folder) - {entry.key for entry in entries})
    return Overview(folder.name, folder, f"{said['plan'].partition(':')[2]}({settings})", entries, stale)


def clean(folder: str | Path, everything: bool = False) -> int:
    """Remove results of earlier plans and earlier code, or with ``everything`` the whole run.

    Raises:
        RunError: If a driver is at work there.
        ValueError: If there is no run.
    """  # noqa: DOC502 - helpers raise them
    found = overview(folder)
    there = finished(found.folder)
    with only_driver(found.folder):
        if everything:
            shutil.rmtree(found.folder)
            return len(there)
        stale = there - {entry.key for entry in found.entries}
        remove(found.folder, stale)
    return len(stale)
