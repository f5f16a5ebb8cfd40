"""Text, image, audio and multimodal models of transformers, made from small configurations: nothing is downloaded.

Mixtures of experts come twice: ``eager`` in float64, and as users get them (grouped products of matrices, which
PyTorch has in float32 alone), where ``symmetries`` is given the float32 network.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .case import Case, generator, tokens
from .transformers_small import small

__all__ = ["CASES"]

CASES: list[Case] = []
VOCABULARY = 40
IMAGE = 39  # the token that stands for a piece of an image

Inputs = Callable[[int, float, int], dict[str, Any]]


def add(name: str, config: str, inputs: Inputs, label: str = "", **settings: Any) -> None:
    """Register one model by the names of its classes."""

    def make() -> nn.Module:
        import transformers

        transformers.logging.set_verbosity_error()
        return getattr(transformers, name)(small(getattr(transformers, config), **settings))

    family = config.removesuffix("Config")
    CASES.append(Case(f"{name}{label}", "transformers", family, make, inputs))


def normal(seed: int, scale: float, *shape: int) -> Tensor:
    """Random values."""
    return scale * torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def ids(length: int = 7) -> Inputs:
    """Tokens."""
    return lambda seed, scale, batch: {"input_ids": tokens(VOCABULARY, length, seed, batch)}


def both(source: int = 7, target: int = 5) -> Inputs:
    """Tokens for an encoder and a decoder."""
    return lambda seed, scale, batch: {
        "input_ids": tokens(VOCABULARY, source, seed, batch),
        "decoder_input_ids": tokens(VOCABULARY, target, seed + 50, batch),
    }


def pixels(size: int = 32, name: str = "pixel_values", frames: int = 0) -> Inputs:
    """Images, or videos."""
    return lambda seed, scale, batch: {name: normal(seed, scale, batch, *[frames] * bool(frames), 3, size, size)}


def series(name: str, *shape: int) -> Inputs:
    """Waves, spectrograms or time series."""
    return lambda seed, scale, batch: {name: normal(seed, scale, batch, *shape)}


def joint(*parts: Inputs) -> Inputs:
    """Several inputs at once."""
    return lambda seed, scale, batch: {k: v for part in parts for k, v in part(seed, scale, batch).items()}


def seen(pieces: int, words: int = 5, token: int = IMAGE) -> Inputs:
    """Tokens that begin with the pieces of an image."""
    return lambda seed, scale, batch: {
        "input_ids": torch.cat([torch.full((batch, pieces), token), tokens(VOCABULARY - 4, words, seed, batch)], 1),
    }


def experts(name: str, config: str, inputs: Inputs | None = None, **settings: Any) -> None:
    """Register a mixture of experts twice."""
    inputs = inputs or ids(9)
    add(name, config, inputs, " (eager)", experts_implementation="eager", **settings)
    add(name, config, inputs, " (grouped)", **settings)


# decoders
for name in (
    "Apertus", "BitNet", "Cohere2", "DiffLlama", "Gemma2", "Mpt",
):  # fmt: skip
    add(f"{name}ForCausalLM", f"{name}Config", ids())
add("CodeGenForCausalLM", "CodeGenConfig", ids(), rotary_dim=4)
add("Gemma3nForCausalLM", "Gemma3nTextConfig", ids(), hidden_size_per_layer_input=8, vocab_size_per_layer_input=40,
    num_kv_shared_layers=0, laurel_rank=4, intermediate_size=[24, 24], layer_types=["full_attention"] * 2,
    activation_sparsity_pattern=[0.0, 0.0])  # fmt: skip

# states instead of attention, and mixed
add("FalconMambaForCausalLM", "FalconMambaConfig", ids())
add("Mamba2ForCausalLM", "Mamba2Config", ids(), num_heads=4, head_dim=8)
add("FalconH1ForCausalLM", "FalconH1Config", ids(), mamba_d_ssm=32)
add("RecurrentGemmaForCausalLM", "RecurrentGemmaConfig", ids(), lru_width=16)
add("RwkvForCausalLM", "RwkvConfig", ids(), attention_hidden_size=16)
add("xLSTMForCausalLM", "xLSTMConfig", ids(8), num_heads=2, v_head_dim=None)
add("Zamba2ForCausalLM", "Zamba2Config", ids(), layers_block_type=["mamba", "hybrid"], num_mem_blocks=1)
add("Lfm2ForCausalLM", "Lfm2Config", ids(), layer_types=["conv", "full_attention"])

# mixtures of experts
for name in ("Mixtral", "Qwen2Moe", "Phimoe", "GptOss", "JetMoe", "Ernie4_5_Moe"):
    experts(f"{name}ForCausalLM", f"{name}Config")
for name in ("DeepseekV2", "DeepseekV3"):
    experts(f"{name}ForCausalLM", f"{name}Config", num_key_value_heads=4)
experts("MiniMaxForCausalLM", "MiniMaxConfig")
experts("Qwen3NextForCausalLM", "Qwen3NextConfig", layer_types=["linear_attention", "full_attention"])
experts("JambaForCausalLM", "JambaConfig", attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2)
experts("Llama4ForCausalLM", "Llama4TextConfig", attention_chunk_size=16, intermediate_size_mlp=24)
add("SwitchTransformersForConditionalGeneration", "SwitchTransformersConfig", both(9, 6), num_sparse_encoder_layers=1,
    num_sparse_decoder_layers=1)  # fmt: skip
add("NllbMoeForConditionalGeneration", "NllbMoeConfig", both(9, 6), encoder_sparse_step=1, decoder_sparse_step=2)

# encoders
for name in ("ConvBert", "Deberta", "FNet", "IBert", "ModernBert", "Nystromformer", "RoFormer"):
    add(f"{name}Model", f"{name}Config", ids())
add("CanineModel", "CanineConfig", ids(24))
add("BigBirdModel", "BigBirdConfig", ids(16), block_size=4, attention_type="original_full")
add("FunnelModel", "FunnelConfig", ids(8), num_hidden_layers=None, block_sizes=[1, 1], num_decoder_layers=1)
add("LongformerModel", "LongformerConfig", ids(8), attention_window=[4, 4])
add("MobileBertModel", "MobileBertConfig", ids(), true_hidden_size=8, intra_bottleneck_size=8)
add("ReformerModel", "ReformerConfig", ids(8), attn_layers=["local", "lsh"], axial_pos_shape=(4, 2),
    axial_pos_embds_dim=(8, 8), num_buckets=2, lsh_attn_chunk_length=4, local_attn_chunk_length=4, feed_forward_size=24,
    attention_head_size=4, is_decoder=False)  # fmt: skip
add("SqueezeBertModel", "SqueezeBertConfig", ids())

# encoders with decoders
for name in ("M2M100", "LongT5", "UMT5"):
    add(f"{name}ForConditionalGeneration", f"{name}Config", both())
add("ProphetNetForConditionalGeneration", "ProphetNetConfig", both(), num_hidden_layers=None, num_encoder_layers=1,
    num_decoder_layers=1)  # fmt: skip

# images and videos
add("HieraForImageClassification", "HieraConfig", pixels(), embed_dim=8, image_size=[32, 32], patch_size=[7, 7],
    patch_stride=[4, 4], patch_padding=[3, 3], masked_unit_size=[4, 4], query_stride=[2, 2], num_query_pool=2,
    depths=[1, 1, 1], num_heads=[1, 2, 4], embed_dim_multiplier=2.0)  # fmt: skip
add("Swinv2ForImageClassification", "Swinv2Config", pixels(), embed_dim=8, depths=[1, 2], num_heads=[2, 4],
    window_size=4, patch_size=4)  # fmt: skip
add("CvtForImageClassification", "CvtConfig", pixels(), embed_dim=[8, 16, 16], num_heads=[1, 2, 2], depth=[1, 2, 3],
    mlp_ratio=[2.0, 2.0, 2.0], patch_size=None)  # fmt: skip
add("PvtV2ForImageClassification", "PvtV2Config", pixels(), hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1],
    num_attention_heads=[1, 2, 2, 4], mlp_ratios=[2, 2, 2, 2], image_size=32, patch_sizes=[7, 3, 3, 3])  # fmt: skip
add("LevitForImageClassification", "LevitConfig", pixels(64), image_size=64, hidden_sizes=[16, 24, 32], key_dim=[4] * 3,
    num_attention_heads=[2, 3, 4], depths=[1, 1, 1], patch_size=16)  # fmt: skip
add("MobileViTForImageClassification", "MobileViTConfig", pixels(), hidden_sizes=[16, 16, 24], expand_ratio=2.0,
    neck_hidden_sizes=[8, 8, 16, 16, 16, 24, 32], patch_size=2, num_attention_heads=2)  # fmt: skip
add("FocalNetForImageClassification", "FocalNetConfig", pixels(), embed_dim=8, depths=[1, 1], focal_levels=[2, 2],
    focal_windows=[3, 3], patch_size=4, hidden_sizes=[8, 16])  # fmt: skip
add("DINOv3ViTModel", "DINOv3ViTConfig", pixels(), num_register_tokens=2)
add("GLPNModel", "GLPNConfig", pixels(), num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[8, 16],
    patch_sizes=[7, 3], strides=[4, 2], num_attention_heads=[2, 4], mlp_ratios=[2, 2])  # fmt: skip
add("YolosModel", "YolosConfig", pixels(), image_size=[32, 32], num_detection_tokens=4)
add("Swin2SRModel", "Swin2SRConfig", pixels(), embed_dim=8, depths=[2], num_heads=[2], window_size=4, patch_size=1)
add("VideoMAEModel", "VideoMAEConfig", pixels(frames=4), num_frames=4, tubelet_size=2)
add("TimesformerModel", "TimesformerConfig", pixels(frames=2), num_frames=2)

# audio
WAVE = {"conv_dim": [8, 8], "conv_kernel": [10, 3], "conv_stride": [5, 2], "num_feat_extract_layers": 2,
        "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}  # fmt: skip
for name in ("WavLM", "UniSpeechSat", "Wav2Vec2Conformer"):
    add(f"{name}Model", f"{name}Config", series("input_values", 400), **WAVE)
add("Wav2Vec2BertModel", "Wav2Vec2BertConfig", series("input_features", 9, 12), feature_projection_input_dim=12,
    conv_depthwise_kernel_size=3, left_max_position_embeddings=3, right_max_position_embeddings=3)  # fmt: skip
add("Speech2TextModel", "Speech2TextConfig", joint(series("input_features", 16, 8),
    lambda s, c, b: {"decoder_input_ids": tokens(VOCABULARY, 5, s, b)}), input_feat_per_channel=8, conv_channels=16,
    max_source_positions=32, max_target_positions=32)  # fmt: skip
add("EncodecModel", "EncodecConfig", series("input_values", 1, 640), num_filters=4, hidden_size=16, codebook_size=8,
    codebook_dim=16, upsampling_ratios=[4, 2], num_lstm_layers=1)  # fmt: skip
add("UnivNetModel", "UnivNetConfig", joint(series("input_features", 6, 8), series("noise_sequence", 6, 4)),
    model_in_channels=4, model_hidden_channels=4, num_mel_bins=8, kernel_predictor_hidden_channels=4,
    resblock_stride_sizes=[2, 2], resblock_kernel_sizes=[3, 3], resblock_dilation_sizes=[[1, 3], [1, 3]])  # fmt: skip

# several kinds of input
TOWER = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA = {"model_type": "llama"}
add("LlavaForConditionalGeneration", "LlavaConfig", joint(seen(16), pixels()), image_token_index=IMAGE,
    vision_feature_select_strategy="default", vision_feature_layer=-1)  # fmt: skip
add("PaliGemmaForConditionalGeneration", "PaliGemmaConfig", joint(seen(16), pixels()), image_token_index=IMAGE,
    projection_dim=16)  # fmt: skip
add("Idefics3ForConditionalGeneration", "Idefics3Config", joint(seen(4), lambda s, c, b: {
    "pixel_values": normal(s, c, b, 1, 3, 32, 32)}), image_token_id=IMAGE, scale_factor=2)  # fmt: skip
add("InternVLForConditionalGeneration", "InternVLConfig", joint(seen(4), pixels()), image_token_id=IMAGE,
    downsample_ratio=0.5, vision_config={"image_size": [32, 32], "patch_size": [8, 8]})  # fmt: skip
add("Blip2ForConditionalGeneration", "Blip2Config", joint(seen(4), pixels()), image_token_index=IMAGE,
    num_query_tokens=4, qformer_config={"encoder_hidden_size": 16})  # fmt: skip
add("BlipModel", "BlipConfig", joint(ids(), pixels()), text_config={"encoder_hidden_size": 16})
add("ViltModel", "ViltConfig", joint(ids(), pixels()))
add("SiglipModel", "SiglipConfig", joint(ids(), pixels()))
add("OwlViTModel", "OwlViTConfig", joint(ids(), pixels()))
add("BridgeTowerModel", "BridgeTowerConfig", joint(ids(), pixels()), hidden_size=16, num_attention_heads=4,
    num_hidden_layers=2, text_config={"num_attention_heads": 4}, vision_config={"hidden_size": 64})  # fmt: skip
add("FlavaModel", "FlavaConfig", joint(ids(), pixels()))
add("GitModel", "GitConfig", joint(ids(), pixels()))
add("VisualBertModel", "VisualBertConfig", joint(ids(), series("visual_embeds", 3, 12)), visual_embedding_dim=12)
add("LxmertModel", "LxmertConfig", joint(ids(), series("visual_feats", 3, 12), series("visual_pos", 3, 4)),
    visual_feat_dim=12, l_layers=1, x_layers=1, r_layers=1)  # fmt: skip
add("LayoutLMModel", "LayoutLMConfig", ids(), max_2d_position_embeddings=8)
add("Qwen2VLForConditionalGeneration", "Qwen2VLConfig", joint(seen(4), lambda s, c, b: {
    "pixel_values": normal(s, c, 16 * b, 3 * 2 * 8 * 8), "image_grid_thw": torch.tensor([[1, 4, 4]] * b),
    "mm_token_type_ids": (seen(4)(s, c, b)["input_ids"] == IMAGE).int()}),
    image_token_id=IMAGE, video_token_id=38, vision_start_token_id=37, vision_end_token_id=36,
    vision_config={"embed_dim": 16, "hidden_size": 16, "patch_size": 8, "mlp_ratio": 2},
    text_config={"rope_parameters": {
        "rope_type": "default", "mrope_section": [1, 1, 0], "rope_theta": 1e4}})  # fmt: skip
add("PerceiverModel", "PerceiverConfig", series("inputs", 9, 12), d_latents=16, num_latents=5, d_model=12,
    num_blocks=1, num_self_attends_per_block=2, num_self_attention_heads=4, num_cross_attention_heads=4)  # fmt: skip

# time series
add("PatchTSTModel", "PatchTSTConfig", series("past_values", 32, 2), num_input_channels=2, context_length=32,
    patch_length=4, patch_stride=4)  # fmt: skip
add("PatchTSMixerModel", "PatchTSMixerConfig", series("past_values", 32, 2), num_input_channels=2, context_length=32,
    patch_length=4, patch_stride=4)  # fmt: skip
