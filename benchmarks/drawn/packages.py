"""Speech, diffusion, medical and rewritten vision networks of smaller packages, with their switches drawn at random."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from networks.case import Case, generator, images, tokens
from torch import nn

__all__ = ["PACKAGES", "drawn"]

Inputs = Callable[[int, float, int], Any]
Row = tuple[str, str, Inputs, dict[str, Any]]
PACKAGES = ("diffusers", "torchaudio", "vit_pytorch", "x_transformers", "segmentation_models_pytorch", "monai",
            "open_clip")  # fmt: skip


def values(*shapes: tuple[int, ...], time: float | None = None, words: dict[int, int] | None = None) -> Inputs:
    """Arguments of the shapes, behind the batch; a time of diffusion is the second, words have a vocabulary."""

    def inputs(seed: int, scale: float, batch: int) -> tuple[Any, ...]:
        made: list[Any] = [
            tokens(words[k], shape[0], seed + k, batch) if words and k in words
            else scale * torch.randn(batch, *shape, generator=generator(seed + k), dtype=torch.float64)
            for k, shape in enumerate(shapes)
        ]  # fmt: skip
        return tuple(made[:1] + ([torch.full((batch,), time)] if time is not None else []) + made[1:])

    return inputs


def lengths(*shape: int, of: int = 0) -> Inputs:
    """A series and how long it is."""
    return lambda seed, scale, batch: (*values(shape)(seed, scale, batch), torch.full((batch,), of or shape[0]))


def diffusers() -> Iterator[Row]:
    """Denoisers and autoencoders."""
    unet = {"sample_size": 16, "block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 4}
    plain = {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}
    cross = {"down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"), "cross_attention_dim": 12,
             "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"), "attention_head_dim": 4}  # fmt: skip
    picture, noise = values((4, 16, 16), (5, 12), time=3), values((3, 16, 16), time=3)
    for change in ({}, {"resnet_time_scale_shift": "scale_shift"}, {"act_fn": "relu"}, {"add_attention": False},
                   {"mid_block_scale_factor": 2}, {"attention_head_dim": 4, "act_fn": "gelu"},
                   {"time_embedding_type": "fourier"}, {"downsample_type": "resnet"}):  # fmt: skip
        yield f"UNet2DModel {change}", "UNet2DModel", noise, {**unet, **plain, **change}
    for change in ({}, {"use_linear_projection": True}, {"only_cross_attention": True}, {"act_fn": "relu"},
                   {"dual_cross_attention": True}, {"resnet_time_scale_shift": "scale_shift"},
                   {"transformer_layers_per_block": 2}, {"class_embed_type": "timestep"}, {"conv_in_kernel": 5},
                   {"time_embedding_act_fn": "silu", "mid_block_type": "UNetMidBlock2DSimpleCrossAttn"}):  # fmt: skip
        yield f"UNet2DConditionModel {change}", "UNet2DConditionModel", picture, {**unet, **cross, **change}
    boxes = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2,
             "block_out_channels": (8, 16), "norm_num_groups": 4, "latent_channels": 4}  # fmt: skip
    for change in ({}, {"mid_block_add_attention": False}, {"use_quant_conv": False, "use_post_quant_conv": False},
                   {"act_fn": "relu"}, {"layers_per_block": 2}):  # fmt: skip
        yield f"AutoencoderKL {change}", "AutoencoderKL", values((3, 16, 16)), {**boxes, **change}
    yield "VQModel", "VQModel", values((3, 16, 16)), {**boxes, "num_vq_embeddings": 12, "latent_channels": 3}
    yield "AsymmetricAutoencoderKL", "AsymmetricAutoencoderKL", values((3, 16, 16)), {
        k: v for k, v in boxes.items() if k != "block_out_channels"} | {"down_block_out_channels": (8, 16),
        "up_block_out_channels": (8, 16)}  # fmt: skip
    yield "AutoencoderTiny", "AutoencoderTiny", values((3, 16, 16)), {
        "encoder_block_out_channels": (8, 8), "decoder_block_out_channels": (8, 8), "num_encoder_blocks": (1, 1),
        "num_decoder_blocks": (1, 1)}  # fmt: skip
    yield "AutoencoderOobleck", "AutoencoderOobleck", values((2, 64)), {
        "encoder_hidden_size": 8, "downsampling_ratios": [2, 2], "channel_multiples": [1, 2], "decoder_channels": 8,
        "decoder_input_channels": 4}  # fmt: skip
    yield "AutoencoderDC", "AutoencoderDC", values((3, 16, 16)), {
        "latent_channels": 4, "attention_head_dim": 4, "encoder_block_out_channels": (8, 16),
        "decoder_block_out_channels": (8, 16), "encoder_layers_per_block": (1, 1), "decoder_layers_per_block": (1, 1),
        "encoder_block_types": ("ResBlock", "EfficientViTBlock"), "encoder_qkv_multiscales": ((), (5,)),
        "decoder_block_types": ("ResBlock", "EfficientViTBlock"), "decoder_qkv_multiscales": ((), (5,)),
        "decoder_norm_types": "rms_norm", "decoder_act_fns": "silu"}  # fmt: skip
    heads = {"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 2}
    for change in ({}, {"norm_type": "ada_norm_zero", "num_embeds_ada_norm": 10}, {"activation_fn": "geglu"}):
        yield f"Transformer2DModel {change}", "Transformer2DModel", values((4, 8, 8), (5, 12)), {
            **heads, "in_channels": 4, "norm_num_groups": 2, "cross_attention_dim": 12, **change}  # fmt: skip
    yield "PriorTransformer", "PriorTransformer", lambda s, c, b: {
        "hidden_states": values((16,))(s, c, b)[0], "timestep": 3, "proj_embedding": values((16,))(s + 1, c, b)[0],
        "encoder_hidden_states": values((5, 16))(s + 2, c, b)[0]}, {
        **heads, "embedding_dim": 16, "num_embeddings": 5, "additional_embeddings": 4}  # fmt: skip
    flows: dict[str, dict[str, Any]] = {
        "DiTTransformer2DModel": {"sample_size": 8, "patch_size": 2, "num_embeds_ada_norm": 10},
        "PixArtTransformer2DModel": {"sample_size": 8, "cross_attention_dim": 16, "caption_channels": 12},
        "SanaTransformer2DModel": {"in_channels": 4, "out_channels": 4, "sample_size": 8, "caption_channels": 12,
            "num_cross_attention_heads": 2, "cross_attention_head_dim": 8, "cross_attention_dim": 16},
        "SD3Transformer2DModel": {"sample_size": 8, "in_channels": 4, "caption_projection_dim": 16, "out_channels": 4,
            "joint_attention_dim": 12, "pooled_projection_dim": 12},
        "AuraFlowTransformer2DModel": {"sample_size": 8, "num_mmdit_layers": 1, "num_single_dit_layers": 1,
            "joint_attention_dim": 12, "caption_projection_dim": 16, "pos_embed_max_size": 16},
        "StableAudioDiTModel": {"sample_size": 8, "in_channels": 4, "out_channels": 4, "cross_attention_dim": 12,
            "num_key_value_attention_heads": 2, "time_proj_dim": 8, "global_states_input_dim": 12,
            "cross_attention_input_dim": 12},
        "ControlNetModel": {**unet, **{k: v for k, v in cross.items() if k != "up_block_types"}},
        "UNet3DConditionModel": {**unet, "cross_attention_dim": 12, "attention_head_dim": 4,
            "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
            "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D")},
        "UNetMotionModel": {**unet, "cross_attention_dim": 12, "motion_num_attention_heads": 2,
            "num_attention_heads": 2, "down_block_types": ("CrossAttnDownBlockMotion", "DownBlockMotion"),
            "up_block_types": ("UpBlockMotion", "CrossAttnUpBlockMotion"), "motion_norm_num_groups": 4},
        "UVit2DModel": {"hidden_size": 16, "encoder_hidden_size": 16, "cond_embed_dim": 16, "codebook_size": 30,
            "vocab_size": 31, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24,
            "block_out_channels": 16, "in_channels": 16, "num_res_blocks": 1, "block_num_heads": 2},
    }  # fmt: skip
    for name, settings in flows.items():
        yield name, name, _by_name(name), {**heads, **settings}


def _by_name(name: str) -> Inputs:
    """What a denoiser takes, by the names of its arguments."""

    def inputs(seed: int, scale: float, batch: int) -> dict[str, Any]:
        asked = inspect.signature(getattr(importlib.import_module("diffusers"), name).forward).parameters
        shape = {"StableAudioDiTModel": (4, 8), "UNet3DConditionModel": (4, 2, 8, 8), "UNetMotionModel": (4, 2, 8, 8),
                 "ControlNetModel": (4, 16, 16)}.get(name, (4, 8, 8))  # fmt: skip
        x = values(shape, (5, 12), (12,), (3, 16, 16), (1, 12))(seed, scale, batch)
        given = {"sample": x[0], "hidden_states": x[0], "encoder_hidden_states": x[1], "pooled_projections": x[2],
                 "controlnet_cond": x[3], "global_hidden_states": x[4], "timestep": torch.full((batch,), 3),
                 "class_labels": torch.full((batch,), 2)}  # fmt: skip
        if name == "UVit2DModel":
            given = {"input_ids": tokens(30, 16, seed, batch).view(batch, 4, 4), "pooled_text_emb": x[2][:, :12],
                     "encoder_hidden_states": values((5, 16))(seed, scale, batch)[0],
                     "micro_conds": torch.ones(batch, 5, dtype=torch.float64)}  # fmt: skip
        return {k: v for k, v in given.items() if k in asked}

    return inputs


def torchaudio() -> Iterator[Row]:
    """Speech and music."""
    models = "models."
    for change in ({}, {"use_group_norm": True}, {"convolution_first": True}):
        yield f"Conformer {change}", models + "Conformer", lengths(12, 16), {
            "input_dim": 16, "num_heads": 4, "ffn_dim": 24, "num_layers": 2, "depthwise_conv_kernel_size": 3,
            **change}  # fmt: skip
    for mask in ("sigmoid", "relu"):
        yield f"ConvTasNet {mask}", models + "ConvTasNet", values((1, 128)), {
            "enc_kernel_size": 8, "enc_num_feats": 16, "msk_num_feats": 8, "msk_num_hidden_feats": 12,
            "msk_num_layers": 2, "msk_num_stacks": 2, "msk_activate": mask}  # fmt: skip
    yield "DeepSpeech", models + "DeepSpeech", values((1, 12, 8)), {"n_feature": 8, "n_hidden": 16, "n_class": 7}
    yield "Emformer", models + "Emformer", lengths(14, 16, of=10), {
        "input_dim": 16, "num_heads": 4, "ffn_dim": 24, "num_layers": 2, "segment_length": 4,
        "right_context_length": 4}  # fmt: skip
    for kind, channels in (("waveform", 1), ("mfcc", 8)):
        yield f"Wav2Letter {kind}", models + "Wav2Letter", values((channels, 700)), {
            "num_classes": 7, "input_type": kind, "num_features": channels}  # fmt: skip
    yield "WaveRNN", models + "WaveRNN", values((1, 32), (1, 8, 12)), {
        "upsample_scales": [2, 2], "n_classes": 8, "hop_length": 4, "n_res_block": 1, "n_rnn": 16, "n_fc": 16,
        "n_freq": 8, "n_hidden": 12, "n_output": 12}  # fmt: skip
    for mode in ("group_norm", "layer_norm"):
        yield f"wav2vec2 {mode}", models + "wav2vec2_model", values((400,)), {
            "extractor_mode": mode, "extractor_conv_layer_config": [(8, 10, 5), (8, 3, 2)],
            "extractor_conv_bias": mode == "layer_norm", "encoder_embed_dim": 16, "encoder_projection_dropout": 0.0,
            "encoder_pos_conv_kernel": 4, "encoder_pos_conv_groups": 2, "encoder_num_layers": 2,
            "encoder_num_heads": 4, "encoder_attention_dropout": 0.0, "encoder_ff_interm_features": 24,
            "encoder_ff_interm_dropout": 0.0, "encoder_dropout": 0.0, "encoder_layer_drop": 0.0, "aux_num_out": 7,
            "encoder_layer_norm_first": mode == "layer_norm"}  # fmt: skip
    yield "HDemucs", models + "HDemucs", values((2, 2048)), {
        "sources": ["a", "b"], "channels": 8, "nfft": 256, "depth": 4, "norm_starts": 2,
        "norm_groups": 4}  # fmt: skip
    yield "SquimObjective", models + "squim_objective_model", values((1200,)), {
        "feat_dim": 16, "win_len": 16, "d_model": 16, "nhead": 4, "hidden_dim": 12, "num_blocks": 1,
        "rnn_type": "LSTM", "chunk_size": 10}  # fmt: skip


def vit_pytorch() -> Iterator[Row]:
    """Every vision transformer of one file each that is made of the usual sizes."""
    usual = {"image_size": 32, "patch_size": 8, "num_classes": 7, "dim": 24, "depth": 2, "heads": 4, "mlp_dim": 40,
             "dim_head": 8, "channels": 3, "seq_len": 32, "frames": 4, "frame_patch_size": 2, "image_patch_size": 8,
             "spatial_depth": 1, "temporal_depth": 1, "emb_dropout": 0.0, "dropout": 0.0, "cls_depth": 1,
             "num_memories_per_layer": 2, "ndim": 2, "input_shape": (32, 32), "num_register_tokens": 2}  # fmt: skip
    package = importlib.import_module("vit_pytorch")
    for module in sorted(m.name for m in pkgutil.iter_modules(package.__path__)):
        found = importlib.import_module(f"vit_pytorch.{module}")
        for name, cls in vars(found).items():
            if inspect.isclass(cls) and cls.__module__ == found.__name__ and issubclass(cls, nn.Module):
                asked = inspect.signature(cls.__init__).parameters
                needed = {k for k, p in asked.items() if p.default is p.empty and p.kind is not p.VAR_KEYWORD}
                if "num_classes" in asked and needed - {"self"} <= set(usual):
                    shape = (3, 4, 32, 32) if "frames" in asked else (3, 32) if "seq_len" in asked else (3, 32, 32)
                    yield f"{module}.{name}", f"{module}.{name}", values(shape), {
                        k: v for k, v in usual.items() if k in asked}  # fmt: skip


def x_transformers() -> Iterator[Row]:
    """Decoders with two or three of a hundred switches each."""
    found = inspect.signature(importlib.import_module("x_transformers.x_transformers").AttentionLayers.__init__)
    attention = inspect.signature(importlib.import_module("x_transformers.x_transformers").Attention.__init__)
    switches = [k for k, p in found.parameters.items() if p.default is False]
    switches += [f"attn_{k}" for k, p in attention.parameters.items() if p.default is False]
    switches += ["ff_glu", "ff_swish", "ff_relu_squared", "ff_no_bias", "ff_post_act_ln"]
    for draw in range(60):
        on = random.Random(draw).sample(switches, 2)
        yield f"Decoder {draw} {' '.join(on)}", f"Decoder {' '.join(on)}", lambda s, c, b: (tokens(30, 8, s, b),), {}


def segmentation_models_pytorch() -> Iterator[Row]:
    """Decoders on small encoders."""
    for name, encoder in (("Unet", "timm-mobilenetv3_small_minimal_100"), ("UnetPlusPlus", "resnet18"),
                          ("FPN", "mobilenet_v2"), ("Linknet", "resnet18"), ("MAnet", "efficientnet-b0"),
                          ("PSPNet", "resnet18"), ("PAN", "resnet18"), ("DeepLabV3", "mobilenet_v2"),
                          ("DeepLabV3Plus", "mobilenet_v2"), ("UPerNet", "resnet18"), ("Segformer", "mit_b0"),
                          ("Unet", "mobileone_s0"), ("FPN", "timm-regnetx_002"), ("Unet", "densenet121")):  # fmt: skip
        yield f"{name} {encoder}", name, images(64), {"encoder_name": encoder, "encoder_weights": None, "classes": 3}


def monai() -> Iterator[Row]:
    """Segmentation and classification of volumes."""
    nets, flat = "networks.nets.", {"spatial_dims": 2, "in_channels": 1, "out_channels": 2}
    steps = {"channels": (4, 8, 16), "strides": (2, 2)}
    plane, box = values((1, 32, 32)), values((1, 16, 16, 16))
    for change in ({"act": "RELU"}, {"norm": "BATCH"}, {"num_res_units": 2}, {"act": "PRELU", "norm": "INSTANCE"}):
        yield f"UNet {change}", nets + "UNet", plane, {**flat, **steps, **change}
    yield "AttentionUnet", nets + "AttentionUnet", plane, {**flat, **steps}
    yield "BasicUNet", nets + "BasicUNet", plane, {**flat, "features": (4, 4, 8, 8, 8, 4)}
    yield "BasicUNetPlusPlus", nets + "BasicUNetPlusPlus", plane, {**flat, "features": (4, 4, 8, 8, 8, 4)}
    yield "DynUNet", nets + "DynUNet", plane, {**flat, "kernel_size": [3] * 3, "strides": [1, 2, 2], "res_block": True,
                                              "upsample_kernel_size": [2, 2], "filters": [4, 8, 8]}  # fmt: skip
    yield "SegResNet", nets + "SegResNet", plane, {**flat, "init_filters": 8, "blocks_down": (1, 1)}
    yield "SegResNetVAE", nets + "SegResNetVAE", plane, {**flat, "init_filters": 8, "blocks_down": (1, 1),
                                                        "blocks_up": (1,), "input_image_size": (32, 32)}  # fmt: skip
    yield "VNet", nets + "VNet", values((1, 16, 16)), {**flat}
    yield "HighResNet", nets + "HighResNet", values((1, 8, 8)), {**flat}
    yield "UNETR", nets + "UNETR", plane, {**flat, "img_size": (32, 32), "feature_size": 4, "hidden_size": 16,
                                          "mlp_dim": 24, "num_heads": 4}  # fmt: skip
    yield "SwinUNETR", nets + "SwinUNETR", values((1, 64, 64)), {**flat, "feature_size": 12}
    yield "DenseNet", nets + "DenseNet", plane, {**flat, "init_features": 8, "growth_rate": 4, "block_config": (2, 2)}
    yield "ResNet", nets + "ResNet", plane, {"block": "basic", "layers": [1, 1, 1, 1], "block_inplanes": [4, 8, 8, 8],
                                            "spatial_dims": 2, "n_input_channels": 1, "num_classes": 3}  # fmt: skip
    yield "ViT", nets + "ViT", plane, {"in_channels": 1, "img_size": (32, 32), "patch_size": (8, 8), "hidden_size": 16,
                                      "mlp_dim": 24, "num_layers": 2, "num_heads": 4, "classification": True,
                                      "spatial_dims": 2}  # fmt: skip
    yield "AutoencoderKL", nets + "AutoencoderKL", plane, {**flat, "channels": (4, 8), "num_res_blocks": 1,
        "norm_num_groups": 2, "latent_channels": 2, "attention_levels": (False, True)}  # fmt: skip
    yield "VQVAE", nets + "VQVAE", plane, {**flat, "channels": (4, 8), "num_res_layers": 1, "num_res_channels": (4, 8),
        "num_embeddings": 12, "embedding_dim": 4, "downsample_parameters": ((2, 4, 1, 1),) * 2,
        "upsample_parameters": ((2, 4, 1, 1, 0),) * 2}  # fmt: skip
    yield "Restormer", nets + "Restormer", plane, {**flat, "dim": 8, "num_blocks": (1, 1), "heads": (2, 2),
                                                  "num_refinement_blocks": 1}  # fmt: skip
    yield "MedNeXt", nets + "MedNeXt", plane, {**flat, "init_filters": 4, "blocks_down": (1, 1), "blocks_up": (1, 1),
                                              "blocks_bottleneck": 1}  # fmt: skip
    yield "FlexibleUNet", nets + "FlexibleUNet", values((3, 64, 64)), {
        "in_channels": 3, "out_channels": 2, "backbone": "efficientnet-b0", "spatial_dims": 2}  # fmt: skip
    yield "DiffusionModelUNet", nets + "DiffusionModelUNet", values((1, 16, 16), time=3), {
        **flat, "channels": (8, 16), "attention_levels": (False, True), "num_res_blocks": 1, "norm_num_groups": 4,
        "num_head_channels": 8}  # fmt: skip
    yield "SEResNet50", nets + "SEResNet50", plane, {"spatial_dims": 2, "in_channels": 1, "num_classes": 3,
        "layers": (1, 1, 1, 1), "inplanes": 8}  # fmt: skip
    yield "UNet 3D", nets + "UNet", box, {**flat, **steps, "spatial_dims": 3}
    yield "FullyConnectedNet", nets + "FullyConnectedNet", values((9,)), {
        "in_channels": 9, "out_channels": 3, "hidden_channels": [12, 8]}  # fmt: skip


def open_clip() -> Iterator[Row]:
    """Two towers."""
    text = {"vocab_size": 40, "context_length": 8, "width": 24, "heads": 4, "layers": 2}
    vision = {"image_size": 32, "patch_size": 8, "width": 24, "head_width": 6, "layers": 2}
    for change in ({}, {"vision": {"attentional_pool": True, "attn_pooler_queries": 4, "attn_pooler_heads": 4}},
                   {"text": {"no_causal_mask": True, "pool_type": "last"}}, {"vision": {"ls_init_value": 0.1}},
                   {"vision": {"layers": (1, 1, 1, 1), "width": 8, "head_width": 8}}, {"quick_gelu": True},
                   {"vision": {"pool_type": "avg", "final_ln_after_pool": True}},
                   {"text": {"mlp_ratio": 2.0, "pad_id": 0, "pool_type": "first"}}):  # fmt: skip
        yield f"CLIP {change}", "CLIP", values((3, 32, 32), (8,), words={1: 40}), {
            "embed_dim": 16, "quick_gelu": bool(change.get("quick_gelu")),
            "vision_cfg": {**vision, **change.get("vision", {})},
            "text_cfg": {**text, **change.get("text", {})}}  # fmt: skip


def drawn(package: str) -> Iterator[tuple[str, str, str, Callable[[], Case]]]:
    """The configurations of one package, if it is installed."""
    if importlib.util.find_spec(package) is None:
        return
    for name, path, inputs, settings in globals()[package]():
        family = path.rsplit(".", 1)[-1].split(" ")[0]
        yield package, family, name, lambda r=(name, path, inputs, settings), f=family: _case(package, f, *r)


def _case(package: str, family: str, name: str, path: str, inputs: Inputs, settings: dict[str, Any]) -> Case:
    def make() -> nn.Module:
        torch.manual_seed(0)
        found: Any = importlib.import_module(package)
        if path.startswith("Decoder "):
            switches = dict.fromkeys(path.split(" ")[1:], True)
            layers = found.Decoder(dim=24, depth=2, heads=4, attn_dim_head=8, **switches)
            return found.TransformerWrapper(num_tokens=40, max_seq_len=16, attn_layers=layers)
        *modules, cls = path.split(".")
        found = importlib.import_module(".".join([package, *modules]))
        return getattr(found, cls)(**settings)

    return Case(name, package, family, make, inputs)
