"""Small configurations of transformers' models: every known size is made small, whatever the configuration calls it."""

from __future__ import annotations

from typing import Any

__all__ = ["SIZES", "small"]

SIZES: dict[str, Any] = {
    # tokens
    **{"vocab_size": 40, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1},
    **{"max_position_embeddings": 64, "n_positions": 64, "n_ctx": 64, "type_vocab_size": 2, "use_cache": False},
    # width
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "embedding_size", "hidden_dim"), 16),
    **dict.fromkeys(("encoder_hidden_dim", "decoder_hidden_size", "emb_dim", "word_embed_proj_dim"), 16),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "n_inner", "ffn_hidden_size", "encoder_ffn_dim"), 24),
    **dict.fromkeys(("decoder_ffn_dim", "d_inner", "ffn_intermediate_size", "block_ff_dim", "conv_dim"), 24),
    **{"projection_dim": 12, "num_buckets": 8, "relative_attention_num_buckets": 8},
    # depth
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_encoder_layers", "depth"), 2),
    # heads
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "num_encoder_attention_heads", "num_decoder_attention_heads"), 4),
    **{"num_key_value_heads": 2, "head_dim": 4, "d_kv": 4, "attention_head_dim": 4, "d_head": 4},
    # experts
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k", "moe_top_k", "num_experts_per_token"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 12),
    **{"n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "expert_capacity": 64},
    # compressed attention
    **{"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 4},
    # states
    **{"state_size": 4, "ssm_state_size": 4, "mamba_d_state": 4, "mamba_n_heads": 4, "mamba_d_head": 8},
    **{"time_step_rank": 2, "mamba_dt_rank": 2, "mamba_n_groups": 1, "n_groups": 1, "chunk_size": 4},
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 4, "linear_value_head_dim": 4},
    # images
    **{"image_size": 32, "patch_size": 8, "num_channels": 3, "in_channels": 3},
}  # fmt: skip


def small(config: type, **settings: Any) -> Any:
    """A configuration with all known sizes small, in nested configurations too; ``settings`` come last.

    Args:
        config: A configuration class of transformers.
        settings: What this model needs besides; a dictionary for a nested configuration is put into it,
            and ``None`` leaves a size as it is.

    Returns:
        The configuration.
    """
    chosen = _chosen(config(), settings)
    made = config(**chosen)
    if hasattr(made, "use_cache"):
        made.use_cache = False
    return made


def _chosen(default: Any, settings: dict[str, Any]) -> dict[str, Any]:
    from transformers import PretrainedConfig

    same = type(default).attribute_map  # other names of one size: what is asked for by either name stays
    left = {k for k, v in settings.items() if v is None} | {k for k in same if same[k] in settings}
    chosen = {k: v for k, v in SIZES.items() if k not in left and _has(default, k)}
    for key, value in vars(default).items():
        if isinstance(value, PretrainedConfig):
            inner = settings.get(key, {})
            chosen[key] = {**_chosen(value, inner), "model_type": value.model_type}
    return {**chosen, **{k: v for k, v in settings.items() if v is not None and not isinstance(chosen.get(k), dict)}}


def _has(default: Any, key: str) -> bool:
    try:
        return hasattr(default, key)
    except NotImplementedError:
        return False
