"""Concept sets in files: parquet in the Hugging Face layout, folders of masks, COCO annotations, and Broden.

All are read image by image, and errors name the bad file. Masks hold label numbers, which become concept indices, -1
for none; if a size is given, images are resized by area and labels by nearest neighbour.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..._memory import check_fits
from ..._untrusted.files import check_fields, json_of, within
from ...dissection import Concept, ConceptSet, Sample
from ...errors import DataError
from .images import image_files
from .pictures import in_colour, numbers, pixels, segmentation
from .splits import MOST_CLASSES
from .tables import whole_table

_NOT_LABELS = {"", "unlabelled", "unlabeled", "void", "background", "ignore", "none"}
_IGNORED = 255  # what most segmentation sets write for "no label"
_SIZES = ("ih", "iw", "sh", "sw")  # columns of Broden's index
_COCO = {
    "images": [{"id": (int, str), "file_name": str, "height": (float, None), "width": (float, None)}],
    "annotations": [{"image_id": (int, str), "category_id": (int, str, None)}],
    "categories": [{"id": (int, str), "name": str, "supercategory": (str, None)}],
}
_WHOLE = re.compile(r"\d{1,18}", re.ASCII)  # fits into 64 bits
_REAL = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d{1,3})?", re.ASCII)


class _InFiles(ConceptSet):
    """A concept set with a row for each image."""

    _rows: Any

    def __len__(self) -> int:
        return len(self._rows)


class _Masked(_InFiles):
    """Images with masks of one plane; names such as "unlabelled" and the number 255 mean no label."""

    def __init__(self, rows: Any, size: tuple[int, int] | None, names: Sequence[str]) -> None:
        kept = [n for n in names if n.strip().lower() not in _NOT_LABELS]
        if not kept:
            raise DataError(f"a concept set must name at least one concept. Got {list(names)}.")
        self.concepts, self.planes = tuple(Concept(n, "object") for n in kept), 1
        self._index = torch.tensor([kept.index(n) if n in kept else -1 for n in names])
        self._rows, self._size = rows, size

    def _sample(self, image: tuple[bytes | Path, str], mask: tuple[bytes | Path, str], name: str) -> Sample:
        """The sample of an image and a mask, each given with its name."""
        colours, labels = _image(*image), numbers(*mask)
        if labels.ndim != 2 or labels.dtype.kind not in "uib":
            raise DataError(
                f"mask {mask[1]} must have one channel of label numbers (grey or palette). Got {labels.shape} in "
                f"{labels.dtype}. Convert colour-coded masks to label numbers first."
            )
        name, found, count = f"the mask of {name}", torch.from_numpy(labels.astype(np.int64)), len(self._index)
        _check_size(found, colours.shape[1:], name, "of its image", (
            " Resize masks by nearest neighbour, so that no label numbers are mixed."
        ))  # fmt: skip
        found = torch.where(found == _IGNORED, -1, found) if count <= _IGNORED else found
        if int(found.max()) >= count:
            raise DataError(
                f"{name} must hold label numbers below {count}, the number of names, or {_IGNORED} for none. "
                f"Got {int(found.max())}. Check that the names belong to these masks."
            )
        concepts = torch.where(found < 0, -1, self._index[found.clamp_min(0)])
        return _fitted(colours, concepts[None], self._size)


class ParquetConcepts(_Masked):
    """A segmentation set in the Hugging Face layout: columns ``image`` and ``mask``, structs of ``bytes`` and ``path``.

    Concepts, the names of the label numbers 0, 1, ..., come from ``names``, or from the schema metadata under
    ``concepts`` (a JSON list). Names such as "unlabelled" and the number 255 mean no label. ``split`` keeps the rows
    whose column ``split`` has this value; images and masks are resized to ``size``, ``(height, width)``. The file's
    compressed bytes are held in memory; images are decoded when they are read.

    Raises:
        DataError: If the file, a column, the names or the rows of the split are missing.
    """

    def __init__(
        self,
        path: str | Path,
        split: str | None = None,
        size: tuple[int, int] | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        table = whole_table(Path(path))
        if missing := {"image", "mask"} - set(table.column_names):
            raise DataError(f"{str(path)!r} must have a column {sorted(missing)[0]!r}. Got {table.column_names}.")
        if not names:
            with suppress(ValueError, RecursionError):  # no JSON
                names = json.loads((table.schema.metadata or {}).get(b"concepts", b"[]"))
            if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
                raise DataError(
                    f"{str(path)!r} must name its labels: a JSON list under 'concepts' in the schema metadata. Got "
                    "none. Pass names=[...]."
                )
        if split is not None:
            if "split" not in table.column_names:
                raise DataError(f"{str(path)!r} must have a column 'split' to choose {split!r}. Got none.")
            splits = table.column("split").to_pylist()
            table = table.filter([s == split for s in splits])
            if not table.num_rows:
                raise DataError(f"split must be one of {', '.join(sorted(set(map(str, splits))))}. Got {split!r}.")
        self.name = Path(path).stem + (f":{split}" if split else "")
        super().__init__(table, size, names)

    def _read(self, i: int) -> Sample:
        name = f"row {i} of {self.name}"

        def named(column: str) -> tuple[bytes, str]:
            value = self._rows.column(column)[i].as_py()
            data = value.get("bytes") if isinstance(value, Mapping) else value
            if not isinstance(data, bytes):
                raise DataError(f"{column} of {name} must hold bytes. Got {type(data).__name__}.")
            return data, f"{column} of {name}"

        return self._sample(named("image"), named("mask"), name)


class FolderConcepts(_Masked):
    """A folder with ``images/``, ``masks/`` (for each image a PNG of label numbers with its stem) and ``labels.txt``.

    The text names the label numbers 0, 1, ..., one per line. Images and masks are resized to ``size``, ``(height,
    width)``, if one is given.

    Raises:
        DataError: If a folder, the names or the mask of an image is missing, or there is no image.
    """

    def __init__(self, path: str | Path, size: tuple[int, int] | None = None) -> None:
        root = Path(path)
        for part in ("images", "masks"):
            if not (root / part).is_dir():
                raise DataError(f"{str(root)!r} must have a folder {part!r}. Got none. See FolderConcepts.")
        file = root / "labels.txt"
        if not file.is_file():
            raise DataError(f"{str(root)!r} must have labels.txt, one name for each label number. Got none.")
        names = [line.strip() for line in _text(file).rstrip().splitlines()]  # an empty line is a number without a name
        images, masks = (image_files(root / part) for part in ("images", "masks"))
        if not images:
            raise DataError(f"{str(root / 'images')!r} must hold at least one image. Got none.")
        by_stem = {p.stem: p for p in masks}
        if lacking := [p.name for p in images if p.stem not in by_stem]:
            raise DataError(f"every image must have a mask with its stem. Got none for {', '.join(lacking[:5])}.")
        self.name = root.name
        super().__init__([(p, by_stem[p.stem]) for p in images], size, names)

    def _read(self, i: int) -> Sample:
        image, mask = self._rows[i]
        return self._sample((image, image.name), (mask, mask.name), image.name)


class CocoConcepts(_InFiles):
    """Images with object annotations in the COCO format: polygons and run-length masks, which may overlap.

    A concept is a category; its category is the ``supercategory``. Polygons are filled by Pillow, which counts the
    pixels on the border as inside: borders can differ by a pixel from those of COCO's own tools. ``annotations`` is
    the JSON file with ``images``, ``annotations`` and ``categories``, ``images`` the folder of the image files, which
    are resized to ``size``, ``(height, width)``; one pixel may carry at most ``planes`` categories.

    Raises:
        DataError: If the file or folder is missing or the file lacks a part.
    """

    def __init__(
        self, annotations: str | Path, images: str | Path, size: tuple[int, int] | None = None, planes: int = 3
    ) -> None:
        file, folder = Path(annotations), Path(images)
        if not folder.is_dir():
            raise DataError(f"images must be an existing folder. Got {str(folder)!r}.")
        data = json_of(file, "annotations", DataError)
        missing = [k for k in ("images", "annotations", "categories") if not isinstance(data, dict) or not data.get(k)]
        if missing:
            raise DataError(f"{str(file)!r} must have images, annotations and categories. Got no {missing[0]}.")
        check_fields(data, _COCO, f"{str(file)!r}: ", DataError)
        self.concepts = tuple(Concept(c["name"], c.get("supercategory") or "object") for c in data["categories"])
        self._number = {c["id"]: i for i, c in enumerate(data["categories"])}
        self._rows, self._folder, self._size = data["images"], folder, size
        self._annotations: dict[Any, list[dict[str, Any]]] = {}
        for annotation in data["annotations"]:
            self._annotations.setdefault(annotation["image_id"], []).append(annotation)
        self.name, self.planes = file.stem, planes

    def _read(self, i: int) -> Sample:
        entry = self._rows[i]
        name = entry["file_name"]
        image = _image(within(self._folder, name, "file_name", DataError), name)
        height, width = image.shape[1:]
        _check_size(image, (entry.get("height", height), entry.get("width", width)), name, "of its entry")
        masks: dict[int, np.ndarray] = {}  # the union of the annotations of each category
        for annotation in self._annotations.get(entry["id"], ()):
            category = annotation.get("category_id")
            if category not in self._number:
                raise DataError(f"category_id must be one of the file's categories. Got {category} in image {name}.")
            concept, mask = self._number[category], segmentation(annotation.get("segmentation"), (height, width), name)
            masks[concept] = masks[concept] | mask if concept in masks else mask
        labels = np.full((self.planes, height, width), -1)
        for concept, mask in masks.items():
            for plane in labels:  # the first free plane of each pixel
                free = mask & (plane < 0)
                plane[free] = concept
                mask &= ~free
            if mask.any():
                raise DataError(
                    f"a pixel must carry at most planes={self.planes} categories. Got more in {name}. "
                    "Pass a larger number of planes."
                )
        return _fitted(image, torch.from_numpy(labels), self._size)


class BrodenConcepts(_InFiles):
    """The Broden set, or any other set written in its layout.

    ``index.csv`` has a row for each image: ``image, split, ih, iw, sh, sw`` and a column for each category. A cell
    lists, separated by ``;``, label numbers for the whole image and names of PNG files with a label for each pixel,
    coded ``red + 256 * green``; 0 means none. ``label.csv`` names the label numbers, ``category.csv`` the categories,
    and ``c_<category>.csv`` the labels of each category. A label in several categories counts in the one where it is
    most frequent. ``split`` is ``"train"``, ``"val"`` or, by default, both. Source: Bau et al. 2017, section 2.1, and
    the files that its authors distribute.

    Raises:
        DataError: If a file or column is missing, a label is unknown, or images differ in size.
    """

    def __init__(self, path: str | Path, split: str | None = None) -> None:
        root = Path(path)
        index = _table(root / "index.csv", ("image", "split", *_SIZES))
        labels = _table(root / "label.csv", ("number", "name"))
        names = [row["name"] for row in _table(root / "category.csv", ("name",))]
        if absent := [n for n in names if n not in index[0]]:
            raise DataError(f"index.csv must have a column for each category. Got none for {', '.join(absent)}.")
        rows = [row for row in index if split is None or row["split"] == split]
        if not rows:
            raise DataError(f"split must be one of {', '.join(sorted({r['split'] for r in index}))}. Got {split!r}.")
        category = _categories(root, names)
        numbered = [(_number(row["number"], "number", "label.csv"), row["name"]) for row in labels]
        kept = [(number, name) for number, name in numbered if number in category]
        if not kept:
            raise DataError(f"label.csv of {str(root)!r} must name labels of the categories. Got none.")
        self.concepts = tuple(Concept(name, category[number]) for number, name in kept)
        highest = max(number for number, _ in numbered)
        if highest >= MOST_CLASSES:
            raise DataError(f"label.csv must hold numbers below {MOST_CLASSES:,}. Got {highest:,}.")
        self._index = torch.full((highest + 1,), -1)
        self._index[torch.tensor([number for number, _ in kept])] = torch.arange(len(kept))
        self._images, self._rows = root / "images", []
        for row in rows:
            sizes = [_number(row[column], column, "index.csv") for column in _SIZES]
            parts = [part for name in names for part in row[name].split(";") if part]
            whole = [_number(part, "a category", "index.csv") for part in parts if part.isdecimal()]
            self._rows.append((row["image"], sizes, [part for part in parts if not part.isdecimal()], whole))
        self.name = root.name + (f":{split}" if split else "")
        self.planes = max(1, *(len(files) for *_, files, _ in self._rows))
        self.whole = max(len(whole) for *_, whole in self._rows)

    def _read(self, i: int) -> Sample:
        name, (height, width, *shape), files, whole = self._rows[i]
        image = _image(within(self._images, name, "image", DataError), name)
        _check_size(image, (height, width), name, "in index.csv")
        size = f"{self.planes} planes of {shape[1]}x{shape[0]}"
        check_fits(8 * self.planes * shape[0] * shape[1], "index.csv", size, "Check its sizes.", error=DataError)
        labels = torch.full((self.planes, *shape), -1)
        for plane, file in zip(labels, files):
            packed = in_colour(pixels(within(self._images, file, "mask", DataError), file)).astype(np.int64)
            mask = torch.from_numpy(packed[:, :, 0] + 256 * packed[:, :, 1])
            _check_size(mask, shape, file, "in index.csv")
            plane.copy_(self._concepts(mask, file))
        padded = torch.tensor(whole + [0] * (self.whole - len(whole)), dtype=torch.long)
        return Sample(image, labels, self._concepts(padded, name))

    def _concepts(self, labels: Tensor, name: str) -> Tensor:
        """Concept indices of label numbers; 0 is none."""
        if labels.numel() and int(labels.max()) >= len(self._index):
            raise DataError(
                f"labels of {name} must be numbers of label.csv, below {len(self._index)}. Got {int(labels.max())}."
            )
        return torch.where(labels == 0, -1, self._index[labels])


def _categories(root: Path, names: list[str]) -> dict[int, str]:
    """The category of each label number: the one where it is most frequent, the first of ties."""
    best: dict[int, tuple[float, str]] = {}
    for name in names:
        file = f"c_{name}.csv"
        for row in _table(root / file, ("number", "frequency")):
            number = _number(row["number"], "number", file)
            frequency = _number(row["frequency"] or "0", "frequency", file, _REAL)
            if number and (number not in best or frequency > best[number][0]):
                best[number] = (frequency, name)
    return {number: name for number, (_, name) in best.items()}


def _table(path: Path, columns: tuple[str, ...]) -> list[dict[str, str]]:
    if not path.is_file():
        raise DataError(
            f"a Broden folder must hold {path.name}. Got none in {str(path.parent)!r}. "
            "It has index.csv, label.csv, category.csv, c_<category>.csv and images/."
        )
    try:
        rows = list(csv.DictReader(io.StringIO(_text(path))))
    except csv.Error as error:
        raise DataError(f"{path.name} must be a table of values with commas. Got {str(path)!r} ({error}).") from None
    missing = [c for c in columns if not rows or c not in rows[0]]
    if missing:
        raise DataError(f"{path.name} must have rows with the columns {', '.join(columns)}. Got no {missing[0]}.")
    for line, row in enumerate(rows, 2):
        if None in row or None in row.values():  # how the reader marks rows longer or shorter than the first
            raise DataError(f"{path.name} must have a cell for each column in every row. Got others in row {line}.")
    return rows


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path.name} must be text in UTF-8. Got {str(path)!r} ({error}).") from None


def _number(cell: str, column: str, file: str, pattern: re.Pattern[str] = _WHOLE) -> Any:
    if not pattern.fullmatch(cell):
        kind = "whole numbers from 0" if pattern is _WHOLE else "numbers"
        raise DataError(f"{file} must hold {kind} in the column of {column}. Got {cell[:80]!r}.")
    return int(cell) if pattern is _WHOLE else float(cell)


def _image(source: bytes | Path, name: str) -> Tensor:
    """An image as ``(3, H, W)`` in ``uint8``."""
    return torch.from_numpy(in_colour(pixels(source, name))).permute(2, 0, 1).contiguous()


def _check_size(found: Tensor, wanted: Sequence[int], name: str, of: str, advice: str = "") -> None:
    (height, width), (h, w) = wanted, found.shape[-2:]
    if (height, width) != (h, w):
        raise DataError(f"{name} must have the size {of}, {width}x{height}. Got {w}x{h}.{advice}")


def _fitted(image: Tensor, labels: Tensor, size: tuple[int, int] | None) -> Sample:
    """A sample of an image ``(3, H, W)`` in ``uint8`` and labels ``(K, h, w)``, both resized if a size is given."""
    if size is not None:
        small = F.interpolate(image[None].float(), size=size, mode="bilinear", antialias=True, align_corners=False)
        image = small[0].round().clamp(0, 255).to(torch.uint8)
        # float64 holds every label number exactly
        labels = F.interpolate(labels[None].double(), size=size, mode="nearest-exact")[0].long()
    return Sample(image, labels, torch.empty(0, dtype=torch.long))
