"""Preparation of data for a model: sizes of images, tokens of texts; from its directory, its code, or options."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..._untrusted.files import json_of
from ...errors import CheckpointError, DataError
from ...lab.data import DataSplits, Preprocessing, TextBlocks
from .._files import HF
from .._options import DataOptions
from .._values import sides
from .adapters import base_of, is_adapter
from .hugging_face import read_config
from .models import build_model, is_builtin

_TEXT = ("text:", "parquet:", "dataset:")
_FILES = ("preprocessor_config.json", "processor_config.json")
_CAUSAL = ("ForCausalLM", "LMHeadModel")
_POSITIONS = ("n_positions", "max_position_embeddings", "n_ctx")
_BLOCK = 128  # tokens
_TOKENIZER = "tokenizer.json"


def preparation(
    asked: DataOptions, data: str, sources: Sequence[tuple[Path | None, str | None]]
) -> Preprocessing | TextBlocks | None:
    """What brings the data to the form that the models take.

    Args:
        asked: ``--size`` and ``--max-length`` are obeyed.
        data: The data.
        sources: Path and ``--model`` of each network.

    Returns:
        The first one that a model says; ``None`` where the data is taken as it is.

    Raises:
        DataError: If the models take other sizes, or have other tokenizers.
    """
    kind = data.partition(":")[0] + ":"
    folders = [folder for path, spec in sources if (folder := directory_of(path, spec)) is not None]
    if kind in _TEXT and (blocks := _blocks(asked, folders)) is not None:
        return blocks
    if kind not in ("images:", "parquet:", "dataset:"):
        return None
    if asked.size is not None:
        return _of_size(asked.size)
    said = [*map(image_settings, folders), *(_of_factory(spec) for _, spec in sources)]
    found = list(dict.fromkeys(one for one in said if one is not None))
    if len({one.size for one in found}) > 1:
        sizes = " and ".join("x".join(map(str, one.size)) for one in found)
        raise DataError(f"networks must take images of one size. Got {sizes}. Say one for both, such as --size 224.")
    return found[0] if found else None


def normalised(splits: DataSplits, asked: DataOptions) -> DataSplits:
    """Data with the means and deviations of ``--mean`` and ``--std``, where they are given.

    Raises:
        DataError: If the data has another number of channels.
    """
    if asked.statistics is None:
        return splits
    mean, std = asked.statistics
    if len(mean) != len(splits.mean):
        raise DataError(
            f"--mean and --std must be {len(splits.mean)} numbers, one for each channel of {splits.name}. "
            f"Got {len(mean)}."
        )
    return replace(splits, mean=mean, std=std)


def directory_of(path: Path | None, spec: str | None) -> Path | None:
    """The directory of transformers that a checkpoint is, or that ``--model`` names, the base model's for adapters."""
    named = Path(spec.removeprefix(HF)) if spec and spec.startswith(HF) else None
    beside = path.parent if path is not None and path.is_file() and spec is None else None
    for folder in (path, beside, named):
        if folder is not None and folder.is_dir() and is_adapter(folder):
            return base_of(folder)
        if folder is not None and (folder / "config.json").is_file():
            return folder
    return None


def image_settings(folder: Path) -> Preprocessing | None:
    """What a directory says of images, in the file of its preprocessor, or as ``image_size`` in ``config.json``.

    Raises:
        CheckpointError: If it says something that does not read.
    """  # noqa: DOC502 - helpers raise it
    said = _processor(folder)
    if "size" in said:
        return Preprocessing.of_transformers(said)
    config = read_config(folder)
    size = {**(config.get("vision_config") or {}), **config}.get("image_size")
    return Preprocessing.square(size) if isinstance(size, int) else None


def image_statistics(folder: Path) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Means and deviations of channels that a directory's preprocessor says, also where it says no size."""
    said = _processor(folder)
    mean, std = said.get("image_mean"), said.get("image_std")
    return (tuple(mean), tuple(std)) if mean and std and said.get("do_normalize", True) else None


def _processor(folder: Path) -> Mapping[str, Any]:
    """What a directory says of images in the file of its preprocessor; nothing without one."""
    for name in _FILES:
        if (folder / name).is_file():
            said = json_of(folder / name, name, CheckpointError)
            said = said.get("image_processor", said) if isinstance(said, Mapping) else None
            if isinstance(said, Mapping) and said.keys() & {"size", "image_mean"}:
                return said
    return {}


def settings_of(model: nn.Module) -> Preprocessing | None:
    """What a model says of its images itself, as those of timm do."""
    said = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None)
    return Preprocessing.of_timm(said) if isinstance(said, Mapping) and said.get("input_size") else None


def _of_factory(spec: str | None) -> Preprocessing | None:
    """What the model of a factory says of its images."""
    if spec is None or spec.startswith(HF) or is_builtin(spec):
        return None
    with torch.device("meta"):
        return settings_of(build_model(spec))


def _of_size(text: str) -> Preprocessing:
    """``--size``: the side of a square out of the middle, or the height and width that images are brought to."""
    found = sides(text)
    if len(found) == 1:
        return Preprocessing.square(found[0])
    both = found[0], found[1]
    return Preprocessing(both, both)


def _blocks(asked: DataOptions, folders: Sequence[Path]) -> TextBlocks | None:
    """How texts are cut for models of these directories; ``None`` where none has a tokenizer."""
    known = [folder for folder in folders if (folder / _TOKENIZER).is_file()]
    if not known:
        return TextBlocks(folders[0]) if folders and asked.data and asked.data.startswith("text:") else None
    check_tokenizers(known, "to read the same text", "Give the tokens as npz:FILE, if they mean the same.")
    said = [read_config(folder) for folder in folders]
    configs = [{**(config.get("text_config") or {}), **config} for config in said]
    most = [config[key] for config in configs for key in _POSITIONS if isinstance(config.get(key), int)]
    causal = all(_named(config).endswith(_CAUSAL) for config in said)
    return TextBlocks(known[0], asked.max_length or min([_BLOCK, *most]), causal)


def check_tokenizers(folders: Sequence[Path], purpose: str, advice: str) -> None:
    """Refuse directories in which one number stands for different tokens; those without a tokenizer pass.

    Raises:
        DataError: If vocabularies differ.
    """
    known = [folder for folder in folders if (folder / _TOKENIZER).is_file()]
    vocabularies = [_vocabulary(folder) for folder in known]
    if any(one != vocabularies[0] for one in vocabularies):
        listed = ", ".join(repr(str(folder)) for folder in known)
        raise DataError(f"networks must have one tokenizer {purpose}. Got different ones in {listed}. {advice}")


def _vocabulary(folder: Path) -> Any:
    """Numbers of tokens; rules of how words are divided are written in more than one way."""
    said = json_of(folder / _TOKENIZER, _TOKENIZER, DataError)
    model = said.get("model") if isinstance(said, Mapping) else None
    return model.get("vocab") if isinstance(model, Mapping) else None


def _named(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else ""
