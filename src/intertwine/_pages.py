"""Writer of pages. The package sets it when it is imported: results offer their page and know nothing of pages."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["set_writer", "write_page"]

_writer: list[Callable[[Any, Path], Path]] = []


def set_writer(write: Callable[[Any, Path], Path]) -> None:
    """Let ``write`` turn a result into a file."""
    _writer[:] = [write]


def write_page(result: Any, path: Path) -> Path:
    """Write a result as one self-contained page."""
    return _writer[0](result, path)
