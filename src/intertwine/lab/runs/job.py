"""Jobs as values: the work to do, and the key under which its result is kept."""

import hashlib
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from ..._untrusted.files import check_fields, json_of
from ..._words import first_line

PLAN = "plan.json"
_LONGEST = 60  # most characters of a label
_LONGEST_NAME = 255  # most bytes of a file name


class Job(BaseModel, ABC):
    """One independent piece of work: a configuration, and the work to do with it.

    A subclass lists its settings as fields, which must be plain JSON values, and defines ``run``. It must be
    importable by name, since workers receive its name and settings as text, and nothing is pickled. Results are kept
    under a hash of both and of the class's code, so equal settings must give equal results: seeds are settings.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    # Text to change when the same settings give another result; if ``None``, the bytes of the file that defines the
    # class. Code that it calls in other files does not count: change ``code`` if that matters
    code: ClassVar[str | None] = None
    # Share of a GPU that a job takes if there is one: 1 for a whole GPU, 0.25 lets four jobs share it. Without any GPU
    # it runs on the CPU
    gpus: ClassVar[float] = 0.0

    @abstractmethod
    def run(self, files: Path) -> Any:
        """Do the work, and return values that JSON can hold; NaN and infinity become ``None``.

        ``files`` is this job's own folder for large results; it exists, and survives an interruption.
        """

    @property
    def label(self) -> str:
        """A short name for people: the settings."""
        text = ", ".join(f"{key}={value}" for key, value in self.model_dump(mode="json").items())
        return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


@dataclass(frozen=True)
class Jobs:
    """A plan: jobs of one or several classes, and the name of the folder that keeps their results."""

    name: str  # Name of the folder
    listed: tuple[Job, ...]  # The jobs, in the order of the returned values

    def __post_init__(self) -> None:
        plan_name(self.name)


def job_key(job: Job) -> str:
    """Hash of a job's class, settings and code, in 32 hexadecimal digits."""
    code = _bytes_of(type(job).__module__) if job.code is None else job.code
    text = json.dumps([reference(type(job)), job.model_dump(mode="json"), code], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@cache
def _bytes_of(module: str) -> str:
    """A hash of a module's file; empty if it has none."""
    file = getattr(sys.modules[module], "__file__", None)
    return hashlib.blake2b(Path(file).read_bytes(), digest_size=16).hexdigest() if file else ""


def reference(cls: type) -> str:
    """``module:name`` of a class."""
    name = f"{cls.__module__}:{cls.__qualname__}"
    if cls.__module__ == "__main__" or "<locals>" in cls.__qualname__:
        raise TypeError(
            f"job classes must be importable by name, for workers. Got {name}. Move it to the top level of a module "
            "of its own."
        )
    return name


def load_plan(folder: str | Path, modules: Collection[str] = ()) -> Jobs:
    """The jobs for which a folder was last used. The file may come from anyone: it cannot make us import code.

    Args:
        folder: Folder of one run.
        modules: Modules and packages from which job classes may be imported, besides ``intertwine`` and modules that
            are already imported.

    Raises:
        ValueError: If there is no plan, it is of another folder, or a class cannot be found or may not be imported.
    """
    said = saved_plan(folder)
    if said["name"] != Path(folder).absolute().name:
        raise ValueError(f"plan must be of the folder that it lies in. Got {said['name']!r} in {str(folder)!r}.")
    try:
        listed = tuple(_known_class(x["job"], modules).model_validate(x["settings"]) for x in said["listed"])
    except (ImportError, AttributeError, ValidationError) as error:
        raise ValueError(
            f"jobs of a plan must be importable here, with their settings. Got {str(folder)!r}, where one is not "
            f"({first_line(error)}). Run it from where it was started, or with that folder on PYTHONPATH."
        ) from None
    return Jobs(said["name"], listed)


def saved_plan(folder: str | Path) -> dict[str, Any]:
    """The plan of a run as data: its ``name``, and the class (``job``) and settings of each of the jobs ``listed``."""
    path = Path(folder) / PLAN
    if not path.is_file():
        raise ValueError(f"folder must be of a run, with a {PLAN}. Got {str(folder)!r}.")
    said: dict[str, Any] = json_of(path, PLAN)
    check_fields(said, {"name": str, "listed": [{"job": str, "settings": dict}]}, f"{PLAN} of {str(folder)!r}: ")
    return said


def _known_class(name: str, modules: Collection[str]) -> type[Job]:
    """The job class named in a file, which may come from anyone: only a known module is imported.

    Known modules are those of ``intertwine``, those already imported, and allowed modules and packages.
    """  # noqa: DOC501
    module = name.partition(":")[0]
    package = module.partition(".")[0]
    if package != "intertwine" and module not in sys.modules and not {module, package} & set(modules):
        raise ValueError(
            f"classes of a saved plan must be of intertwine, or of a module that you allow. Got {name!r}. If you trust "
            f"it, say --import {module}, or load_plan(folder, modules=[{module!r}])."
        )
    found = resolve_name(name)
    if not (isinstance(found, type) and issubclass(found, Job)):
        raise ValueError(f"class of a saved plan must be a Job. Got {name!r}.")
    return found


def plan_name(name: str) -> str:
    """Refuse, with a ``ValueError``, a name that is no folder name, since it could lead out of the folder of runs."""
    if not name or name.startswith(".") or any(c in name for c in "/\\\0") or len(name.encode()) > _LONGEST_NAME:
        raise ValueError(
            f"plan name must be the name of a folder, without separators, dots in front, and at most {_LONGEST_NAME} "
            f"bytes. Got {name!r}."
        )
    return name
