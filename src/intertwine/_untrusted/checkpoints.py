"""Untrusted checkpoints and directories, inspected before anything heavy is imported."""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .._words import near
from ..errors import CheckpointError

HF = "hf:"
SETTINGS = ("config.json", "adapter_config.json")  # one of them makes a directory a model

_SMALL = 1000  # bytes; a pointer file has fewer
_HEADER = 100_000_000  # most bytes of a header, by the format
_QUICK = 1 << 28  # bytes of weights checked at once; larger ones are checked when read
_POINTER = b"version https://git-lfs"
_STARTS = (b"PK", b"\x80", b"GG")  # first bytes of archives and pickles, as torch writes them, and of GGUF
# Exponent bits, all set in NaN and infinities, of the types that have them.
_EXPONENTS = {"F16": ("<u2", 0x7C00), "BF16": ("<u2", 0x7F80), "F32": ("<u4", 0x7F80_0000), "F64": ("<u8", 0x7FF << 52)}
_WEIGHTS = (".weight", ".bias")  # ends of names; a buffer may hold infinities, such as an attention mask
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_FILE_ENDS = (".safetensors", ".gguf", ".pt", ".pth", ".bin", ".json", ".ckpt", ".npz", ".yml", ".yaml")


def existing(what: str, path: Path, error: type[ValueError] = ValueError, kind: str = "file") -> None:
    """Refuse a path where nothing exists.

    Raises:
        ValueError: If nothing exists there; the message suggests a similar name.
    """  # noqa: DOC502 - or a subclass
    if not path.exists():
        raise error(f"{what} must be an existing {kind}. Got {str(path)!r}.{_near(path)}")


def check_checkpoint(path: Path) -> None:
    """Refuse what is not a checkpoint: a file or an index of shards, or a directory of transformers or peft.

    Raises:
        CheckpointError: If it is missing, of another kind, truncated, or holds NaN.
    """
    if not path.exists():
        raise CheckpointError(f"checkpoint must be an existing file. Got {str(path)!r}.{_near(path) or hub(str(path))}")
    files = [path]
    for index in path.glob("*.safetensors.index.json") if path.is_dir() else [path]:
        if index.name.endswith(".index.json"):
            _check_shards(index)
    if path.is_dir():
        files = sorted(path.glob("*.safetensors"))
        moved = next(filter(Path.exists, (path / "moved", path / "moved.safetensors")), None)
        named = any((path / name).is_file() for name in SETTINGS)
        if not files and not named:
            raise CheckpointError(
                "checkpoint must be a file, an index of shards, or a directory with a config.json or safetensors. "
                f"Got the folder {str(path)!r}."
            )
        if moved is not None and path / "alignment.safetensors" in files and not named:
            raise CheckpointError(
                f"checkpoint must be one network. Got the folder {str(path)!r} that 'intertwine align' wrote. Give "
                f"{str(moved)!r}, which is B in the basis of A."
            )
    budget = _QUICK
    for file in files:
        if file.suffix == ".safetensors" and file.is_file():
            tensors = _header(file)
            budget -= file.stat().st_size
            if budget > 0:
                _check_finite(file, tensors)
        elif file.is_file() and not file.name.endswith((".index.json", ".yml", ".yaml")):
            _check_start(file)


def _check_shards(index: Path) -> None:
    """Refuse an index whose shards are not all here; one that cannot be read is refused when it is read."""
    try:
        named = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        missing = [name for name in named if not (index.parent / name).exists()]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return
    if missing:
        raise CheckpointError(
            f"checkpoint must have all shards that {str(index)!r} names. Got {len(named) - len(missing)} of "
            f"{len(named)}; {missing[0]} is missing. Download it again."
        )


def hub(name: str, always: bool = False) -> str:
    """Advice on a name that may be one of the Hugging Face hub: the end of an error, or nothing.

    Args:
        name: The name that was given.
        always: Whether to advise even if it looks like the name of a file.
    """
    if not _HUB_NAME.fullmatch(name) or (not always and name.endswith(_FILE_ENDS)):
        return " Nothing is downloaded: save the model there first with save_pretrained()." if always else ""
    root = os.environ.get("HF_HUB_CACHE") or os.path.join(os.environ.get("HF_HOME", "~/.cache/huggingface"), "hub")
    place = Path(root).expanduser() / f"models--{name.replace('/', '--')}" / "snapshots"
    for folder in sorted(place.glob("*")):
        if (folder / "config.json").is_file():
            return f" It was downloaded to this machine's cache: give {HF}{folder}."
    short = name.rpartition("/")[2]
    return (
        f" If it is a model of the Hugging Face hub, it is not here, and nothing is downloaded: run "
        f"'hf download {name} --local-dir {short}', then give {HF}{short}."
    )


def _near(path: Path) -> str:
    there = sorted(p.name for p in path.parent.iterdir()) if path.parent.is_dir() else []
    return near(path.name, there)


def _header(path: Path) -> dict[str, dict[str, Any]]:
    """Tensors of safetensors by their header (its length, then JSON, then the tensors): kind, shape, and position."""
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
    if head == b"" and size < _SMALL and path.read_bytes().startswith(_POINTER):
        raise CheckpointError(
            f"checkpoint must be a complete safetensors file. Got {str(path)!r}, a pointer of Git LFS in its place. "
            "Run 'git lfs pull' where it was cloned."
        )
    if reason:
        raise CheckpointError(
            f"checkpoint must be a complete safetensors file. Got {str(path)!r}, {size:,} bytes, which does not read "
            f"({reason}). Copy or download it again."
        )
    start = 8 + length
    return {key: {**value, "start": start + value["data_offsets"][0]} for key, value in tensors.items()}


def not_finite(name: str, path: Path) -> CheckpointError:
    """Error for a tensor that holds NaN or infinity."""
    return CheckpointError(
        f"checkpoint must hold finite weights. Got NaN or infinity in {name} of {str(path)!r}. Take a checkpoint from "
        "before the training diverged."
    )


def unnamed(path: Path) -> CheckpointError:
    """Error for weights without anything that names their model."""
    return CheckpointError(
        f"--model must be given where no card lies beside the weights. Got none for {str(path)!r}. "
        "Say --model resnet20, or --model package.module:factory."
    )


def check_named(paths: Sequence[Path]) -> None:
    """Refuse files of weights where none has what may be a card or a directory's settings beside it; a copy passes."""
    alone = [
        path.suffix == ".safetensors" and path.is_file() and not path.with_suffix(".json").is_file()
        and not (path.parent / SETTINGS[0]).is_file() for path in paths
    ]  # fmt: skip
    if alone and all(alone) and len({path.resolve() for path in paths}) == len(paths):
        raise unnamed(paths[-1])


def _check_finite(path: Path, tensors: dict[str, dict[str, Any]]) -> None:
    import numpy as np

    for name, said in tensors.items():
        begin, end = said["data_offsets"]
        if said.get("dtype") in _EXPONENTS and name.endswith(_WEIGHTS) and end > begin:
            kind, ones = _EXPONENTS[said["dtype"]]
            count = (end - begin) // np.dtype(kind).itemsize
            bits = np.memmap(path, kind, "r", said["start"], (count,))
            if ((bits & ones) == ones).any():
                raise not_finite(name, path)


def _check_start(path: Path) -> None:
    with path.open("rb") as file:
        start = file.read(2)
    if not start.startswith(_STARTS):
        beside = f" Give its directory, {str(path.parent)!r}." if (path.parent / SETTINGS[0]).is_file() else ""
        raise CheckpointError(
            f"checkpoint must be a complete torch, safetensors or GGUF file. Got {str(path)!r}, which is none "
            f"({path.stat().st_size:,} bytes).{beside}"
        )
