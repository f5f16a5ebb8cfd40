"""Outputs of a command: printed text, and files that never overwrite its inputs or files of other programs.

Tables for people and JSON for machines go to standard output, everything else to standard error. Every command claims
the places it will write to before it starts. Our own files are recognised by their contents, not by their names.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._progress import is_silent
from .._untrusted.text import printable, printable_json
from ._command import running

if TYPE_CHECKING:
    from torch import nn

_WIDE = 200  # characters per line where there is no terminal to fit
_BESIDE = (".json", ".txt", ".model", ".jinja")  # tokenizers, generation and preprocessing
_OF_ADAPTERS = ("adapter_config.json",)
_GENERATION = "generation_config.json"
_END = 1 << 20  # bytes at either end of a file in which our signature stands
_PAGE, _TEXT, _METADATA = b'<meta name="generator" content="intertwine ', b"Written by intertwine.", b'"intertwine"'
_SIGNS = {
    ".html": _PAGE, ".htm": _PAGE, ".yml": _TEXT, ".yaml": _TEXT, ".md": _TEXT, ".safetensors": _METADATA,
    ".parquet": _METADATA,
}  # fmt: skip


def print_json(value: Any) -> None:
    """Print a value as JSON; NaN and infinity become null."""
    plain = json.loads(json.dumps(value, default=str), parse_constant=lambda _: None)
    print(printable_json(json.dumps(plain, indent=2, ensure_ascii=False)))


def print_table(rows: Sequence[Mapping[str, Any]], title: str = "") -> None:
    """Print rows as a table with the names of their columns; numbers are right-aligned."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else _WIDE, highlight=False)
    table = Table(
        box=box.SIMPLE_HEAD, title=Text(printable(title)) if title else None, title_justify="left", pad_edge=False
    )
    for column in rows[0] if rows else ():
        numeric = all(isinstance(row[column], int | float) for row in rows)
        table.add_column(Text(printable(column)), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(_cell(value))) for value in row.values()))
    with console.capture() as drawn:
        console.print(table)
    # without the empty lines and spaces around it
    print("\n".join(line.rstrip().removeprefix(" ") for line in drawn.get().splitlines() if line.strip()))


def tell(text: str) -> None:
    """Print a message for the person at the terminal, on standard error, unless ``--quiet`` was given."""
    if not is_silent():
        print(printable(text), file=sys.stderr)


def say(text: object) -> None:
    """Print a result on standard output, with control characters in untrusted names made harmless."""
    print(printable(str(text)))


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "" if value != value else f"{round(value, 3) + 0.0:.3f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def tell_written(paths: Mapping[str, Path]) -> None:
    """Tell the person at the terminal what was written."""
    if paths:
        tell(f"wrote {', '.join(map(str, paths.values()))}")


def claim_file(path: Path | None, inputs: Sequence[Path] = (), beside: Sequence[Path] = ()) -> None:
    """Refuse, before long work, a file (or one beside it) that is an input or not ours; lock it until the end."""
    from .._io import check_writable

    if path is not None:
        check_writable(path)
        _check([path, *beside], inputs)
        _hold(path.with_name(f".{path.name[:100]}.lock"), path)


def claim_folder(path: Path, names: Sequence[str] = (), inputs: Sequence[Path] = ()) -> None:
    """Make a folder and claim files of these names in it, as ``claim_file`` does; ``.`` is the whole folder."""
    from .._io import check_writable

    if path.exists() and not path.is_dir():
        raise ValueError(f"--out must be a folder. Got the file {str(path)!r}.")
    if any(_same(path, given) for given in inputs):
        raise ValueError(f"--out must not be a folder that is read. Got {str(path)!r} for both.")
    check_writable(path / "results.json")
    _check([path / name for name in names], inputs)
    _hold(path, path)


def claim(path: Path | None, inputs: Sequence[Path]) -> None:
    """Claim the place where weights are written: a file with its card, or a whole folder."""
    if path is None or path.suffix == ".safetensors":
        claim_file(path, inputs, [] if path is None else [path.with_suffix(".json")])
    else:
        claim_folder(path, ["."], inputs)


def is_ours(path: Path) -> bool:
    """Whether intertwine wrote a file, or everything in a folder, judged by the contents."""
    if path.is_dir():
        weights = list(path.glob("*.safetensors"))
        return not any(path.iterdir()) or _signed(path / "README.md") or (bool(weights) and all(map(is_ours, weights)))
    with suppress(OSError, ValueError, TypeError):
        return path.stat().st_size == 0 or (_is_our_json(path) if path.suffix == ".json" else _signed(path))
    return False


def _signed(path: Path) -> bool:
    """Whether a file has our signature near one of its ends."""
    sign = _SIGNS.get(path.suffix)
    if sign is None or not path.is_file():
        return False
    with path.open("rb") as file:
        head, _ = file.read(_END), file.seek(max(0, path.stat().st_size - _END))
        return sign in head or sign in file.read()


def _is_our_json(path: Path) -> bool:
    """Whether a file holds a result or a card."""
    from .._io import read_json
    from ..report.write import KINDS

    said = read_json(path)
    versions = said.get("versions") if isinstance(said, dict) else None
    card = isinstance(versions, dict) and "intertwine" in versions and "architecture" in said
    return card or (isinstance(said, dict) and said.get("kind") in KINDS)


def write_network(model: nn.Module, place: Path, card: Mapping[str, Any], like: Path) -> Path:
    """Write a network with its card, sharded like the checkpoint it was made from, and with that one's side files.

    Side files that are missing there are taken from the directory of the model's configuration: the one that holds a
    file of weights, that ``--model`` names, or that an adapter is for.
    """
    from ..merging import export

    shards = like.glob("*-of-*.safetensors") if like.is_dir() else ()
    written = export(model, place, card, max(map(_tensor_bytes, shards), default=None))
    named = getattr(getattr(model, "config", None), "_name_or_path", None)
    for source in dict.fromkeys([like, Path(named or like)]):
        keep_beside(source, written)
    return written


def keep_beside(source: Path, target: Path) -> Path:
    """Copy what lies beside the weights of one directory, such as a tokenizer, to another directory."""
    from .._io import write_atomically

    # existing files stay, except generation settings, which transformers derives from the configuration
    for file in sorted(source.iterdir()) if source.is_dir() and target.is_dir() else ():
        other = file.suffix in _BESIDE and not file.name.endswith(".index.json") and file.name not in _OF_ADAPTERS
        if other and file.is_file() and (file.name == _GENERATION or not (target / file.name).exists()):
            write_atomically(target / file.name, partial(shutil.copyfile, file))
    return target


def _tensor_bytes(file: Path) -> int:
    with file.open("rb") as opened:
        header = 8 + int.from_bytes(opened.read(8), "little")  # a file begins with the header's length and the header
    return file.stat().st_size - header


def _check(targets: Sequence[Path], inputs: Sequence[Path]) -> None:
    given = [file for place in inputs for file in ([place, *place.iterdir()] if place.is_dir() else [place])]
    for target in targets:
        if not os.path.lexists(target):
            continue
        if any(_same(target, file) for file in given):
            raise ValueError(
                f"--out must not be a place that is read. Got {str(target)!r} for both, perhaps through a link."
            )
        if not running().overwrite and not is_ours(target):
            raise ValueError(
                f"--out must be a new place, or hold what intertwine wrote. Got {str(target)!r}, which is something "
                "else. Choose another place, or say --overwrite to replace it."
            )


def _same(one: Path, other: Path) -> bool:
    """Whether two paths are the same file or folder: links, letter case and detours do not matter."""
    try:
        return os.path.samefile(one, other)
    except OSError:  # one of them does not exist
        return False


def _hold(lock: Path, what: Path) -> None:
    from .._io.scratch import BusyError, hold

    try:
        running().stack.enter_context(hold(lock))
    except BusyError:
        raise ValueError(
            f"--out must be written by one command at a time. Got {str(what)!r}, where another one is writing. Wait "
            "for it, or choose another place."
        ) from None
