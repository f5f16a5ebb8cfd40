"""Concept sets named by a line of text, as on the command line; and a generated one, the same every time.

Generated images have a background of one grey texture with one to four things on it. A thing is a plain shape in one
colour, or an object made of coloured shapes: a house, a tree, a car, a boat, a flag, a snowman. Pixels are labelled
with their texture (background only), colour, shape and object, in four planes.

Concepts are kept rare on purpose. A mask that covers a share ``q`` of the pixels has an IoU of at most ``q / f`` with a
concept that covers a share ``f``: with ``q = 0.005`` and IoU > 0.04, nothing that covers more than an eighth of the
pixels can ever be detected.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from ...dissection import Concept, ConceptSet, Sample, WithColours
from .concept_files import BrodenConcepts, CocoConcepts, FolderConcepts, ParquetConcepts

CONCEPT_FORMS = ("generated", "parquet:FILE", "masks:FOLDER", "coco:ANNOTATIONS.json@IMAGES", "broden:FOLDER")
_PHOTOGRAPH = (90, 120)  # height and width in pixels
Grid = np.ndarray  # coordinates or a mask, one value for each pixel

_COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (214, 40, 40),
    "orange": (240, 140, 30),
    "yellow": (245, 220, 60),
    "green": (50, 160, 70),
    "blue": (50, 90, 200),
    "purple": (140, 60, 170),
    "pink": (245, 150, 185),
    "brown": (120, 72, 36),
}
# masks in a frame where the thing fills [-1, 1] x [-1, 1], y pointing down
_SHAPES: dict[str, Callable[[Grid, Grid], Grid]] = {
    "circle": lambda x, y: x**2 + y**2 <= 1,
    "square": lambda x, y: np.maximum(abs(x), abs(y)) <= 0.9,
    "triangle": lambda x, y: (y <= 0.9) & (abs(x) <= (y + 1) / 1.9),
    "ring": lambda x, y: (x**2 + y**2 <= 1) & (x**2 + y**2 >= 0.3),
    "cross": lambda x, y: (np.minimum(abs(x), abs(y)) <= 0.3) & (np.maximum(abs(x), abs(y)) <= 1),
    "diamond": lambda x, y: abs(x) + abs(y) <= 1,
    "bar": lambda x, y: (abs(x) <= 0.25) & (abs(y) <= 1),
}
# shape, colour (None: that of the object), centre x and y, half width and half height, in the object's frame
_Part = tuple[str, str | None, float, float, float, float]
_OBJECTS: dict[str, tuple[_Part, ...]] = {
    "house": (("square", None, 0, 0.4, 0.75, 0.65), ("triangle", "brown", 0, -0.55, 1.0, 0.45)),
    "tree": (("bar", "brown", 0, 0.5, 0.8, 0.5), ("circle", "green", 0, -0.35, 0.7, 0.65)),
    "car": (
        ("square", None, 0, 0.1, 1.0, 0.35),
        ("square", None, 0, -0.3, 0.55, 0.3),
        ("circle", "brown", -0.55, 0.5, 0.3, 0.3),
        ("circle", "brown", 0.55, 0.5, 0.3, 0.3),
    ),
    "boat": (("triangle", None, 0.1, -0.3, 0.65, 0.7), ("square", "brown", 0, 0.6, 1.0, 0.25)),
    "flag": (("bar", "brown", -0.75, 0, 0.5, 1.0), ("square", None, 0.15, -0.45, 0.8, 0.5)),
    "snowman": (("circle", "pink", 0, 0.4, 0.6, 0.58), ("circle", "pink", 0, -0.5, 0.42, 0.42)),
}
# brightness in [0, 1] from pixel coordinates, period and random phases
_TEXTURES: dict[str, Callable[[Grid, Grid, float, Grid], Grid]] = {
    "plain": lambda x, y, p, r: 0 * x,
    "horizontal stripes": lambda x, y, p, r: (y / p + r[0]) % 1 < 0.5,
    "vertical stripes": lambda x, y, p, r: (x / p + r[0]) % 1 < 0.5,
    "diagonal stripes": lambda x, y, p, r: ((x + y) / (1.4 * p) + r[0]) % 1 < 0.5,
    "checks": lambda x, y, p, r: ((x / p + r[0]) % 1 < 0.5) ^ ((y / p + r[1]) % 1 < 0.5),
    "dots": lambda x, y, p, r: ((x / p + r[0]) % 1 - 0.5) ** 2 + ((y / p + r[1]) % 1 - 0.5) ** 2 < 0.08,
    "grid": lambda x, y, p, r: np.minimum((x / p + r[0]) % 1, (y / p + r[1]) % 1) < 0.22,
    "waves": lambda x, y, p, r: (y / p + 0.35 * np.sin(2 * np.pi * (x / (2 * p) + r[0])) + r[1]) % 1 < 0.5,
    "rings": lambda x, y, p, r: (np.hypot(x - 64 * r[0], y - 64 * r[1]) / p) % 1 < 0.5,
    "gradient": lambda x, y, p, r: ((x * np.cos(6.3 * r[0]) + y * np.sin(6.3 * r[0])) / (4 * p) + r[1]) % 1,
}
_KINDS = (("texture", _TEXTURES), ("colour", _COLOURS), ("shape", _SHAPES), ("object", _OBJECTS))
_CONCEPTS = tuple(Concept(name, category) for category, names in _KINDS for name in names)
_NUMBER = {(c.category, c.name): i for i, c in enumerate(_CONCEPTS)}


class GeneratedConcepts(ConceptSet):
    """Generated images with 31 concepts: 10 textures, 8 colours, 7 shapes, 6 objects.

    They are ``size`` pixels high and wide, at least 16; things keep their share of the image. Another seed gives other
    images; image ``i`` does not depend on the number of images.

    Examples:
        >>> concepts = GeneratedConcepts(images=3)
        >>> concepts
        GeneratedConcepts('generated', 3 images, 10 texture, 8 colour, 7 shape, 6 object)
        >>> concepts[0].image.shape, concepts[0].labels.shape
        (torch.Size([3, 64, 64]), torch.Size([4, 64, 64]))
    """

    def __init__(self, images: int = 1000, size: int = 64, seed: int = 0) -> None:
        if images < 1:
            raise ValueError(f"images must be at least 1. Got {images}.")
        if size < 16:
            raise ValueError(f"size must be at least 16 pixels. Got {size}.")
        self.name, self.concepts, self.planes = "generated", _CONCEPTS, len(_KINDS)
        self._count, self._size, self._seed = images, size, seed

    def __len__(self) -> int:
        return self._count

    def _read(self, i: int) -> Sample:
        random = np.random.default_rng((self._seed, i))
        canvas = _Canvas(self._size, random)
        canvas.background(str(random.choice(list(_TEXTURES))))
        for _ in range(int(random.integers(1, 5))):
            canvas.thing()
        return canvas.sample()


class _Canvas:
    """One image being drawn."""

    def __init__(self, size: int, random: np.random.Generator) -> None:
        self._size, self._random = size, random
        self._x, self._y = np.meshgrid(np.arange(size) * 64 / size, np.arange(size) * 64 / size)  # in 64ths
        self._image = np.zeros((size, size, 3))
        self._labels = np.full((len(_KINDS), size, size), -1)

    def background(self, texture: str) -> None:
        """Draw a grey texture, which alone is labelled in the first plane."""
        random = self._random
        bright = _TEXTURES[texture](self._x, self._y, random.uniform(7, 13), random.uniform(size=2)).astype(float)
        dark, light = sorted(random.uniform(60, 220, 2)) if texture == "plain" else (random.uniform(50, 90), 190)
        self._image[:] = (dark + (light - dark) * bright)[:, :, None]
        self._labels[0] = _NUMBER["texture", texture]

    def thing(self) -> None:
        """Draw a plain shape or an object, somewhere, over what is there."""
        random = self._random
        radius = random.uniform(6, 13)
        x, y = ((v - random.uniform(radius, 64 - radius)) / radius for v in (self._x, self._y))
        colour = str(random.choice(list(_COLOURS)))
        if random.uniform() < 0.5:
            self._fill(str(random.choice(list(_SHAPES))), x, y, colour, None)
            return
        name = str(random.choice(list(_OBJECTS)))
        for shape, own, cx, cy, half_width, half_height in _OBJECTS[name]:
            self._fill(shape, (x - cx) / half_width, (y - cy) / half_height, own or colour, name)

    def _fill(self, shape: str, x: Grid, y: Grid, colour: str, name: str | None) -> None:
        mask = _SHAPES[shape](x, y)
        self._image[mask] = np.array(_COLOURS[colour]) + self._random.uniform(-18, 18, 3)
        self._labels[:, mask] = [
            [-1],
            [_NUMBER["colour", colour]],
            [_NUMBER["shape", shape]],
            [_NUMBER["object", name] if name else -1],
        ]

    def sample(self) -> Sample:
        """The image with a little noise, and its labels."""
        noisy = self._image + self._random.normal(0, 6, self._image.shape)
        image = torch.from_numpy(noisy.round().clip(0, 255).astype(np.uint8)).permute(2, 0, 1)
        return Sample(image, torch.from_numpy(self._labels), torch.empty(0, dtype=torch.long))


def load_concepts(
    spec: str,
    *,
    images: int | None = None,
    size: tuple[int, int] | None = None,
    split: str | None = None,
    seed: int = 0,
) -> ConceptSet:
    """Open a concept set.

    Args:
        spec: ``generated``, ``parquet:FILE``, ``masks:FOLDER``, ``coco:ANNOTATIONS.json@IMAGES`` or ``broden:FOLDER``;
            ``+colours`` at the end adds colours computed from the pixels.
        images: Take only this many first images; for ``generated``, how many to draw, from ``seed``.
        size: ``(height, width)`` to resize images and labels to; not for Broden, which has one size.
        split: For parquet and Broden: only this split.
        seed: Seed of generated images.

    Raises:
        ValueError: If the form is unknown, or an option does not belong to it.

    Examples:
        >>> load_concepts("generated", images=20)
        GeneratedConcepts('generated', 20 images, 10 texture, 8 colour, 7 shape, 6 object)
    """
    text, colours = (spec.removesuffix("+colours"), True) if spec.endswith("+colours") else (spec, False)
    kind, _, path = text.partition(":")
    if split is not None and kind not in ("parquet", "broden"):
        raise ValueError(f"split must be left out for {kind!r}: only parquet and broden have splits. Got {split!r}.")
    if kind == "generated" and not path:
        height, width = size or (64, 64)
        if height != width:
            raise ValueError(f"size must be square for generated. Got {height} x {width}.")
        found: ConceptSet = GeneratedConcepts(1000 if images is None else images, height, seed)
        images = None
    elif kind == "parquet" and path:
        found = ParquetConcepts(path, split, size)
    elif kind == "masks" and path:
        found = FolderConcepts(path, size)
    elif kind == "coco" and "@" in path:
        annotations, _, folder = path.rpartition("@")
        found = CocoConcepts(annotations, folder, size)
    elif kind == "broden" and path:
        if size is not None:
            raise ValueError(f"size must be left out for broden, whose files have one size. Got {size}.")
        found = BrodenConcepts(Path(path), split)
    else:
        raise ValueError(f"concepts must be one of {', '.join(CONCEPT_FORMS)}, with or without +colours. Got {spec!r}.")
    if images is not None:
        found = found.subset(range(min(images, len(found))))
    return WithColours(found) if colours else found


def concept_sets(spec: str, images: tuple[int, int], side: int) -> tuple[ConceptSet, ConceptSet]:
    """The sets that networks learn from and are dissected on, with at most the given numbers of ``images``.

    Generated images have this ``side`` and come from two seeds. A set with splits gives ``train`` and ``test`` (Broden
    ``val``); of another set every fourth image is for the test. Photographs are resized to 90 x 120 pixels.
    """
    kind = spec.removesuffix("+colours").partition(":")[0]
    if kind == "generated":
        train, test = (load_concepts(spec, images=n, size=(side, side), seed=i) for i, n in enumerate(images))
        return train, test
    if kind == "broden":
        parts = [load_concepts(spec, split=split) for split in ("train", "val")]
    elif kind == "parquet":
        parts = [load_concepts(spec, split=split, size=_PHOTOGRAPH) for split in ("train", "test")]
    else:
        whole = load_concepts(spec, size=_PHOTOGRAPH)
        held_out = range(0, len(whole), 4)
        parts = [whole.subset([i for i in range(len(whole)) if i % 4]), whole.subset(held_out)]
    train, test = (part.subset(range(min(n, len(part)))) for part, n in zip(parts, images))
    return train, test
