"""Models and adapters from Hugging Face directories: sizes and weights are read, but none of their code is run.

transformers never sees the directory. Its ``config.json`` is read as data, settings that could name code, kernels or
other places are refused or left out, and the tensors are read from safetensors beside it.
"""

from __future__ import annotations

import copy
import io
import re
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, suppress
from functools import partial
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from ..._io import read_tensors, write_json
from ..._io.gguf_file import GGUF, gguf_tensors
from ..._io.lazy import LazyState, StoredState, no_weights
from ..._untrusted.checkpoints import HF
from ..._untrusted.construction import limited_construction
from ..._untrusted.files import check_fields, json_of, within
from ..._untrusted.weights import check_kinds
from ..._words import first_line
from ...errors import CheckpointError, MissingExtraError

if TYPE_CHECKING:
    from torch import Tensor, nn

_ADAPTER, _UPDATES = "adapter_config.json", ("adapter_model.safetensors", "adapter_model.bin")
# Settings that determine the function; those that name places, code or ways of running are left out.
_KEPT = ("r", "lora_alpha", "target_modules", "exclude_modules", "fan_in_fan_out", "bias", "use_rslora", "use_dora",
         "modules_to_save", "layers_to_transform", "layers_pattern", "rank_pattern", "alpha_pattern", "lora_bias",
         "trainable_token_indices", "target_parameters", "ensure_weight_tying")  # fmt: skip
# Settings with which an adapter is more than updates of the base model's weights.
_MORE = ("alora_invocation_tokens", "arrow_config", "kasa_config", "layer_replication", "monteclora_config",
         "use_bdlora")  # fmt: skip
# Initial weights that leave the base model as it is; the others were taken from it, those of _TAKEN always alike.
_PLAIN, _TAKEN = (None, True, False, "gaussian", "orthogonal", "eva", "mica"), ("pissa", "olora")
_ADVICE = "Merge it where it was trained, with merge_and_unload() and save_pretrained(), and give that directory."
_KINDS = {"architectures": ([str], None), "text_config": (dict, None), "vision_config": (dict, None)}
_LAYERS = 10_000
_COUNTED = 2**20
_LARGEST = 2**31
# Implementations of the same function: torch's are kept, others left out, and those from a repository refused.
_WAYS = ("eager", "sdpa", "batched_mm", "grouped_mm")
# Settings of where to load from or how to run, which do not affect the function.
_LEFT_OUT = frozenset({
    "auto_map", "custom_generate", "custom_pipelines", "kernel_config", "use_kernels", "fusion_config",
    "distributed_config", "transformers_weights", "configuration_files", "device_map", "gguf_file", "adapters",
    "_commit_hash", "_name_or_path", "name_or_path", "use_pretrained_backbone", "pretrained_backbone",
})  # fmt: skip
_DEPTH = re.compile(r"(^|_)(n_|num_)?(layers?|blocks?|depths?)$|^num_.*_(layers|blocks|stages)$")
_ELSEWHERE = re.compile(r"^(hf[-_]hub:|local-dir:|[a-z]+://)")


def load_pretrained(
    directory: Path, tensors: Mapping[str, Tensor] | None = None, source: Path | None = None
) -> nn.Module:
    """A Hugging Face model with weights, from local safetensors or GGUF only, without code from the directory.

    Args:
        directory: Holds an adapter, or ``config.json`` and, without ``tensors``, ``model.safetensors`` or its shards.
        tensors: State dict under the library's names, or under those that it writes to disk (they may differ).
        source: Origin of ``tensors``, for messages; tensors of a ``.gguf`` file are renamed and rearranged.
    """  # noqa: DOC501 - CheckpointError, as everywhere here
    if is_adapter(directory) and tensors is None:
        return _merged(directory)
    config = _config(directory)
    source = source or directory
    if source.suffix == GGUF:
        tensors = _of_gguf(config, source)
    state = _weights(directory) if tensors is None else dict(tensors)
    check_kinds(state, {}, repr(str(source)))  # transformers before 5 takes the model's dtypes from the file
    rule = f"checkpoint must be complete safetensors weights of the model in {str(directory)!r}"
    # the precision of the file; older releases use another keyword
    stored = {"dtype" if int(_transformers().__version__.split(".")[0]) > 4 else "torch_dtype": "auto"}
    with (
        _alone(rule, f"{str(source)!r}, which does not read"),
        limited_construction(f"the model of {str(directory)!r}"),
    ):
        model, info = _class_of(config).from_pretrained(
            None, config=config, state_dict=state, local_files_only=True, trust_remote_code=False,
            output_loading_info=True, ignore_mismatched_sizes=True, **stored, **_unsaid(config, lambda: state),
        )  # fmt: skip
    model.config._name_or_path = str(directory)
    check_kinds(state, model.state_dict(), repr(str(source)))
    wrong = [str(key) for kind in ("missing_keys", "unexpected_keys") for key in info.get(kind, ())]
    told = lambda key: key if isinstance(key, str) else f"{key[0]} {tuple(key[1])} for {tuple(key[2])}"  # by release
    resized = [told(key) for key in info.get("mismatched_keys", ())]
    wrong += resized
    if wrong:
        raise CheckpointError(
            f"checkpoint must be of the architecture {HF}{directory}. Got {str(source)!r}, where {len(wrong)} tensors "
            f"are missing, unexpected or of another shape: {', '.join(sorted(wrong)[:5])}."
            f"{' Where a vocabulary was resized, vocab_size of config.json must be the new one.' if resized else ''}"
        )
    return model.eval()


def fresh_model(directory: Path) -> nn.Module:
    """The model described by a directory's ``config.json``, with fresh weights."""
    config = _config(directory)
    kind = _class_of(config)
    names = lambda: StoredState(directory) if any(directory.glob("model.safetensors*")) else ()
    build = lambda: kind._from_config(copy.deepcopy(config), **_unsaid(config, names))  # building modifies it
    rule, name = "config.json must be of a model that can be built", repr(str(directory))
    with _alone(rule, name), limited_construction(f"the model of {name}"):
        # first on the meta device, to see its size; some models cannot be built there
        with suppress(RuntimeError, NotImplementedError), torch.device("meta"):
            build()
        return build()


def as_loaded(model: nn.Module, stored: LazyState) -> LazyState:
    """A directory's tensors under the names, and in the form, that loading gives them; read on demand.

    ``save_pretrained`` keeps older names for some architectures, such as ViT, and every expert's tensors by themselves.

    Raises:
        CheckpointError: If loading would also split tensors.
    """
    try:
        from transformers import core_model_loading as loading
        from transformers.conversion_mapping import get_model_conversion_mapping
    except ImportError:  # transformers 4 converts nothing
        return stored
    ways: list[Any] = get_model_conversion_mapping(model)  # type: ignore[arg-type]
    renames = [way for way in ways if isinstance(way, loading.WeightRenaming)]
    others = [way for way in ways if not isinstance(way, loading.WeightRenaming)]
    by_source = {source: way for way in others for source in way.source_patterns}
    own, prefix = model.state_dict(), getattr(model, "base_model_prefix", None)
    parts: dict[str, list[tuple[str, str | None]]] = {}
    for name in sorted(stored, key=loading.dot_natural_key):
        new, source = loading.rename_source_key(name, renames, others, prefix, own)
        if source is not None and len(by_source[source].target_patterns) > 1:
            raise CheckpointError(
                f"tensors must be the model's own to be read one by one. Got {name!r}, which transformers splits as "
                "it loads. Leave out --sharded."
            )
        parts.setdefault(new, []).append((name, source))

    def made(new: str) -> Tensor:
        (name, source), *_ = parts[new]
        if source is None:
            return stored[name]
        way = copy.deepcopy(by_source[source])
        for name, source in parts[new]:
            way.add_tensor(new, name, source, partial(stored.__getitem__, name))
        return cast("Tensor", way.convert(new, model=model, config=model.config)[new])

    unchanged = all(some == [(new, None)] for new, some in parts.items())
    return stored if unchanged else LazyState({new: partial(made, new) for new in parts}, stored.folders)


def read_config(directory: Path) -> dict[str, Any]:
    """The settings in ``config.json``, as data."""
    if is_adapter(directory):
        return read_config(base_of(directory))
    if not (directory / "config.json").is_file():
        raise CheckpointError(
            f"model must be hf:DIRECTORY with a config.json. Got {str(directory)!r}, which has none. "
            "Nothing is downloaded: save the model there first with save_pretrained()."
        )
    return _settings(directory / "config.json", _KINDS)


def _settings(file: Path, kinds: Mapping[str, Any]) -> dict[str, Any]:
    settings: dict[str, Any] = json_of(file, file.name, CheckpointError)
    check_fields(settings, kinds, f"{file.name} of {str(file.parent)!r}: ", CheckpointError)
    return settings


def configuration(directory: Path) -> dict[str, Any]:
    """All settings of a directory's model, with defaults for those missing in ``config.json``."""
    settings: dict[str, Any] = _config(directory).to_dict()
    return settings


def _config(directory: Path) -> Any:
    """The configuration, from ``config.json`` without settings that name code, kernels or places."""
    settings, transformers = read_config(directory), _transformers()
    kept = _checked(settings, directory)
    known = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    rule = f"config.json must be of a model that transformers {transformers.__version__} knows"
    if not isinstance(settings.get("model_type"), str) or settings["model_type"] not in known:
        code = " Its auto_map names code, and code of a directory is never run." if "auto_map" in settings else ""
        raise CheckpointError(
            f"{rule}. Got model_type {settings.get('model_type')!r} in {str(directory)!r}.{code} Give the model as "
            "package.module:factory."
        )
    with tempfile.TemporaryDirectory(prefix="intertwine-") as folder:
        write_json(Path(folder) / "config.json", kept)
        with _alone(rule, repr(str(directory))):
            config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    config._name_or_path = str(directory)
    return config


def _checked(value: Any, directory: Path, key: str = "") -> Any:
    """Checked settings, without those of where to load from; settings of parts of a model too."""
    if isinstance(value, Mapping):
        for part in ("quantization_config", "compression_config"):
            if value.get(part):
                raise CheckpointError(
                    f"config.json must be of plain weights. Got a {part} in {str(directory)!r}, which needs code of "
                    "another package. Dequantise the model first, and save it with save_pretrained()."
                )
        kept = {k: _checked(v, directory, key if _is_way(key) else k) for k, v in value.items() if k not in _LEFT_OUT}
        return {k: v for k, v in kept.items() if not (_is_way(k) and v is None)}
    if isinstance(value, list):
        return [_checked(v, directory, key) for v in value]
    if _is_way(key):
        if isinstance(value, str) and ("/" in value or "\\" in value):
            raise CheckpointError(
                f"{key} of config.json must be one of {', '.join(_WAYS)}. Got {value!r} in {str(directory)!r}, which "
                "names code from elsewhere. Nothing is downloaded, and no such code is run: remove that line."
            )
        return value if value in _WAYS else None
    if isinstance(value, int) and not isinstance(value, bool):
        most = _LAYERS if _DEPTH.search(key) else _COUNTED if key.startswith("num_") else _LARGEST
        if abs(value) > most:
            raise CheckpointError(
                f"{key} of config.json must be at most {most:,}. Got {value:,} in {str(directory)!r}."
            )
    if isinstance(value, str) and _ELSEWHERE.search(value) and not key.startswith(("_", "license", "url")):
        raise CheckpointError(
            f"config.json must name nothing outside its directory. Got {key} = {value!r} in {str(directory)!r}."
        )
    return value


def _is_way(key: str) -> bool:
    return key.removesuffix("_internal").endswith(("attn_implementation", "experts_implementation"))


def _class_of(config: Any) -> Any:
    """The class named in ``architectures``, if it is a transformers model; else that of AutoModel."""
    transformers = _transformers()
    named = next(iter(config.architectures or [""]), "")
    with torch.device("cpu"):  # imported code may compute
        found = getattr(transformers, named, None) if isinstance(named, str) and named.isidentifier() else None
    is_model = isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)
    if is_model:
        return found
    base = transformers.MODEL_MAPPING.get(type(config), None)
    if base is None:
        raise CheckpointError(
            f"architectures of config.json must name a model of transformers. Got {config.architectures!r}, and no "
            f"model of its own for {type(config).__name__}."
        )
    return base[0] if isinstance(base, tuple) else base


def _unsaid(config: Any, names: Callable[[], Collection[str]]) -> dict[str, bool]:
    """Arguments that only tensor names reveal, not ``config.json``: that a model was built without a pooler."""
    asks = "add_pooling_layer" in signature(_class_of(config).__init__).parameters
    known = names() if asks else ()
    return {"add_pooling_layer": False} if known and not any("pooler." in n for n in known) else {}


def _weights(directory: Path) -> dict[str, Tensor]:
    """The tensors of ``model.safetensors``, or of the shards named in its index, all within the directory."""
    single, index = directory / "model.safetensors", directory / "model.safetensors.index.json"
    if single.is_file():
        return read_tensors(within(directory, single.name, "checkpoint", CheckpointError))
    if index.is_file():
        return StoredState(index).tensors()
    raise no_weights(directory)


def _of_gguf(config: Any, source: Path) -> dict[str, Tensor]:
    """The tensors of a GGUF file under a model's names and in its layouts, as transformers maps them."""
    gguf_tensors(source)  # refuses an invalid header
    rule = "checkpoint must be a GGUF file of an architecture that transformers reads"
    silent = redirect_stderr(io.StringIO())  # it shows its own progress bar
    with _alone(rule, f"{str(source)!r}, which does not read"), silent:
        from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

        with torch.device("meta"):
            model = _class_of(config)._from_config(copy.deepcopy(config))
        read: dict[str, dict[str, Tensor]] = load_gguf_checkpoint(str(source), True, model_to_load=model)
        return read["tensors"]


def is_adapter(directory: Path) -> bool:
    """Whether a directory holds an adapter but no weights of a whole model."""
    whole = ("model.safetensors", "model.safetensors.index.json")
    return (directory / _ADAPTER).is_file() and not any((directory / name).is_file() for name in whole)


def base_of(directory: Path) -> Path:
    """The directory of an adapter's base model."""
    named = _settings(directory / _ADAPTER, {}).get("base_model_name_or_path")
    places = [Path(named), directory / named, directory.parent / named] if isinstance(named, str) and named else []
    for place in places:
        if (place / "config.json").is_file():
            return place
    raise CheckpointError(
        f"base_model_name_or_path of {_ADAPTER} must be a directory with a config.json. Got {named!r} in "
        f"{str(directory)!r}. Nothing is downloaded: save the base model (of a name of the Hugging Face hub, with 'hf "
        "download NAME --local-dir DIRECTORY'), and write its directory in place of that name."
    )


def _merged(directory: Path) -> nn.Module:
    """The base model with the updates of a peft adapter (as ``save_pretrained`` writes it) added to its weights."""
    settings, base = _settings(directory / _ADAPTER, {}), base_of(directory)
    kind, start = settings.get("peft_type"), settings.get("init_lora_weights")
    if kind != "LORA":
        raise CheckpointError(f"peft_type must be LORA. Got {kind!r} in {str(directory)!r}. {_ADVICE}")
    more = [f"{key} = {settings[key]!r}" for key in _MORE if settings.get(key)]
    if start not in (*_PLAIN, *_TAKEN):
        more.append(f"init_lora_weights = {start!r}")  # which took something from the base model that is kept nowhere
    if more:
        raise CheckpointError(
            f"{_ADAPTER} must describe updates that can be added to the base model's weights. Got {', '.join(more)} "
            f"in {str(directory)!r}. {_ADVICE}"
        )
    try:
        import peft
    except ImportError:
        raise MissingExtraError("peft", "lora") from None
    file = next(filter(lambda name: (directory / name).is_file(), _UPDATES), _UPDATES[0])
    tensors = read_tensors(within(directory, file, "adapter", CheckpointError))
    kept = (*_KEPT, "init_lora_weights") if start in _TAKEN else _KEPT
    try:
        config = peft.LoraConfig(**{key: settings[key] for key in kept if settings.get(key) is not None})
        wrapped = peft.get_peft_model(load_pretrained(base), config)
        found: Any = peft.set_peft_model_state_dict(wrapped, tensors)
        wrong = [*found.unexpected_keys, *(key for key in found.missing_keys if "lora_" in key)]
        _untie_adapted(wrapped)
        model: nn.Module = wrapped.merge_and_unload()
    except (ValueError, TypeError, RuntimeError, KeyError) as error:
        raise CheckpointError(
            f"adapter must fit its base model. Got {str(directory)!r} for {str(base)!r} ({error}). {_ADVICE}"
        ) from error
    if wrong:
        raise CheckpointError(
            f"adapter must hold all updates of its base model, and no others. Got {str(directory)!r}, where "
            f"{len(wrong)} tensors are missing or unexpected: {', '.join(sorted(wrong)[:3])}. {_ADVICE}"
        )
    return model.eval()


def _untie_adapted(wrapped: nn.Module) -> None:
    """Untie weights that only one of their users has updates for, so that the update reaches no other."""
    from ...symmetry.folding.rewriter import untie

    of: dict[int, list[str]] = {}
    for name, parameter in wrapped.named_parameters(remove_duplicate=False):
        of.setdefault(id(parameter), []).append(name)
    for names in of.values():
        adapted = any(".base_layer." in name or ".original_module." in name for name in names)
        for name in names[1:] if adapted else ():
            untie(wrapped, name)


@contextmanager
def _alone(rule: str, got: str) -> Iterator[None]:
    """Block network access while transformers works, and turn its exceptions into a clear error."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:  # transformers raises many exception types
        raise CheckpointError(f"{rule}. Got {got} ({first_line(error)}).") from error
    finally:
        constants.HF_HUB_OFFLINE = before


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise MissingExtraError("transformers", "hf") from None
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers
