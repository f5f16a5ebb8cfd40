"""Small networks of the class of a large one: a configuration with few, narrow layers, and an example for it."""

import copy
import re
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .._examples import run
from .._nested import map_tensors
from .._random import seeded

LARGEST = 30_000_000  # weights of a network that is run as it is

_DEPTH = re.compile(r"(^|_)(layers|layer|blocks|depth)$")
_WIDTHS = {
    "hidden_size": 32, "d_model": 32, "n_embd": 32, "dim": 32, "intermediate_size": 48, "ffn_dim": 48, "n_inner": 48,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24,
    "head_dim": 8, "vocab_size": 64, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8, "kv_lora_rank": 12,
    "q_lora_rank": 12, "n_routed_experts": 4, "num_experts": 4, "num_local_experts": 4, "moe_num_experts": 4,
    "num_experts_per_tok": 2, "moe_k": 2, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
}  # fmt: skip
_HEADS = ("num_attention_heads", "n_head", "encoder_attention_heads", "decoder_attention_heads")
_DEEPEST = 4


def small_model(model: nn.Module, example_inputs: Any) -> tuple[nn.Module, Any] | None:
    """A network of the same class with few weights, and an example; ``None`` where its class builds from no sizes.

    Args:
        model: A network that carries its sizes as ``config``, as those of transformers do.
        example_inputs: An example for it.

    Returns:
        The small network with random weights on the CPU, and an example with token numbers that it knows.
    """
    config = getattr(model, "config", None)
    if not hasattr(config, "to_dict"):
        return None
    for narrow in (True, False):
        settings = copy.deepcopy(config)
        vocabulary = _shrink(settings, narrow)
        try:
            with seeded(0), torch.device("cpu"):
                small = type(model)(settings).float().eval()
                example = map_tensors(example_inputs, partial(_sample, vocabulary=vocabulary))
                with torch.no_grad():
                    run(small, example)
        except (RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError):
            continue  # sizes that do not fit together: only fewer layers then
        if sum(p.numel() for p in small.parameters()) <= LARGEST:
            return small, example
    return None


def _shrink(settings: Any, narrow: bool) -> int:
    """Write small sizes into a configuration; returns the vocabulary."""
    vocabulary = 64
    heads = next((getattr(settings, key) for key in _HEADS if hasattr(settings, key)), None)
    for key, value in list(vars(settings).items()):
        if hasattr(value, "to_dict"):
            vocabulary = _shrink(value, narrow)
        elif isinstance(value, bool) or key.startswith("_"):
            continue
        elif isinstance(value, int) and _DEPTH.search(key):
            setattr(settings, key, min(value, _DEEPEST))
        elif isinstance(value, list) and key in ("layer_types", "mlp_layer_types"):
            setattr(settings, key, value[:_DEEPEST])
        elif narrow and isinstance(value, int) and key in _WIDTHS:
            setattr(settings, key, min(value, _WIDTHS[key]))
        elif narrow and isinstance(value, int) and key in _HEADS:
            setattr(settings, key, min(value, 4))
        elif narrow and isinstance(value, int) and key == "num_key_value_heads":
            setattr(settings, key, min(value, 4 if value == heads else 2 if value > 1 else 1))
        elif key in ("pad_token_id", "bos_token_id", "eos_token_id") and narrow:
            setattr(settings, key, None)
    known = getattr(settings, "vocab_size", None)
    return known if isinstance(known, int) else vocabulary


def _sample(tensor: Tensor, vocabulary: int) -> Tensor:
    if tensor.is_floating_point():
        return torch.randn(tensor.shape)
    if tensor.dtype == torch.bool:
        return torch.ones(tensor.shape, dtype=torch.bool)
    return torch.randint(vocabulary, tensor.shape)
