"""Files of single values: JSON with tensors beside it, or one safetensors file."""

import json
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from .._untrusted.files import json_of
from .._untrusted.weights import check_weights_file
from ..errors import CheckpointError
from .codec import decode, encode, mark_nonfinite, unmark_nonfinite
from .files import write_json, write_tensors

T = TypeVar("T")


def write_value(path: Path, value: Any) -> Path:
    """Write a dataclass, atomically.

    Args:
        path: Ends in ``.json`` or ``.safetensors``. For JSON, the tensors of fields marked ``APART`` go into a file of
            the same name with the suffix ``.safetensors``.
        value: The dataclass.

    Raises:
        ValueError: If ``path`` has another suffix.
    """
    if path.suffix not in (".json", ".safetensors"):
        raise ValueError(f"path must end in .json or .safetensors. Got {str(path)!r}.")
    kind = type(value)
    tensors: dict[str, Tensor] = {}
    data = mark_nonfinite(encode(value, kind, tensors, every=path.suffix == ".safetensors"))
    if path.suffix == ".safetensors":
        return write_tensors(path, tensors, {"kind": f"intertwine.{kind.__name__}", "data": json.dumps(data)})
    if tensors:
        write_tensors(path.with_suffix(".safetensors"), tensors, {"kind": f"intertwine.tensors of {kind.__name__}"})
    return write_json(path, {"kind": kind.__name__, **data})


def kind_in(path: Path, name: str = "path") -> Any:
    """Kind of value that a file says it holds, if ``write_value`` wrote it."""
    if path.suffix == ".safetensors":
        return str(_open(path)[1].get("kind")).removeprefix("intertwine.")
    data = json_of(path, name)
    return data.get("kind") if isinstance(data, dict) else None


def read_value(path: Path, kind: type[T]) -> T:
    """Read what ``write_value`` wrote.

    Args:
        path: The file. Fields whose tensors were written beside it and are gone take their defaults.
        kind: The dataclass.

    Raises:
        CheckpointError: If a safetensors file is missing or damaged, or holds something else.
        ValueError: If a JSON file is missing or damaged, or holds something else.
    """  # noqa: DOC502 - by its kind
    error = ValueError if path.suffix == ".json" else CheckpointError
    tensors: dict[str, Tensor] = {}
    found: Any
    if path.suffix != ".json":
        tensors, said = _open(path)
        data, found = said.get("data"), str(said.get("kind")).removeprefix("intertwine.")
    else:
        data = json_of(path, "path")
        found = data.pop("kind", None) if isinstance(data, dict) else None
        beside = path.with_suffix(".safetensors")
        if beside.is_file():
            read, said = _open(beside)
            tensors = read if said.get("kind") == f"intertwine.tensors of {kind.__name__}" else {}
    if found != kind.__name__:
        raise error(f"path must hold a {kind.__name__} written by save(). Got {found!r} in {str(path)!r}.")
    try:
        plain = json.loads(data) if isinstance(data, str) else data
        value: T = decode(unmark_nonfinite(plain), kind, tensors)
    except Exception as problem:  # a file that was changed may fail anywhere
        raise error(
            f"path must hold a complete {kind.__name__}. Got {str(path)!r}, where something is amiss "
            f"({type(problem).__name__}: {problem})."
        ) from problem
    return value


def _open(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(check_weights_file(path), framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (OSError, SafetensorError) as problem:
        raise CheckpointError(f"path must be a safetensors file. Got {str(path)!r} ({problem}).") from None
