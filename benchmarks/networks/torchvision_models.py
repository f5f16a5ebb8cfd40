"""Image and video models of torchvision, on small inputs; those with tens of millions of weights are made narrower."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .case import Case, generator, images
from .operators import ready

__all__ = ["CASES"]

CASES: list[Case] = []


SQUARE = images(64)


def add(name: str, inputs: Callable = SQUARE, path: str = "", **settings: Any) -> None:
    """Register one model by the name of its builder, or by the path of its class inside ``torchvision.models``."""

    def make() -> nn.Module:
        ready()
        import torchvision

        if not path:
            return torchvision.models.get_model(name, weights=None, **settings)
        made: Any = torchvision.models
        for part in path.split("."):
            made = getattr(made, part)
        return made(**settings)

    CASES.append(Case(name, "torchvision", name.split("_")[0].rstrip("0123456789"), make, inputs))


def pairs(size: int) -> Callable[[int, float, int], dict[str, Tensor | int]]:
    """Two images each, for optical flow."""

    def make(seed: int, scale: float, batch: int) -> dict[str, Tensor | int]:
        both = scale * torch.randn(2, batch, 3, size, size, generator=generator(seed), dtype=torch.float64)
        return {"image1": both[0], "image2": both[1], "num_flow_updates": 2}

    return make


SMALL = {"num_classes": 7}
add("densenet_small", path="densenet.DenseNet", growth_rate=8, block_config=(2, 2, 2), num_init_features=16, **SMALL)
add("efficientnet_b0", **SMALL)
add("mnasnet0_5", **SMALL)
add("mobilenet_v2", width_mult=0.35, **SMALL)
add("mobilenet_v3_small", width_mult=0.5, **SMALL)
add("mobilenet_v3_large", reduced_tail=True, width_mult=0.5, **SMALL)
add("regnet_y_400mf", **SMALL)
add("resnet18", **SMALL)
add("shufflenet_v2_x0_5", **SMALL)
add("squeezenet1_1", **SMALL)
add("lraspp_mobilenet_v3_large", weights_backbone=None, **SMALL)
add("r2plus1d_18", images(32, 3, 4), **SMALL)
add("mc3_18", images(32, 3, 4), **SMALL)
add("raft_small", pairs(128))
add("swin_small", path="SwinTransformer", patch_size=[4, 4], embed_dim=24, depths=[1, 2], num_heads=[2, 4],
    window_size=[4, 4], **SMALL)  # fmt: skip
add("vit_small", path="VisionTransformer", image_size=64, patch_size=16, num_layers=2, num_heads=4, hidden_dim=48,
    mlp_dim=96, **SMALL)  # fmt: skip
add("maxvit_small", path="MaxVit", input_size=(64, 64), stem_channels=8, partition_size=2, block_channels=[8, 16],
    block_layers=[1, 1], head_dim=4, stochastic_depth_prob=0.0, **SMALL)  # fmt: skip


def _narrow(name: str, builder: Callable[[], nn.Module], inputs: Callable = SQUARE) -> None:
    CASES.append(Case(name, "torchvision", name.split("_")[0], builder, inputs))


def _vgg(norm: bool) -> nn.Module:
    ready()
    from torchvision.models import vgg

    features = vgg.make_layers([8, "M", 16, "M", 16, 16, "M"], batch_norm=norm)
    model = vgg.VGG(features, num_classes=7)
    model.classifier = nn.Sequential(nn.Linear(16 * 49, 32), nn.ReLU(True), nn.Dropout(), nn.Linear(32, 7))
    return model


def _convnext() -> nn.Module:
    ready()
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    return ConvNeXt([CNBlockConfig(12, 24, 1), CNBlockConfig(24, 48, 1), CNBlockConfig(48, None, 1)], num_classes=7)


def _video_swin() -> nn.Module:
    ready()
    from torchvision.models.video.swin_transformer import SwinTransformer3d

    return SwinTransformer3d([2, 4, 4], embed_dim=12, depths=[1, 2], num_heads=[2, 4], window_size=[2, 4, 4],
                             num_classes=7)  # fmt: skip


def _mvit() -> nn.Module:
    ready()
    from torchvision.models.video.mvit import MSBlockConfig, MViT

    blocks = [
        MSBlockConfig(1, 8, 8, [3, 3, 3], [3, 3, 3], [1, 1, 1], [1, 2, 2]),
        MSBlockConfig(2, 8, 16, [3, 3, 3], [3, 3, 3], [1, 2, 2], [1, 1, 1]),
    ]
    return MViT((32, 32), 4, blocks, residual_pool=True, residual_with_cls_embed=False, rel_pos_embed=True,
                proj_after_attn=True, num_classes=7)  # fmt: skip


_narrow("vgg_small", lambda: _vgg(False))
_narrow("vgg_bn_small", lambda: _vgg(True))
_narrow("convnext_small", _convnext)
_narrow("swin3d_small", _video_swin, images(32, 3, 4))
_narrow("mvit_small", _mvit, images(32, 3, 4))
