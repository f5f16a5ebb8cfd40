"""Images in files in place of a tensor, for data too large for memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .one_image import pixels
from .preprocessing import Preprocessing


class Pictures:
    """Images in files as a tensor ``(N, 3, H, W)`` in ``uint8`` that is decoded where it is indexed.

    Args:
        files: Of the images.
        preprocessing: What brings them to one size.
        device: Where decoded images go.
    """

    dtype, ndim = torch.uint8, 4

    def __init__(self, files: Sequence[Path], preprocessing: Preprocessing, device: torch.device | str = "cpu") -> None:
        self.files, self._prepare, self._device = list(files), preprocessing, torch.device(device)
        self.shape = torch.Size((len(self.files), 3, *preprocessing.size))

    def __len__(self) -> int:
        return len(self.files)

    def take(self, index: Tensor | slice) -> Pictures:
        """Some of them, not decoded yet."""
        chosen = torch.arange(len(self))[index.cpu() if isinstance(index, Tensor) else index].tolist()
        return Pictures([self.files[k] for k in chosen], self._prepare, self._device)

    def joined(self, others: Sequence[Pictures]) -> Pictures:
        """These and others, one after the other."""
        files = [file for one in (self, *others) for file in one.files]
        return Pictures(files, self._prepare, self._device)

    def __getitem__(self, index: Tensor | slice) -> Tensor:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            arrays = list(pool.map(self._decoded, self.take(index).files))
        return torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2).contiguous().to(self._device)

    def to(self, device: torch.device | str) -> Pictures:
        """The same images, decoded to another device."""
        return Pictures(self.files, self._prepare, device)

    def _decoded(self, file: Path) -> np.ndarray:
        array = self._prepare(pixels(file, str(file)))
        return array if array.ndim == 3 else np.repeat(array[:, :, None], 3, axis=2)
