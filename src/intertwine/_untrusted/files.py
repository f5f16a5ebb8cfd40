"""Untrusted files: of the right kind, in the right place, and of a size that can be read."""

import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._memory import check_fits

_JSON_COST = 12  # bytes of Python objects for each byte of JSON, roughly


def regular_file(path: str | Path, name: str, error: type[Exception] = ValueError) -> Path:
    """Refuse what is not a plain file: a pipe or a device would be waited for, or read without end.

    Returns:
        ``path`` as a ``Path``.
    """
    path = Path(path)
    if (kind := kind_of(path)) != "a file":
        raise error(f"{name} must be an existing file. Got {str(path)!r}{kind and f', {kind}'}.")
    return path


def kind_of(path: Path) -> str:
    """What exists at a path, in words; empty if nothing does."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):  # nothing, a link to nothing, or no path at all
        return ""
    kinds = ((stat.S_ISDIR, "a folder"), (stat.S_ISREG, "a file"), (stat.S_ISFIFO, "a named pipe"))
    return next((words for test, words in kinds if test(mode)), "a device or a socket")


def within(folder: Path, name: object, what: str, error: type[Exception] = ValueError) -> Path:
    """The file named by an untrusted index, table or list: it must lie in the folder, links followed.

    The links of a Hugging Face cache, ``snapshots/REVISION/FILE`` to ``blobs``, stay within it.
    """
    inside = isinstance(name, str) and name not in ("", ".") and "\0" not in name
    path = folder / str(name) if inside else folder
    home = folder.resolve()
    cache = home.parent.parent / "blobs" if home.parent.name == "snapshots" else home
    if inside and not Path(str(name)).is_absolute() and ".." not in Path(str(name)).parts:
        target = path.resolve()
        if target.is_relative_to(home) or target.is_relative_to(cache):
            return path
    raise error(f"{what} must be a file in {str(folder)!r}. Got {name!r}, which leads out of it.")


def json_of(path: str | Path, name: str, error: type[Exception] = ValueError) -> Any:
    """Read an untrusted JSON file: it may have any content, but not any size or depth."""
    path = regular_file(path, name, error)
    size = path.stat().st_size
    check_fits(_JSON_COST * size, name, f"a file of {size:,} bytes", "Check that it is the right file.", error=error)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as problem:
        reason = str(problem) if isinstance(problem, ValueError) else "too many brackets within each other"
        raise error(
            f"{name} must be a complete JSON file. Got {str(path)!r}, which does not read ({reason})."
        ) from None


_WORDS: dict[Any, str] = {
    str: "a text", int: "a whole number", float: "a number", list: "a list", dict: "an object", None: "left out",
}  # fmt: skip


def check_fields(value: Any, kinds: Any, name: str, error: type[Exception] = ValueError) -> None:
    """Refuse untrusted JSON that is not of the kinds that its reader can handle.

    Args:
        value: The value that was read.
        kinds: A type; ``None`` for what may be left out; a tuple of alternatives; a list of one, for a list of those; a
            mapping, for an object with these fields and any others.
        name: Its name in messages; one that ends in a space stands before the names of its fields.
        error: Class of the error.

    Raises:
        ValueError: If it is not; the message gives the first place of another kind.
    """  # noqa: DOC502 - or a subclass
    options = kinds if isinstance(kinds, tuple) else (kinds,)
    for option in options:
        if isinstance(option, list) and isinstance(value, list):
            for number, one in enumerate(value):
                check_fields(one, option[0], f"{name}[{number}]", error)
            return
        if isinstance(option, Mapping) and isinstance(value, dict):
            for key, kind in option.items():
                check_fields(value.get(key), kind, f"{name}{key}" if name.endswith(" ") else f"{name}.{key}", error)
            return
        if option is None or isinstance(option, type):
            numbers = (int, float) if option is float else option or type(None)
            if isinstance(value, numbers) and not isinstance(value, bool):
                return
    wanted = [option if isinstance(option, type) or option is None else type(option) for option in options]
    said = f"{value!r:.60}" if value is not None else "nothing"
    raise error(f"{name.rstrip(': ')} must be {' or '.join(_WORDS[kind] for kind in wanted)}. Got {said}.")
