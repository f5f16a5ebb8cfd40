"""Tiny random models of many transformers architectures, made from configurations alone: nothing is downloaded.

Each maker returns the model in eval mode and the keyword arguments of one forward call with a batch of two.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

Made = tuple[nn.Module, dict[str, Tensor]]
MAKERS: dict[str, Callable[..., Made]] = {}

TEXT = {"vocab_size": 37, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
WIDTH = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}


def maker(make: Callable[[], Made]) -> Callable[[], Made]:
    MAKERS[make.__name__] = make
    return make


def tokens(length: int = 7) -> Tensor:
    return torch.randint(3, 37, (2, length), generator=torch.Generator().manual_seed(0))


def pixels(size: int = 32) -> Tensor:
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))


def text(name: str, config: str, **settings) -> None:
    """Register a text model that takes ``input_ids``; a caller may have settings of its own."""

    def make(**own) -> Made:
        import transformers

        made = getattr(transformers, config)(**{**TEXT, **settings, **own})
        made.use_cache = False
        return getattr(transformers, name)(made).eval(), {"input_ids": tokens()}

    MAKERS[name] = make


def vision(name: str, config: str, size: int = 32, **settings) -> None:
    """Register an image model that takes ``pixel_values``."""

    def make() -> Made:
        import transformers

        return getattr(transformers, name)(getattr(transformers, config)(**settings)).eval(), {
            "pixel_values": pixels(size)
        }

    MAKERS[name] = make


# text, decoders
text("GPT2LMHeadModel", "GPT2Config", n_embd=16, n_layer=2, n_head=4, n_positions=16)
text("GPTNeoForCausalLM", "GPTNeoConfig", hidden_size=16, num_layers=2, num_heads=4, intermediate_size=24,
     max_position_embeddings=16, attention_types=[[["global", "local"], 1]], window_size=4)  # fmt: skip
text("GPTNeoXForCausalLM", "GPTNeoXConfig", **WIDTH, max_position_embeddings=16)
text("GPTJForCausalLM", "GPTJConfig", n_embd=16, n_layer=2, n_head=4, n_positions=16, rotary_dim=4)
text("OPTForCausalLM", "OPTConfig", hidden_size=16, num_hidden_layers=2, num_attention_heads=4, ffn_dim=24,
     max_position_embeddings=16, word_embed_proj_dim=16)  # fmt: skip
text("BloomForCausalLM", "BloomConfig", hidden_size=16, n_layer=2, n_head=4)
text("LlamaForCausalLM", "LlamaConfig", **WIDTH, num_key_value_heads=2, max_position_embeddings=16)
text("MistralForCausalLM", "MistralConfig", **WIDTH, num_key_value_heads=2, max_position_embeddings=16, head_dim=4)
text("Qwen2ForCausalLM", "Qwen2Config", **WIDTH, num_key_value_heads=2, max_position_embeddings=16)
text("Qwen3ForCausalLM", "Qwen3Config", **WIDTH, num_key_value_heads=2, max_position_embeddings=16, head_dim=4)
text("GemmaForCausalLM", "GemmaConfig", **WIDTH, num_key_value_heads=1, max_position_embeddings=16, head_dim=4)
text("PhiForCausalLM", "PhiConfig", **WIDTH, max_position_embeddings=16)
text("FalconForCausalLM", "FalconConfig", hidden_size=16, num_hidden_layers=2, num_attention_heads=4)
text("MixtralForCausalLM", "MixtralConfig", **WIDTH, num_key_value_heads=2, max_position_embeddings=16, head_dim=4,
     num_local_experts=3, num_experts_per_tok=2, experts_implementation="eager")  # fmt: skip
text("MambaForCausalLM", "MambaConfig", hidden_size=16, num_hidden_layers=2, state_size=4)

# text, encoders
text("BertForSequenceClassification", "BertConfig", **WIDTH, max_position_embeddings=16)
text("RobertaModel", "RobertaConfig", **WIDTH, max_position_embeddings=32)
text("DistilBertModel", "DistilBertConfig", dim=16, n_layers=2, n_heads=4, hidden_dim=24, max_position_embeddings=16)
text("AlbertModel", "AlbertConfig", **WIDTH, embedding_size=8, max_position_embeddings=16)
text("ElectraModel", "ElectraConfig", **WIDTH, embedding_size=8, max_position_embeddings=16)
text("DebertaV2Model", "DebertaV2Config", **WIDTH, max_position_embeddings=16, relative_attention=True,
     position_buckets=4, pos_att_type=["p2c", "c2p"])  # fmt: skip
text("MPNetModel", "MPNetConfig", **WIDTH, max_position_embeddings=32)
text("T5EncoderModel", "T5Config", d_model=16, d_kv=4, d_ff=24, num_layers=2, num_heads=4)

# vision
vision("ViTForImageClassification", "ViTConfig", **WIDTH, image_size=32, patch_size=16)
vision("DeiTModel", "DeiTConfig", **WIDTH, image_size=32, patch_size=16)
vision("BeitModel", "BeitConfig", **WIDTH, image_size=32, patch_size=16)
vision("Dinov2Model", "Dinov2Config", hidden_size=16, num_hidden_layers=2, num_attention_heads=4, mlp_ratio=2,
       image_size=32, patch_size=16)  # fmt: skip
vision("ConvNextForImageClassification", "ConvNextConfig", hidden_sizes=[8, 16], depths=[1, 1], num_stages=2)
vision("ConvNextV2Model", "ConvNextV2Config", hidden_sizes=[8, 16], depths=[1, 1], num_stages=2)
vision("ResNetForImageClassification", "ResNetConfig", embedding_size=8, hidden_sizes=[16, 24], depths=[1, 2])
vision("RegNetModel", "RegNetConfig", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], groups_width=4)
vision(
    "SwinModel", "SwinConfig", image_size=32, patch_size=4, embed_dim=8, depths=[1, 2], num_heads=[2, 4], window_size=4
)
vision("SegformerModel", "SegformerConfig", num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[8, 16],
       patch_sizes=[7, 3], strides=[4, 2], num_attention_heads=[2, 4], mlp_ratios=[2, 2],
       decoder_hidden_size=16)  # fmt: skip
vision("MobileNetV2Model", "MobileNetV2Config", depth_multiplier=0.25, image_size=32)
vision("EfficientNetModel", "EfficientNetConfig", width_coefficient=0.2, depth_coefficient=0.2,
       image_size=32, hidden_dim=256)  # fmt: skip
vision("PoolFormerModel", "PoolFormerConfig", hidden_sizes=[8, 16], depths=[1, 1], num_encoder_blocks=2,
       patch_sizes=[7, 3], strides=[4, 2], padding=[2, 1])  # fmt: skip


# several inputs, audio
@maker
def BartModel() -> Made:
    from transformers import BartConfig, BartModel

    config = BartConfig(**TEXT, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
                        decoder_attention_heads=4, encoder_ffn_dim=24, decoder_ffn_dim=24, max_position_embeddings=16,
                        use_cache=False)  # fmt: skip
    return BartModel(config).eval(), {"input_ids": tokens(), "decoder_input_ids": tokens(5)}


@maker
def T5ForConditionalGeneration() -> Made:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(vocab_size=37, d_model=16, d_kv=4, d_ff=24, num_layers=1, num_heads=4, use_cache=False,
                      pad_token_id=0, eos_token_id=2, decoder_start_token_id=0)  # fmt: skip
    return T5ForConditionalGeneration(config).eval(), {"input_ids": tokens(), "decoder_input_ids": tokens(5)}


@maker
def CLIPModel() -> Made:
    from transformers import CLIPConfig, CLIPModel

    tower = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 24}
    config = CLIPConfig(
        text_config={**TEXT, **tower, "max_position_embeddings": 16},
        vision_config={**tower, "image_size": 32, "patch_size": 16},
        projection_dim=12,
    )
    ids = tokens()
    ids[:, -1] = 2
    return CLIPModel(config).eval(), {"input_ids": ids, "pixel_values": pixels()}


@maker
def WhisperModel() -> Made:
    from transformers import WhisperConfig, WhisperModel

    config = WhisperConfig(**TEXT, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
                           decoder_attention_heads=4, encoder_ffn_dim=24, decoder_ffn_dim=24, num_mel_bins=8,
                           max_source_positions=10, max_target_positions=16, use_cache=False,
                           decoder_start_token_id=1, suppress_tokens=[], begin_suppress_tokens=[])  # fmt: skip
    audio = torch.randn(2, 8, 20, generator=torch.Generator().manual_seed(0))
    return WhisperModel(config).eval(), {"input_features": audio, "decoder_input_ids": tokens(5)}


def audio(name: str, config: str, **settings) -> None:
    """Register an audio model that takes raw waveforms."""

    def make() -> Made:
        import transformers

        wave = torch.randn(2, 400, generator=torch.Generator().manual_seed(0))
        return getattr(transformers, name)(getattr(transformers, config)(**settings)).eval(), {"input_values": wave}

    MAKERS[name] = make


WAVE = {**WIDTH, "conv_dim": [8, 8], "conv_kernel": [10, 3], "conv_stride": [5, 2], "num_feat_extract_layers": 2,
        "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "vocab_size": 37}  # fmt: skip
audio("Wav2Vec2Model", "Wav2Vec2Config", **WAVE)
audio("HubertModel", "HubertConfig", **WAVE)


@maker
def ASTModel() -> Made:
    from transformers import ASTConfig, ASTModel

    config = ASTConfig(**WIDTH, patch_size=4, max_length=16, num_mel_bins=8, frequency_stride=4, time_stride=4)
    spectrogram = torch.randn(2, 16, 8, generator=torch.Generator().manual_seed(0))
    return ASTModel(config).eval(), {"input_values": spectrogram}
