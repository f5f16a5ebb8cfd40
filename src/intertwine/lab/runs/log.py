"""Log of a run: state, attempts, times and errors of every job, for people, in one JSON file that the driver writes.

Whether a job is finished is decided by its result on disk alone, so a lost log loses no work.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ..._io import write_json
from ..._io.codec import decode, encode
from ..._untrusted.files import json_of
from ...errors import StorageError
from .executor import Outcome, RunError

FILE = "jobs.json"
State = Literal["waiting", "running", "done", "failed"]

_EVERY = 5.0  # seconds between writes while jobs run


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
    """The log of one run, as its driver keeps it.

    Args:
        path: Of the file.
        jobs: Keys and labels of the plan's jobs, in its order.
        done: Keys of results that exist.

    Raises:
        RunError: If nothing can be written there.
    """

    def __init__(self, path: Path, jobs: Iterable[tuple[str, str]], done: set[str]) -> None:
        self._path = path
        try:
            before = {entry.key: entry for entry in read_log(path)}
        except ValueError:  # missing or damaged: attempts are counted anew
            before = {}
        self._entries = {
            key: replace(before.get(key, Entry(key, label, "waiting")), label=label, state=self._state(key in done))
            for key, label in jobs
        }
        self._written = 0.0
        self.write()

    def start(self, key: str) -> None:
        """A job was given to a worker."""
        entry = self._entries[key]
        self._entries[key] = replace(entry, state="running", attempts=entry.attempts + 1)

    def wait(self, key: str) -> None:
        """A job's attempt was cut short."""
        self._entries[key] = replace(self._entries[key], state="waiting")

    def finish(self, outcome: Outcome, state: State) -> None:
        """An attempt ended."""
        self._entries[outcome.key] = replace(
            self._entries[outcome.key], state=state, seconds=outcome.seconds, error=outcome.error, worker=outcome.worker
        )

    def write(self, now: bool = True) -> None:
        """Write the file; without ``now`` only if the last time was some seconds ago.

        Raises:
            RunError: If nothing can be written.
        """
        if not now and time.monotonic() - self._written < _EVERY:
            return
        try:
            write_json(self._path, encode(tuple(self._entries.values()), tuple[Entry, ...]))
        except StorageError as error:
            raise RunError(f"runs folder must be writable and have space left. {error}") from None
        self._written = time.monotonic()

    @staticmethod
    def _state(done: bool) -> State:
        return "done" if done else "waiting"
