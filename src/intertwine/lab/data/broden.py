"""The Broden concept set in its official layout: index.csv, label.csv, category.csv, c_*.csv and images.

``index.csv`` has a row for each image: ``image, split, ih, iw, sh, sw`` and a column for each category. A cell lists,
separated by ``;``, label numbers for the whole image and names of PNG files with a label for each pixel, coded
``red + 256 * green``; 0 means none. ``label.csv`` names the label numbers, ``category.csv`` the categories, and
``c_<category>.csv`` the labels of each category. A label that belongs to several categories counts in the one where it
is most frequent.

Source: Bau et al. 2017, section 2.1, and the files that its authors distribute.
"""

import csv
import re
from pathlib import Path

import torch
from torch import Tensor

from ..._memory import check_fits
from ..._untrusted.files import within
from ...dissection import Concept, ConceptSet, Sample
from ...errors import DataError
from .masks import fitted, read_image, read_packed_mask
from .splits import MOST_CLASSES

_SIZES = ("ih", "iw", "sh", "sw")
_DIGITS = 18  # of the largest numbers that 64 bits hold
_REAL = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d{1,3})?", re.ASCII)


class BrodenConcepts(ConceptSet):
    """The Broden set, or any other set written in its layout.

    Args:
        path: The folder that holds ``index.csv``.
        split: ``"train"`` or ``"val"``; ``None`` takes both.

    Raises:
        DataError: If a file or column is missing, a label is unknown, or images differ in size.
    """

    def __init__(self, path: str | Path, split: str | None = None) -> None:
        root = Path(path)
        index = _table(root / "index.csv", ("image", "split", *_SIZES))
        labels = _table(root / "label.csv", ("number", "name"))
        names = [row["name"] for row in _table(root / "category.csv", ("name",))]
        absent = [n for n in names if n not in index[0]]
        if absent:
            raise DataError(f"index.csv must have a column for each category. Got none for {', '.join(absent)}.")
        splits = sorted({row["split"] for row in index})
        self._rows = [row for row in index if split is None or row["split"] == split]
        if not self._rows:
            raise DataError(f"split must be one of {', '.join(splits)}. Got {split!r}.")
        category = _categories(root, names)
        numbers = [_whole(row["number"], "number", "label.csv") for row in labels]
        kept = [(number, row["name"]) for number, row in zip(numbers, labels) if number in category]
        if not kept:
            raise DataError(f"label.csv of {str(root)!r} must name labels of the categories. Got none.")
        self.concepts = tuple(Concept(name, category[number]) for number, name in kept)
        highest = max(numbers)
        if highest >= MOST_CLASSES:
            raise DataError(f"label.csv must hold numbers below {MOST_CLASSES:,}. Got {highest:,}.")
        self._index = torch.full((highest + 1,), -1)
        self._index[torch.tensor([number for number, _ in kept])] = torch.arange(len(kept))
        self._root, self._names = root, names
        for row in self._rows:
            for column in _SIZES:
                _whole(row[column], column, "index.csv")
        self.name = root.name + (f":{split}" if split else "")
        counts = [(len(files), len(numbers)) for files, numbers in map(self._cells, self._rows)]
        self.planes, self.whole = max(max(f for f, _ in counts), 1), max(n for _, n in counts)

    def __len__(self) -> int:
        return len(self._rows)

    def _read(self, i: int) -> Sample:
        """Read image ``i``."""
        row = self._rows[i]
        height, width, rows, columns = (int(row[k]) for k in _SIZES)
        image = read_image(within(self._root / "images", row["image"], "image", DataError), row["image"])
        if image.shape[1:] != (height, width):
            raise DataError(
                f"{row['image']} must have the size in index.csv, {width}x{height}. "
                f"Got {image.shape[2]}x{image.shape[1]}."
            )
        files, numbers = self._cells(row)
        size = f"{self.planes} planes of {columns}x{rows}"
        check_fits(8 * self.planes * rows * columns, "index.csv", size, "Check its sizes.", error=DataError)
        labels = torch.full((self.planes, rows, columns), -1)
        for plane, file in zip(labels, files):
            mask = read_packed_mask(within(self._root / "images", file, "mask", DataError), file)
            if mask.shape != plane.shape:
                raise DataError(
                    f"{file} must have the size in index.csv, {columns}x{rows}. Got {mask.shape[1]}x{mask.shape[0]}."
                )
            plane.copy_(self._concept(mask, file))
        whole = torch.full((self.whole,), -1)
        whole[: len(numbers)] = self._concept(torch.tensor(numbers, dtype=torch.long), row["image"])
        return fitted(image, labels, whole, None)

    def _cells(self, row: dict[str, str]) -> tuple[list[str], list[int]]:
        """Mask files and whole-image label numbers of an image, over all categories."""
        parts = [part for name in self._names for part in row[name].split(";") if part]
        numbers = [_whole(p, "a category", "index.csv") for p in parts if p.isdecimal()]
        return [p for p in parts if not p.isdecimal()], numbers

    def _concept(self, numbers: Tensor, name: str) -> Tensor:
        """Label numbers to concept indices; 0 is none."""
        if numbers.numel() and int(numbers.max()) >= len(self._index):
            raise DataError(
                f"labels of {name} must be numbers of label.csv, below {len(self._index)}. Got {int(numbers.max())}."
            )
        return torch.where(numbers == 0, -1, self._index[numbers])


def _categories(root: Path, names: list[str]) -> dict[int, str]:
    """The category of each label number: the one where it is most frequent, the first where that is equal."""
    best: dict[int, tuple[float, str]] = {}
    for name in names:
        for row in _table(root / f"c_{name}.csv", ("number", "frequency")):
            number = _whole(row["number"], "number", f"c_{name}.csv")
            frequency = _real(row["frequency"] or "0", "frequency", f"c_{name}.csv")
            if number and (number not in best or frequency > best[number][0]):
                best[number] = (frequency, name)
    return {number: name for number, (_, name) in best.items()}


def _table(path: Path, columns: tuple[str, ...]) -> list[dict[str, str]]:
    if not path.is_file():
        raise DataError(
            f"a Broden folder must hold {path.name}. Got none in {str(path.parent)!r}. "
            "It has index.csv, label.csv, category.csv, c_<category>.csv and images/."
        )
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    missing = [c for c in columns if not rows or c not in rows[0]]
    if missing:
        raise DataError(f"{path.name} must have rows with the columns {', '.join(columns)}. Got no {missing[0]}.")
    for line, row in enumerate(rows, 2):
        if None in row or None in row.values():  # as the reader marks a row that is longer or shorter than the first
            raise DataError(f"{path.name} must have a cell for each column in every row. Got others in row {line}.")
    return rows


def _whole(cell: str, column: str, file: str) -> int:
    if not (cell.isascii() and cell.isdecimal() and len(cell) <= _DIGITS):
        raise DataError(f"{file} must hold whole numbers from 0 in the column of {column}. Got {cell[:80]!r}.")
    return int(cell)


def _real(cell: str, column: str, file: str) -> float:
    if not _REAL.fullmatch(cell):
        raise DataError(f"{file} must hold numbers in the column of {column}. Got {cell[:80]!r}.")
    return float(cell)
