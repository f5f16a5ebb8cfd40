"""Protocol of results: they print, become data frames, HTML and pages, and are saved and loaded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import wraps
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, Self, TypeVar, get_args, get_type_hints, overload

from ._evaluation import check_module, in_usual_mode
from ._io import write_atomically
from ._io.codec import APART, UNSAVED, decode, encode
from ._io.values import read_value, write_value
from ._words import counted, near

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["APART", "UNSAVED", "Result", "of_networks"]

P = ParamSpec("P")
R = TypeVar("R", bound="Result")

_LONGEST = 140  # characters of a headline


@dataclass(frozen=True, eq=False, repr=False)
class Result(ABC):
    """Base of the frozen dataclasses that capabilities return (``@dataclass(frozen=True, repr=False)``).

    A subclass gives its ``summary`` and the rows of its table; fields are saved according to their annotations. A field
    marked ``UNSAVED`` is left out; the tensors of a field marked ``APART`` are stored beside a JSON file.
    """

    # Class and size of each network that the result describes
    networks: tuple[str, ...] = field(default=(), kw_only=True, compare=False)

    @abstractmethod
    def summary(self) -> str:
        """The result as text: the finding in the first line, then details."""

    _columns: ClassVar[Sequence[str]] = ()
    """The table's columns, for tables that may have no rows."""

    @abstractmethod
    def _rows(self) -> Sequence[Mapping[str, Any]]:
        """The table as plain values, row by row, by column name."""

    def to_frame(self) -> pd.DataFrame:
        """One row per finding, with named columns."""
        import pandas as pd

        return pd.DataFrame(self._rows(), columns=list(self._columns) or None)

    @property
    def headline(self) -> str:
        """The finding in one short line."""
        line = self.summary().partition("\n")[0]
        return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        name, line = type(self).__name__, self.headline
        return f"<{line}>" if line.startswith(name) else f"<{name}: {line}>"

    def _repr_html_(self) -> str:
        """The finding, a small picture and a small table, for notebooks."""
        shown: str = offered("report", "notebook")(self)
        return shown

    def to_dict(self) -> dict[str, Any]:
        """The saved fields as plain data, without those whose tensors are stored apart."""
        data: dict[str, Any] = encode(self, type(self))
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Rebuild a result from ``to_dict``'s data."""
        result: Self = decode(data, cls)
        return result

    def save(self, path: str | Path) -> Path:
        """Write the result (``.json`` or ``.safetensors``) or its table (``.parquet``), atomically.

        Args:
            path: Where to write. Large tensors of a JSON result go beside it into a ``.safetensors`` file of that name.

        Raises:
            ValueError: If ``path`` has another suffix.
        """
        path = Path(path)
        if path.suffix in (".json", ".safetensors"):
            return write_value(path, self)
        if path.suffix == ".parquet":
            frame = self.to_frame()
            frame.attrs["intertwine"] = type(self).__name__  # marks the file as ours
            return write_atomically(path, lambda p: frame.to_parquet(p))
        raise ValueError(f"path must end in .json, .safetensors or .parquet. Got {str(path)!r}.")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a result that ``save`` wrote as ``.json`` or ``.safetensors``.

        Raises:
            ValueError: If the file is missing or damaged, or holds a result of another kind.
        """  # noqa: DOC502 - raised by what it calls
        return read_value(Path(path), cls)

    @overload
    def to_html(self, path: None = None) -> str: ...
    @overload
    def to_html(self, path: str | Path) -> Path: ...
    def to_html(self, path: str | Path | None = None) -> str | Path:
        """Write the result as one self-contained page, atomically; without a path, return the page as text."""
        written: str | Path = offered("report", "write_page")(self, None if path is None else Path(path))
        return written


def offered(room: str, name: str) -> Callable[..., Any]:
    """A function of a higher room, loaded only now: a result has a page but knows nothing of pages."""
    found: Callable[..., Any] = getattr(import_module(f"{__package__}.{room}"), name)
    return found


def of_networks(*names: str, states: bool = False) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator of a function that returns a result: checks the networks among its arguments and records their sizes.

    An error about an unknown argument names the options that have it as a field, or the argument that was probably
    meant. With ``states``, state dicts count as networks too. The decorated function runs ``in_usual_mode``.
    """

    def decorated(function: Callable[P, R]) -> Callable[P, R]:
        parameters = signature(function)

        @in_usual_mode
        @wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in set(kwargs) - set(parameters.parameters):
                hint = _place_of(name, function) or near(name, parameters.parameters)
                raise TypeError(f"{function.__name__}() has no argument {name!r}.{hint}")
            given = parameters.bind_partial(*args, **kwargs).arguments
            for name in set(names) & set(given):
                if not (states and isinstance(given[name], Mapping)):
                    check_module(given[name], name)
            result = function(*args, **kwargs)
            return replace(result, networks=tuple(_network(given[name]) for name in names))

        return called

    return decorated


def _place_of(name: str, function: Callable[..., Any]) -> str:
    """End of an error about an unknown argument: the options of the function that have it as a field, or nothing."""
    for argument, hint in get_type_hints(function).items():
        for kind in (hint, *get_args(hint)):
            given = {x.name: x for x in fields(kind) if x.init} if is_dataclass(kind) else {}
            required = any(x.default is MISSING and x.default_factory is MISSING for x in given.values())
            if name in given and argument != "return" and not required:  # others are found, not written down
                return f" Say {argument}={getattr(kind, '__name__', kind)}({name}=...)."
    return ""


def _network(given: Any) -> str:
    if isinstance(given, Mapping):
        return f"a state dict of {counted(len(given), 'tensor')}"
    if not callable(getattr(given, "parameters", None)):
        return str(given)
    return f"{type(given).__name__}, {counted(sum(p.numel() for p in given.parameters()), 'parameter')}"
