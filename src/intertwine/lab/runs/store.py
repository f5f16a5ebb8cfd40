"""Store of results on disk: one JSON file for each job, written by its worker before completion is reported."""

import os
import shutil
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal

from ..._io import as_json, read_json, storage_fault, write_json
from ...errors import IntertwineError

_LINES = 12  # of a traceback that are kept


class RunError(IntertwineError, RuntimeError):
    """A run that cannot go on: its folder or its cluster failed. Finished jobs are kept."""


@dataclass(frozen=True)
class Task:
    """A job as text, ready to be sent anywhere.

    Args:
        key: Under which its result is kept.
        job: ``module:name`` of its class.
        config: Its settings.
        folder: Where results are kept; every worker must see it under this path.
        gpus: Share of a GPU that it takes.
    """

    key: str
    job: str
    config: dict[str, Any]
    folder: Path
    gpus: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """What became of one attempt.

    Args:
        key: Of the task.
        state: ``done``; ``failed`` if the job raised; ``died`` if its worker did; ``storage`` if nothing could be
            written, which no repetition cures.
        seconds: How long it took, by a clock that nobody sets.
        error: What went wrong.
        worker: Who did it.
    """

    key: str
    state: Literal["done", "failed", "died", "storage"]
    seconds: float = 0.0
    error: str = ""
    worker: str = ""


@contextmanager
def only_driver(home: Path) -> Iterator[None]:
    """Hold the folder's lock, which the system releases when this process ends, however it ends."""
    try:
        import fcntl
    except ImportError:  # not on Windows: there the user sees to it
        yield
        return
    with (home / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
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
        said = read_json(result_path(task.folder, task.key))
    except (OSError, ValueError):
        return False
    if not isinstance(said, dict) or "value" not in said:
        return False
    wanted = {"key": task.key, "job": task.job, "config": as_json(task.config)}
    return {"key": task.key, **{k: v for k, v in said.items() if k in wanted}} == wanted


def perform(task: Task, worker: str = "") -> Outcome:
    """Do a task and write its result; every executor's workers end up here. What the job raises is an outcome."""
    start = time.perf_counter()
    try:
        files = task.folder / "files" / task.key
        files.mkdir(parents=True, exist_ok=True)
        with _no_input():
            value = resolve_name(task.job).model_validate(task.config).run(files)
        seconds = time.perf_counter() - start
        if not any(files.iterdir()):
            files.rmdir()
        said = {"key": task.key, "job": task.job, "config": task.config}
        write_json(result_path(task.folder, task.key), {**said, "seconds": seconds, "worker": worker, "value": value})
    except Exception as error:
        fault = storage_fault(task.folder, error)
        state = "failed" if fault is None else "storage"
        lines = "".join(traceback.format_exception(error)).strip().splitlines()
        text = "\n".join([*lines[-_LINES:], *([] if fault is None else [f"OSError: {fault}"])])
        return Outcome(task.key, state, time.perf_counter() - start, text, worker)  # type: ignore[arg-type]
    return Outcome(task.key, "done", seconds, worker=worker)


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
