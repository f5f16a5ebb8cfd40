"""Tiny random models of the architectures that llm-compressor lists, and of others; made from configurations alone."""

import torch
from torch import Tensor, nn

Made = tuple[nn.Module, dict[str, Tensor]]

# Settings of decoders, each where a configuration has it.
SMALL = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 4, "head_dim": 8, "vocab_size": 64, "max_position_embeddings": 64, "use_cache": False,
    "pad_token_id": None, "bos_token_id": None, "eos_token_id": None, "n_layer": 3, "n_head": 4, "n_embd": 32,
    "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24, "num_experts": 4, "n_routed_experts": 4,
    "num_local_experts": 4, "num_experts_per_tok": 2, "moe_num_experts": 4, "moe_k": 2, "n_group": 1, "topk_group": 1,
    "first_k_dense_replace": 1, "kv_lora_rank": 12, "q_lora_rank": 12, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4,
    "v_head_dim": 8, "num_dense_layers": 1, "sliding_window": 4, "ffn_hidden_size": 48, "intermediate_size_mlp": 48,
    "attention_chunk_size": 16, "index_n_heads": 2, "index_head_dim": 8, "index_topk": 4, "n_positions": 64,
    "ffn_dim": 48, "num_layers": 3, "num_heads": 4, "hidden_size_per_layer_input": 8, "word_embed_proj_dim": 32,
    "attention_hidden_size": 32, "n_inner": 48, "rotary_dim": 4, "hybrid_layer_ids": [], "moe_layer_start_index": 1,
    "experts_implementation": "batched_mm", "d_model": 32, "d_ff": 48, "d_kv": 8, "encoder_layers": 2,
    "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48, "num_decoder_layers": 2, "decoder_start_token_id": 1, "num_mel_bins": 8,
    "max_source_positions": 10, "max_target_positions": 16, "vocab_size_per_layer_input": 64,
}  # fmt: skip
VISION = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24,
          "image_size": 28, "patch_size": 14, "depth": 1, "num_heads": 2, "out_hidden_size": 32}  # fmt: skip
AUDIO = {"d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 24, "output_dim": 32}


def tokens(length: int = 8, known: int = 60) -> Tensor:
    return torch.randint(3, known, (2, length), generator=torch.Generator().manual_seed(0))


def settings(config: type, **own) -> dict:
    """Small sizes for the fields that a class of configurations has, and a caller's own settings."""
    made = config()
    fixed = {key for key in SMALL if isinstance(getattr(config, key, None), property)}
    return {**{key: value for key, value in SMALL.items() if hasattr(made, key) and key not in fixed}, **own}


def text(name: str, **own) -> Made:
    """A decoder of transformers by the name of its class."""
    import transformers

    kind = getattr(transformers, name)
    config = kind.config_class(**settings(kind.config_class, **own))
    return kind(config).eval(), {"input_ids": tokens()}


def with_towers(name: str, **own) -> Made:
    """A model of text and images, of which only the text is run."""
    import transformers

    kind = getattr(transformers, name)
    made = kind.config_class()
    parts = {}
    for key in kind.config_class.sub_configs:
        part = type(getattr(made, key))
        if "text" in key:
            parts[key] = settings(part, **own)
        elif "vision" in key:
            parts[key] = {k: v for k, v in VISION.items() if hasattr(part(), k)}
        elif "audio" in key:
            parts[key] = {k: v for k, v in AUDIO.items() if hasattr(part(), k)}
    return kind(kind.config_class(**parts)).eval(), {"input_ids": tokens()}


def whisper(name: str) -> Made:
    """A model of speech."""
    import transformers

    kind = getattr(transformers, name)
    own = {"suppress_tokens": [], "begin_suppress_tokens": [], "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = kind.config_class(**settings(kind.config_class, **own))
    audio = torch.randn(2, 8, 20, generator=torch.Generator().manual_seed(0))
    return kind(config).eval(), {"input_features": audio, "decoder_input_ids": tokens(5)}
