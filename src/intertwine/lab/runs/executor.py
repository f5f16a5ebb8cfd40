"""Executors of jobs: one small interface, and the word it gives of each attempt."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...errors import IntertwineError


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


class Executor(ABC):
    """Runs tasks somewhere. The driver asks ``fits``, calls ``submit``, and then ``wait``, again and again."""

    @abstractmethod
    def fits(self, task: Task) -> bool:
        """Whether there is room for the task now."""

    @abstractmethod
    def submit(self, task: Task) -> None:
        """Start the task; only after ``fits``."""

    @abstractmethod
    def wait(self, timeout: float) -> Sequence[Outcome]:
        """Outcomes since the last call; after ``timeout`` seconds at the latest, if there is none.

        Raises:
            RunError: If nothing can be run any more.
        """

    @abstractmethod
    def close(self) -> None:
        """Stop everything at once, running tasks too."""

    @property
    @abstractmethod
    def words(self) -> str:
        """What it is, for people."""
