"""Lines of the user's code at which operations were called."""

import sys
from functools import cache
from pathlib import Path

import torch

_TORCH, _HERE = Path(torch.__file__).parent, Path(__file__).parent
_SKIPPED = (str(_TORCH), str(_HERE.parent))
_RUNNER = str(_HERE / "run.py")  # its callers are not part of the model
_LAYERS = str(_TORCH / "nn")
_CALLS = str(_TORCH / "nn" / "modules" / "module.py")


def user_line() -> str:
    """The model's innermost line outside torch, as ``"file.py:12"``; if it has none, one in torch's own layers."""
    frame, layer = sys._getframe(1), ""
    while frame is not None and (file := frame.f_code.co_filename) != _RUNNER:
        if not file.startswith(_SKIPPED):
            return f"{_name(file)}:{frame.f_lineno}"
        if not layer and file.startswith(_LAYERS) and file != _CALLS:
            layer = f"torch/{_name(file, within=_TORCH)}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return layer


@cache
def _name(file: str, within: Path | None = None) -> str:
    return Path(file).name if within is None else str(Path(file).relative_to(within))


def error_line(error: BaseException) -> str:
    """The innermost line outside torch and this package that an error passed through."""
    found, trace = "", error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(_SKIPPED):
            found = f"{_name(file)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found
