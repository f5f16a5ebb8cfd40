"""Data prepared for a model: sizes of images, tokens of texts, batches, and one example.

The model says how, by its directory, its card or its code; options take precedence.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ... import lab
from ..._memory import check_fits
from ..._nested import map_tensors, tensors_in
from ..._untrusted.checkpoints import HF, SETTINGS
from ..._untrusted.files import check_fields, json_of
from ..._words import read
from ...errors import CheckpointError, DataError
from ...lab.data import Batches, DataSplits, Preprocessing, TextBlocks
from ...lab.networks.hugging_face import base_of, is_adapter, read_config
from .._command import one_thread
from .._options import DataOptions, ExampleOptions
from .._outputs import tell
from .models import Checkpoint, Opened, Statistics, build_model, is_builtin

_TEXT = ("text:", "parquet:", "dataset:")
_FILES = ("preprocessor_config.json", "processor_config.json")
_CAUSAL = ("ForCausalLM", "LMHeadModel")
_POSITIONS = ("n_positions", "max_position_embeddings", "n_ctx")
_BLOCK = 128  # tokens
_SIZE = (dict.fromkeys(("shortest_edge", "height", "width"), (int, None)), int, list, None)
_KINDS = {"size": _SIZE, "crop_size": _SIZE, "crop_pct": (float, None), "image_mean": ([float], float, None),
          "image_std": ([float], float, None)}  # fmt: skip
_TOKENIZER = "tokenizer.json"
_TOKENS, _ONE_TEXT = "2,8", "1,8"  # batch and length of tokens
_ANY_SIZE = 64  # of images, if none is given
_FRAMES = 16  # of sound, if convolutions turn a waveform into frames
_WITH_PATHS = ("parquet", "npz", "images", "dataset", "text")


def preparation(
    asked: DataOptions, data: str, sources: Sequence[tuple[Path | None, str | None]]
) -> Preprocessing | TextBlocks | None:
    """The preparation of data for models, given by path and ``--model``: as options say, or else the first model."""
    kind = data.partition(":")[0] + ":"
    folders = [folder for path, spec in sources if (folder := directory_of(path, spec)) is not None]
    if kind in _TEXT and (blocks := _blocks(asked, folders)) is not None:
        return blocks
    if kind not in ("images:", "parquet:", "dataset:"):
        return None
    if asked.size is not None:  # the side of a square centre crop, or the height and width to resize images to
        side, *other = read("sides", "--size", asked.size)
        return Preprocessing((side, other[0]), (side, other[0])) if other else Preprocessing.square(side)
    said = [*map(image_settings, folders), *(_of_factory(spec) for _, spec in sources)]
    found = list(dict.fromkeys(one for one in said if one is not None))
    if len({one.size for one in found}) > 1:
        sizes = " and ".join("x".join(map(str, one.size)) for one in found)
        raise DataError(f"networks must take images of one size. Got {sizes}. Say one for both, such as --size 224.")
    return found[0] if found else None


def normalised(splits: DataSplits, asked: DataOptions) -> DataSplits:
    """Data with the channel means and deviations of ``--mean`` and ``--std``, if they are given."""
    mean, std = asked.statistics or (splits.mean, splits.std)
    if len(mean) == len(splits.shape) == 1 and splits.mean:  # one number for all entries of vectors; tokens have none
        mean, std = mean * len(splits.mean), std * len(splits.mean)
    if len(mean) != len(splits.mean):
        raise DataError(
            f"--mean and --std must be {len(splits.mean)} numbers, one for each channel of {splits.name}. "
            f"Got {len(mean)}."
        )
    return replace(splits, mean=mean, std=std)


def directory_of(path: Path | None, spec: str | None) -> Path | None:
    """The transformers directory that a checkpoint is or ``--model`` names; for adapters, the base model's."""
    named = Path(spec.removeprefix(HF)) if spec and spec.startswith(HF) else None
    beside = path.parent if path is not None and path.is_file() and spec is None else None
    for folder in (path, beside, named):
        if folder is not None and folder.is_dir() and is_adapter(folder):
            return base_of(folder)
        if folder is not None and (folder / "config.json").is_file():
            return folder
    return None


def image_settings(folder: Path) -> Preprocessing | None:
    """Image settings of a directory, from its preprocessor file or from ``image_size`` in ``config.json``."""
    said = _processor(folder)
    if "size" in said:
        return Preprocessing.of_transformers(said)
    config = read_config(folder)
    size = {**(config.get("vision_config") or {}), **config}.get("image_size")
    return Preprocessing.square(size) if isinstance(size, int) else None


def image_statistics(folder: Path) -> Statistics | None:
    """Channel means and deviations in a directory's preprocessor file, even if that gives no size."""
    said = _processor(folder)
    mean, std = said.get("image_mean"), said.get("image_std")
    return (tuple(mean), tuple(std)) if mean and std and said.get("do_normalize", True) else None


def _processor(folder: Path) -> Mapping[str, Any]:
    """Image settings in a directory's preprocessor file; empty without one."""
    for name in _FILES:
        if (folder / name).is_file():
            said = json_of(folder / name, name, CheckpointError)
            said = said.get("image_processor", said) if isinstance(said, Mapping) else None
            if isinstance(said, Mapping) and said.keys() & {"size", "image_mean"}:
                check_fields(said, _KINDS, f"{name} of {str(folder)!r}: ", CheckpointError)
                return said
    return {}


def settings_of(model: nn.Module) -> Preprocessing | None:
    """Image settings that a model carries itself, as those of timm do."""
    said = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None)
    return Preprocessing.of_timm(said) if isinstance(said, Mapping) and said.get("input_size") else None


def _of_factory(spec: str | None) -> Preprocessing | None:
    if spec is None or spec.startswith(HF) or is_builtin(spec):
        return None
    with torch.device("meta"):
        return settings_of(build_model(spec))


def _blocks(asked: DataOptions, folders: Sequence[Path]) -> TextBlocks | None:
    """Division of texts into blocks, by ``--tokenizer`` or by the models' directories; ``None`` if neither says."""
    known = [folder for folder in folders if (folder / _TOKENIZER).is_file()]
    if asked.tokenizer is None and not known:
        return TextBlocks(folders[0]) if folders and asked.data and asked.data.startswith("text:") else None
    check_tokenizers(known, "to read the same text", "Give the tokens as npz:FILE, if they mean the same.")
    tokenizer = known[0] if asked.tokenizer is None else asked.tokenizer
    said = [read_config(folder) for folder in folders]
    configs = [{**(config.get("text_config") or {}), **config} for config in said]
    most = [config[key] for config in configs for key in _POSITIONS if isinstance(config.get(key), int)]
    causal = all(str((config.get("architectures") or [""])[0]).endswith(_CAUSAL) for config in said)
    return TextBlocks(tokenizer, asked.max_length or min([_BLOCK, *most]), causal)


def check_tokenizers(folders: Sequence[Path], purpose: str, advice: str) -> None:
    """Refuse directories in which one token id stands for different tokens; those without a tokenizer pass."""
    known = [folder for folder in folders if (folder / _TOKENIZER).is_file()]
    models: list[Any] = []  # the same splitting rules can be written in several ways, so vocabularies are compared
    for folder in known:
        said = json_of(folder / _TOKENIZER, _TOKENIZER, DataError)
        models.append(said.get("model") if isinstance(said, Mapping) else None)
    vocabularies = [model.get("vocab") if isinstance(model, Mapping) else None for model in models]
    if any(one != vocabularies[0] for one in vocabularies):
        listed = ", ".join(repr(str(folder)) for folder in known)
        raise DataError(f"networks must have one tokenizer {purpose}. Got different ones in {listed}. {advice}")


def read_data(
    asked: DataOptions, checkpoints: Sequence[Checkpoint] = (), specs: Sequence[str | None] = ()
) -> tuple[str, DataSplits]:
    """Load the data that was asked for, or else what the first card names, prepared for these models."""
    if asked.data is not None:
        sources = list(zip_longest([c.path for c in checkpoints], specs))
        return asked.data, normalised(_loaded(asked.data, preparation(asked, asked.data, sources)), asked)
    named = next((c.card.data for c in checkpoints if c.card and c.card.data), None)
    if named is None:
        raise DataError(
            "--data must be given where no card lies beside the weights. Got none. Say --data digits or text:FILE."
        )
    named = named.partition("[")[0]  # trained on part of the training split: the test split is that of the whole
    kind = named.partition(":")[0]
    if kind in _WITH_PATHS:
        raise DataError(
            f"--data must say where the data lies. Got only its name from the card, {named!r}. Say --data {kind}:PATH."
        )
    return named, normalised(_loaded(named), asked)


def _loaded(spec: str, prepared: Preprocessing | TextBlocks | None = None) -> DataSplits:
    splits = lab.data.load(spec, prepared)
    for note in splits.notes:
        tell(note)
    one_thread(values=math.prod(splits.shape))
    return splits


def data_facts(spec: str, split: str, data: DataSplits) -> dict[str, Any]:
    """Facts about the data for a report."""
    return {
        "name": data.name,
        "given as": spec,
        "split": f"{split}, {len(data.split(split)):,} examples",  # type: ignore[arg-type]
        "shape": " x ".join(map(str, data.shape)),
        "classes": len(data.classes),
    }


def batches(
    data: DataSplits, split: str, examples: int, batch_size: int, networks: Sequence[Opened]
) -> tuple[Batches, list[str]]:
    """Batches of a split, normalised as in the networks' training, and notes on that for the reader."""
    loader = data.loader(split, batch_size=batch_size, examples=examples)  # type: ignore[arg-type]
    if any(getattr(getattr(n.model, "config", None), "is_encoder_decoder", False) for n in networks):
        loader = replace(loader, names=("input_ids", "decoder_input_ids"))
    if len(loader.split) < 4:
        raise DataError(
            f"data must have at least 4 examples in the {split} split. Got {len(loader.split)} of {data.name}."
        )
    notes = [*data.notes]
    here = len(data.split(split)) if split != "all" else examples  # type: ignore[arg-type]
    total = len(data.train) + len(data.validation) + len(data.test) if data.labelled else len(data.train)
    if ":" in data.name and here < min(examples, total):
        notes.append(
            f"{here:,} of {total:,} examples are used, all of the {split} split; --split all takes all of them."
        )
    known = {n.statistics for n in networks if n.statistics is not None and len(n.statistics[0]) == len(data.mean)}
    if len(known) == 1:
        mean, std = known.pop()
        loader = replace(loader, mean=mean, std=std)
    elif known:
        notes.append(
            "The networks were trained with different normalisations of their inputs; this data's own is used."
        )
    elif data.mean:  # no tokens
        means, deviations = (", ".join(f"{value:.3g}" for value in values) for values in (data.mean, data.std))
        notes.append(
            "Neither a card nor a preprocessor says how the networks' inputs were normalised: this data's own mean "
            f"({means}) and deviation ({deviations}) of each channel are used. If the networks were trained with other "
            "numbers, their features differ: say --mean and --std."
        )
    return loader, notes


def example_input(spec: str, asked: ExampleOptions, meta: bool = False) -> Any:
    """The example that ``--data``, ``--input-shape`` and their like ask for, or else one of the model's own shape."""
    says = lambda known: known.startswith(HF) or is_builtin(known)
    if asked.input_shape is None and not says(spec):  # another model that the command reads may say it
        folders = (f"{HF}{path}" for path in asked.reads if any((path / name).is_file() for name in SETTINGS))
        spec = next(filter(says, (getattr(asked, "model_b", None) or "", *folders)), spec)
    directory = Path(spec.removeprefix(HF)) if spec.startswith(HF) else None
    example: Any
    if asked.input_shape is not None:
        example = _random(asked.input_shape, asked.tokens, meta)
    elif asked.data is not None:
        data = normalised(lab.data.load(asked.data, preparation(asked, asked.data, [(None, spec)])), asked)
        example = data.loader("test", 2).batch(slice(0, 2))[0].to("meta" if meta else "cpu")
    elif is_builtin(spec):
        example = _random(",".join(map(str, (2, *lab.networks.input_shape(spec)))), None, meta)
    else:
        example = None if directory is None else _of_config(read_config(directory), meta)
    if example is None:
        build_model(spec)  # report a missing factory first
        raise ValueError(
            "--input-shape or --data must be given for a model of your own. Got neither. Say --input-shape "
            "2,3,32,32, or --input-shape 2,16 --tokens 50257 for text."
        )
    if isinstance(example, dict):
        return example
    if directory is None or not read_config(directory).get("is_encoder_decoder"):
        return example
    name = "pixel_values" if example.ndim == 4 else "input_features" if example.is_floating_point() else "input_ids"
    decoder = _random(_TOKENS, read_config(directory).get("vocab_size") or 2, meta)
    return {name: example, "decoder_input_ids": decoder}


def in_kind_of(model: nn.Module, example: Any, beside: Collection[nn.Module] = ()) -> Any:
    """An example with its real numbers in the dtype of a model's first weights, since models of sound convert none.

    Its tokens lie in the vocabulary of the models beside it too, even if one vocabulary was resized.
    """
    sizes = [getattr(getattr(one, "config", None), "vocab_size", None) for one in beside]
    least = min((size for size in sizes if isinstance(size, int)), default=0)
    own = lambda x: x % least if least and x.dtype == torch.int64 else x
    return map_tensors(example, lambda x: x.to(_kind(model)) if x.is_floating_point() else own(x))


def for_all(models: Collection[nn.Module], example: Any) -> Any:
    """An example that all models take; if weights have several dtypes, all become float32, which keeps every value."""
    if any(x.is_floating_point() for x in tensors_in(example)) and len(set(map(_kind, models))) > 1:
        for model in models:
            model.float()
    return in_kind_of(next(iter(models)), example, models)


def _kind(model: nn.Module) -> torch.dtype:
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def _random(shape: str, tokens: int | None, meta: bool) -> Tensor:
    sizes = read("shape", "--input-shape", shape)
    if meta:
        return torch.empty(sizes, device="meta", dtype=torch.int64 if tokens else None)
    check_fits(8 * math.prod(sizes), "--input-shape", f"{shape}", "Take a smaller example.")
    generator = torch.Generator().manual_seed(0)
    return torch.randint(tokens, sizes, generator=generator) if tokens else torch.randn(sizes, generator=generator)


def _of_config(config: Mapping[str, Any], meta: bool) -> Any:
    """The example that a transformers configuration implies: an image, sound, text, or texts beside images."""
    size, channels, bins, frames, vocabulary = (
        config.get(key) for key in ("image_size", "num_channels", "num_mel_bins", "max_source_positions", "vocab_size")
    )
    if isinstance(size, int):
        return _random(f"2,{channels or 3},{size},{size}", None, meta)
    if isinstance(bins, int) and isinstance(frames, int):
        return _random(f"2,{bins},{2 * frames}", None, meta)  # frames are halved before the encoder
    kernels, strides = config.get("conv_kernel"), config.get("conv_stride")
    if isinstance(kernels, list) and isinstance(strides, list) and not config.get("is_encoder_decoder"):  # of waveforms
        return _random(f"2,{sum(kernels) + _FRAMES * math.prod(strides)}", None, meta)
    if isinstance(vocabulary, int):
        return _random(_ONE_TEXT if _read_alone(config) else _TOKENS, vocabulary, meta)
    text, vision = (config.get(key) or {} for key in ("text_config", "vision_config"))
    if isinstance(channels, int) and not text and not vision:  # convolutions that take any size
        return _random(f"2,{channels},{_ANY_SIZE},{_ANY_SIZE}", None, meta)
    if not isinstance(text.get("vocab_size"), int) or not isinstance(vision.get("image_size"), int):
        return None
    words = _random(_TOKENS, text["vocab_size"], meta)
    return {"input_ids": words, "pixel_values": _of_config(vision, meta)}


def _read_alone(config: Mapping[str, Any]) -> bool:
    """Whether a classifier lacks the padding token that marks the end of a text, so that batches of two fail."""
    if not any(str(name).endswith("ForSequenceClassification") for name in config.get("architectures") or ()):
        return False
    from transformers import AutoConfig

    with suppress(ValueError):  # of an unknown model type
        config = {**AutoConfig.for_model(str(config.get("model_type"))).to_dict(), **config}
    return config.get("pad_token_id") is None
