"""The example input that a command runs a model on: a random one of some shape, or the first data."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

from .._memory import check_fits
from ..lab import networks
from ..lab.data import load
from ._hugging_face import HF, read_config
from ._models import is_builtin

__all__ = ["example_input"]


def example_input(spec: str, data: str | None, shape: str | None, tokens: int | None, meta: bool = False) -> Any:
    """The example that was asked for, or else one of the built-in network's own shape.

    Raises:
        ValueError: If the shape does not read, or nothing says which shape.
    """
    device = torch.device("meta" if meta else "cpu")
    if shape is not None:
        try:
            sizes = [int(part) for part in shape.split(",")]
        except ValueError:
            sizes = []
        if not sizes or min(sizes) < 1:
            raise ValueError(f"--input-shape must be positive whole numbers joined by commas. Got {shape!r}.")
        if not meta:
            check_fits(8 * math.prod(sizes), "--input-shape", f"{shape}", "Take a smaller example.")
        generator = torch.Generator().manual_seed(0)
        if meta:
            return torch.empty(sizes, device=device, dtype=torch.int64 if tokens else None)
        return torch.randint(tokens, sizes, generator=generator) if tokens else torch.randn(sizes, generator=generator)
    if data is not None:
        return load(data).test.inputs[:2].to(device)
    if spec.startswith(HF) and (known := _of_config(Path(spec.removeprefix(HF)))):
        return example_input(spec, None, *known, meta=meta)
    if is_builtin(spec):
        return torch.randn(2, *networks.input_shape(spec), generator=torch.Generator().manual_seed(0)).to(device)
    raise ValueError(
        "--input-shape or --data must be given for a model of your own. Got neither. Say --input-shape 2,3,32,32, or "
        "--input-shape 2,16 --tokens 50257 for text."
    )


def _of_config(directory: Path) -> tuple[str, int | None] | None:
    """Shape and number of tokens of an example that a transformers configuration implies: an image, or a text."""
    config = read_config(directory)
    size, channels, vocabulary = (config.get(key) for key in ("image_size", "num_channels", "vocab_size"))
    if isinstance(size, int):
        return f"2,{channels or 3},{size},{size}", None
    return ("2,8", vocabulary) if isinstance(vocabulary, int) else None
