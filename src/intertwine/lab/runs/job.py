"""Plans and jobs as values: what is to be done, and the key under which its result is kept."""

import hashlib
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_serializer, field_validator

from ..._untrusted.files import json_of

_LONGEST = 60  # characters of a label
_LONGEST_NAME = 255  # bytes of the name of a file


class Job(BaseModel, ABC):
    """One independent piece of work: a configuration and what to do with it.

    A subclass lists its settings as fields, which must be plain JSON values, and defines ``run``. It must be
    importable by name, since workers receive its name and settings as text, and nothing is pickled. Results are kept
    under a hash of both and of the class's code, so the same settings must give the same result: seeds are settings.

    Attributes:
        code: Text that changes where the same settings give another result; if ``None``, the bytes of the file that
            defines the class. What it calls in other files does not count: say another ``code`` where that matters.
        gpus: Share of a GPU that a job takes where there is one: 1 for a whole one, 0.25 lets four share it. Without
            any GPU it runs on the CPU.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    code: ClassVar[str | None] = None
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
    def _from_classes(cls, listed: Sequence[Any], info: ValidationInfo) -> list[Job]:
        modules = (info.context or {}).get("modules", ())
        return [
            x if isinstance(x, Job) else named_class(x["job"], Job, modules).model_validate(x["settings"])
            for x in listed
        ]


def job_key(job: Job) -> str:
    """Hash of a job's class, settings and code.

    Returns:
        32 hexadecimal digits.
    """
    code = _bytes_of(type(job).__module__) if job.code is None else job.code
    text = json.dumps([reference(type(job)), job.model_dump(mode="json"), code], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@cache
def _bytes_of(module: str) -> str:
    """A hash of a module's file; empty where it has none."""
    file = getattr(sys.modules[module], "__file__", None)
    return hashlib.blake2b(Path(file).read_bytes(), digest_size=16).hexdigest() if file else ""


def reference(cls: type) -> str:
    """``module:name`` of a class."""
    name = f"{cls.__module__}:{cls.__qualname__}"
    if cls.__module__ == "__main__" or "<locals>" in cls.__qualname__:
        raise TypeError(
            f"job and plan classes must be importable by name, for workers. Got {name}. Move it to the top level of a "
            "module of its own."
        )
    return name


def named_class(name: str, kind: type, modules: Collection[str] = ()) -> Any:
    """The class of a kind that a file names as ``module:name``, which may be of anyone: only a known one is imported.

    That is one of ``intertwine``, of a module that is imported already, or of modules and packages that are allowed.
    """  # noqa: DOC501
    module = str(name).partition(":")[0]
    package = module.partition(".")[0]
    if package != "intertwine" and module not in sys.modules and not {module, package} & set(modules):
        raise ValueError(
            f"classes of a saved plan must be of intertwine, or of a module that you allow. Got {name!r}. If you trust "
            f"it, say --import {module}, or load_plan(folder, modules=[{module!r}])."
        )
    found = resolve_name(name)
    if not (isinstance(found, type) and issubclass(found, kind)):
        raise ValueError(f"class of a saved plan must be a {kind.__name__}. Got {name!r}.")
    return found


def saved_plan(folder: str | Path) -> dict[str, Any]:
    """The plan of a run as data: ``plan``, the name of its class, and ``config``, its settings."""
    path = Path(folder) / "plan.json"
    if not path.is_file():
        raise ValueError(f"folder must be of a run, with a plan.json. Got {str(folder)!r}.")
    said = json_of(path, "plan.json")
    if not isinstance(said, dict) or not isinstance(said.get("plan"), str) or not isinstance(said.get("config"), dict):
        raise ValueError(f"plan.json must be a file that a run wrote. Got another one in {str(folder)!r}.")
    return said


def plan_name(name: str) -> str:
    """Refuse a name that is no folder's: it would lead out of the folder of runs.

    Raises:
        ValueError: If it has separators, is empty or too long, or begins with a dot.
    """
    if not name or name.startswith(".") or any(c in name for c in "/\\\0") or len(name.encode()) > _LONGEST_NAME:
        raise ValueError(
            f"plan name must be the name of a folder, without separators, dots in front, and at most {_LONGEST_NAME} "
            f"bytes. Got {name!r}."
        )
    return name
