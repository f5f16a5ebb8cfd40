"""Settings of two configurations: which ones differ, and whether the model's function may depend on them."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

_NAMED = 8  # settings named in a sentence
_UNSAID = {"_name_or_path", "transformers_version", "dtype", "torch_dtype"}  # where and how the model is stored
# Training, labels, and sizes and ties that tensors show themselves: nothing else in eval mode depends on these.
_OUTSIDE = re.compile(
    r"(^|\.)(architectures|use_cache|.*drop(out|_?path|_?rate|layer).*|.*pdrop|init(ializer)?_.*|.*_init|tie_.*"
    r"|output_(attentions|hidden_states|router_logits)|return_dict|chunk_size_feed_forward|problem_type|pretraining_tp"
    r"|finetuning_task|task_specific_params|id2label|label2id|gradient_checkpointing|.*_loss_coef"
    r"|(attention|mlp|qkv)_bias|_?(attn|experts)_implementation(_internal)?|vocab_size|hidden_size|intermediate_size|num_hidden_layers"
    r"|num_key_value_heads|head_dim|n_embd|n_layer|n_inner)(\.|$)"
)
# If absent, attention is not limited; the example may be too short to show it.
_LIMITS = re.compile(r"(^|\.)(sliding_window|attention_window|attention_chunk_size)$")


def settings_of(network: object) -> Mapping[str, Any]:
    """The settings of a transformers module, or of one like it; empty for other networks."""
    settings: Mapping[str, Any] = getattr(getattr(network, "config", None), "to_dict", dict)()
    return settings if isinstance(network, nn.Module) else {}


def differing_settings(before: Mapping[str, Any], after: Mapping[str, Any], ran: bool) -> tuple[str, str]:
    """Differing settings with both values, by name: those on which the function may depend, and the others.

    Settings that one configuration lacks count only if both have one ``model_type``, since other code has other
    settings; limits of attention always count. An empty configuration says nothing. If both networks ``ran``, other
    code is no change by itself.
    """
    if not before or not after:
        return "", ""
    old, new = dict(_flat(before)), dict(_flat(after))
    one_code = old.get("model_type") == new.get("model_type")
    names = [n for n in (old | new) if one_code or (n in old and n in new) or _LIMITS.search(n)]
    differing = [n for n in names if _value(old, n) != _value(new, n) and n.rpartition(".")[2] not in _UNSAID]
    told = [n for n in differing if not _OUTSIDE.search(n) and not (ran and n.rpartition(".")[2] == "model_type")]
    return _said(told, old, new), _said([n for n in differing if n not in told], old, new)


def sizes_and_settings(a: object, b: object) -> str:
    """Differing settings of two networks that differ in tensors or shapes, sizes first."""
    told, shown = differing_settings(settings_of(a), settings_of(b), ran=True)
    return ", ".join(filter(None, (shown, told)))


def _flat(settings: Mapping[str, Any], start: str = "") -> Iterator[tuple[str, Any]]:
    """Settings of a model's parts by their path, such as ``rope_parameters.rope_theta``."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{start}{name}.")
        else:
            yield f"{start}{name}", value


def _value(settings: Mapping[str, Any], name: str) -> Any:
    """A setting; absent, ``None`` and ``{}`` are the same."""
    value = settings.get(name)
    return None if value == {} else value


def _said(names: list[str], old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    shown = [f"{n} {_value(old, n)} to {_value(new, n)}" for n in names[:_NAMED]]
    return ", ".join([*shown, *([f"and {len(names) - _NAMED} more"] if len(names) > _NAMED else [])])
