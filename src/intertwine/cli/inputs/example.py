"""The example input that a command runs a model on: a random one of some shape, or the first data."""

import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..._memory import check_fits
from ..._nested import map_tensors, tensors_in
from ...lab import networks
from ...lab.data import load
from .._files import HF
from .._options import ExampleOptions
from .._values import shape as axes
from .hugging_face import read_config
from .models import build_model, is_builtin
from .preparation import normalised, preparation

_TEXT = "2,8"  # texts of tokens


def example_input(spec: str, asked: ExampleOptions, meta: bool = False) -> Any:
    """The example that was asked for, or else one of the model's own shape.

    Args:
        spec: The model.
        asked: What ``--data``, ``--input-shape`` and their like say.
        meta: Without numbers.

    Raises:
        ValueError: If the shape does not read, or nothing says which shape.
    """
    directory = Path(spec.removeprefix(HF)) if spec.startswith(HF) else None
    if asked.data is not None and asked.input_shape is None:
        data = normalised(load(asked.data, preparation(asked, asked.data, [(None, spec)])), asked)
        example = data.loader("test", 2).batch(slice(0, 2))[0].to("meta" if meta else "cpu")
    elif asked.input_shape is None and is_builtin(spec):
        example = _random(",".join(map(str, (2, *networks.input_shape(spec)))), None, meta)
    else:
        known = (asked.input_shape, asked.tokens) if asked.input_shape else directory and _of_config(directory)
        both = None if known or directory is None else _of_two_configs(directory, meta)
        if both:
            return both
        if not known:
            build_model(spec)  # a factory that is not there is said first
            raise ValueError(
                "--input-shape or --data must be given for a model of your own. Got neither. Say --input-shape "
                "2,3,32,32, or --input-shape 2,16 --tokens 50257 for text."
            )
        example = _random(*known, meta)
    if directory is None or not read_config(directory).get("is_encoder_decoder"):
        return example
    name = "pixel_values" if example.ndim == 4 else "input_features" if example.is_floating_point() else "input_ids"
    decoder = _random(_TEXT, read_config(directory).get("vocab_size") or 2, meta)
    return {name: example, "decoder_input_ids": decoder}


def in_kind_of(model: nn.Module, example: Any) -> Any:
    """An example with its real numbers in the kind of a model's first weights: models of sound convert none."""
    return map_tensors(example, lambda x: x.to(_kind(model)) if x.is_floating_point() else x)


def for_all(models: Collection[nn.Module], example: Any) -> Any:
    """An example that all models take: of several kinds of weights, all become float32, which keeps every value."""
    if any(x.is_floating_point() for x in tensors_in(example)) and len(set(map(_kind, models))) > 1:
        for model in models:
            model.float()
    return in_kind_of(next(iter(models)), example)


def _kind(model: nn.Module) -> torch.dtype:
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def _random(shape: str, tokens: int | None, meta: bool) -> Tensor:
    """Random tokens, or real numbers, of a shape."""
    sizes = axes(shape)
    if meta:
        return torch.empty(sizes, device="meta", dtype=torch.int64 if tokens else None)
    check_fits(8 * math.prod(sizes), "--input-shape", f"{shape}", "Take a smaller example.")
    generator = torch.Generator().manual_seed(0)
    return torch.randint(tokens, sizes, generator=generator) if tokens else torch.randn(sizes, generator=generator)


def _of_two_configs(directory: Path, meta: bool) -> dict[str, Tensor] | None:
    """Texts beside images, where a configuration has one for each, as those of CLIP do."""
    config = read_config(directory)
    text, vision = ({**(config.get(key) or {})} for key in ("text_config", "vision_config"))
    vocabulary, size = text.get("vocab_size"), vision.get("image_size")
    if not isinstance(vocabulary, int) or not isinstance(size, int):
        return None
    pictures = f"2,{vision.get('num_channels') or 3},{size},{size}"
    return {"input_ids": _random(_TEXT, vocabulary, meta), "pixel_values": _random(pictures, None, meta)}


def _of_config(directory: Path) -> tuple[str, int | None] | None:
    """Shape and number of tokens of an example that a transformers configuration implies: an image, sound, or text."""
    config = read_config(directory)
    size, channels, bins, frames, vocabulary = (
        config.get(key) for key in ("image_size", "num_channels", "num_mel_bins", "max_source_positions", "vocab_size")
    )
    if isinstance(size, int):
        return f"2,{channels or 3},{size},{size}", None
    if isinstance(bins, int) and isinstance(frames, int):
        return f"2,{bins},{2 * frames}", None  # frames are halved before the encoder
    return (_TEXT, vocabulary) if isinstance(vocabulary, int) else None
