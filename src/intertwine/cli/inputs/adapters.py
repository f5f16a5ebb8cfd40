"""Adapters (LoRA): a directory of small updates, merged into the base model that it names; nothing of it is run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..._io import read_tensors
from ..._untrusted.files import json_of, within
from ...errors import CheckpointError, MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

_SETTINGS = "adapter_config.json"
# What says which function it is; settings that name places, code or ways of running are left out.
_KEPT = ("r", "lora_alpha", "target_modules", "exclude_modules", "fan_in_fan_out", "bias", "use_rslora", "use_dora",
         "modules_to_save", "layers_to_transform", "layers_pattern", "rank_pattern", "alpha_pattern")  # fmt: skip


def is_adapter(directory: Path) -> bool:
    """Whether a directory holds an adapter and no weights of a whole model."""
    whole = ("model.safetensors", "model.safetensors.index.json")
    return (directory / _SETTINGS).is_file() and not any((directory / name).is_file() for name in whole)


def base_of(directory: Path) -> Path:
    """The directory of the model that an adapter is for."""
    named = _settings(directory).get("base_model_name_or_path")
    places = [Path(named), directory / named, directory.parent / named] if isinstance(named, str) and named else []
    for place in places:
        if (place / "config.json").is_file():
            return place
    raise CheckpointError(
        f"base_model_name_or_path of {_SETTINGS} must be a directory with a config.json. Got {named!r} in "
        f"{str(directory)!r}. Nothing is downloaded: save the base model, and write its directory there."
    )


def merged(directory: Path, load: Callable[[Path], nn.Module]) -> nn.Module:
    """The base model with the adapter's updates added to its weights.

    Args:
        directory: The adapter, as ``save_pretrained`` of peft writes it.
        load: Loads the base model.

    Raises:
        CheckpointError: If it is no LoRA adapter, or not one for this base model.
        MissingExtraError: If peft is not installed.
    """
    settings, base = _settings(directory), base_of(directory)
    if settings.get("peft_type") != "LORA":
        raise CheckpointError(f"peft_type must be LORA. Got {settings.get('peft_type')!r} in {str(directory)!r}.")
    try:
        import peft
    except ImportError:
        raise MissingExtraError("peft", "lora") from None
    tensors = read_tensors(within(directory, "adapter_model.safetensors", "adapter", CheckpointError))
    try:
        config = peft.LoraConfig(**{key: settings[key] for key in _KEPT if settings.get(key) is not None})
        wrapped = peft.get_peft_model(load(base), config)
        found: Any = peft.set_peft_model_state_dict(wrapped, tensors)
    except (ValueError, TypeError, RuntimeError, KeyError) as error:
        raise CheckpointError(
            f"adapter must fit its base model. Got {str(directory)!r} for {str(base)!r} ({error})."
        ) from error
    wrong = [*found.unexpected_keys, *(key for key in found.missing_keys if "lora_" in key)]
    if wrong:
        raise CheckpointError(
            f"adapter must hold all updates of its base model, and no others. Got {str(directory)!r}, where "
            f"{len(wrong)} tensors are missing or unexpected: {', '.join(sorted(wrong)[:3])}."
        )
    model: nn.Module = wrapped.merge_and_unload()
    return model.eval()


def _settings(directory: Path) -> dict[str, Any]:
    found = json_of(directory / _SETTINGS, _SETTINGS, CheckpointError)
    if not isinstance(found, dict):
        raise CheckpointError(f"{_SETTINGS} must hold settings. Got a {type(found).__name__} in {str(directory)!r}.")
    return found
