"""Checks of options before anything heavy is imported: one for each name of an option, the same in all commands.

They see names, files and choices; what needs the models or the data is checked by the work itself.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .._words import near
from ..errors import CheckpointError, DataError
from ._catalogue import catalogue

HF = "hf:"
_HEADER = 100_000_000  # bytes at most, as the format has it


def check(field: str, value: Any) -> None:
    """Refuse the value of a field of the options that cannot be right."""
    if value is not None and field in _CHECKS:
        _CHECKS[field](value)


def check_known(option: str, given: str, known: Sequence[str], further: str = "") -> None:
    """Refuse a name that is not known."""
    if given not in known:
        raise ValueError(f"{option} must be one of {', '.join(known)}{further}. Got {given!r}.{near(given, known)}")


def check_suffix(out: Path | None, suffixes: Sequence[str]) -> None:
    """Refuse a file of a kind that a command does not write."""
    folder = "" in suffixes
    if out is None or (out.suffix in suffixes and not (folder and not out.suffix and out.is_file())):
        return
    if out.is_dir() and not folder:
        return  # claiming it says what is wrong
    known = [suffix for suffix in suffixes if suffix not in ("", ".htm")]
    listed = known[0] if len(known) == 1 else f"{', '.join(known[:-1])} or {known[-1]}"
    raise ValueError(f"--out must end in {listed}{', or be a folder' if folder else ''}. Got {str(out)!r}.")


def check_method(method: str, others: Sequence[str]) -> None:
    """Refuse a way to align that does not exist; its options after a colon are checked with the solver."""
    name, colon, _ = method.partition(":")
    known = [*catalogue()["methods"], *others]
    if name not in known or (colon and name in others):
        raise ValueError(f"--method must be one of {', '.join(known)}. Got {method!r}.{near(name, known)}")


def _checkpoint(path: Path) -> None:
    if not path.exists():
        there = sorted(p.name for p in path.parent.iterdir()) if path.parent.is_dir() else []
        raise CheckpointError(f"checkpoint must be an existing file. Got {str(path)!r}.{near(path.name, there)}")
    if path.is_file() and path.suffix == ".safetensors":
        _complete(path)


def _complete(path: Path) -> None:
    """Refuse safetensors that are cut off or no such file, by their header: its length, then JSON, then the tensors."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        head = file.read(length) if size >= 8 and length <= min(size - 8, _HEADER) else b""
    try:
        tensors = {key: value for key, value in json.loads(head).items() if key != "__metadata__"}
        end = max((value["data_offsets"][1] for value in tensors.values()), default=0)
        reason = "" if 8 + length + end == size else f"its header says {8 + length + end:,} bytes"
    except (ValueError, AttributeError, KeyError, TypeError, IndexError, RecursionError):
        reason = "its header is damaged"
    if reason:
        raise CheckpointError(
            f"checkpoint must be a complete safetensors file. Got {str(path)!r}, {size:,} bytes, which does not read "
            f"({reason}). Copy or download it again."
        )


def _model(spec: str) -> None:
    if spec.startswith(HF):
        folder = Path(spec.removeprefix(HF))
        if not any((folder / name).is_file() for name in ("config.json", "adapter_config.json")):
            raise CheckpointError(
                f"model must be hf:DIRECTORY with a config.json. Got {spec.removeprefix(HF)!r}, which has none. "
                "Nothing is downloaded: save the model there first with save_pretrained()."
            )
    elif (Path(spec) / "config.json").is_file():
        raise ValueError(f"model must be hf:DIRECTORY for a directory. Got {spec!r}. Did you mean {HF + spec!r}?")
    elif ":" not in spec:
        further = ", or package.module:factory, path/to/file.py:factory, or hf:DIRECTORY"
        check_known("model", spec, list(catalogue()["models"]), further)


def _data(spec: str) -> None:
    forms = catalogue()["data"]
    kind, _, path = spec.partition(":")
    kinds = {form.partition(":")[0].partition("[")[0]: form for form in forms}
    if kind not in kinds or (path and ":" not in kinds[kind]) or (not path and kinds[kind].partition(":")[2].isalpha()):
        raise ValueError(f"data must be one of {', '.join(forms)}. Got {spec!r}.{near(kind, kinds)}")
    if path and not Path(path).exists():
        raise DataError(f"data must be an existing file or folder. Got {path!r}.")


def _checkpoints(paths: Sequence[Path]) -> None:
    for path in paths:
        _checkpoint(path)


def _words(option: str, names: str, *others: str) -> Callable[[Sequence[str]], None]:
    def check_words(values: Sequence[str]) -> None:
        for word in ",".join(values).split(","):
            if word.strip():
                check_known(option, word.strip(), [*catalogue()[names], *others])

    return check_words


def _existing(what: str) -> Callable[[Path], None]:
    def check_file(path: Path) -> None:
        if not path.exists():
            there = sorted(p.name for p in path.parent.iterdir()) if path.parent.is_dir() else []
            raise ValueError(f"{what} must be an existing file. Got {str(path)!r}.{near(path.name, there)}")

    return check_file


def _choice(option: str, *known: str) -> Callable[[str], None]:
    return lambda value: check_known(option, value, known)


_CHECKS: dict[str, Callable[[Any], None]] = {
    "a": _checkpoint,
    "b": _checkpoint,
    "checkpoints": _checkpoints,
    "weights": _checkpoint,
    "model": _model,
    "model_b": _model,
    "data": _data,
    "gated": _words("--gated", "gated", "none"),
    "paths": lambda paths: None if str(paths[0]) == "tree" else _checkpoints(paths),
    "results": _existing("results"),
    "format": lambda value: check_known("--format", value, catalogue()["formats"]),
    "split": _choice("--split", "train", "validation", "test", "all"),
    "measures": _words("measure", "measures"),
    "interpolation": _choice("--interpolation", "linear", "spherical"),
    "repair": _choice("--repair", "auto", "none", "recalibrate", "repair", "rescale"),
    "keep": _choice("--keep", "best", "last"),
    "start": _choice("--start", "direct", "random"),
    "skip": _choice("--skip", "a", "mapped", "b"),
}
