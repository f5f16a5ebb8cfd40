"""Concept sets: images whose pixels carry labels, and colour concepts from the pixels themselves.

A concept set is an immutable, indexable collection of images. Each image has ``K`` planes of pixel labels, so that one
pixel can carry several concepts at once (the colour red, the part wheel, the object car), and ``J`` labels for the
image as a whole (a scene). A label is an index into the set's concepts, or -1 for none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from .._words import counted
from ..errors import DataError


@dataclass(frozen=True)
class Concept:
    """A name and the category that it belongs to, such as ``Concept("red", "colour")``."""

    name: str
    category: str


@dataclass(frozen=True, eq=False)
class Sample:
    """One image with its labels."""

    image: Tensor  # ``(3, H, W)`` in ``uint8``
    # ``(K, h, w)`` concept indices, -1 for none; ``(h, w)`` need not be ``(H, W)`` but covers the same field
    labels: Tensor
    image_labels: Tensor  # ``(J,)`` concept indices of the whole image, -1 for none


@dataclass(frozen=True, eq=False)
class ConceptBatch:
    """Images ``(B, 3, H, W)`` from 0 to 1, labels ``(B, K, h, w)`` and ``(B, J)``, and indices in the set."""

    images: Tensor
    labels: Tensor
    image_labels: Tensor
    index: tuple[int, ...]


class ConceptSet(ABC):
    """Base of all concept sets: a subclass says how many images it has and reads one of them.

    Attributes:
        name: Name in reports.
        concepts: All concepts; labels index them.
        planes: Number ``K`` of pixel label planes.
        whole: Number ``J`` of labels for the whole image.
    """

    name: str
    concepts: tuple[Concept, ...]
    planes: int
    whole: int = 0

    @abstractmethod
    def __len__(self) -> int:
        """Number of images."""

    @abstractmethod
    def _read(self, i: int) -> Sample:
        """Read image ``i``."""

    @cached_property
    def categories(self) -> tuple[str, ...]:
        """Categories, in the order in which concepts name them."""
        return tuple(dict.fromkeys(c.category for c in self.concepts))

    @cached_property
    def category_of(self) -> Tensor:
        """``(C,)`` index into ``categories`` of each concept."""
        return torch.tensor([self.categories.index(c.category) for c in self.concepts], dtype=torch.long)

    def __getitem__(self, i: int) -> Sample:
        """Image ``i`` with its labels, checked: a label out of range or a wrong shape is a ``DataError``."""
        if not 0 <= i < len(self):
            raise IndexError(f"i must be in [0, {len(self)}). Got {i}.")
        sample = self._read(i)
        self._check(i, sample)
        return sample

    def batches(self, size: int) -> Iterator[ConceptBatch]:
        """Go through the set in order; a ``DataError`` if images or label planes differ in size."""
        for start in range(0, len(self), size):
            index = tuple(range(start, min(start + size, len(self))))
            samples = [self[i] for i in index]
            for what in ("image", "labels"):
                shapes = {tuple(getattr(s, what).shape) for s in samples}
                if len(shapes) > 1:
                    raise DataError(
                        f"{what} of {self.name} must all have one size. Got {sorted(shapes)} in images "
                        f"{index[0]} to {index[-1]}. Read the set with size=(height, width)."
                    )
            yield ConceptBatch(
                torch.stack([s.image for s in samples]).to(torch.float32) / 255,
                torch.stack([s.labels for s in samples]).long(),
                torch.stack([s.image_labels for s in samples]).long(),
                index,
            )

    def subset(self, index: Sequence[int]) -> Subset:
        """The images at ``index`` only, with all concepts."""
        return Subset(self, tuple(index))

    def _check(self, i: int, sample: Sample) -> None:
        image, labels, whole = sample.image, sample.labels, sample.image_labels
        if image.ndim != 3 or image.shape[0] != 3 or image.dtype != torch.uint8:
            raise DataError(
                f"image {i} of {self.name} must be (3, H, W) in uint8. Got {tuple(image.shape)} in {image.dtype}."
            )
        if labels.ndim != 3 or labels.shape[0] != self.planes or whole.shape != (self.whole,):
            raise DataError(
                f"labels of image {i} of {self.name} must be ({self.planes}, h, w) and ({self.whole},). "
                f"Got {tuple(labels.shape)} and {tuple(whole.shape)}."
            )
        for values in (labels, whole):
            if values.numel() and (int(values.min()) < -1 or int(values.max()) >= len(self.concepts)):
                bad = values[(values < -1) | (values >= len(self.concepts))][0].item()
                raise DataError(
                    f"labels of image {i} of {self.name} must be concept indices in [0, {len(self.concepts)}), "
                    f"or -1 for none. Got {bad}. Check that the label files belong to this list of concepts."
                )

    def __repr__(self) -> str:
        counts = {c: sum(k.category == c for k in self.concepts) for c in self.categories}
        kinds = ", ".join(f"{n} {c}" for c, n in counts.items())
        return f"{type(self).__name__}({self.name!r}, {counted(len(self), 'image')}, {kinds})"


class Subset(ConceptSet):
    """Some images of another set."""

    def __init__(self, base: ConceptSet, index: tuple[int, ...]) -> None:
        if not index:
            raise ValueError("index must name at least one image. Got none.")
        wrong = [i for i in index if not 0 <= i < len(base)]
        if wrong:
            raise IndexError(f"index must be in [0, {len(base)}). Got {wrong[0]}.")
        self.name, self.concepts, self.planes, self.whole = base.name, base.concepts, base.planes, base.whole
        self._base, self._index = base, index

    def __len__(self) -> int:
        return len(self._index)

    def _read(self, i: int) -> Sample:
        return self._base[self._index[i]]


class TensorConcepts(ConceptSet):
    """A concept set from tensors in memory.

    Images are ``(N, 3, H, W)`` in ``uint8``; labels ``(N, K, h, w)`` or ``(N, h, w)`` and ``image_labels`` ``(N, J)``
    concept indices, -1 for none. A plain name becomes a concept of the category ``"concept"``.

    Examples:
        >>> images = torch.zeros(4, 3, 8, 8, dtype=torch.uint8)
        >>> labels = torch.randint(-1, 2, (4, 8, 8))
        >>> TensorConcepts(images, labels, ["sky", Concept("red", "colour")])
        TensorConcepts('tensors', 4 images, 1 concept, 1 colour)
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        concepts: Sequence[Concept | str],
        image_labels: Tensor | None = None,
        name: str = "tensors",
    ) -> None:
        n = images.shape[0] if images.ndim else 0
        if not n or not concepts:
            raise DataError(f"a concept set must hold images and concepts. Got {n} images, {len(concepts)} concepts.")
        labels = labels[:, None] if labels.ndim == 3 else labels
        whole = torch.empty(n, 0, dtype=torch.long) if image_labels is None else image_labels
        if labels.shape[0] != n or whole.shape[0] != n:
            raise DataError(f"labels must be given for all {n} images. Got {labels.shape[0]} and {whole.shape[0]}.")
        if labels.is_floating_point() or whole.is_floating_point():
            raise DataError(f"labels must be whole numbers. Got {labels.dtype} and {whole.dtype}.")
        self.name, self.planes, self.whole = name, labels.shape[1], whole.shape[1]
        self.concepts = tuple(Concept(c, "concept") if isinstance(c, str) else c for c in concepts)
        self._images, self._labels, self._whole = images, labels, whole

    def __len__(self) -> int:
        return self._images.shape[0]

    def _read(self, i: int) -> Sample:
        return Sample(self._images[i], self._labels[i], self._whole[i])


COLOURS = ("black", "white", "grey", "red", "orange", "yellow", "green", "blue", "purple", "pink", "brown")
_BLACK, _WHITE, _GREY, _RED, _ORANGE, _YELLOW, _GREEN, _BLUE, _PURPLE, _PINK, _BROWN = range(len(COLOURS))
_DARKEST, _PALEST, _BRIGHTEST, _BROWN_BELOW = 0.2, 0.18, 0.85, 0.6
# hue in degrees up to which a saturated pixel has the colour; beyond the last hue it is red again
_HUES = ((15, _RED), (45, _ORANGE), (70, _YELLOW), (165, _GREEN), (255, _BLUE), (300, _PURPLE), (345, _PINK))


def name_colours(image: Tensor) -> Tensor:
    """The basic colour of every pixel.

    Raises:
        ValueError: If the image is not ``(3, H, W)`` in ``uint8``.

    Examples:
        >>> pixels = torch.tensor([[255, 0, 0], [0, 0, 255], [120, 70, 20]], dtype=torch.uint8).T[:, None]
        >>> [COLOURS[i] for i in name_colours(pixels)[0]]
        ['red', 'blue', 'brown']
    """
    if image.ndim != 3 or image.shape[0] != 3 or image.dtype != torch.uint8:
        raise ValueError(f"image must be (3, H, W) in uint8. Got {tuple(image.shape)} in {image.dtype}.")
    rgb = image.to(torch.float32) / 255
    value, top = rgb.max(0)
    chroma = value - rgb.min(0).values
    saturation = chroma / value.clamp_min(1e-6)
    red, green, blue = rgb
    sectors = torch.stack([(green - blue), (blue - red), (red - green)]).gather(0, top[None])[0]
    hue = (60 * (sectors / chroma.clamp_min(1e-6) + 2 * top)) % 360
    found = torch.full_like(top, _RED)
    for limit, colour in reversed(_HUES):
        found[hue < limit] = colour
    warm_and_dark = (hue >= 8) & (hue < 60) & (value < _BROWN_BELOW)
    found[warm_and_dark] = _BROWN
    found[((hue < 15) | (hue >= 345)) & (saturation < 0.55) & (value > 0.7)] = _PINK
    found[saturation < _PALEST] = _GREY
    found[(saturation < _PALEST) & (value > _BRIGHTEST)] = _WHITE
    found[value < _DARKEST] = _BLACK
    return found


class WithColours(ConceptSet):
    """A concept set with one more plane: the colour of every pixel, from the image; ``ValueError`` if it has one."""

    def __init__(self, base: ConceptSet) -> None:
        if "colour" in base.categories:
            raise ValueError(f"base must have no category 'colour' of its own. Got {base!r}. Use it as it is.")
        self._base, self._first = base, len(base.concepts)
        self.name, self.planes, self.whole = f"{base.name}+colours", base.planes + 1, base.whole
        self.concepts = (*base.concepts, *(Concept(name, "colour") for name in COLOURS))

    def __len__(self) -> int:
        return len(self._base)

    def _read(self, i: int) -> Sample:
        sample = self._base[i]
        colours = name_colours(sample.image) + self._first
        size = sample.labels.shape[1:]
        if colours.shape != size:
            colours = F.interpolate(colours[None, None].float(), size=size, mode="nearest-exact")[0, 0].long()
        return Sample(sample.image, torch.cat([sample.labels.long(), colours[None]]), sample.image_labels)
