"""Folders of images: one folder for each class, images without labels, or the official layout of ImageNet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch

from ..._untrusted.files import regular_file
from ..._words import counted
from ...errors import DataError
from .pictures import SUFFIXES, Pictures, Preprocessing, cached_tensors, decode_images, pixels
from .splits import ALIASES, DataSplits, Split, make_splits, without_labels

_NAMED = 3  # images that a note names
_AT_ONCE = 1 << 28  # bytes of decoded images that are held at once
_FEW = 8  # images that say whether there are colours
_LATER = "; decoded when a batch asks for them"
_USUAL = Preprocessing((224, 224), 256, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
_HELD_OUT = 0.02  # of the training images, for validation


def load_images(path: str | Path, preprocessing: Preprocessing | None = None) -> DataSplits:
    """Load ``DIR/CLASS/*.png`` or ``DIR/{train,val,test}/CLASS/*.png``; classes are the folder names in sorted order.

    A folder without class folders, ``DIR/*.png``, holds images without labels: all three splits are all of its images,
    those that do not decode are left out, and the notes of the result name them.

    Images that would take more than 256 MB are decoded when a batch asks for them, if ``preprocessing`` says a size:
    then one that does not decode is an error, and channels are measured on a sample.

    Images are PNG, JPEG, BMP, GIF, WebP, PPM, PGM or TIFF, by what a file holds. 16 bits are scaled to 8;
    floating-point pixels are refused. Palettes become colours, CMYK becomes RGB, transparency is left out, and EXIF's
    orientation is applied. Names that begin with a dot are left out.

    Args:
        path: The folder. Without a ``train`` folder in it, validation and test examples are held out.
        preprocessing: What brings images of other sizes to one; without it all must have one size.

    Raises:
        DataError: If the folder is missing or empty, splits have different classes, or an image is of another size or,
            beside labels, damaged.
    """
    path = Path(path)
    if not path.is_dir():
        raise DataError(f"images path must be an existing folder. Got {str(path)!r}.")
    name = f"images:{path.name}"
    folders = {
        split: next((path / alias for alias in aliases if (path / alias).is_dir()), None)
        for split, aliases in ALIASES.items()
    }
    top = folders["train"] or path
    beside, inner = images_in(top), folders_in(top)
    if len(inner) < 2 or (beside and sum(bool(images_in(top / folder)) for folder in inner) < 2):
        return _unlabelled(path, name, preprocessing)
    folders = folders if folders["train"] else {"train": path}
    classes = tuple(inner)
    many = _many([file for name in inner for file in images_in(top / name)], preprocessing)
    splits = {key: _read(folder, classes, preprocessing, many) for key, folder in folders.items() if folder is not None}
    left_out = f"; left out: {counted(len(beside), 'image')} beside the class folders" if beside else ""
    notes = _said(
        name, sum(map(len, splits.values())), preprocessing, f", {len(classes)} classes{left_out}{_LATER * many}"
    )
    made = make_splits(name, splits["train"], splits.get("validation"), splits.get("test"), classes)
    return replace(made, notes=notes)


def folders_in(folder: Path) -> list[str]:
    """Names of the folders in a folder, sorted."""
    return sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def images_in(folder: Path, pattern: str = "[!.]*") -> list[Path]:
    """Files in a folder that are named as images are, sorted."""
    found = sorted(f for f in folder.glob(pattern) if f.suffix.lower() in SUFFIXES)
    return [regular_file(file, f"image {str(file)!r}", DataError) for file in found]


def _read(folder: Path, classes: tuple[str, ...], preprocessing: Preprocessing | None, many: bool) -> Split:
    if unknown := set(folders_in(folder)) - set(classes):
        raise DataError(f"{str(folder)!r} must hold the classes of the training folder. Got {sorted(unknown)} besides.")
    files, labels = [], []
    for label, name in enumerate(classes):
        found = images_in(folder / name)
        files += found
        labels += [label] * len(found)
    order = shuffled(len(files))
    if many and preprocessing is not None:
        return Split(cast(torch.Tensor, Pictures(files, preprocessing).take(order)), torch.tensor(labels)[order])
    inputs, _ = _decoded(files, folder, preprocessing, skip=False)
    return Split(inputs[order], torch.tensor(labels)[order])


def _many(files: Sequence[Path], preprocessing: Preprocessing | None) -> bool:
    """Whether images, brought to one size and in colours, would take much memory."""
    if preprocessing is None or 3 * math.prod(preprocessing.size) * len(files) <= _AT_ONCE:
        return False
    return len(preprocessing.mean or "RGB") == 3 and any(pixels(file, str(file)).ndim == 3 for file in files[:_FEW])


def _unlabelled(folder: Path, name: str, preprocessing: Preprocessing | None) -> DataSplits:
    files = images_in(folder, "**/[!.]*")
    if preprocessing is not None and _many(files, preprocessing):
        held = cast(torch.Tensor, Pictures(files, preprocessing).take(shuffled(len(files))))
        return without_labels(name, held, _said(name, len(files), preprocessing, f", without labels{_LATER}"))
    inputs, skipped = _decoded(files, folder, preprocessing, skip=True)
    named = ", ".join(files[k].name for k in skipped[:_NAMED]) + (", ..." if len(skipped) > _NAMED else "")
    others = sum(f.is_file() for f in folder.rglob("[!.]*")) - len(files)
    left_out = [f"{counted(len(skipped), 'image')} that did not decode ({named})"] * bool(skipped)
    left_out += [f"{counted(others, 'file')} not named as images are"] * bool(others)
    tail = ", without labels" + (f"; left out: {', '.join(left_out)}" if left_out else "")
    notes = _said(name, len(inputs), preprocessing, tail)
    return without_labels(name, inputs[shuffled(len(inputs))], notes)


def _said(name: str, images: int, preprocessing: Preprocessing | None, tail: str) -> tuple[str, ...]:
    how = "" if preprocessing is None else f", {preprocessing}"
    return (f"{name}: {images:,} images{how}{tail}.",)


def _decoded(
    files: Sequence[Path], folder: Path, preprocessing: Preprocessing | None, skip: bool
) -> tuple[torch.Tensor, list[int]]:
    """The images, and the numbers of files that do not decode."""
    if not files:
        raise DataError(f"{str(folder)!r} must hold images ({', '.join(SUFFIXES)}). Got none.")

    def decode() -> dict[str, torch.Tensor]:
        skipped: list[int] = []
        encoded = ((str(file), file) for file in files)
        inputs = decode_images(encoded, len(files), str(folder), preprocessing, skipped if skip else None)
        return {"inputs": inputs, "skipped": torch.tensor(skipped, dtype=torch.int64)}

    tensors = cached_tensors(files, decode, f"image folder, {skip}, {preprocessing!r}")
    return tensors["inputs"], tensors["skipped"].tolist()


def shuffled(images: int) -> torch.Tensor:
    """A fixed random order, so that the first examples of a split are a fair sample of it."""
    return torch.randperm(images, generator=torch.Generator().manual_seed(0))


def load_imagenet(path: str | Path, preprocessing: Preprocessing | None = None) -> DataSplits:
    """ImageNet, or another data set in its layout: ``DIR/train/CLASS/*.JPEG`` and ``DIR/val/CLASS/*.JPEG``.

    Nothing is decoded before it is used, so that memory holds a batch only. The test split is ``val``, as is usual;
    2 % of the training images are held out for validation. Images are 224x224 out of the middle of 256, and channels
    have ImageNet's usual mean and deviation.

    Args:
        path: The folder.
        preprocessing: Another size, or other statistics.

    Raises:
        DataError: If a folder is missing or has no class folders; the message says what to put where.
    """
    root, how = Path(path).expanduser(), preprocessing or _USUAL
    for part in ("train", "val"):
        if not (root / part).is_dir() or not folders_in(root / part):
            raise DataError(
                f"imagenet must have a folder for each class (n01440764, ...) in train and val. Got none in "
                f"{str(root / part)!r}. Unpack ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar of image-net.org "
                "there, the images of val sorted by their labels, and give the place as imagenet:DIR."
            )
    classes = tuple(folders_in(root / "train"))
    train, test = (_read(root / part, classes, how, many=True) for part in ("train", "val"))
    return make_splits("imagenet", train, test=test, classes=classes, validation_fraction=_HELD_OUT, moments=how)
