"""Features of many layers of two networks from one pass over the data, in memory or in temporary files."""

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import torch
from torch import Tensor

from ..._io.scratch import Scratch, sweep
from ..._memory import readable
from ...features import Point


class Spool:
    """Rows of features of some layers, appended batch by batch and read back as one tensor per layer.

    Rows live in memory while they fit the budget. The row that does not fit moves everything to temporary files, which
    are then mapped into memory; the numbers are the same. Features of 16 or 8 bits are kept in float32. Rows beyond
    ``most`` examples are ignored; an expected number saves copying.

    Attributes:
        points: The layers by name, once :meth:`open` was called.
        on_disk: Whether the features are in temporary files.
    """

    def __init__(
        self, budget: int, examples: int | None = None, most: int | None = None, folder: str | Path | None = None
    ) -> None:
        self.points: dict[str, Point] = {}
        self.on_disk = False
        self.broken: set[str] = set()  # layers with values that are no numbers: they have no score
        self._budget = budget
        self._expected = examples
        self._rows: dict[str, Tensor] = {}
        self._most = most
        self._count: dict[str, int] = {}
        self._files: dict[str, BinaryIO] = {}
        self._dtypes: dict[str, torch.dtype] = {}
        self._extremes: dict[str, tuple[Tensor, Tensor]] = {}
        self._parent = folder
        self._scratch: Scratch | None = None

    def open(self, points: Sequence[Point]) -> None:
        """Say which layers come, where their channels are, and what one example's shape and type are."""
        self.points = {p.name: p for p in points}
        self._count = dict.fromkeys(self.points, 0)
        if self._bytes(self._expected or 0) > self._budget:
            self._move_to_disk()  # before the work: it may be refused

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rows.clear()
        for file in self._files.values():
            file.close()
        if self._scratch is not None:
            self._scratch.close()

    @property
    def examples(self) -> int:
        """The number of examples, the same for all layers."""
        return min(self._count.values())

    def append(self, name: str, features: Tensor) -> Tensor:
        """Append a copy of a batch of a layer's features; returns an empty tensor, since nothing is left to keep."""
        if self._most is not None:
            features = features[: self._most - self._count[name]]
        if features.dtype.itemsize < 2:  # float8 has no arithmetic
            features = features.float()
        shape = self.points[name].shape
        if tuple(features.shape[1:]) != shape:
            raise ValueError(
                f"features of layer {name!r} must have one shape in all batches. Got {tuple(features.shape[1:])} after "
                f"{shape}. Pad or resize the inputs to one size."
            )
        low, high = self._extend(name, features)
        if not torch.isfinite(high - low).all():  # extremes carry NaN along
            self.broken.add(name)
        self._dtypes.setdefault(name, _stored(features.dtype))
        start, n = self._count[name], features.shape[0]
        if not self.on_disk and self._bytes(start + n) > self._budget:
            self._move_to_disk()
        if self.on_disk:
            self._write(name, features)
        else:
            self._room(name, start + n)[start : start + n].copy_(features)
        self._count[name] = start + n
        return torch.empty(0)

    def extremes(self, name: str) -> tuple[Tensor, Tensor]:
        """Smallest and largest value of each channel of a layer, ``(C,)`` each."""
        return self._extremes[name]

    def dtype(self, name: str) -> torch.dtype:
        """Type of a layer's stored features; before the first ones come, that of the listing run's."""
        return self._dtypes.get(name, _stored(self.points[name].dtype))

    def _extend(self, name: str, features: Tensor) -> tuple[Tensor, Tensor]:
        """Take the batch into the extremes of the channels, and return them."""
        axis = self.points[name].channel_dim % features.ndim
        others = [d for d in range(features.ndim) if d != axis]
        low, high = features.amin(others).cpu(), features.amax(others).cpu()
        if name in self._extremes:
            low, high = torch.minimum(low, self._extremes[name][0]), torch.maximum(high, self._extremes[name][1])
        self._extremes[name] = (low, high)
        return low, high

    def read(self, name: str) -> Tensor:
        """All features of a layer, ``(N, *shape)`` on the CPU: the stored rows themselves, so not to be changed."""
        n, shape = self._count[name], self.points[name].shape
        if not self.on_disk:
            return self._rows[name][:n]
        self._files[name].flush()
        size = n * math.prod(shape)
        path = self._files[name].name
        return torch.from_file(path, shared=False, size=size, dtype=self._dtypes[name]).view(n, *shape)

    def _bytes(self, examples: int) -> int:
        """Memory of all layers together at this many examples."""
        sizes = ((p.size, self.dtype(name).itemsize) for name, p in self.points.items())
        return examples * sum(size * item for size, item in sizes)

    def _room(self, name: str, needed: int) -> Tensor:
        """The layer's rows, with room for ``needed``."""
        rows = self._rows.get(name)
        if rows is None or rows.shape[0] < needed:
            capacity = max(needed, self._expected or 0) if rows is None else max(needed, 2 * rows.shape[0])
            grown = torch.empty(capacity, *self.points[name].shape, dtype=self._dtypes[name])
            if rows is not None:
                grown[: self._count[name]] = rows[: self._count[name]]
            self._rows[name] = rows = grown
        return rows

    def _move_to_disk(self) -> None:
        sweep(self._parent)
        self._scratch = Scratch(self._parent, "intertwine-", directory=True)
        folder = self._scratch.path
        needed, free = self._bytes(self._expected or 0), shutil.disk_usage(folder).free
        if needed > free:
            raise ValueError(
                f"memory must hold the features where the disk does not. Got {readable(self._budget)} of memory and "
                f"{readable(free)} free in {folder.parent}; the features take {readable(needed)}. "
                "Use fewer examples or layers, more memory, or set TMPDIR to a larger disk."
            )
        self.on_disk = True
        for i, name in enumerate(self.points):
            self._files[name] = (folder / str(i)).open("wb", buffering=0)
            if self._count[name]:
                self._write(name, self._rows.pop(name)[: self._count[name]])
        self._rows.clear()

    def _write(self, name: str, features: Tensor) -> None:
        rows: Any = features.to("cpu", self._dtypes[name]).contiguous().numpy()
        view = memoryview(rows).cast("B")
        while view:  # an unbuffered write may be partial
            view = view[self._files[name].write(view) :]


def _stored(dtype: torch.dtype) -> torch.dtype:
    """The type in which features of a type are kept."""
    return torch.float64 if dtype == torch.float64 else torch.float32
