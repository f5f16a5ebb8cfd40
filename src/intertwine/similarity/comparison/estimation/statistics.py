"""Statistics of a network from one pass: enough for its comparison with any other on the same data."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from ....features import Point
from ..._features import double, is_constant
from ...kernels.base import Kernel
from .block_grams import ChannelSums, Held, block_grams
from .positions import enough, sampled, sizes

BLOCK = 128  # examples whose pairs a kernel sees, where one example's features are few
_HELD = 256 << 20  # bytes of products of channels of a network that wait for the moments of all batches
_LARGE, _SMALL_BLOCK = 1_000_000, 64  # numbers of one example from which on blocks are smaller


@dataclass
class LayerStatistics:
    """One layer: centred Gram matrices of blocks of examples, and rows of channels at sampled positions.

    Attributes:
        name: Name of the layer.
        side: The network, in messages.
        shape: Channels, then space.
        grams: By kernel, one U-centred matrix ``(n_b, n_b)`` for each block of examples.
        rows: By spatial size, ``(n_b, positions, C)`` for each block.
        low: Smallest value of every channel, ``(C,)``.
        high: Largest value of every channel.
    """

    name: str
    side: str
    shape: tuple[int, ...]
    grams: dict[str, list[Tensor]] = field(default_factory=dict)
    rows: dict[tuple[int, ...], list[Tensor]] = field(default_factory=dict)
    low: Tensor = field(default_factory=lambda: torch.empty(0))
    high: Tensor = field(default_factory=lambda: torch.empty(0))
    held: list[Held] = field(default_factory=list)  # products of channels of blocks, until the moments are known

    @property
    def channels(self) -> int:
        """Number of channels."""
        return self.shape[0]

    @property
    def space(self) -> tuple[int, ...]:
        """Spatial size."""
        return self.shape[1:]

    @property
    def finite(self) -> bool:
        """Whether all features were numbers."""
        return bool(torch.isfinite(self.high - self.low).all())

    @property
    def dead(self) -> Tensor:
        """Channels that are zero everywhere, ``(C,)`` bool."""
        return (self.low == 0) & (self.high == 0)

    @property
    def constant(self) -> Tensor:
        """Channels that have one value everywhere, up to rounding."""
        return is_constant(self.low, self.high)

    @property
    def negative(self) -> bool:
        """Whether any feature is negative."""
        return bool((self.low < 0).any())

    @property
    def silent(self) -> str:
        """Why there is no score for this layer, by any measure; empty where there may be."""
        if not self.finite:
            return f"No score for layer {self.name!r} of {self.side}: NaN or infinite values in it."
        if self.constant.all():
            what = "zero" if self.dead.all() else "constant"
            return f"No score for layer {self.name!r} of {self.side}: all channels are {what}."
        return ""


@dataclass(frozen=True)
class Wanted:
    """What statistics are to hold: for which kernels, at which spatial sizes, how many positions."""

    kernels: tuple[Kernel, ...]
    spaces: tuple[tuple[int, ...], ...]  # of all layers of all networks; none where no measure needs rows of channels
    examples: int  # that are expected
    channels: int  # of the widest layer
    block: int
    seed: int = 0
    times: int = 1  # as many positions as at first

    @classmethod
    def of(
        cls, kernels: Sequence[Kernel], points: Sequence[Point], rows: bool, examples: int | None, seed: int
    ) -> "Wanted":
        """What the layers of all networks together ask for."""
        shapes = [channels_first_shape(point) for point in points]
        spaces = tuple(dict.fromkeys(shape[1:] for shape in shapes)) if rows else ()
        total = sum(map(prod, shapes))
        block = _SMALL_BLOCK if total > _LARGE else BLOCK
        return cls(tuple(kernels), spaces, examples or 1000, max(s[0] for s in shapes), block, seed)


class Collector:
    """Turns the features of one network into statistics while the network runs: nothing else is kept of them.

    Use :meth:`keep` as the ``keep`` of :class:`intertwine.features.Tapped`, and :meth:`commit` when all networks have
    run on the batch: what was not committed does not count.
    """

    def __init__(self, side: str, points: Sequence[Point], wanted: Wanted) -> None:
        self._points = {p.name: p for p in points}
        self._wanted = wanted
        self.layers = {p.name: LayerStatistics(p.name, side, channels_first_shape(p)) for p in points}
        self._sums = {p.name: ChannelSums() for p in points}
        self._pending: dict[str, LayerStatistics] = {}
        self.examples: list[int] = []  # of each block
        self._starts = 0
        self._held = 0  # bytes
        self._names = [kernel.name for kernel in wanted.kernels]

    def keep(self, name: str, features: Tensor) -> Tensor:
        """Take the statistics of a layer's features on one batch."""
        layer, point = self.layers[name], self._points[name]
        if tuple(features.shape[1:]) != point.shape:
            raise ValueError(
                f"features of layer {name!r} must have one shape in all batches. Got {tuple(features.shape[1:])} after "
                f"{point.shape}. Pad or resize the inputs to one size."
            )
        x = features.detach().movedim(point.channel_dim, 1)
        x = x if x.dtype in (torch.float32, torch.float64) else x.float()
        if x.device.type == "mps":
            x = x.cpu()
        sums, new = self._sums[name], LayerStatistics(name, layer.side, layer.shape)
        new.low, new.high = sums.add(x)
        spaces = sizes(layer.space, self._wanted.spaces)
        w = self._wanted
        counts = [enough(space, w.examples, w.channels, w.times) for space in spaces]
        for k, rows in enumerate(_blocks(len(x), w.block)):
            part = x[rows]
            grams, held = block_grams(part, self._names, sums)
            for kernel, gram in grams.items():
                new.grams.setdefault(kernel, []).append(gram)
            if held is not None:
                new.held.append(held)
                self._held += held.size
            if spaces:
                taken = sampled(part, spaces, counts, w.seed + self._starts + k)
                for space, one in zip(spaces, taken):
                    new.rows.setdefault(space, []).append(one.contiguous())
        self._pending[name] = new
        return features.new_empty(0)

    def commit(self, examples: int) -> None:
        """Count the batch."""
        self.examples += [part.stop - part.start for part in _blocks(examples, self._wanted.block)]
        for name, new in self._pending.items():
            layer = self.layers[name]
            for kernel, grams in new.grams.items():
                layer.grams.setdefault(kernel, []).extend(grams)
            for space, rows in new.rows.items():
                layer.rows.setdefault(space, []).extend(rows)
            layer.held += new.held
            first = not len(layer.low)
            layer.low = new.low if first else torch.minimum(layer.low, new.low)
            layer.high = new.high if first else torch.maximum(layer.high, new.high)
        self._pending = {}
        self._starts = len(self.examples)
        if self._held > _HELD:
            self._release()

    def _release(self) -> None:
        """Turn what is held into Gram matrices by the moments of all batches so far."""
        for name, layer in self.layers.items():
            for held in layer.held:
                for kernel, gram in held.grams(self._names, self._sums[name]).items():
                    layer.grams.setdefault(kernel, []).append(gram.to(held.rows))
            layer.held = []
        self._held = 0

    def finished(self) -> list[LayerStatistics]:
        """The statistics of all layers, their extremes in float64 on the CPU: the only copies to the host."""
        self._release()
        for layer in self.layers.values():
            layer.low, layer.high = double(layer.low).cpu(), double(layer.high).cpu()
        return list(self.layers.values())


def channels_first_shape(point: Point) -> tuple[int, ...]:
    """Channels, then space."""
    shape, axis = list(point.shape), point.channel_dim
    return (shape.pop(axis - (axis > 0)), *shape)


def _blocks(examples: int, size: int) -> list[slice]:
    """Near-equal parts of a batch."""
    count = max(1, round(examples / size))
    edges = [round(k * examples / count) for k in range(count + 1)]
    return [slice(a, b) for a, b in pairwise(edges)]


def to_tensors(layers: Sequence[LayerStatistics]) -> dict[str, Tensor]:
    """Statistics as named tensors, for a file."""
    found: dict[str, Tensor] = {}
    for k, layer in enumerate(layers):
        shape = torch.tensor(layer.shape)
        found |= {f"{k}/low": layer.low, f"{k}/high": layer.high, f"{k}/shape": shape}
        for kernel, parts in layer.grams.items():
            found |= {f"{k}/gram/{kernel}/{b}": part for b, part in enumerate(parts)}
        for space, parts in layer.rows.items():
            at = "x".join(map(str, space))
            found |= {f"{k}/rows/{at}/{b}": part for b, part in enumerate(parts)}
    return found


def read_layer(path: Path, position: int, name: str, side: str) -> LayerStatistics:
    """The statistics of one layer from a file, the others unread."""
    from safetensors import safe_open

    grams: dict[str, dict[int, Tensor]] = {}
    rows: dict[tuple[int, ...], dict[int, Tensor]] = {}
    with safe_open(path, framework="pt") as file:
        low, high, shape = (file.get_tensor(f"{position}/{key}") for key in ("low", "high", "shape"))
        for key in file.keys():  # noqa: SIM118 - no mapping
            of, *rest = key.split("/")
            if of != str(position) or len(rest) != 3:
                continue
            kind, what, block = rest
            if kind == "gram":
                grams.setdefault(what, {})[int(block)] = file.get_tensor(key)
            else:
                space = tuple(map(int, what.split("x"))) if what else ()
                rows.setdefault(space, {})[int(block)] = file.get_tensor(key)
    layer = LayerStatistics(name, side, tuple(shape.tolist()), low=low, high=high)
    layer.grams = {kernel: [parts[b] for b in sorted(parts)] for kernel, parts in grams.items()}
    layer.rows = {space: [parts[b] for b in sorted(parts)] for space, parts in rows.items()}
    return layer
