"""The ledger of a run: state, attempts, timings and errors of every job, in one SQLite file that the driver writes.

The ledger is for people and for bookkeeping. Whether a job is finished is decided by its result on disk alone, so a
lost ledger loses no work.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .executor import Outcome, RunError

__all__ = ["VERSION", "Entry", "Ledger", "State"]

VERSION = 1
State = Literal["waiting", "running", "done", "failed"]

_TABLE = """
create table if not exists jobs (
    key text primary key, place integer, label text, state text, attempts integer default 0,
    seconds real, error text default '', worker text default '', changed real
)
"""


@dataclass(frozen=True)
class Entry:
    """One job in the ledger.

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
    attempts: int
    seconds: float | None
    error: str
    worker: str


class Ledger:
    """The ledger of one folder.

    Args:
        path: Of the SQLite file; made if it is missing.
        writable: Whether to write, which only the driver may.

    Raises:
        RunError: If it is of a newer version, damaged, or cannot be opened.
    """

    def __init__(self, path: Path, writable: bool = True) -> None:
        self.path = path
        with self._told():
            self._db = sqlite3.connect(
                path if writable else f"{path.resolve().as_uri()}?mode=ro", isolation_level=None, uri=not writable
            )
            (found,) = self._db.execute("pragma user_version").fetchone()
        if found > VERSION:
            self._db.close()
            raise RunError(
                f"ledger must be of version {VERSION} or older. Got version {found} in {str(path)!r}: a newer "
                "intertwine wrote it. Upgrade, or choose another folder."
            )
        if writable:
            with self._told():
                self._db.execute("pragma journal_mode=wal")
                self._db.execute("pragma synchronous=normal")  # survives every kill; results do not depend on it
                self._db.execute(_TABLE)
                self._db.execute(f"pragma user_version={VERSION}")

    def plan(self, jobs: Iterable[tuple[str, str]], done: set[str]) -> None:
        """Enter the jobs of a plan, and set every state to what lies on disk: done or waiting.

        Args:
            jobs: Keys and labels, in the plan's order.
            done: Keys of results that exist.
        """
        with self._told():
            self._db.execute("begin")
            self._db.execute("update jobs set place = null")
            for place, (key, label) in enumerate(jobs):
                state = "done" if key in done else "waiting"
                self._db.execute(
                    "insert into jobs (key, place, label, state, changed) values (?, ?, ?, ?, ?) on conflict (key) "
                    "do update set place = excluded.place, label = excluded.label, state = excluded.state",
                    (key, place, label, state, time.time()),
                )
            self._db.execute("commit")

    def start(self, key: str) -> None:
        """A job was given to a worker."""
        self._set("state = 'running', attempts = attempts + 1", key)

    def wait(self, key: str) -> None:
        """A job is to be tried again, or its attempt was cut short."""
        self._set("state = 'waiting'", key)

    def finish(self, outcome: Outcome, state: State) -> None:
        """An attempt ended."""
        change = "state = ?, seconds = ?, error = ?, worker = ?"
        self._set(change, outcome.key, state, outcome.seconds, outcome.error, outcome.worker)

    def entries(self) -> list[Entry]:
        """The jobs of the last plan, in its order."""
        with self._told():
            rows = self._db.execute(
                "select key, label, state, attempts, seconds, error, worker from jobs where place is not null "
                "order by place"
            ).fetchall()
        return [Entry(*row) for row in rows]

    def forget(self, keys: Iterable[str]) -> None:
        """Remove jobs."""
        with self._told():
            self._db.executemany("delete from jobs where key = ?", [(key,) for key in keys])

    def unplanned(self) -> list[str]:
        """Keys of jobs of earlier plans or earlier code."""
        with self._told():
            return [key for (key,) in self._db.execute("select key from jobs where place is null")]

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _set(self, change: str, key: str, *values: object) -> None:
        with self._told():
            self._db.execute(f"update jobs set {change}, changed = ? where key = ?", (*values, time.time(), key))

    @contextmanager
    def _told(self) -> Iterator[None]:
        """SQLite's errors in words that say what to do.

        Raises:
            RunError: Instead of them.
        """
        try:
            yield
        except sqlite3.OperationalError as error:
            raise RunError(
                f"ledger must be writable. Got {error} at {str(self.path)!r}. Finished jobs are kept: free space or "
                "choose another folder, and run again."
            ) from None
        except sqlite3.DatabaseError as error:
            raise RunError(
                f"ledger must be a SQLite file that a run wrote. Got {str(self.path)!r}, which does not read "
                f"({error}). Remove it: results are kept beside it, and nothing is run twice."
            ) from None
