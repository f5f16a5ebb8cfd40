"""Outputs of commands: not over what they read, nor over what is not intertwine's, and not beside another command.

Every command that writes says first what it will write. Files of ours are known by what is in them, not by their names.
"""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ..._io import check_writable, read_json, write_atomically
from ..._io.scratch import BusyError, hold
from ...report.write import KINDS
from .._running import running

RESULTS = ("results.json", "results.parquet", "report.html")

_BESIDE = (".json", ".txt", ".model", ".jinja")  # tokenizers, generation and preprocessing
_OF_ADAPTERS = ("adapter_config.json",)
_GENERATION = "generation_config.json"
_HEAD = 1 << 20  # bytes of a page in which its generator stands


def claim_file(path: Path | None, inputs: Sequence[Path] = (), beside: Sequence[Path] = ()) -> None:
    """Refuse a file that must not be written, before long work, and hold it until the command ends.

    Args:
        path: Where to write; ``None`` where nothing is written.
        inputs: What the command reads: files, and folders with all that is in them.
        beside: Other files that are written along.

    Raises:
        ValueError: If it is an input, or there is a file that is not ours, or nothing can be written there.
    """  # noqa: DOC502 - helpers raise it
    if path is not None:
        check_writable(path)
        _check([path, *beside], inputs)
        _hold(path.with_name(f".{path.name[:100]}.lock"), path)


def claim_folder(path: Path, names: Sequence[str] = (), inputs: Sequence[Path] = ()) -> None:
    """Make a folder for results, before long work, and hold it until the command ends.

    Args:
        path: The folder.
        names: Of the files in it that will be written, and of folders that are this command's own.
        inputs: What the command reads: files, and folders with all that is in them.

    Raises:
        ValueError: If there is a file of that name, it is an input, or holds files of these names that are not ours.
    """
    if path.exists() and not path.is_dir():
        raise ValueError(f"--out must be a folder. Got the file {str(path)!r}.")
    if any(_same(path, given) for given in inputs):
        raise ValueError(f"--out must be another folder than what is read. Got {str(path)!r} for both.")
    check_writable(path / "results.json")
    _check([path / name for name in names], inputs)
    _hold(path, path)


def claim(path: Path | None, inputs: Sequence[Path]) -> None:
    """Claim where weights are written: a file with its card, or a folder of which all is the command's own."""
    if path is None or path.suffix == ".safetensors":
        claim_file(path, inputs, [] if path is None else [path.with_suffix(".json")])
    else:
        claim_folder(path, ["."], inputs)


def is_ours(path: Path) -> bool:
    """Whether intertwine wrote a file, or all that is in a folder, by what is in it."""
    if path.is_dir():
        weights = list(path.glob("*.safetensors"))
        return (
            not any(path.iterdir())
            or _has(path / "README.md", "Written by intertwine.")
            or (bool(weights) and all(map(is_ours, weights)))
        )
    read = {
        ".json": _json, ".safetensors": _safetensors, ".parquet": _parquet, ".html": _page, ".htm": _page,
        ".yml": _recipe, ".yaml": _recipe,
    }  # fmt: skip
    try:
        return path.stat().st_size == 0 or (path.suffix in read and read[path.suffix](path))
    except (OSError, ValueError, KeyError):
        return False


def keep_beside(source: Path, target: Path) -> Path:
    """Put what lies beside the weights of a directory, such as a tokenizer, beside those in another one.

    Args:
        source: A directory of transformers, or a file, beside which nothing is looked for.
        target: Where a network was written; what is there already stays, but for settings of generation, which
            transformers makes anew from the configuration.
    """
    for file in sorted(source.iterdir()) if source.is_dir() and target.is_dir() else ():
        other = file.suffix in _BESIDE and not file.name.endswith(".index.json") and file.name not in _OF_ADAPTERS
        if other and file.is_file() and (file.name == _GENERATION or not (target / file.name).exists()):
            write_atomically(target / file.name, partial(_copy, file))
    return target


def largest_shard(source: Path) -> int | None:
    """Bytes of tensors in the largest shard of a directory; ``None`` where its weights are in one file."""
    files = source.glob("*-of-*.safetensors") if source.is_dir() else ()
    return max(map(_tensor_bytes, files), default=None)


def _tensor_bytes(file: Path) -> int:
    with file.open("rb") as opened:
        header = 8 + int.from_bytes(opened.read(8), "little")  # as the format has it: its length, then the header
    return file.stat().st_size - header


def _copy(file: Path, to: Path) -> None:
    to.write_bytes(file.read_bytes())


def _check(targets: Sequence[Path], inputs: Sequence[Path]) -> None:
    given = [file for place in inputs for file in ([place, *place.iterdir()] if place.is_dir() else [place])]
    for target in targets:
        if not os.path.lexists(target):
            continue
        if any(_same(target, file) for file in given):
            raise ValueError(
                f"--out must be another place than what is read. Got {str(target)!r} for both, perhaps by a link."
            )
        if not running().overwrite and not is_ours(target):
            raise ValueError(
                f"--out must be a new place, or hold what intertwine wrote. Got {str(target)!r}, which is something "
                "else. Choose another place, or say --overwrite to replace it."
            )


def _same(one: Path, other: Path) -> bool:
    """Whether two paths are one file or folder: links, cases and detours do not matter."""
    try:
        return os.path.samefile(one, other)
    except OSError:  # one of them does not exist
        return False


def _hold(lock: Path, what: Path) -> None:
    try:
        running().stack.enter_context(hold(lock))
    except BusyError:
        raise ValueError(
            f"--out must be written by one command at a time. Got {str(what)!r}, where another one is at work. Wait "
            "for it, or choose another place."
        ) from None


def _json(path: Path) -> bool:

    said = read_json(path)
    versions = said.get("versions") if isinstance(said, dict) else None
    card = isinstance(versions, dict) and "intertwine" in versions and "architecture" in said
    return card or (isinstance(said, dict) and said.get("kind") in KINDS)


def _safetensors(path: Path) -> bool:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
    except SafetensorError:
        return False
    return "intertwine" in metadata


def _parquet(path: Path) -> bool:
    import pyarrow
    from pyarrow import parquet

    try:
        metadata = parquet.read_schema(path).metadata or {}
    except pyarrow.ArrowException:
        return False
    return b'"intertwine"' in metadata.get(b"PANDAS_ATTRS", b"")


def _page(path: Path) -> bool:
    return _has(path, '<meta name="generator" content="intertwine ')


def _recipe(path: Path) -> bool:
    return _has(path, "# Written by intertwine.")


def _has(path: Path, words: str) -> bool:
    try:
        with path.open("rb") as file:
            return words.encode() in file.read(_HEAD)
    except OSError:
        return False
