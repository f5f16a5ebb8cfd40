"""What every result can do: print well, become a data frame, save and load, become a page."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ._io import read_json, write_json

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Result"]


class Result(ABC):
    """Base of the frozen dataclasses that capabilities return.

    A subclass says what it is as plain data (``to_dict``/``from_dict``) and as a table
    (``to_frame``); files and pages follow.
    """

    @abstractmethod
    def to_frame(self) -> pd.DataFrame:
        """One row per finding, with named columns."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data from which ``from_dict`` rebuilds the result."""

    @classmethod
    @abstractmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Rebuild a result from ``to_dict``'s data."""

    def save(self, path: str | Path) -> Path:
        """Write the result as JSON (``.json``) or its table as Parquet (``.parquet``), atomically.

        Raises:
            ValueError: If the suffix is neither.
        """
        from ._io import write_atomically

        path = Path(path)
        if path.suffix == ".json":
            return write_json(path, {"kind": type(self).__name__, **self.to_dict()})
        if path.suffix == ".parquet":
            frame = self.to_frame()
            frame.attrs["intertwine"] = type(self).__name__  # by which the file is known as ours
            return write_atomically(path, lambda p: frame.to_parquet(p))
        raise ValueError(f"path must end in .json or .parquet. Got {str(path)!r}.")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a result that ``save`` wrote as JSON.

        Raises:
            ValueError: If the file holds a result of another kind.
        """
        data = read_json(path)
        kind = data.pop("kind", None) if isinstance(data, dict) else None
        if kind != cls.__name__:
            raise ValueError(f"path must hold a {cls.__name__} written by save(). Got {kind!r} in {str(path)!r}.")
        return cls.from_dict(data)

    def to_html(self, path: str | Path) -> Path:
        """Write the result as one self-contained page, atomically."""
        from .report import write_page  # the one arrow that points up: pages know results, and results offer their page

        return write_page(self, path)
