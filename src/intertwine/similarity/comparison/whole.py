"""Features of all layers of a network, kept in memory or in temporary files, so that all of them count in a score."""

import math
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..._io.scratch import Scratch, sweep
from ..._memory import readable
from ...features import Point
from .._features import unit_scale, working_dtype
from ..measures.cka import CKA, prepare_gram
from ..measures.kernels import LinearKernel, linear_gram
from .layers import Layer, Network, channels_first_shape, check_shape
from .positions import pool


class WholeLayer(Layer):
    """One layer of which all features are kept; its examples are one block."""

    def __init__(self, point: Point, side: str, device: torch.device | None) -> None:
        super().__init__(point.name, side, channels_first_shape(point))
        self._point, self._device = point, device
        self.grams: dict[str, Tensor] = {}  # by kernel, until they are cleared
        self.stored = torch.empty(0)  # ``(N, *shape)`` on the CPU, not to be changed

    def features(self, space: tuple[int, ...] | None = None) -> Tensor:
        """Features ``(N, C, *S)`` on the device of the work, at a spatial size of their own or another."""
        x = self.stored.to(self._device).movedim(self._point.channel_dim, 1)
        return x if space is None else pool(x, space)

    def gram(self, measure: CKA, block: int) -> Tensor:
        """The U-centred Gram matrix of all examples at norm 1, kept until ``grams`` are cleared."""
        if (name := measure.kernel.name) not in self.grams:
            x = self.features()
            if isinstance(measure.kernel, LinearKernel):  # needs no moments of the channels
                scale = unit_scale(torch.maximum(-self.low, self.high).double())
                self.grams[name] = prepare_gram(linear_gram(x, scale.expand(x.shape[1]))).gram
            else:
                self.grams[name] = measure.gram_side(x).gram
        return self.grams[name]

    def forget(self) -> None:
        """Free Gram matrices and features."""
        self.grams, self.stored = {}, torch.empty(0)

    def rows(self, space: tuple[int, ...]) -> Sequence[Tensor]:
        """Rows of channels at all positions, ``(N, P, C)``."""
        x = self.features(space)
        return [(x.flatten(2) if x.ndim > 2 else x[:, :, None]).mT]


class Features(ExitStack):
    """Features of some layers, appended batch by batch, then each read as one tensor.

    They live in memory while they fit the budget; what does not fit moves all of them to temporary files, which are
    then mapped into memory: the numbers are the same. Features of 16 or 8 bits are kept in float32. A disk in the
    ``folder``, or else the system's place, that is too small for the ``examples`` expected is refused before the work.
    """

    def __init__(
        self, side: str, points: Sequence[Point], budget: int, examples: int | None = None,
        device: torch.device | None = None, folder: str | Path | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self._side, self._budget, self._expected, self._parent = side, budget, examples or 0, folder
        self._points = {p.name: p for p in points}
        self._layers = {p.name: WholeLayer(p, side, device) for p in points}
        self._dtypes = {p.name: working_dtype(p) for p in points}
        self._parts: dict[str, list[Tensor]] = {p.name: [] for p in points}
        self._files: dict[str, Any] = {}
        self._count = 0
        self.on_disk = False  # whether the features are in temporary files
        self.callback(self._parts.clear)
        if self._bytes(self._expected) > budget:
            self._move_to_disk()

    def keep(self, name: str, features: Tensor) -> Tensor:
        """Append a copy of a batch of a layer's features; returns an empty tensor, since nothing is left to keep."""
        point = self._points[name]
        check_shape(point, features)
        if features.dtype.itemsize < 2:  # float8 has no arithmetic
            features = features.float()
        others = [d for d in range(features.ndim) if d != point.channel_dim % features.ndim]
        self._layers[name].widen(features.amin(others).cpu(), features.amax(others).cpu())  # NaN spreads
        self._dtypes[name] = working_dtype(features)
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
        scratch = Scratch(self._parent, "intertwine-", directory=True)
        self.callback(scratch.close)
        needed, free = self._bytes(self._expected), shutil.disk_usage(scratch.path).free
        if needed > free:
            scratch.close()
            raise ValueError(
                f"memory must hold the features where the disk does not. Got {readable(self._budget)} of memory and "
                f"{readable(free)} free in {scratch.path.parent}; the features take {readable(needed)}. "
                "Use fewer examples or layers, more memory, or set TMPDIR to a larger disk."
            )
        for i, name in enumerate(self._points):
            self._files[name] = self.enter_context((scratch.path / str(i)).open("wb"))
            for part in self._parts.pop(name):
                self._write(name, part)
        self.on_disk = True

    def _write(self, name: str, features: Tensor) -> None:
        rows: Any = features.numpy()
        self._files[name].write(memoryview(rows).cast("B"))
