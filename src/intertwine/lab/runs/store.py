"""Store of a run on disk: results, and a log of jobs for people.

A result is a JSON file for each job, written by its worker before completion is reported. The log, which the driver
writes, is one JSON file with state, attempts, times and errors. Whether a job is finished is decided by its result
alone, so a lost log loses no work.
"""

import os
import platform
import shutil
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal

from ..._io import as_json, read_json, storage_fault, write_json
from ..._io.codec import decode, encode
from ..._io.scratch import BusyError, hold
from ..._untrusted.files import json_of
from ...errors import IntertwineError, StorageError
from .job import PLAN, saved_plan

FILE = "jobs.json"
State = Literal["waiting", "running", "done", "failed"]

_EVERY = 5.0  # seconds between writes while jobs run
_LINES = 12  # of a traceback that are kept


class RunError(IntertwineError, RuntimeError):
    """A run that cannot go on: its folder or its cluster failed. Finished jobs are kept."""


@dataclass(frozen=True)
class Task:
    """A job as text, ready to be sent anywhere."""

    key: str  # Under which its result is kept
    job: str  # ``module:name`` of its class
    config: dict[str, Any]  # Its settings
    folder: str  # Where results are kept; every worker must see it under this path
    gpus: float = 0.0  # Share of a GPU that it takes


@dataclass(frozen=True)
class Outcome:
    """What became of one attempt."""

    key: str  # Of the task
    # ``done``; ``failed`` if the job raised; ``died`` if its worker did; ``storage`` if nothing could be written,
    # which no repetition cures
    state: Literal["done", "failed", "died", "storage"]
    seconds: float = 0.0  # How long it took, by a clock that nobody sets
    error: str = ""  # What went wrong
    worker: str = ""  # Who did it


@contextmanager
def only_driver(home: Path) -> Iterator[None]:
    """Hold the folder's lock, which the system releases when this process ends, however it ends."""
    with ExitStack() as held:
        try:
            held.enter_context(hold(home))
        except BusyError:
            raise RunError(
                f"runs folder must have one driver at a time. Got another one at work in {str(home)!r}. "
                "Wait for it, or stop it first."
            ) from None
        yield


def result_path(folder: Path, key: str) -> Path:
    """Where the result of a job lies once it is finished."""
    return folder / "results" / f"{key}.json"


def finished(folder: Path) -> set[str]:
    """Keys of all results that lie in the folder."""
    return {file.stem for file in (folder / "results").glob("*.json") if not file.name.startswith(".")}


def intact(task: Task) -> bool:
    """Whether the result of a job lies there, reads, and is of this very job: what is not is run again."""
    try:
        said = read_json(result_path(Path(task.folder), task.key))
    except (OSError, ValueError):
        return False
    if not isinstance(said, dict) or "value" not in said:
        return False
    wanted = {"key": task.key, "job": task.job, "config": as_json(task.config)}
    return {"key": task.key, **{k: v for k, v in said.items() if k in wanted}} == wanted


def perform(task: Task, worker: str = "") -> Outcome:
    """Do a task and write its result; every executor's workers end up here. What the job raises is an outcome."""
    start = time.perf_counter()
    home = Path(task.folder)
    try:
        files = home / "files" / task.key
        files.mkdir(parents=True, exist_ok=True)
        with _no_input():
            value = resolve_name(task.job).model_validate(task.config).run(files)
        seconds = time.perf_counter() - start
        if not any(files.iterdir()):
            files.rmdir()
        said = {"key": task.key, "job": task.job, "config": task.config, "machine": machine(task.config.get("device"))}
        write_json(result_path(home, task.key), {**said, "seconds": seconds, "worker": worker, "value": value})
    except Exception as error:
        fault = storage_fault(home, error)
        state = "failed" if fault is None else "storage"
        lines = "".join(traceback.format_exception(error)).strip().splitlines()
        text = "\n".join([*lines[-_LINES:], *([] if fault is None else [f"OSError: {fault}"])])
        return Outcome(task.key, state, time.perf_counter() - start, text, worker)  # type: ignore[arg-type]
    return Outcome(task.key, "done", seconds, worker=worker)


def machine(device: str | None = None) -> str:
    """What computes here: the GPU, where there is one and the device may be one; else the CPU's architecture."""
    import torch

    if device not in (None, "cpu") and torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"


@contextmanager
def _no_input() -> Iterator[None]:
    """Nothing to read on standard input: a job that asks there gets an end of file, and does not wait for ever."""
    before = sys.stdin
    with open(os.devnull, encoding="utf-8") as sys.stdin:
        try:
            yield
        finally:
            sys.stdin = before


def remove(folder: Path, keys: Iterable[str]) -> None:
    """Remove results and files of jobs."""
    for key in keys:
        result_path(folder, key).unlink(missing_ok=True)
        shutil.rmtree(folder / "files" / key, ignore_errors=True)


@dataclass(frozen=True)
class Entry:
    """One job in the log."""

    key: str  # Of its result
    label: str  # For people
    state: State  # ``waiting``, ``running``, ``done``, or ``failed`` after the last retry
    attempts: int = 0  # How often it was started, over all runs
    seconds: float | None = None  # Of its last attempt
    error: str = ""  # Of its last attempt
    worker: str = ""  # Who made it


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
    """One run as its folder has it."""

    name: str  # Of the plan
    folder: Path  # Where it lies
    plan: str  # How many jobs of which classes it has, as text
    entries: Sequence[Entry]  # Its jobs
    stale: int  # Results of earlier plans or earlier code

    def count(self, state: str) -> int:
        """Number of jobs in a state."""
        return sum(entry.state == state for entry in self.entries)

    @property
    def seconds(self) -> float:
        """Time that the finished jobs took, added up."""
        return sum(entry.seconds or 0.0 for entry in self.entries if entry.state == "done")


def overviews(folder: str | Path = "runs") -> list[Overview]:
    """All runs in a folder that have begun: before that there is a plan, and no log."""
    return [overview(plan.parent) for plan in sorted(Path(folder).glob(f"*/{PLAN}")) if (plan.parent / FILE).is_file()]


def overview(folder: str | Path) -> Overview:
    """One run, as its log says. Jobs that were running when a driver was killed are still called running."""
    folder = Path(folder)
    if not (folder / FILE).is_file():
        raise ValueError(f"folder must be of a run, with {PLAN} and {FILE}. Got {str(folder)!r}.")
    kinds = Counter(one["job"].partition(":")[2] for one in saved_plan(folder)["listed"])
    plan = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    entries = read_log(folder / FILE)
    stale = len(finished(folder) - {entry.key for entry in entries})
    return Overview(folder.name, folder, plan, entries, stale)


def clean(folder: str | Path, everything: bool = False) -> int:
    """Remove results of earlier plans and code, or with ``everything`` the whole run, if no driver works there."""
    found = overview(folder)
    there = finished(found.folder)
    with only_driver(found.folder):
        if everything:
            shutil.rmtree(found.folder)
            return len(there)
        stale = there - {entry.key for entry in found.entries}
        remove(found.folder, stale)
    return len(stale)
