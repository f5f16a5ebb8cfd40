"""Image models of timm, every family that can be made small, on small images."""

from __future__ import annotations

from typing import Any

from torch import nn

from .case import Case, images
from .operators import ready

__all__ = ["CASES"]

CASES: list[Case] = []
NAMES = (
    "cpubone_nano", "cs3darknet_focus_s", "csatv2", "cspnext_tiny", "dla46x_c", "dpn48b", "edgenext_xx_small",
    "efficientvim_m1", "efficientvit_b0", "ese_vovnet19b_slim_dw", "fasternet_t0", "ghostnet_050",
    "hardcorenas_a", "hgnetv2_b0", "hrnet_w18_small", "iformer_t", "inception_next_atto",
    "lcnet_035", "lcnetv2_small", "legacy_seresnet18", "mnasnet_small", "mobilenetv2_035",
    "mobilenetv3_small_050", "mobilenetv4_conv_small_035", "mobilevit_xxs", "mobilevitv2_050", "nf_regnet_b0",
    "regnetx_002", "regnety_002", "repghostnet_050", "repvgg_a0", "repvit_m0_9", "resnest14d", "resnet10t",
    "resnetblur18", "resnetv2_18", "rexnet_100", "shvit_s1", "skresnet18", "starnet_s050", "swiftformer_xs",
    "test_byobnet", "test_convnext", "test_convnext2", "test_efficientnet", "test_efficientnet_evos",
    "test_efficientnet_gn", "test_mambaout", "test_nfnet", "test_resnet", "test_vit2", "test_vit4", "tinynet_e",
)  # fmt: skip


def add(name: str, size: int = 0, **settings: Any) -> None:
    """Register one model by its name in timm, or by its class inside ``timm.models``, such as ``"volo.VOLO"``.

    ``size`` is that of the images: by default what the model is told, else 64.
    """

    def make() -> nn.Module:
        ready()
        import timm

        if "." not in name:
            return timm.create_model(name, num_classes=7, **settings)
        module, _, cls = name.partition(".")
        found = getattr(timm.models, module)
        chosen = {k: _resolved(found, v) for k, v in settings.items()}
        return getattr(found, cls)(num_classes=7, **chosen)

    family = name.replace("test_", "").replace(".", "_").split("_")[0].rstrip("0123456789")
    CASES.append(Case(name, "timm", family, make, images(size or settings.get("img_size", 64))))


def _resolved(module: Any, value: Any) -> Any:
    """Classes that are named ``"@Class"``, looked up in their module."""
    if isinstance(value, list):
        return [_resolved(module, v) for v in value]
    return getattr(module, value[1:]) if isinstance(value, str) and value.startswith("@") else value


for _name in NAMES:
    add(_name)
add("aimv2_large_patch14_224", img_size=56, depth=2, embed_dim=48, num_heads=4)
add("beit_base_patch16_224", img_size=64, depth=2, embed_dim=48, num_heads=4)
add("botnet26t_256", size=64, img_size=64)
add("cait_xxs24_224", img_size=64, depth=3, embed_dim=48, num_heads=4)
add("coat_lite_tiny", img_size=64)
add("convit_tiny", img_size=64, depth=3)
add("davit_tiny", depths=(1, 1, 1, 1), embed_dims=(16, 32, 48, 64), num_heads=(1, 2, 3, 4))
add("deit3_small_patch16_224", img_size=64, depth=2, embed_dim=48, num_heads=4)
add("deit_tiny_distilled_patch16_224", img_size=64, depth=2)
add("densenet121", block_config=(2, 2, 2, 2), growth_rate=8)
add("efficientformerv2_s0", img_size=64, depths=(1, 1, 2, 2), embed_dims=(16, 32, 48, 64))
add("efficientvit_m0", img_size=64)
add("eva02_tiny_patch14_224", img_size=56, depth=2)
add("gemma4_vit_167m", depth=2, embed_dim=48, num_heads=4)
add("hiera_tiny_224", img_size=64, embed_dim=24, stages=(1, 1, 2, 1))
add("hieradet_small", embed_dim=24, stages=(1, 1, 1, 1))
add("lambda_resnet26t", size=64, img_size=64)
add("levit_128s", img_size=64)
add("naflexvit_base_patch16_gap", depth=2, embed_dim=48, num_heads=4)
add("pit_ti_224", img_size=64)
add("pvt_v2_b0", depths=(1, 1, 1, 1))
add("qwen3_vit_88m", depth=2, embed_dim=48, num_heads=4)
add("samvit_base_patch16_224", img_size=64, depth=2, embed_dim=48, num_heads=4)
add("sequencer2d_s", layers=(1, 1, 1, 1), embed_dims=(16, 32, 32, 32), hidden_sizes=(8, 16, 16, 16), img_size=64)
add("swin_s3_tiny_224", img_size=64, window_size=4, embed_dim=24, depths=(1, 1, 2, 1))
add("swin_tiny_patch4_window7_224", img_size=64, window_size=4, embed_dim=24, depths=(1, 1, 2, 1))
add("swinv2_cr_tiny_ns_224", img_size=64, window_size=4, embed_dim=24, depths=(1, 1, 2, 1))
add("swinv2_tiny_window8_256", img_size=64, window_size=4, embed_dim=24, depths=(1, 1, 2, 1))
add("test_coatnet", img_size=64)
add("test_maxvit", img_size=64)
add("test_vit3", size=160)
add("test_vit_relpos", img_size=64)
add("tiny_vit_5m_224", size=64)
add("tnt_s_patch16_224", img_size=64, depth=2, embed_dim=48)
add("tresnet_m", layers=(1, 1, 1, 1), width_factor=0.25)
add("twins_svt_small", depths=(1, 1, 2, 1), embed_dims=(16, 32, 64, 96), num_heads=(1, 2, 4, 6))
add("visformer_tiny", img_size=64)
add("vit_base_patch16_rope_224", img_size=64, depth=2, embed_dim=48, num_heads=4)
add("vit_little_patch16_reg4_gap_256", img_size=64, depth=2)
add("vit_pe_core_tiny_patch16_384", img_size=64, depth=2)
add("vit_small_patch16_18x2_224", img_size=64, depth=2, embed_dim=48, num_heads=4)
add("vit_small_patch16_dinov3", img_size=64, depth=2, embed_dim=48, num_heads=4)
add("vit_tiny_r_s16_p8_224", img_size=64, depth=2)
add("xcit_nano_12_p16_224", img_size=64, depth=2, embed_dim=48)
add("metaformer.MetaFormer", depths=(1, 1, 1, 1), dims=(32, 32, 64, 64),
    token_mixers=["@SepConv", "@SepConv", "@Attention", "@Attention"],
    norm_layers=["@LayerNorm2dNoBias", "@LayerNorm2dNoBias", "@LayerNormNoBias", "@LayerNormNoBias"])  # fmt: skip
add("mlp_mixer.MlpMixer", img_size=64, num_blocks=2, embed_dim=48)
add("convmixer.ConvMixer", dim=48, depth=2)
add("focalnet.FocalNet", embed_dim=24, depths=(1, 1, 1, 1))
add("nest.Nest", img_size=64, embed_dims=(24, 48, 96), num_heads=(1, 2, 4), depths=(1, 1, 2))
add("volo.VOLO", img_size=64, layers=(1, 1, 1, 1), embed_dims=(24, 48, 48, 48), num_heads=(2, 4, 4, 4))
