"""Features of all layers of a network, kept in memory or in temporary files, so that all of them count in a score."""

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from ..._io.scratch import Scratch, sweep
from ..._memory import readable
from ...features import Point
from .._features import unit_scale
from ..measures.cka import CKA, prepare_gram
from ..measures.kernels import LinearKernel, linear_gram
from .layers import Layer, Network, channels_first_shape, check_shape
from .positions import pool


class WholeLayer(Layer):
    """One layer of which all features are kept; its examples are one block."""

    def __init__(self, point: Point, side: str, device: torch.device | None) -> None:
        super().__init__(point.name, side, channels_first_shape(point))
        self._point, self._device = point, device
        self._grams: dict[str, Tensor] = {}
        self.stored = torch.empty(0)  # ``(N, *shape)`` on the CPU, not to be changed

    def features(self, space: tuple[int, ...] | None = None) -> Tensor:
        """Features ``(N, C, *S)`` on the device of the work, at a spatial size of their own or another."""
        x = self.stored.to(self._device).movedim(self._point.channel_dim, 1)
        return x if space is None else pool(x, space)

    @property
    def scale(self) -> Tensor:
        """The power of 2 that brings the largest feature near 1, ``(1,)``."""
        return unit_scale(torch.maximum(-self.low, self.high).double())

    def gram(self, measure: CKA, block: int) -> Tensor:
        """The U-centred Gram matrix of all examples at norm 1, kept until :meth:`forget`."""
        if measure.kernel.name not in self._grams:
            x = self.features()
            if isinstance(measure.kernel, LinearKernel):  # needs no moments of the channels
                side = prepare_gram(linear_gram(x, self.scale.expand(x.shape[1])))
            else:
                side = measure.gram_side(x)
            self._grams[measure.kernel.name] = side.gram
        return self._grams[measure.kernel.name]

    def rows(self, space: tuple[int, ...]) -> Sequence[Tensor]:
        """Rows of channels at all positions, ``(N, P, C)``."""
        x = self.features(space)
        return [(x.flatten(2) if x.ndim > 2 else x[:, :, None]).mT]

    def forget(self) -> None:
        """Free the Gram matrices."""
        self._grams.clear()


class Features:
    """Features of some layers, appended batch by batch, then each read as one tensor.

    They live in memory while they fit the budget; what does not fit moves all of them to temporary files, which are
    then mapped into memory: the numbers are the same. Features of 16 or 8 bits are kept in float32.

    Args:
        side: The network, in messages.
        points: The layers.
        budget: Bytes of memory.
        examples: How many are expected; a disk that is too small for them is refused before the work.
        device: Where the work on them is done.
        folder: Where temporary files go; the system's place unless given.
    """

    def __init__(
        self, side: str, points: Sequence[Point], budget: int, examples: int | None = None,
        device: torch.device | None = None, folder: str | Path | None = None,
    ) -> None:  # fmt: skip
        self._side, self._budget, self._expected, self._parent = side, budget, examples or 0, folder
        self._points = {p.name: p for p in points}
        self._layers = {p.name: WholeLayer(p, side, device) for p in points}
        self._parts: dict[str, list[Tensor]] = {p.name: [] for p in points}
        self._dtypes = {p.name: stored_dtype(p.dtype) for p in points}
        self._files: dict[str, Any] = {}
        self._scratch: Scratch | None = None
        self._count = 0
        if self._bytes(self._expected) > budget:
            self._move_to_disk()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._parts.clear()
        for file in self._files.values():
            file.close()
        if self._scratch is not None:
            self._scratch.close()

    @property
    def on_disk(self) -> bool:
        """Whether the features are in temporary files."""
        return self._scratch is not None

    def keep(self, name: str, features: Tensor) -> Tensor:
        """Append a copy of a batch of a layer's features; returns an empty tensor, since nothing is left to keep."""
        point, layer = self._points[name], self._layers[name]
        check_shape(point, features)
        if features.dtype.itemsize < 2:  # float8 has no arithmetic
            features = features.float()
        others = [d for d in range(features.ndim) if d != point.channel_dim % features.ndim]
        low, high = features.amin(others).cpu(), features.amax(others).cpu()  # NaN spreads
        first = not len(layer.low)
        layer.low = low if first else torch.minimum(layer.low, low)
        layer.high = high if first else torch.maximum(layer.high, high)
        self._dtypes[name] = stored_dtype(features.dtype)
        kept = features.to("cpu", self._dtypes[name], copy=True).contiguous()
        if self.on_disk:
            self._write(name, kept)
        else:
            self._parts[name].append(kept)
        return torch.empty(0)

    def commit(self, examples: int) -> None:
        """Count the batch."""
        self._count += examples
        if not self.on_disk and self._bytes(self._count) > self._budget:
            self._move_to_disk()

    def finished(self) -> Network:
        """The layers with all features of the batches that count."""
        for name, layer in self._layers.items():
            if self.on_disk:
                self._files[name].flush()
                shape = (self._count, *self._points[name].shape)
                path, size = self._files[name].name, math.prod(shape)
                layer.stored = torch.from_file(path, shared=False, size=size, dtype=self._dtypes[name]).view(shape)
            else:
                layer.stored = torch.cat(self._parts.pop(name))[: self._count]
        said = [f"The features of network {self._side} went to temporary files."] if self.on_disk else []
        return Network(list(self._layers.values()), [self._count], said)

    def _bytes(self, examples: int) -> int:
        return examples * sum(p.size * self._dtypes[name].itemsize for name, p in self._points.items())

    def _move_to_disk(self) -> None:
        sweep(self._parent)
        self._scratch = Scratch(self._parent, "intertwine-", directory=True)
        folder = self._scratch.path
        needed, free = self._bytes(self._expected), shutil.disk_usage(folder).free
        if needed > free:
            self._scratch.close()
            raise ValueError(
                f"memory must hold the features where the disk does not. Got {readable(self._budget)} of memory and "
                f"{readable(free)} free in {folder.parent}; the features take {readable(needed)}. "
                "Use fewer examples or layers, more memory, or set TMPDIR to a larger disk."
            )
        for i, name in enumerate(self._points):
            self._files[name] = (folder / str(i)).open("wb", buffering=0)
            for part in self._parts.pop(name):
                self._write(name, part)

    def _write(self, name: str, features: Tensor) -> None:
        rows: Any = features.numpy()
        view = memoryview(rows).cast("B")
        while view:  # an unbuffered write may be partial
            view = view[self._files[name].write(view) :]


def stored_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type in which features of a type are kept."""
    return torch.float64 if dtype == torch.float64 else torch.float32
