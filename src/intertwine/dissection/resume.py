"""Going on after a stop: every finished basis is a file, and a folder belongs to one plan."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .._io import read_json, write_json
from .._io.codec import decode, encode
from .._nested import tensors_in
from .arms import Arm
from .concepts import ConceptSet
from .result import ArmResult, Picture


class Folder:
    """Finished bases on disk, for one plan."""

    def __init__(self, path: str | Path | None, plan: Mapping[str, Any]) -> None:
        self._path = None if path is None else Path(path)
        if self._path is None:
            return
        file = self._path / "plan.json"
        if file.exists() and (before := read_json(file)) != dict(plan):
            differing = sorted(k for k in plan if before.get(k) != plan[k])
            raise ValueError(
                f"resume must be a folder of the same dissection. Got {str(path)!r}, where {', '.join(differing)} "
                "differ. Use another folder."
            )
        write_json(file, plan)

    def load(self, arm: Arm, pictures: int) -> tuple[ArmResult, tuple[Picture, ...]] | None:
        """What was found in a basis, if it is finished."""
        file = self._path and self._path / f"{arm.name}.json"
        if not file or not file.exists() or (data := read_json(file))["asked"] < pictures:
            return None
        shown = decode(data["pictures"], tuple[Picture, ...]) if pictures else ()
        return decode(data["result"], ArmResult), shown

    def save(self, result: ArmResult, pictures: tuple[Picture, ...], asked: int) -> None:
        """Write a finished basis."""
        if self._path:
            shown = encode(pictures, tuple[Picture, ...])
            data = {"result": encode(result, ArmResult), "pictures": shown, "asked": asked}
            write_json(self._path / f"{result.arm.name}.json", data)


def digest(model: nn.Module) -> str:
    """A hash of all weights."""
    found = hashlib.sha256(type(model).__qualname__.encode())
    for key, tensor in sorted(model.state_dict().items()):
        found.update(key.encode())
        found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:32]


def digest_data(concepts: ConceptSet, transform: Callable[[Tensor], Any]) -> str:
    """A hash of a concept set's names, of its first and last image, and of what the model is given for the first."""
    found = hashlib.sha256(repr((concepts.name, len(concepts), concepts.concepts)).encode())
    for i in (0, len(concepts) - 1):
        for tensor in (concepts[i].image, concepts[i].labels.long()):
            found.update(tensor.contiguous().numpy().tobytes())
    for tensor in tensors_in(transform(next(concepts.batches(1)).images)):
        found.update(tensor.detach().cpu().double().contiguous().numpy().tobytes())
    return found.hexdigest()[:32]
