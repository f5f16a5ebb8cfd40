"""Statistics of a network from one pass: enough for its comparison with any other on the same data."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...features import Point
from .._features import double, unit_scale
from ..base import Measure
from ..measures.cka import CKA
from ..measures.procrustes import Procrustes
from .block_grams import ChannelSums, Held, block_grams
from .estimates import parts_of
from .layers import Layer, Network, channels_first_shape, check_shape
from .positions import common_space, enough, sampled

BLOCK = 128  # examples whose pairs a kernel sees, where one example's features are few
_HELD = 256 << 20  # bytes of products of channels of a network that wait for the moments of all batches
_TINY = 1e-8  # largest values below which, or above whose inverse, products would leave the range of float32
_LARGE, _SMALL_BLOCK = 1_000_000, 64  # numbers of one example from which on blocks are smaller


@dataclass
class SampledLayer(Layer):
    """One layer: centred Gram matrices of blocks of examples, and rows of channels at sampled positions."""

    grams: dict[str, list[Tensor]] = field(default_factory=dict)  # by kernel, U-centred, ``(n_b, n_b)`` for each block
    sampled: dict[tuple[int, ...], list[Tensor]] = field(default_factory=dict)  # by size, ``(n_b, positions, C)`` each
    held: list[Held] = field(default_factory=list)  # products of channels, until the moments of all examples are known

    def gram(self, measure: CKA, block: int) -> Tensor:
        """The U-centred Gram matrix of a block of examples, ``(n, n)``."""
        return self.grams[measure.kernel.name][block]

    def rows(self, space: tuple[int, ...]) -> Sequence[Tensor]:
        """Rows of channels at sampled positions, ``(n, positions, C)`` for each block."""
        return self.sampled[space]

    def forget(self) -> None:
        """Free Gram matrices and rows."""
        self.grams, self.sampled = {}, {}

    def join(self, new: "SampledLayer") -> None:
        """Add the blocks of a batch."""
        for kernel, grams in new.grams.items():
            self.grams.setdefault(kernel, []).extend(grams)
        for space, rows in new.sampled.items():
            self.sampled.setdefault(space, []).extend(rows)
        self.held += new.held
        self.widen(new.low, new.high)


@dataclass(frozen=True)
class Wanted:
    """What statistics are to hold: for which kernels, at which spatial sizes, how many positions."""

    kernels: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]  # of all layers of all networks; none where no measure needs rows of channels
    examples: int  # that are expected
    block: int
    seed: int = 0

    @classmethod
    def of(cls, measures: Sequence[Measure[Any]], points: Sequence[Point], examples: int | None, seed: int) -> "Wanted":
        """What some measures ask for of the layers of all networks together."""
        shapes = [channels_first_shape(point) for point in points]
        rows = any(isinstance(m, Procrustes) for m in measures)
        block = _SMALL_BLOCK if sum(map(prod, shapes)) > _LARGE else BLOCK
        kernels = dict.fromkeys(m.kernel.name for m in measures if isinstance(m, CKA))
        return cls(tuple(kernels), tuple(dict.fromkeys(shapes)) if rows else (), examples or 1000, block, seed)

    def counts(self, own: tuple[int, ...]) -> dict[tuple[int, ...], int]:
        """The sizes at which a layer of its own size is compared, and how many positions of each are enough there."""
        spaces = dict.fromkeys(common_space(own, shape[1:]) for shape in self.shapes)
        met = {
            space: [c for c, *other in self.shapes if common_space(tuple(other), space) == space] for space in spaces
        }
        return {space: enough(space, self.examples, max(channels)) for space, channels in met.items()}


class Collector:
    """Turns the features of one network into statistics while the network runs: nothing else is kept of them.

    Use :meth:`keep` as the ``keep`` of :class:`intertwine.features.Tapped`, and :meth:`commit` when all networks have
    run on the batch: what was not committed does not count.
    """

    def __init__(self, side: str, points: Sequence[Point], wanted: Wanted) -> None:
        self._points = {p.name: p for p in points}
        self._wanted = wanted
        self._layers = {p.name: SampledLayer(p.name, side, channels_first_shape(p)) for p in points}
        self._sums = {p.name: ChannelSums() for p in points}
        self._units: dict[str, float] = {}  # factors by which kernels see features whose squares leave float32
        self._waiting: dict[str, tuple[Tensor, Tensor]] = {}  # features of a group, and those still to come, by layer
        self._pending: dict[str, SampledLayer] = {}
        self.coming = 0  # examples of the group; none where each batch is one
        self._blocks: list[int] = []  # examples
        self._held = 0  # bytes

    def keep(self, name: str, features: Tensor) -> Tensor:
        """Take the statistics of a layer's features on one group of batches, with the last of them."""
        layer, point, w = self._layers[name], self._points[name], self._wanted
        check_shape(point, features)
        if len(features) < self.coming:
            whole, rest = self._waiting.pop(name, ()) or [features.new_empty(self.coming, *point.shape)] * 2
            rest[: len(features)] = features
            if len(rest) > len(features):
                self._waiting[name] = whole, rest[len(features) :]
                return features.new_empty(0)
            features = whole
        x = features.detach().movedim(point.channel_dim, 1)
        x = x if x.dtype in (torch.float32, torch.float64) else x.float()
        x = x.cpu() if x.device.type == "mps" else x
        sums, unit = self._sums[name], self._unit(name, x)
        scaled = x if unit == 1 else x * unit
        low, high = sums.add(scaled)
        new = SampledLayer(name, layer.side, layer.shape, low / unit, high / unit)
        counts = w.counts(layer.space)
        for k, rows in enumerate(self._parts(len(x))):
            grams, held = block_grams(scaled[rows], w.kernels, sums)
            for kernel, gram in grams.items():
                new.grams.setdefault(kernel, []).append(gram)
            if held is not None:
                new.held.append(held)
                self._held += sum(strip.nbytes for strip in held.strips)
            if counts:
                for space, one in zip(counts, sampled(x[rows], counts, w.seed + len(self._blocks) + k)):
                    new.sampled.setdefault(space, []).append(one.contiguous())
        self._pending[name] = new
        return features.new_empty(0)

    def _parts(self, examples: int) -> list[slice]:
        """The blocks of a batch."""
        return parts_of(examples, max(1, round(examples / self._wanted.block)))

    def _unit(self, name: str, x: Tensor) -> float:
        if name not in self._units:
            top = torch.stack(torch.aminmax(x)).abs().max().double().cpu()
            usual = _TINY < top < 1 / _TINY or not 0 < top < torch.inf
            self._units[name] = 1.0 if usual else float(unit_scale(top[None]))
        return self._units[name]

    def commit(self, examples: int) -> None:
        """Count the batch."""
        self._blocks += [part.stop - part.start for part in self._parts(examples)]
        for name, new in self._pending.items():
            self._layers[name].join(new)
        self._pending = {}
        if self._held > _HELD:
            self._release()

    def _release(self) -> None:
        """Turn what is held into Gram matrices by the moments of all batches so far."""
        for name, layer in self._layers.items():
            for held in layer.held:
                for kernel, gram in held.grams(self._wanted.kernels, self._sums[name]).items():
                    layer.grams.setdefault(kernel, []).append(gram.to(held.rows))
            layer.held = []
        self._held = 0

    def finished(self) -> Network:
        """The statistics of all layers, their extremes in float64 on the CPU: the only copies to the host."""
        self._release()
        for layer in self._layers.values():
            layer.low, layer.high = double(layer.low).cpu(), double(layer.high).cpu()
        return Network(list(self._layers.values()), self._blocks)


def to_tensors(layers: Sequence[Any]) -> dict[str, Tensor]:
    """Statistics as named tensors, for a file."""
    found: dict[str, Tensor] = {}
    for k, layer in enumerate(layers):
        found |= {f"{k}/low": layer.low, f"{k}/high": layer.high, f"{k}/shape": torch.tensor(layer.shape)}
        rows = {"x".join(map(str, space)): parts for space, parts in layer.sampled.items()}
        for kind, every in (("gram", layer.grams), ("rows", rows)):
            found |= {f"{k}/{kind}/{of}/{b}": part for of, parts in every.items() for b, part in enumerate(parts)}
    return found


def read_layer(path: Path, position: int, name: str, side: str) -> SampledLayer:
    """The statistics of one layer from a file, the others unread."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        low, high, shape = (file.get_tensor(f"{position}/{key}") for key in ("low", "high", "shape"))
        layer = SampledLayer(name, side, tuple(shape.tolist()), low, high)
        keys = (key.split("/") for key in file.keys())  # noqa: SIM118 - no mapping
        own = [rest for at, *rest in keys if at == str(position) and len(rest) == 3]
        for kind, of, block in sorted(own, key=lambda key: int(key[2])):
            part = file.get_tensor(f"{position}/{kind}/{of}/{block}")
            if kind == "gram":
                layer.grams.setdefault(of, []).append(part)
            else:
                layer.sampled.setdefault(tuple(map(int, of.split("x"))) if of else (), []).append(part)
    return layer
