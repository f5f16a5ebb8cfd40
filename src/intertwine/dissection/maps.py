"""Activation maps of one layer over a concept set, kept or computed again, and the options of a dissection."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import isqrt
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .._nested import map_tensors
from .._progress import track
from ..features import tap
from .concepts import ConceptBatch, ConceptSet


@dataclass(frozen=True)
class Criterion:
    """When a unit is a detector of a concept.

    Attributes:
        quantile: Share of a unit's values above its threshold.
        iou: Intersection over union above which a unit is a detector.
        standardise: Divide every channel by its root mean square before rotating. The scales of channels behind a ReLU
            are free under the symmetry group, and a rotation mixes them: only with this option is the result
            independent of them. The papers rotate channels as they are.
        empty: What to do about concepts that no pixel carries: refuse, or leave them out with a note.

    Raises:
        ValueError: If one is out of range.
    """

    quantile: float = 0.005
    iou: float = 0.04
    standardise: bool = False
    empty: Literal["error", "drop"] = "error"

    def __post_init__(self) -> None:
        if not 0 < self.quantile < 1:
            raise ValueError(f"quantile must be a share in (0, 1), such as 0.005. Got {self.quantile}.")
        if not 0 <= self.iou < 1:
            raise ValueError(f"iou must be in [0, 1), such as 0.04. Got {self.iou}.")
        if self.empty not in ("error", "drop"):
            raise ValueError(f"empty must be 'error' or 'drop'. Got {self.empty!r}.")


@dataclass(frozen=True)
class Maps:
    """Options for reading the maps of a layer from images.

    Attributes:
        transform: Turns images ``(B, 3, H, W)`` in [0, 1] into the model's input, such as a normalisation; ``None``
            passes them as they are.
        channel_dim: Channel axis of the features, 1 or -1; ``None`` takes the guess of ``intertwine.features``.
        grid: Rows and columns of patches, for tokens that do not form a grid of the image's shape.
        batch_size: Images in a batch.
        memory: Bytes that maps and labels may take; beyond it the model runs again for every basis.
        device: Device of the model's inputs; ``None`` for the model's own.

    Raises:
        ValueError: If the batch size is less than 1.
    """

    transform: Callable[[Tensor], Any] | None = None
    channel_dim: int | None = None
    grid: tuple[int, int] | None = None
    batch_size: int = 32
    memory: int = 2**30
    device: torch.device | str | None = None

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1. Got {self.batch_size}.")


@dataclass(frozen=True, eq=False)
class LabelledMaps:
    """Maps ``(B, U, h', w')`` of images, labels ``(B, K, h, w)`` and ``(B, J)`` (-1: none), and indices in the set."""

    maps: Tensor
    labels: Tensor
    image_labels: Tensor
    index: tuple[int, ...]


def as_maps(
    features: Tensor, channel_dim: int, grid: tuple[int, int] | None, image_size: tuple[int, int], layer: str
) -> Tensor:
    """Features ``(N, C, h', w')``, ``(N, h', w', C)`` or tokens ``(N, T, C)`` as maps of units, ``(N, U, h', w')``.

    For tokens, ``grid`` is the rows and columns of patches; ``None`` finds the grid with the shape of the image ``(H,
    W)`` and ``T`` or ``T - 1`` patches (one class token). If ``T`` is larger, the first tokens are left out.

    Raises:
        ValueError: If the features have no spatial axes, or the grid cannot be found or does not fit.
    """
    if features.ndim == 4 and channel_dim in (1, -1, 3):
        return features if channel_dim == 1 else features.movedim(-1, 1)
    if features.ndim == 3 and channel_dim in (-1, 2):
        tokens = features.shape[1]
        rows, columns = grid or _find_grid(tokens, image_size, layer)
        if rows * columns > tokens or rows < 1 or columns < 1:
            raise ValueError(f"grid must have at most T = {tokens} patches. Got {rows} x {columns} at layer {layer!r}.")
        patches = features[:, tokens - rows * columns :]
        return patches.unflatten(1, (rows, columns)).movedim(-1, 1)
    raise ValueError(
        f"layer must give one map for each unit: (N, C, H, W), or tokens (N, T, C) with channel_dim=-1. Got "
        f"{tuple(features.shape)} with channel_dim={channel_dim} at layer {layer!r}. Choose a layer before pooling or "
        "flattening; for a vision transformer, one that gives tokens, with grid=(rows, columns) if it is not square."
    )


def _find_grid(tokens: int, image_size: tuple[int, int], layer: str) -> tuple[int, int]:
    height, width = image_size
    for patches in (tokens, tokens - 1):
        rows = isqrt(patches * height // width) if patches > 0 else 0
        for r in (rows, rows + 1):
            if r and patches % r == 0 and r * width == patches // r * height:
                return r, patches // r
    raise ValueError(
        f"tokens must form a grid of the image's shape, with at most one class token before it. Got {tokens} tokens "
        f"for {height} x {width} images at layer {layer!r}. Say Maps(grid=(rows, columns))."
    )


def given(model: nn.Module, images: Tensor, maps: Maps) -> Any:
    """Input of a model for images: transformed, with real numbers in the type of its weights."""
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    inputs = images if maps.transform is None else maps.transform(images)
    return map_tensors(inputs, lambda x: x.to(dtype) if x.is_floating_point() else x)


class MapStream:
    """The maps of a layer over a concept set, for many passes: the model runs once if they fit into ``memory``."""

    def __init__(self, model: nn.Module, layer: str, concepts: ConceptSet, maps: Maps) -> None:
        self.model, self.layer, self.concepts, self.memory, self._maps = model, layer, concepts, maps.memory, maps
        self._kept: list[LabelledMaps] | None = None
        self._channels: Tensor | None = None

    def __len__(self) -> int:
        return -(-len(self.concepts) // self._maps.batch_size)

    def __iter__(self) -> Iterator[LabelledMaps]:
        return self._computed(self.concepts.batches(self._maps.batch_size)) if self._kept is None else iter(self._kept)

    def first_pass(self, progress: bool | None = None) -> Iterator[LabelledMaps]:
        """Go through all batches once, keeping them if they fit."""
        kept: list[LabelledMaps] | None = []
        used = 0
        for batch in track(self, f"reading {self.concepts.name} at {self.layer}", enabled=progress):
            used += sum(t.nbytes for t in (batch.maps, batch.labels, batch.image_labels))
            kept = None if kept is None or used > self.memory else [*kept, batch]
            yield batch
        self._kept = kept

    def _chosen(self, batch: LabelledMaps) -> LabelledMaps:
        if self._channels is None:
            return batch
        return replace(batch, maps=batch.maps[:, self._channels.to(batch.maps.device)])

    def keep(self, channels: Sequence[int]) -> None:
        """Give only these channels from now on."""
        self._channels = torch.tensor(channels, dtype=torch.long)
        if self._kept is not None:
            self._kept = [self._chosen(batch) for batch in self._kept]

    def at(self, index: Iterable[int]) -> Iterator[LabelledMaps]:
        """Maps of some images only."""
        return self._computed(self.concepts.subset(tuple(index)).batches(self._maps.batch_size))

    def _computed(self, batches: Iterable[ConceptBatch]) -> Iterator[LabelledMaps]:
        # the smallest type that holds every concept index: labels are what fills the memory
        types = (torch.int8, torch.int16, torch.int32)
        smallest = next(t for t in types if len(self.concepts.concepts) < torch.iinfo(t).max)
        with tap(self.model, [self.layer], device=self._maps.device) as tapped:
            for batch in batches:
                (features,) = tapped(given(self.model, batch.images, self._maps)).values()
                channel_dim = tapped.points[0].channel_dim if self._maps.channel_dim is None else self._maps.channel_dim
                size = (batch.images.shape[-2], batch.images.shape[-1])
                maps = as_maps(features, channel_dim, self._maps.grid, size, self.layer)
                maps = maps.float() if maps.element_size() < 4 else maps  # sorting on a CPU has no half precision
                where = torch.device("cpu") if maps.device.type == "mps" else maps.device  # MPS has no float64
                labels, whole = batch.labels.to(where, smallest), batch.image_labels.to(where)
                yield self._chosen(LabelledMaps(maps.to(where).contiguous(), labels, whole, batch.index))


def values_of(maps: Tensor) -> Tensor:
    """All values of each unit, ``(U, B h' w')``."""
    return maps.transpose(0, 1).flatten(1)
