"""Networks as files: safetensors with a card, or a Hugging Face directory."""

import json
import re
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from .._io import file_digest, versions, write_atomically, write_json, write_tensors, write_text
from .._io.scratch import Scratch

_ONE_FILE = 1 << 50  # bytes
_WEIGHTS = re.compile(r"model(-\d{5}(-of-\d{5})?)?\.safetensors(\.index\.json)?")
_FIELDS = ("architecture", "data", "seed", "recipe", "metrics", "best_epoch", "mean", "std", "classes", "shape")


def export(
    model: nn.Module, path: str | Path, card: Mapping[str, Any] | None = None, shard_bytes: int | None = None
) -> Path:
    """Write a network so that others can load it.

    A path that ends in ``.safetensors`` gets the state dict, with a JSON card beside it, which every command of
    intertwine reads. Any other path becomes a folder with ``config.json``, ``model.safetensors`` and a ``README.md``,
    for ``from_pretrained`` of transformers; that needs a model of transformers.

    Args:
        model: The network.
        path: Where to write. In an existing folder of that name, files are replaced one at a time.
        card: What the network is: any of ``architecture``, ``data``, ``seed``, ``recipe``, ``metrics``,
            ``best_epoch``, ``mean``, ``std``, ``classes`` and ``shape``. How it was merged belongs in ``recipe``.
        shard_bytes: Largest size of a folder's weight files, in bytes; by default all weights go into one file.

    Raises:
        ValueError: If the card has other fields, or the path is a file of another kind.
        TypeError: If a folder is wanted and the model is not one of transformers.

    Examples:
        >>> folder = getfixture("tmp_path")
        >>> path = export(nn.Linear(2, 1), folder / "merged.safetensors", {"recipe": {"ratio": 0.5}})
        >>> sorted(p.name for p in folder.iterdir())
        ['merged.json', 'merged.safetensors']
    """
    path = Path(path)
    unknown = set(card or {}) - set(_FIELDS)
    if unknown:
        raise ValueError(f"card must have fields among {', '.join(_FIELDS)}. Got {', '.join(sorted(unknown))}.")
    facts = {"architecture": type(model).__name__, **(card or {}), "versions": versions()}
    if path.suffix == ".safetensors":
        write_tensors(path, model.state_dict(), {"architecture": str(facts["architecture"])})
        write_json(path.with_suffix(".json"), {**facts, "sha256": file_digest(path)})
        return path
    if path.suffix or path.is_file():
        raise ValueError(f"path must end in .safetensors, or be a folder. Got {str(path)!r}.")
    if not hasattr(model, "save_pretrained"):
        raise TypeError(
            f"model must be one of transformers to be written as a folder. Got {type(model).__name__}. "
            "Use a path that ends in .safetensors."
        )
    return _as_folder(model, path, facts, shard_bytes)


def _as_folder(model: Any, path: Path, facts: Mapping[str, Any], shard_bytes: int | None) -> Path:
    """Let transformers write beside the folder, then move file by file, so that readers never see half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = Scratch(path.parent, f".{path.name}", directory=True)
    try:
        model.save_pretrained(scratch.path, max_shard_size=shard_bytes or _ONE_FILE)
        path.mkdir(exist_ok=True)
        names = sorted(file.name for file in scratch.path.iterdir())
        for name in names:
            write_atomically(path / name, partial(shutil.move, scratch.path / name))
        for old in path.iterdir():
            if _WEIGHTS.fullmatch(old.name) and old.name not in names:  # left from before: they would be read instead
                old.unlink()
    finally:
        scratch.close()
    write_text(path / "README.md", _readme(path.name, {**facts, "architecture": type(model).__name__}))
    return path


def _readme(name: str, facts: Mapping[str, Any]) -> str:
    """The card as the page that model hubs show."""
    said = {k: v if isinstance(v, str) else json.dumps(v, ensure_ascii=False, default=str) for k, v in facts.items()}
    cells = {key: " ".join(said[key].replace("|", "\\|").split()) for key in facts}
    rows = [f"| {key} | {cells[key]} |" for key, value in facts.items() if value not in (None, {}, (), [])]
    table = "\n".join(["| | |", "|---|---|", *rows])
    head = "---\ntags: [intertwine]\nlibrary_name: transformers\n---"
    return f"{head}\n\n# {name}\n\nWritten by intertwine.\n\n{table}\n"
