"""Concept sets from a line of text, as the command line gives it."""

from pathlib import Path

from ...dissection import ConceptSet, WithColours
from .concept_files import BrodenConcepts, CocoConcepts, FolderConcepts, ParquetConcepts
from .generated import GeneratedConcepts

CONCEPT_FORMS = ("generated", "parquet:FILE", "masks:FOLDER", "coco:ANNOTATIONS.json@IMAGES", "broden:FOLDER")
_PHOTOGRAPH = (90, 120)  # pixels


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
            with ``+colours`` at the end, colours computed from the pixels are added.
        images: Take the first images only; for ``generated``, how many to draw, from ``seed``.
        size: ``(height, width)`` to bring images and labels to; not for Broden, which has one size.
        split: For parquet and Broden: only this split.
        seed: Of generated images.

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
        found: ConceptSet = GeneratedConcepts(images or 1000, height, seed)
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
    """What networks learn from, and what they are dissected on, each of so many ``images`` at most.

    Generated images, of this side, of two seeds; the splits of a set that has them (``train`` and ``test``, of Broden
    ``val``); of another set every fourth image for the test. Photographs are brought to 90 x 120 pixels.
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
