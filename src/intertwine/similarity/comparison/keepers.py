"""Keepers of what a pass reads from a network: statistics for its comparison with any other, or all features."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from mmap import ACCESS_COPY, mmap
from pathlib import Path
from tempfile import SpooledTemporaryFile, gettempdir
from typing import Any

import torch
from torch import Tensor

from ..._memory import readable
from ...features import Point
from .._features import double, positions_last, unit_scale, working_dtype
from ..base import Measure
from ..measures.cka import CKA, prepare_gram
from ..measures.kernels import LinearKernel, linear_gram
from ..measures.procrustes import Procrustes
from .block_grams import NORMALISED, ChannelSums, Held, block_grams, extremes, unseen_products
from .estimates import parts_of
from .layers import Layer, Network, channels_first_shape, check_shape, common_space, enough, pool, sampled

BLOCK = 128  # examples among which a kernel sees all pairs, if one example's features are few
_HELD = 96 << 20  # bytes of a network's products of channels that wait for the moments of all batches
_TINY = 1e-8  # largest values below which, or above whose inverse, products would leave the range of float32
_LARGE, _SMALL_BLOCK = 500_000, 64  # numbers per example of a network from which on blocks are smaller


@dataclass(frozen=True)
class Wanted:
    """What statistics are to hold: for which kernels, at which spatial sizes, at how many positions."""

    kernels: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]  # of all layers of all networks; none where no measure needs rows of channels
    examples: int  # number expected
    block: int
    seed: int = 0

    @classmethod
    def of(
        cls, measures: Sequence[Measure[Any]], networks: Sequence[Sequence[Point]], examples: int | None, seed: int
    ) -> "Wanted":
        """What some measures need of all networks' layers together; any number of equal networks need the same."""
        shapes = [channels_first_shape(point) for points in networks for point in points]
        rows = any(isinstance(m, Procrustes) for m in measures)
        block = _SMALL_BLOCK if max(sum(p.size for p in points) for points in networks) > _LARGE else BLOCK
        kernels = dict.fromkeys(m.kernel.name for m in measures if isinstance(m, CKA))
        return cls(tuple(kernels), tuple(dict.fromkeys(shapes)) if rows else (), examples or 1000, block, seed)

    def counts(self, own: tuple[int, ...]) -> dict[tuple[int, ...], int]:
        """Sizes at which a layer of size ``own`` is compared, and how many positions of each are enough there."""
        spaces = dict.fromkeys(common_space(own, shape[1:]) for shape in self.shapes)
        met = {
            space: [c for c, *other in self.shapes if common_space(tuple(other), space) == space] for space in spaces
        }
        return {space: enough(space, self.examples, max(channels)) for space, channels in met.items()}


class _Told(Layer):
    """A layer whose statistics are being taken, and what they still wait for."""

    def __init__(self, point: Point, side: str) -> None:
        super().__init__(point.name, side, channels_first_shape(point))
        self.point, self.sums = point, ChannelSums()
        self.unit = 0.0  # scale at which kernels see features whose squares leave float32, mostly 1; 0 before the first
        self.waiting: tuple[Tensor, ...] = ()  # features of a group, and those of it still to come
        self.held: list[Held] = []  # held until the moments of all examples are known
        self.shares: list[Tensor] = []  # shares of the strongest examples of each channel, for each block


class Collector:
    """Turns the features of one network into statistics while the network runs; nothing else of them is kept."""

    def __init__(self, side: str, points: Sequence[Point], wanted: Wanted) -> None:
        self._wanted, self._layers = wanted, {p.name: _Told(p, side) for p in points}
        self._moments = bool(set(NORMALISED) & set(wanted.kernels))  # whether the channels' moments are asked for
        self.coming = 0  # examples of the group; 0 if each batch is a group
        self._blocks: list[int] = []  # examples of each block that counts

    def keep(self, name: str, features: Tensor) -> Tensor:
        """Take the statistics of a layer's features on one group of batches, when the last batch of it comes."""
        layer, w, nothing = self._layers[name], self._wanted, features.new_empty(0)
        check_shape(layer.point, features)
        if len(features) < self.coming:
            whole, rest = layer.waiting or [features.new_empty(self.coming, *layer.point.shape)] * 2
            rest[: len(features)] = features
            layer.waiting = (whole, rest[len(features) :]) if len(rest) > len(features) else ()
            if layer.waiting:
                return nothing
            features = whole
        x = features.detach().movedim(layer.point.channel_dim, 1)
        x = x if x.dtype in (torch.float32, torch.float64) else x.float()
        x = x.cpu() if x.device.type == "mps" else x
        if not layer.unit:
            top = torch.stack(torch.aminmax(x)).abs().max().double().cpu()
            usual = _TINY < top < 1 / _TINY or not 0 < top < torch.inf
            layer.unit = 1.0 if usual else float(unit_scale(top[None]))
        scaled = x if layer.unit == 1 else x * layer.unit
        ends = layer.sums.extend(scaled) if self._moments else extremes(scaled)
        layer.widen(*(end / layer.unit for end in ends))
        counts = w.counts(layer.space)
        for k, rows in enumerate(self._parts(len(x))):
            grams, held = block_grams(scaled[rows], w.kernels, layer.sums)
            _append(layer.grams, grams)
            layer.held += [] if held is None else [held]
            if counts:
                new = sampled(x[rows], counts, w.seed + len(self._blocks) + k)
                _append(layer.sampled, {space: one.contiguous() for space, one in zip(counts, new)})
        return nothing

    def _parts(self, examples: int) -> list[slice]:
        """The blocks of a batch."""
        return parts_of(examples, max(1, round(examples / self._wanted.block)))

    def commit(self, examples: int) -> None:
        """Count the batch."""
        self._blocks += [part.stop - part.start for part in self._parts(examples)]
        layers = self._layers.values()
        if sum(strip.nbytes for x in layers for held in x.held for strip in held.products) > _HELD:
            self._release()

    def _release(self) -> None:
        """Turn what is held into Gram matrices, with the moments of all batches so far."""
        for layer in self._layers.values():
            for held in layer.held:
                grams, shares = held.grams(self._wanted.kernels, layer.sums)
                _append(layer.grams, {kernel: gram.to(held.rows) for kernel, gram in grams.items()})
                layer.shares.append(shares)
            layer.held.clear()

    def finished(self) -> Network:
        """Statistics of all layers, with extremes in float64 on the CPU: the only copies to the host."""
        self._release()
        for layer in self._layers.values():
            layer.low, layer.high = double(layer.low).cpu(), double(layer.high).cpu()
            for every in (*layer.grams.values(), *layer.sampled.values()):
                del every[len(self._blocks) :]  # drop a group on which not all networks ran
            layer.unseen = unseen_products(layer.shares[: len(self._blocks)])
        return Network(list(self._layers.values()), self._blocks)


def _append(lists: dict[Any, list[Any]], new: Mapping[Any, Any]) -> None:
    for key, one in new.items():
        lists.setdefault(key, []).append(one)


def to_tensors(network: Network) -> dict[str, Tensor]:
    """Statistics as named tensors, for a file."""
    found = {"blocks": torch.tensor(network.blocks)}
    for x in network.layers:
        found |= {f"low/{x.name}": x.low, f"high/{x.name}": x.high, f"shape/{x.name}": torch.tensor(x.shape)}
        found[f"unseen/{x.name}"] = torch.tensor(x.unseen, dtype=torch.float64)
        rows = {"x".join(map(str, space)): parts for space, parts in x.sampled.items()}
        for kind, every in (("gram", x.grams), ("rows", rows)):
            found |= {f"{kind}/{of}/{b}/{x.name}": part for of, parts in every.items() for b, part in enumerate(parts)}
    return found


def read_layer(path: Path, name: str, side: str) -> Network:
    """Statistics of one layer from a file, without reading the others."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        low, high, shape = (file.get_tensor(f"{key}/{name}") for key in ("low", "high", "shape"))
        layer = Layer(name, side, tuple(shape.tolist()), low, high, float(file.get_tensor(f"unseen/{name}")))
        keys = (key.split("/", 3) for key in file.keys() if key.startswith(("gram/", "rows/")))  # noqa: SIM118 - no mapping
        for kind, of, block, _ in sorted((key for key in keys if key[3] == name), key=lambda key: int(key[2])):
            part = file.get_tensor(f"{kind}/{of}/{block}/{name}")
            space = tuple(map(int, of.split("x"))) if kind == "rows" and of else ()
            _append(layer.grams, {of: part}) if kind == "gram" else _append(layer.sampled, {space: part})
        return Network([layer], file.get_tensor("blocks").tolist())


class WholeLayer(Layer):
    """One layer of which all features are kept; all its examples are one block."""

    def __init__(self, point: Point, side: str, device: torch.device | None) -> None:
        super().__init__(point.name, side, channels_first_shape(point))
        self._point, self._device = point, device
        self.stored = torch.empty(0)  # ``(N, *shape)`` on the CPU, read only

    def features(self, space: tuple[int, ...] | None = None) -> Tensor:
        """Features ``(N, C, *S)`` on the device of the work, at their own spatial size or another."""
        x = self.stored.to(self._device).movedim(self._point.channel_dim, 1)
        return x if space is None else pool(x, space)

    def gram(self, measure: CKA, block: int) -> Tensor:
        """The U-centred Gram matrix of all examples at norm 1, kept until ``grams`` are cleared."""
        if (name := measure.kernel.name) not in self.grams:
            x = self.features()
            if isinstance(measure.kernel, LinearKernel):  # needs no moments of the channels
                scale = unit_scale(torch.maximum(-self.low, self.high).double())
                self.grams[name] = [prepare_gram(linear_gram(x, scale)).gram]
            else:
                self.grams[name] = [measure.gram_side(x).gram]
        return super().gram(measure, block)

    def forget(self) -> None:
        """Free Gram matrices and features."""
        super().forget()
        self.stored = torch.empty(0)

    def rows(self, space: tuple[int, ...]) -> Sequence[Tensor]:
        """Rows of channels at all positions, ``(N, P, C)``."""
        return [positions_last(self.features(space)).mT]


class Features:
    """Features of some layers, appended batch by batch, then each read as one tensor.

    They live in memory while they fit the budget, and otherwise in temporary files without names, which end with the
    process; the numbers are the same. Features of 16 or 8 bits are kept in float32. If the disk of the ``folder``, by
    default the system's temporary one, is too small for the ``examples`` expected, it is refused before the work.
    """

    def __init__(
        self, side: str, points: Sequence[Point], budget: int, examples: int | None = None,
        device: torch.device | None = None, folder: str | Path | None = None,
    ) -> None:  # fmt: skip
        self._side, self._count = side, 0
        self._points = {p.name: p for p in points}
        self._layers = {p.name: WholeLayer(p, side, device) for p in points}
        self._dtypes = {p.name: working_dtype(p) for p in points}
        sizes = {p.name: p.size * self._dtypes[p.name].itemsize for p in points}
        whole, place = sum(sizes.values()), folder or gettempdir()
        needed, free = (examples or 0) * whole, shutil.disk_usage(place).free
        if needed > max(budget, free):
            raise ValueError(
                f"memory must hold the features where the disk does not. Got {readable(budget)} of memory and "
                f"{readable(free)} free in {place}; the features take {readable(needed)}. "
                "Use fewer examples or layers, more memory, or set TMPDIR to a larger disk."
            )
        kept = lambda size: SpooledTemporaryFile(max(1, budget * size // whole), dir=str(place))  # noqa: SIM115 - read later
        self._files = {name: kept(size) for name, size in sizes.items()}
        for file in self._files.values() if needed > budget else ():
            file.rollover()

    @property
    def on_disk(self) -> bool:
        """Whether features are in temporary files."""
        return any(file.name is not None for file in self._files.values())

    def keep(self, name: str, features: Tensor) -> Tensor:
        """Append a copy of a batch of a layer's features; return an empty tensor, since nothing is left to keep."""
        point = self._points[name]
        check_shape(point, features)
        if features.dtype.itemsize < 2:  # float8 has no arithmetic
            features = features.float()
        others = [d for d in range(features.ndim) if d != point.channel_dim % features.ndim]
        self._layers[name].widen(features.amin(others).cpu(), features.amax(others).cpu())  # NaN spreads
        self._dtypes[name] = working_dtype(features)
        self._files[name].write(_bytes(features.to("cpu", self._dtypes[name]).contiguous()))
        return torch.empty(0)

    def commit(self, examples: int) -> None:
        """Count the batch."""
        self._count += examples

    def finished(self) -> Network:
        """The layers with all features of the batches that count."""
        said = [f"The features of network {self._side} went to temporary files."] if self.on_disk else []
        for name, layer in self._layers.items():
            file, shape = self._files.pop(name), (self._count, *self._points[name].shape)
            if file.name is None:
                layer.stored = torch.empty(shape, dtype=self._dtypes[name])
                file.seek(0)
                file.readinto(_bytes(layer.stored))
            else:
                file.flush()
                mapped = mmap(file.fileno(), 0, access=ACCESS_COPY)  # lives as long as the tensor
                layer.stored = torch.frombuffer(mapped, dtype=self._dtypes[name], count=prod(shape)).view(shape)
        return Network(list(self._layers.values()), [self._count], said)


def _bytes(features: Tensor) -> memoryview:
    rows: Any = features.numpy()
    return memoryview(rows).cast("B")
