"""Plans and jobs as values: what is to be done, and the key under which its result is kept."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, field_serializer, field_validator

from .code_version import code_version

__all__ = ["Job", "Jobs", "Plan", "find_class", "job_key", "reference"]

_LONGEST = 60  # characters of a label


class Job(BaseModel, ABC):
    """One independent piece of work: a configuration and what to do with it.

    A subclass lists its settings as fields, which must be plain JSON values, and defines ``run``. It must be
    importable by name, since workers receive its name and settings as text, and nothing is pickled. Results are kept
    under a hash of both and of the source code that the class uses, so the same settings must give the same result:
    seeds are settings.

    Attributes:
        gpus: Share of a GPU that a job takes where there is one: 1 for a whole one, 0.25 lets four share it. Without
            any GPU it runs on the CPU.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    gpus: ClassVar[float] = 0.0

    @abstractmethod
    def run(self, files: Path) -> Any:
        """Do the work.

        Args:
            files: A folder of this job's own for large results; it exists, and survives a kill in the middle.

        Returns:
            What JSON can hold; NaN and infinities become ``None``.
        """

    @property
    def label(self) -> str:
        """Short name for people: the settings."""
        text = ", ".join(f"{key}={value}" for key, value in self.model_dump(mode="json").items())
        return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


class Plan(BaseModel, ABC):
    """An experiment's jobs, expanded from few settings. A subclass must be importable by name.

    Attributes:
        name: Of the folder that keeps its results.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str]

    @abstractmethod
    def jobs(self) -> Sequence[Job]:
        """All jobs, in the order in which their values are wanted."""


class Jobs(Plan):
    """Jobs that are listed already, of one class or several; it is saved with the names of their classes.

    Attributes:
        name: Of the folder that keeps its results.
        listed: The jobs, in the order in which their values are wanted.
    """

    name: str  # type: ignore[misc]  # each list has its own
    listed: tuple[Job, ...]

    def jobs(self) -> Sequence[Job]:
        """Those that were listed."""
        return self.listed

    @field_serializer("listed")
    def _with_classes(self, listed: tuple[Job, ...]) -> list[dict[str, Any]]:
        return [{"job": reference(type(job)), "settings": job.model_dump(mode="json")} for job in listed]

    @field_validator("listed", mode="before")
    @classmethod
    def _from_classes(cls, listed: Sequence[Any]) -> list[Job]:
        return [x if isinstance(x, Job) else find_class(x["job"]).model_validate(x["settings"]) for x in listed]


def job_key(job: Job, code: str | None = None) -> str:
    """Hash of a job's class, settings and code.

    Args:
        job: The job.
        code: Its code version, if it is known already.

    Returns:
        32 hexadecimal digits.
    """
    code = code_version(type(job).__module__) if code is None else code
    text = json.dumps([reference(type(job)), job.model_dump(mode="json"), code], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def reference(cls: type) -> str:
    """``module:name`` of a class.

    Raises:
        TypeError: If it cannot be imported under that name.
    """
    name = f"{cls.__module__}:{cls.__qualname__}"
    if cls.__module__ == "__main__" or "<locals>" in cls.__qualname__:
        raise TypeError(
            f"job and plan classes must be importable by name, for workers. Got {name}. Move it to the top level of a "
            "module of its own."
        )
    return name


def find_class(name: str) -> Any:
    """The class that ``reference`` named."""
    module, _, attribute = name.partition(":")
    found: Any = import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found
