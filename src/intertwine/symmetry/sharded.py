"""Checkpoints that do not fit in memory: acting and fingerprinting one tensor, or one coupled group, at a time."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from .._io import write_json, write_tensors
from .._memory import check_fits
from .._untrusted.files import json_of, regular_file, within
from ..errors import CheckpointError
from .action import check_numbers, check_shapes, moved
from .gauge.fingerprint import fingerprint_state
from .symmetry import Symmetry
from .transformation import Transformation


class ShardedState(Mapping[str, Tensor]):
    """A safetensors checkpoint as a mapping that reads a tensor from disk each time it is asked for one.

    Args:
        path: ``*.safetensors.index.json``, a single ``.safetensors`` file, or a folder with either.

    Attributes:
        files: Name of each tensor to the file that holds it.

    Raises:
        CheckpointError: If files are missing or damaged, or the index disagrees with them.
    """

    def __init__(self, path: str | Path) -> None:
        path = _found(Path(path))
        if path.suffix == ".safetensors":
            self.files = dict.fromkeys(_names(path), path)
            return
        index = json_of(path, "index", CheckpointError)
        table = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(table, dict) or not table:
            raise CheckpointError(f"index must hold a weight_map. Got none in {str(path)!r}.")
        for file in table.values():
            if not isinstance(file, str) or Path(file).name != file:
                raise CheckpointError(f"weight_map must name files beside the index. Got {file!r}.")
        for file in set(table.values()):
            within(path.parent, file, "shard", CheckpointError)
        held = {path.parent / file: _names(path.parent / file) for file in sorted(set(table.values()))}
        self.files = {name: path.parent / file for name, file in table.items()}
        for name, file in self.files.items():
            if name not in held[file]:
                raise CheckpointError(f"index must agree with its shards. Got {name!r}, not in {file.name!r}.")

    def __getitem__(self, name: str) -> Tensor:
        from safetensors import safe_open

        with safe_open(self.files[name], framework="pt") as file:
            return file.get_tensor(name)

    def __contains__(self, name: object) -> bool:
        return name in self.files  # without reading it

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)

    def tensors(self) -> dict[str, Tensor]:
        """All tensors in memory.

        Raises:
            CheckpointError: If they do not fit.
        """  # noqa: DOC502 - raised by the check
        size = sum(file.stat().st_size for file in set(self.files.values()))
        check_fits(size, "checkpoint", f"{len(self)} tensors", "Work on its shards instead.", error=CheckpointError)
        return {name: self[name] for name in self}

    def check(self, sym: Symmetry) -> None:
        """Refuse tensors of another architecture, or of numbers that cannot be moved; only headers are read.

        Raises:
            ValueError: If there is one.
        """  # noqa: DOC502 - raised by the checks
        headers = self.headers()
        check_shapes(sym, {name: shape for name, (shape, _) in headers.items()})
        check_numbers(sym, {name: dtype for name, (_, dtype) in headers.items()})

    def headers(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Name of each tensor to its shape and type; tensors are not read."""
        from safetensors import safe_open

        found = {}
        for path in sorted(set(self.files.values())):
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118
                    header = file.get_slice(name)
                    shape = tuple(header.get_shape())
                    found[name] = shape, (header[:0] if shape else file.get_tensor(name)).dtype
        return found


class Renamed(Mapping[str, Tensor]):
    """Tensors of a checkpoint under other names, read when they are asked for.

    Args:
        state: The checkpoint.
        names: New names to those in the checkpoint.
    """

    def __init__(self, state: Mapping[str, Tensor], names: Mapping[str, str]) -> None:
        self._state, self._names = state, names

    def __getitem__(self, name: str) -> Tensor:
        return self._state[self._names[name]]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def act_sharded(
    sym: Symmetry, g: Transformation, source: str | Path, target: str | Path, shard_bytes: int = 2 * 1024**3
) -> Path:
    """Apply ``g`` to a checkpoint on disk and write the result in shards, without ever holding the model.

    Every tensor moves by itself (a batch norm's gain also reads the variance), so that at most one shard of the result
    is in memory: ``shard_bytes``, or the largest tensor where that is more.

    Args:
        sym: The symmetry of the architecture, found on the meta device for instance.
        g: One of its elements.
        source: The checkpoint: an index, a ``.safetensors`` file, or a folder with either.
        target: A folder for ``model-00001.safetensors``, ... and ``model.safetensors.index.json``.
        shard_bytes: Largest size of a shard.

    Returns:
        The index that was written, last: a folder without it is incomplete.

    Raises:
        ValueError: If ``target`` holds the source, ``shard_bytes`` is not positive, or the tensors are of another
            architecture or no real numbers; nothing is written then.
    """
    state, target = ShardedState(source), Path(target)
    if any(file.parent.resolve() == target.resolve() for file in state.files.values()):
        raise ValueError(f"target must be another folder than the source's. Got {str(target)!r}.")
    if shard_bytes < 1:
        raise ValueError(f"shard_bytes must be positive. Got {shard_bytes}.")
    state.check(sym)
    shard: dict[str, Tensor] = {}
    table: dict[str, str] = {}
    held = total = 0
    for name in state:
        origin = sym.aliases.get(name, name)
        new = moved(sym, g, state, [origin]) if origin in sym.layouts and origin in state else {}
        tensor = new.get(origin)
        tensor = state[name] if tensor is None else tensor
        size = tensor.numel() * tensor.element_size()
        if shard and held + size > shard_bytes:
            _write(target, shard, table)
            shard, held = {}, 0
        shard[name] = tensor
        held, total = held + size, total + size
    _write(target, shard, table)
    return write_json(target / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": table})


def fingerprint_sharded(sym: Symmetry, source: str | Path) -> str:
    """The fingerprint of a checkpoint on disk, read one group of coupled tensors at a time.

    Args:
        sym: The symmetry of the architecture, found on the meta device for instance.
        source: The checkpoint: an index, a ``.safetensors`` file, or a folder with either.

    Returns:
        The same string as ``fingerprint`` of the model.
    """
    state = ShardedState(source)
    state.check(sym)
    return fingerprint_state(sym, state)


def _write(target: Path, shard: dict[str, Tensor], table: dict[str, str]) -> None:
    if shard:
        name = f"model-{len(set(table.values())) + 1:05d}.safetensors"
        write_tensors(target / name, shard, {"format": "pt"})
        table |= dict.fromkeys(shard, name)


def no_weights(folder: Path) -> CheckpointError:
    """The error of a folder without safetensors weights."""
    pickled = sorted(file.name for file in folder.glob("*.bin"))
    return CheckpointError(
        f"folder must hold safetensors weights: a .safetensors file, or shards with an *.index.json. Got "
        f"{str(folder)!r}{f', with {pickled[0]}' if pickled else ''}. Save the model with save_pretrained()."
    )


def _found(path: Path) -> Path:
    if path.is_dir():
        found = [*sorted(path.glob("*.index.json")), *sorted(path.glob("*.safetensors"))]
        inside = [file for file in found if not file.name.startswith(".") and ".bin." not in file.name]
        if not inside:
            raise no_weights(path)
        return inside[0]
    if not path.is_file() or not re.search(r"\.(safetensors|index\.json)$", path.name):
        raise CheckpointError(f"checkpoint must be an existing .safetensors or *.index.json file. Got {str(path)!r}.")
    return path


def _names(path: Path) -> set[str]:
    from safetensors import SafetensorError, safe_open

    regular_file(path, "shard", CheckpointError)
    try:
        with safe_open(path, framework="pt") as file:
            return set(file.keys())
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"shard must be a complete safetensors file. Got {str(path)!r} ({error}).") from None
