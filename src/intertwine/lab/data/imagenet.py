"""ImageNet's official layout, too large for memory: files are decoded when a batch asks for them."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from ...errors import DataError
from .decoding.image_files import Pictures
from .decoding.preprocessing import Preprocessing
from .images import folders_in, images_in, shuffled
from .splits import DataSplits, Split, make_splits

_USUAL = Preprocessing((224, 224), 256, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
_HELD_OUT = 0.02  # of the training images, for validation


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
    train, test = (_split(root / part, classes, how) for part in ("train", "val"))
    return make_splits("imagenet", train, test=test, classes=classes, validation_fraction=_HELD_OUT, moments=how)


def _split(folder: Path, classes: tuple[str, ...], how: Preprocessing) -> Split:
    if unknown := set(folders_in(folder)) - set(classes):
        raise DataError(f"{str(folder)!r} must hold the classes of the training folder. Got {sorted(unknown)} besides.")
    found = [(file, label) for label, name in enumerate(classes) for file in images_in(folder / name)]
    order = shuffled(len(found)).tolist()
    files, labels = [found[k][0] for k in order], torch.tensor([found[k][1] for k in order])
    return Split(cast(Tensor, Pictures(files, how)), labels)
