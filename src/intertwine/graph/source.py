"""Where in the user's code an operation was called."""

import sys
from pathlib import Path

import torch

__all__ = ["error_line", "user_line"]

_SKIPPED = (str(Path(torch.__file__).parent), str(Path(__file__).parent))


def user_line() -> str:
    """The innermost line outside torch and this package, as ``"file.py:12"``."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_SKIPPED):
            return f"{Path(file).name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def error_line(error: BaseException) -> str:
    """The innermost line outside torch and this package that an error passed through."""
    found, trace = "", error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(_SKIPPED):
            found = f"{Path(file).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found
