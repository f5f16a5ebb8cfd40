"""Concept sets from images beside masks of label numbers: a Hugging Face parquet file, or two folders.

Images and masks are brought to one size; a bad file is named.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...dissection import Concept, ConceptSet, Sample
from ...errors import DataError
from .pictures import SUFFIXES, in_colour, numbers, pixels
from .tables import whole_table

_NOT_LABELS = {"unlabelled", "unlabeled", "void", "background", "ignore", "none"}
_IGNORED_NUMBER = 255  # what most segmentation sets write where there is no label


class _Numbering:
    """Label numbers of files to concept indices: names such as "unlabelled" and the number 255 mean none."""

    def __init__(self, names: Sequence[str], category: str | Mapping[str, str]) -> None:
        kept = [n for n in names if n.strip().lower() not in _NOT_LABELS]
        if not kept:
            raise DataError(f"a concept set must name at least one concept. Got {list(names)}.")
        of = (lambda n: category) if isinstance(category, str) else (lambda n: category.get(n, "concept"))
        self.concepts = tuple(Concept(n, of(n)) for n in kept)
        self._index = torch.tensor([kept.index(n) if n in kept else -1 for n in names])

    def __call__(self, mask: Tensor, name: str) -> Tensor:
        mask = torch.where(mask == _IGNORED_NUMBER, -1, mask) if len(self._index) <= _IGNORED_NUMBER else mask
        if int(mask.max()) >= len(self._index):
            raise DataError(
                f"{name} must hold label numbers below {len(self._index)}, the number of names, or {_IGNORED_NUMBER} "
                f"for none. Got {int(mask.max())}. Check that the names belong to these masks."
            )
        return torch.where(mask < 0, -1, self._index[mask.clamp_min(0)])


def _pair(image: Tensor, mask: Tensor, numbering: _Numbering, name: str, size: tuple[int, int] | None) -> Sample:
    if image.shape[1:] != mask.shape:
        (h, w), (mh, mw) = image.shape[1:], mask.shape
        raise DataError(
            f"the mask of {name} must have the size of its image, {w}x{h}. Got {mw}x{mh}. Resize masks by nearest "
            "neighbour, so that no label numbers are mixed."
        )
    return fitted(image, numbering(mask, f"the mask of {name}")[None], torch.empty(0, dtype=torch.long), size)


class ParquetConcepts(ConceptSet):
    """A segmentation set in the Hugging Face layout: columns ``image`` and ``mask``, structs of ``bytes`` and ``path``.

    Concept names come from ``names``, or from the schema metadata under ``concepts`` (a JSON list). Names such as
    "unlabelled" and the number 255 mean no label. The file's compressed bytes are held in memory; images are decoded
    when they are read.

    Args:
        path: The parquet file.
        split: Keep rows whose column ``split`` has this value; ``None`` keeps all.
        size: ``(height, width)`` to bring images and masks to; ``None`` leaves them.
        names: Names of the label numbers 0, 1, ...
        category: Category of all concepts, or of each name.

    Raises:
        DataError: If the file, a column, the names or the rows of the split are missing.
    """

    def __init__(
        self,
        path: str | Path,
        split: str | None = None,
        size: tuple[int, int] | None = None,
        names: Sequence[str] | None = None,
        category: str | Mapping[str, str] = "object",
    ) -> None:
        table = whole_table(Path(path))
        if missing := {"image", "mask"} - set(table.column_names):
            raise DataError(f"{str(path)!r} must have a column {sorted(missing)[0]!r}. Got {table.column_names}.")
        names = names or json.loads((table.schema.metadata or {}).get(b"concepts", b"[]"))
        if not names:
            raise DataError(
                f"{str(path)!r} must name its labels: a JSON list under 'concepts' in the schema metadata. Got none. "
                "Pass names=[...]."
            )
        if split is not None:
            if "split" not in table.column_names:
                raise DataError(f"{str(path)!r} must have a column 'split' to choose {split!r}. Got none.")
            splits = table.column("split").to_pylist()
            table = table.filter([s == split for s in splits])
            if not table.num_rows:
                raise DataError(f"split must be one of {', '.join(sorted(set(splits)))}. Got {split!r}.")
        self._numbering = _Numbering(names, category)
        self._rows, self._size = table, size
        self.name = Path(path).stem + (f":{split}" if split else "")
        self.concepts, self.planes = self._numbering.concepts, 1

    def __len__(self) -> int:
        return self._rows.num_rows

    def _read(self, i: int) -> Sample:
        name = f"row {i} of {self.name}"
        image, mask = (_bytes(self._rows.column(c)[i].as_py(), f"{c} of {name}") for c in ("image", "mask"))
        return _pair(
            read_image(image, f"image of {name}"), read_mask(mask, f"mask of {name}"), self._numbering, name, self._size
        )


class FolderConcepts(ConceptSet):
    """A folder with ``images/``, ``masks/`` (for each image a PNG of label numbers with its stem) and ``labels.txt``.

    Args:
        path: The folder.
        size: ``(height, width)`` to bring images and masks to; ``None`` leaves them.
        names: Names of the label numbers 0, 1, ...; ``None`` reads ``labels.txt``, one name a line.
        category: Category of all concepts, or of each name.

    Raises:
        DataError: If a folder, the names or the mask of an image is missing, or there is no image.
    """

    def __init__(
        self,
        path: str | Path,
        size: tuple[int, int] | None = None,
        names: Sequence[str] | None = None,
        category: str | Mapping[str, str] = "object",
    ) -> None:
        root = Path(path)
        for part in ("images", "masks"):
            if not (root / part).is_dir():
                raise DataError(
                    f"{str(root)!r} must have a folder {part!r}. Got none. See FolderConcepts for the layout."
                )
        if names is None:
            file = root / "labels.txt"
            if not file.is_file():
                raise DataError(f"{str(root)!r} must have labels.txt, one name for each label number. Got none.")
            names = [line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        masks = {p.stem: p for p in _pictures(root / "masks")}
        images = sorted(_pictures(root / "images"))
        if not images:
            raise DataError(f"{str(root / 'images')!r} must hold at least one image. Got none.")
        lacking = [p.name for p in images if p.stem not in masks]
        if lacking:
            raise DataError(f"every image must have a mask with its stem. Got none for {', '.join(lacking[:5])}.")
        self._numbering = _Numbering(names, category)
        self._files, self._size = [(p, masks[p.stem]) for p in images], size
        self.name, self.concepts, self.planes = root.name, self._numbering.concepts, 1

    def __len__(self) -> int:
        return len(self._files)

    def _read(self, i: int) -> Sample:
        image, mask = self._files[i]
        return _pair(read_image(image, image.name), read_mask(mask, mask.name), self._numbering, image.name, self._size)


def _pictures(folder: Path) -> list[Path]:
    return [p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES and not p.name.startswith(".")]


def _bytes(value: Any, name: str) -> bytes:
    data = value.get("bytes") if isinstance(value, Mapping) else value
    if not isinstance(data, bytes):
        raise DataError(f"{name} must hold bytes. Got {type(data).__name__}.")
    return data


def read_image(source: bytes | Path, name: str) -> Tensor:
    """An image as ``(3, H, W)`` in ``uint8``."""
    return torch.from_numpy(in_colour(pixels(source, name))).permute(2, 0, 1).contiguous()


def read_mask(source: bytes | Path, name: str) -> Tensor:
    """A mask whose pixel values are label numbers, ``(h, w)`` in int64."""
    array = numbers(source, name)
    if array.ndim != 2 or array.dtype.kind not in "uib":
        raise DataError(
            f"mask {name} must have one channel of label numbers (grey or palette). Got {array.shape} in "
            f"{array.dtype}. Convert colour-coded masks to label numbers first."
        )
    return torch.from_numpy(array.astype(np.int64))


def read_packed_mask(source: bytes | Path, name: str) -> Tensor:
    """A mask with label numbers ``red + 256 * green``, Broden's coding, ``(h, w)`` in int64."""
    array = in_colour(pixels(source, name)).astype(np.int64)
    return torch.from_numpy(array[:, :, 0] + 256 * array[:, :, 1])


def fitted(image: Tensor, labels: Tensor, whole: Tensor, size: tuple[int, int] | None) -> Sample:
    """A sample with its image resized by area and its labels by nearest neighbour.

    Args:
        image: ``(3, H, W)`` in ``uint8``.
        labels: ``(K, h, w)``.
        whole: ``(J,)``.
        size: ``(height, width)`` of image and labels; ``None`` leaves both.
    """
    if size is not None:
        small = F.interpolate(image[None].float(), size=size, mode="bilinear", antialias=True, align_corners=False)
        image = small[0].round().clamp(0, 255).to(torch.uint8)
        # float64 holds every label number exactly
        labels = F.interpolate(labels[None].double(), size=size, mode="nearest-exact")[0].long()
    return Sample(image, labels, whole)
