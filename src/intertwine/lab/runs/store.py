"""Store of a run on disk: results, and a log of jobs for people.

Each job's result is a JSON file, written by its worker before completion is reported. The log, written by the driver,
is one JSON file with states, attempts, times and errors. Only the result decides whether a job is finished, so a lost
log loses no work.
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

_EVERY = 5.0  # seconds between log writes while jobs run
_LINES = 12  # lines kept of a traceback


class RunError(IntertwineError, RuntimeError):
    """A run that cannot continue because its folder or cluster failed. Finished jobs are kept."""


@dataclass(frozen=True)
class Task:
    """A job as text, ready to be sent to a worker."""

    key: str  # Key under which its result is kept
    job: str  # ``module:name`` of its class
    config: dict[str, Any]  # Its settings
    folder: str  # Folder of results; every worker must see it under this path
    gpus: float = 0.0  # Share of a GPU that it takes


@dataclass(frozen=True)
class Outcome:
    """The outcome of one attempt."""

    key: str  # Key of the task
    # ``done``; ``failed`` if the job raised; ``died`` if its worker died; ``storage`` if nothing could be written,
    # which no retry cures
    state: Literal["done", "failed", "died", "storage"]
    seconds: float = 0.0  # Duration, by a monotonic clock
    error: str = ""  # The error, if any
    worker: str = ""  # Name of the worker


@contextmanager
def only_driver(home: Path) -> Iterator[None]:
    """Hold the folder's lock, which the system releases whenever and however this process ends."""
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
    """The path of a finished job's result."""
    return folder / "results" / f"{key}.json"


def finished(folder: Path) -> set[str]:
    """Keys of all results in the folder."""
    return {file.stem for file in (folder / "results").glob("*.json") if not file.name.startswith(".")}


def intact(task: Task) -> bool:
    """Whether the result of a job exists, is readable and belongs to this very job; otherwise it is run again."""
    try:
        said = read_json(result_path(Path(task.folder), task.key))
    except (OSError, ValueError):
        return False
    if not isinstance(said, dict) or "value" not in said:
        return False
    wanted = {"key": task.key, "job": task.job, "config": as_json(task.config)}
    return {"key": task.key, **{k: v for k, v in said.items() if k in wanted}} == wanted


def perform(task: Task, worker: str = "") -> Outcome:
    """Run a task and write its result, in the workers of every executor. An exception of the job becomes an outcome."""
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
    """The hardware that computes here: the GPU, if there is one and the device allows it; else the CPU architecture."""
    import torch

    if device not in (None, "cpu") and torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"


@contextmanager
def _no_input() -> Iterator[None]:
    """Close standard input: a job that reads from it gets an end of file instead of waiting for ever."""
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

    key: str  # Key of its result
    label: str  # Label for people
    state: State  # ``waiting``, ``running``, ``done``, or ``failed`` after the last retry
    attempts: int = 0  # Number of starts, over all runs
    seconds: float | None = None  # Duration of its last attempt
    error: str = ""  # Error of its last attempt
    worker: str = ""  # Worker of its last attempt


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
    """The log of one run, kept by its driver; it starts from the jobs (labels by key) and the keys already done."""

    def __init__(self, path: Path, jobs: Mapping[str, str], done: set[str]) -> None:
        self._path = path
        try:
            before = {entry.key: entry for entry in read_log(path)}
        except ValueError:  # missing or damaged: attempts are counted from zero
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
        """Record that a job was started, or that an attempt ended, with its ``seconds``, ``error`` and ``worker``."""
        entry = self._entries[key]
        attempts = entry.attempts + (state == "running")
        self._entries[key] = replace(entry, state=state, attempts=attempts, **attempt)

    def write(self, now: bool = True) -> None:
        """Write the file; without ``now``, only if the last write was some seconds ago."""
        if not now and time.monotonic() - self._written < _EVERY:
            return
        try:
            write_json(self._path, encode(tuple(self._entries.values()), tuple[Entry, ...]))
        except StorageError as error:
            raise RunError(f"runs folder must be writable and have space left. {error}") from None
        self._written = time.monotonic()


@dataclass(frozen=True)
class Overview:
    """One run, as described by its folder."""

    name: str  # Name of the plan
    folder: Path  # Folder of the run
    plan: str  # Its numbers of jobs by class, as text
    entries: Sequence[Entry]  # Its jobs
    stale: int  # Number of results of earlier plans or earlier code

    def count(self, state: str) -> int:
        """Number of jobs in a state."""
        return sum(entry.state == state for entry in self.entries)

    @property
    def seconds(self) -> float:
        """Total time of the finished jobs."""
        return sum(entry.seconds or 0.0 for entry in self.entries if entry.state == "done")


def overviews(folder: str | Path = "runs") -> list[Overview]:
    """All runs in a folder that have begun; before that, a run has a plan but no log."""
    return [overview(plan.parent) for plan in sorted(Path(folder).glob(f"*/{PLAN}")) if (plan.parent / FILE).is_file()]


def overview(folder: str | Path) -> Overview:
    """One run, according to its log. Jobs that were running when a driver was killed still count as running."""
    folder = Path(folder)
    if not (folder / FILE).is_file():
        raise ValueError(f"folder must be of a run, with {PLAN} and {FILE}. Got {str(folder)!r}.")
    kinds = Counter(one["job"].partition(":")[2] for one in saved_plan(folder)["listed"])
    plan = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    entries = read_log(folder / FILE)
    stale = len(finished(folder) - {entry.key for entry in entries})
    return Overview(folder.name, folder, plan, entries, stale)


def clean(folder: str | Path, everything: bool = False) -> int:
    """Remove results of earlier plans and code (with ``everything``, the whole run), if no driver works there."""
    found = overview(folder)
    there = finished(found.folder)
    with only_driver(found.folder):
        if everything:
            shutil.rmtree(found.folder)
            return len(there)
        stale = there - {entry.key for entry in found.entries}
        remove(found.folder, stale)
    return len(stale)
