"""A folder with one folder of images for each class."""

from pathlib import Path

import torch

from ..._untrusted.files import regular_file
from ...errors import DataError
from ._cache import cached_tensors
from ._decode import decode_images
from ._picture import SUFFIXES
from .splits import DataSplits, Split, make_splits

_ALIASES = {"train": ("train",), "validation": ("validation", "valid", "val"), "test": ("test",)}


def load_images(path: str | Path) -> DataSplits:
    """Load ``DIR/CLASS/*.png`` or ``DIR/{train,val,test}/CLASS/*.png``; classes are the folder names in sorted order.

    Images are PNG, JPEG, BMP, GIF, WebP, PPM, PGM or TIFF, by what a file holds. 16 bits are scaled to 8;
    floating-point pixels are refused. Palettes become colours, CMYK becomes RGB, transparency is left out, and EXIF's
    orientation is applied. Names that begin with a dot are left out.

    Args:
        path: The folder. Without a ``train`` folder in it, validation and test examples are held out.

    Raises:
        DataError: If the folder is missing or empty, splits have different classes, or an image is damaged or of
            another size.
    """
    path = Path(path)
    if not path.is_dir():
        raise DataError(f"images path must be an existing folder. Got {str(path)!r}.")
    folders = {
        split: next((path / alias for alias in aliases if (path / alias).is_dir()), None)
        for split, aliases in _ALIASES.items()
    }
    if folders["train"] is None:
        folders = {"train": path}
    classes = _class_folders(folders["train"])
    splits = {split: _read(folder, classes) for split, folder in folders.items() if folder is not None}
    name = f"images:{path.name}"
    return make_splits(name, splits["train"], splits.get("validation"), splits.get("test"), classes)


def _class_folders(folder: Path | None) -> tuple[str, ...]:
    names = sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")) if folder else []
    if len(names) < 2:
        raise DataError(
            f"images path must hold one folder for each of at least two classes. Got {names} in {str(folder)!r}."
        )
    return tuple(names)


def _read(folder: Path, classes: tuple[str, ...]) -> Split:
    if unknown := set(_class_folders(folder)) - set(classes):
        raise DataError(f"{str(folder)!r} must hold the classes of the training folder. Got {sorted(unknown)} besides.")
    files, labels = [], []
    for label, name in enumerate(classes):
        found = sorted(f for f in (folder / name).glob("[!.]*") if f.suffix.lower() in SUFFIXES)
        files += [regular_file(file, f"image {str(file)!r}", DataError) for file in found]
        labels += [label] * len(found)
    if not files:
        raise DataError(f"{str(folder)!r} must hold images ({', '.join(SUFFIXES)}). Got none.")
    encoded = ((str(file), file) for file in files)
    tensors = cached_tensors(files, lambda: {"inputs": decode_images(encoded, len(files), str(folder))}, "image folder")
    # A fixed random order, so that the first examples of a split are a fair sample of it.
    order = torch.randperm(len(files), generator=torch.Generator().manual_seed(0))
    return Split(tensors["inputs"][order], torch.tensor(labels)[order])
