"""Folders of images: one folder per class, images without labels, or the official layout of ImageNet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..._untrusted.files import regular_file
from ..._words import counted, listed
from ...errors import DataError
from .pictures import SUFFIXES, Pictures, Preprocessing, decode_images, note, pixels
from .splits import ALIASES, DataSplits, Split, make_splits, without_labels

_AT_ONCE = 1 << 28  # most bytes of decoded images held at once
_FEW = 8  # images examined for colours
_LATER = "; decoded when a batch asks for them"
_USUAL = Preprocessing((224, 224), 256, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
_HELD_OUT = 0.02  # share of the training images held out for validation


def load_images(path: str | Path, preprocessing: Preprocessing | None = None) -> DataSplits:
    """Load ``DIR/CLASS/*.png`` or ``DIR/{train,val,test}/CLASS/*.png``; classes are the sorted folder names.

    A folder without class folders, ``DIR/*.png``, holds images without labels. Then each of the three splits contains
    all images; images that do not decode are left out and named in the notes of the result.

    Without a ``train`` folder, validation and test examples are held out. ``preprocessing`` resizes images to one size;
    without it, all must have one size. With it, images that would take more than 256 MB are decoded when a batch asks
    for them: then an image that does not decode is an error, and channels are measured on a sample.

    Images are PNG, JPEG, BMP, GIF, WebP, PPM, PGM or TIFF, judged by content. 16 bits are scaled to 8; floating-point
    pixels are refused. Palettes become colours, CMYK becomes RGB, transparency is dropped, and EXIF's orientation is
    applied. Names that begin with a dot are ignored.

    Raises:
        DataError: If the folder is missing or empty, splits have different classes, or an image has another size or,
            in labelled data, is damaged.
    """
    path = Path(path)
    if not path.is_dir():
        raise DataError(f"images path must be an existing folder. Got {str(path)!r}.")
    name = f"images:{path.name}"
    found = {
        split: next((path / alias for alias in aliases if (path / alias).is_dir()), None)
        for split, aliases in ALIASES.items()
    }
    top = found["train"] or path
    beside, classes = image_files(top), _folders_in(top)
    if len(classes) < 2 or (beside and sum(bool(image_files(top / c)) for c in classes) < 2):
        return _unlabelled(path, name, preprocessing)
    folders = {key: folder for key, folder in found.items() if folder} if found["train"] else {"train": path}
    many = _many([file for c in classes for file in image_files(top / c)], preprocessing)
    splits = {key: _read(folder, classes, preprocessing, many) for key, folder in folders.items()}
    left_out = f"; left out: {counted(len(beside), 'image')} beside the class folders" if beside else ""
    tail = f", {len(classes)} classes{left_out}{_LATER * many}"
    made = make_splits(name, splits["train"], splits.get("validation"), splits.get("test"), tuple(classes))
    return replace(made, notes=note(name, sum(map(len, splits.values())), preprocessing, tail))


def load_imagenet(path: str | Path, preprocessing: Preprocessing | None = None) -> DataSplits:
    """ImageNet, or another data set in its layout: ``DIR/train/CLASS/*.JPEG`` and ``DIR/val/CLASS/*.JPEG``.

    Nothing is decoded before it is used, so that memory holds only a batch. The test split is ``val``, as usual; 2 % of
    the training images are held out for validation. Images are 224x224 centre crops after resizing to 256, with
    ImageNet's usual channel means and deviations, unless ``preprocessing`` says otherwise.

    Raises:
        DataError: If a folder is missing or has no class folders; the message says what to put where.
    """
    root, how = Path(path).expanduser(), preprocessing or _USUAL
    for part in ("train", "val"):
        if not (root / part).is_dir() or not _folders_in(root / part):
            raise DataError(
                f"imagenet must have a folder for each class (n01440764, ...) in train and val. Got none in "
                f"{str(root / part)!r}. Unpack ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar of image-net.org "
                "there, the images of val sorted by their labels, and give the place as imagenet:DIR."
            )
    classes = _folders_in(root / "train")
    train, test = (_read(root / part, classes, how, many=True) for part in ("train", "val"))
    return make_splits("imagenet", train, None, test, tuple(classes), validation_fraction=_HELD_OUT, moments=how)


def _folders_in(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def image_files(folder: Path, pattern: str = "[!.]*") -> list[Path]:
    """Files in a folder with names of images, sorted."""
    found = sorted(f for f in folder.glob(pattern) if f.suffix.lower() in SUFFIXES)
    return [regular_file(file, f"image {str(file)!r}", DataError) for file in found]


def _read(folder: Path, classes: Sequence[str], preprocessing: Preprocessing | None, many: bool) -> Split:
    if unknown := set(_folders_in(folder)) - set(classes):
        raise DataError(f"{str(folder)!r} must hold the classes of the training folder. Got {sorted(unknown)} besides.")
    of_classes = [image_files(folder / name) for name in classes]
    labels = torch.tensor([label for label, found in enumerate(of_classes) for _ in found])
    inputs, order, _ = _shuffled([file for found in of_classes for file in found], folder, preprocessing, many)
    return Split(inputs, labels[order])


def _unlabelled(folder: Path, name: str, preprocessing: Preprocessing | None) -> DataSplits:
    files = image_files(folder, "**/[!.]*")
    many = _many(files, preprocessing)
    inputs, _, skipped = _shuffled(files, folder, preprocessing, many, skip=True)
    left_out = []
    if skipped:
        names = listed(files[k].name for k in skipped)
        left_out.append(f"{counted(len(skipped), 'image')} that did not decode ({names})")
    if not many and (others := sum(f.is_file() for f in folder.rglob("[!.]*")) - len(files)):
        left_out.append(f"{counted(others, 'file')} not named as images are")
    tail = ", without labels" + (f"; left out: {', '.join(left_out)}" if left_out else "") + _LATER * many
    return without_labels(name, inputs, note(name, len(inputs), preprocessing, tail))


def _many(files: Sequence[Path], preprocessing: Preprocessing | None) -> bool:
    """Whether images, resized and in colour, would take much memory."""
    if preprocessing is None or 3 * math.prod(preprocessing.size) * len(files) <= _AT_ONCE:
        return False
    return len(preprocessing.mean or "RGB") == 3 and any(pixels(file, str(file)).ndim == 3 for file in files[:_FEW])


def _shuffled(
    files: Sequence[Path], folder: Path, preprocessing: Preprocessing | None, many: bool, skip: bool = False
) -> tuple[Any, torch.Tensor, list[int]]:
    """Images in a fixed random order, so that the first are a fair sample; the order; and files that do not decode."""
    if many and preprocessing is not None:
        order = torch.randperm(len(files), generator=torch.Generator().manual_seed(0))
        return Pictures(files, preprocessing).take(order), order, []
    if not files:
        raise DataError(f"{str(folder)!r} must hold images ({', '.join(SUFFIXES)}). Got none.")
    encoded = ((str(file), file) for file in files)
    inputs, skipped = decode_images(files, encoded, len(files), str(folder), preprocessing, skip)
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
    return inputs[order], order, skipped
