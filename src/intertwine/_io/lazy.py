"""State dicts of any size and origin as one lazy mapping: a tensor is made, or read from disk, on request."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from .._memory import check_fits
from .._untrusted.files import json_of, regular_file, within
from ..errors import CheckpointError
from .files import tied_names, write_json, write_tensors
from .gguf_file import GGUF, gguf_tensors

__all__ = ["LazyState", "StoredState", "write_shards"]

State: TypeAlias = Mapping[str, Tensor]
"""Tensors of a network by name; each may be made when it is asked for."""


_PACKED = (torch.int8, torch.uint8, torch.int16, torch.int32)  # indices and masks have others


def packed(state: State, known: Collection[str] = ()) -> str:
    """A tensor that quantisers left, under a name that is not ``known``: a matrix of small integers; empty if none."""
    others = ((n, state[n]) for n in state if n not in known)
    return next((f"{n} {x.dtype}".replace("torch.", "") for n, x in others if x.ndim == 2 and x.dtype in _PACKED), "")


def check_unpacked(a: State, b: State) -> None:
    """Refuse what quantisers left in one of two networks under a name that the other does not have.

    Raises:
        ValueError: If there is such a tensor.
    """
    for side, state, other in (("a", a, b), ("b", b, a)):
        if codes := packed(state, other):
            raise ValueError(f"{side} must hold plain weights. Got {codes}: dequantise the weights first.")


class LazyState(Mapping[str, Tensor]):
    """Tensors by name, each made anew on every request.

    Args:
        make: Functions that make the tensors.
        folders: Folders from which they are read, into which nothing may be written.
    """

    def __init__(self, make: Mapping[str, Callable[[], Tensor]], folders: frozenset[Path] = frozenset()) -> None:
        self._make, self.folders = make, folders

    def __getitem__(self, name: str) -> Tensor:
        return self._make[name]()

    def __contains__(self, name: object) -> bool:
        return name in self._make  # without making it

    def __iter__(self) -> Iterator[str]:
        return iter(self._make)

    def __len__(self) -> int:
        return len(self._make)

    @classmethod
    def renamed(cls, state: Mapping[str, Tensor], names: Mapping[str, str]) -> "LazyState":
        """Tensors of a state dict under other names; ``names`` maps new names to its own."""
        return cls({new: partial(state.__getitem__, old) for new, old in names.items()}, folders_of(state))

    @classmethod
    def changed(cls, state: Mapping[str, Tensor], change: Callable[[str, Tensor], Tensor]) -> "LazyState":
        """Tensors of a state dict, each changed by a function of its name and itself."""
        return cls({n: partial(lambda n: change(n, state[n]), n) for n in state}, folders_of(state))


class StoredState(LazyState):
    """A checkpoint in safetensors, whole or in shards, or in GGUF, whose tensors are read from disk each time.

    Args:
        path: ``*.safetensors.index.json``, a single ``.safetensors`` file, a folder with either, or a ``.gguf`` file,
            whose tensors are dequantised. Tied tensors kept under one name (``save_model``) are there under all names.

    Attributes:
        files: File that holds each tensor, by name.

    Raises:
        CheckpointError: If files are missing or damaged, or the index disagrees with them.
    """

    def __init__(self, path: str | Path) -> None:
        path = _found(Path(path))
        self._stored = gguf_tensors(path) if path.suffix == GGUF else {}
        read = _names if path.suffix == ".safetensors" else _indexed
        files, said = (dict.fromkeys(self._stored, path), {}) if self._stored else read(path)
        self._tied = tied_names(said, files)
        self.files = {**files, **{name: files[kept] for name, kept in self._tied.items()}}
        folders = frozenset(file.parent.resolve() for file in files.values())
        make = {name: tensor.read for name, tensor in self._stored.items()}
        stored = {name: partial(_read, file, self._tied.get(name, name)) for name, file in self.files.items()}
        super().__init__(make or stored, folders)

    def tensors(self) -> dict[str, Tensor]:
        """All tensors in memory.

        Raises:
            CheckpointError: If they do not fit.
        """  # noqa: DOC502 - raised by the check
        size = sum(prod(shape) * dtype.itemsize for shape, dtype in self.headers().values())
        check_fits(size, "checkpoint", f"{len(self)} tensors", "Work on its shards instead.", error=CheckpointError)
        return {name: self[name] for name in self}

    def headers(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and type of each tensor by name; tensors are not read."""
        from safetensors import safe_open

        found = {name: (tensor.shape, tensor.dtype) for name, tensor in self._stored.items()}
        for path in () if found else sorted(set(self.files.values())):
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118
                    header = file.get_slice(name)
                    shape = tuple(header.get_shape())
                    found[name] = shape, (header[:0] if shape else file.get_tensor(name)).dtype
        return found | {name: found[kept] for name, kept in self._tied.items()}


def folders_of(state: Mapping[str, Tensor]) -> frozenset[Path]:
    """Folders that the tensors of a state dict are read from."""
    return state.folders if isinstance(state, LazyState) else frozenset()


def headers_of(state: Mapping[str, Tensor]) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Shape and type of each tensor by name; where possible, tensors are not read from disk."""
    if isinstance(state, StoredState):
        return state.headers()
    return {name: (tuple(x.shape), x.dtype) for name, x in state.items()}


def write_shards(target: str | Path, state: Mapping[str, Tensor], shard_bytes: int = 2 * 1024**3) -> Path:
    """Write a state dict in shards, with at most one of them in memory.

    Args:
        target: A folder for ``model-00001.safetensors``, ... and ``model.safetensors.index.json``.
        state: The tensors.
        shard_bytes: Largest size of a shard; one tensor may be larger.

    Returns:
        The index, which is written last: a folder without it is incomplete.

    Raises:
        ValueError: If ``target`` holds what the tensors are read from, or weights in one file, which readers would take
            for the model's; or if ``shard_bytes`` is not positive.
    """
    target = Path(target)
    if target.resolve() in folders_of(state):
        raise ValueError(f"target must be another folder than the source's. Got {str(target)!r}.")
    if (whole := target / "model.safetensors").exists():
        raise ValueError(f"target must hold no other weights. Got {str(whole)!r}. Move it or name another folder.")
    if shard_bytes < 1:
        raise ValueError(f"shard_bytes must be positive. Got {shard_bytes}.")
    shard: dict[str, Tensor] = {}
    table: dict[str, str] = {}
    held = total = 0

    def write() -> None:
        name = f"model-{len(set(table.values())) + 1:05d}.safetensors"
        write_tensors(target / name, shard, {"format": "pt"})
        table.update(dict.fromkeys(shard, name))

    for name in state:
        tensor = state[name]
        size = tensor.numel() * tensor.element_size()
        if shard and held + size > shard_bytes:
            write()
            shard, held = {}, 0
        shard[name] = tensor
        held, total = held + size, total + size
        del tensor
    if shard:
        write()
    return write_json(target / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": table})


def no_weights(folder: Path) -> CheckpointError:
    """The error of a folder without safetensors weights."""
    pickled = sorted(file.name for file in folder.glob("*.bin"))
    whole = folder / "pytorch_model.bin"
    way = f"Give {str(whole)!r} itself (only its tensors are read), or save" if whole.is_file() else "Save"
    return CheckpointError(
        f"folder must hold safetensors weights: a .safetensors file, or shards with an *.index.json. Got "
        f"{str(folder)!r}{f', with {pickled[0]}' if pickled else ''}. {way} the model with save_pretrained()."
    )


def _indexed(path: Path) -> tuple[dict[str, Path], Any]:
    """Files of tensors by name, as an index gives them, and its metadata."""
    index = json_of(path, "index", CheckpointError)
    table = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(table, dict) or not table:
        raise CheckpointError(f"index must hold a weight_map. Got none in {str(path)!r}.")
    for file in table.values():
        if not isinstance(file, str) or Path(file).name != file:
            raise CheckpointError(f"weight_map must name files beside the index. Got {file!r}.")
    for file in set(table.values()):
        within(path.parent, file, "shard", CheckpointError)
    held = {file: _names(path.parent / file)[0] for file in sorted(set(table.values()))}
    for name, file in table.items():
        if name not in held[file]:
            raise CheckpointError(f"index must agree with its shards. Got {name!r}, not in {file!r}.")
    return {name: path.parent / file for name, file in table.items()}, index.get("metadata")


def _found(path: Path) -> Path:
    if path.is_dir():
        found = [*sorted(path.glob("*.index.json")), *sorted(path.glob("*.safetensors"))]
        inside = [file for file in found if not file.name.startswith(".") and ".bin." not in file.name]
        if not inside:
            raise no_weights(path)
        some = [file for file in inside if file.name.endswith(".index.json")] or inside
        some = [file for file in some if file.name.startswith("model.safetensors")] or some
        if len(some) > 1:
            raise CheckpointError(
                f"folder must say which of its files are the weights: by an *.index.json for shards, or one file as "
                f"model.safetensors. Got {some[0].name!r} and {len(some) - 1} more in {str(path)!r}. Give one file."
            )
        return some[0]
    if not path.is_file() or not re.search(r"\.(safetensors|index\.json|gguf)$", path.name):
        raise CheckpointError(
            f"checkpoint must be an existing .safetensors, *.index.json or .gguf file. Got {str(path)!r}."
        )
    return path


def _names(path: Path) -> tuple[dict[str, Path], Any]:
    """The file under the name of each of its tensors, and its metadata."""
    from safetensors import SafetensorError, safe_open

    regular_file(path, "shard", CheckpointError)
    try:
        with safe_open(path, framework="pt") as file:
            return dict.fromkeys(file.keys(), path), file.metadata()
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"shard must be a complete safetensors file. Got {str(path)!r} ({error}).") from None


def _read(path: Path, name: str) -> Tensor:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return file.get_tensor(name)
