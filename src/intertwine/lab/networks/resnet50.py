"""ResNet-50 with the names of published checkpoints, and paper 1's version without ReLU on residual outputs."""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["Bottleneck", "BottleneckResNet", "resnet50"]

_EXPANSION = 4


class Bottleneck(nn.Module):
    """``relu3(bn3(conv3(relu2(bn2(conv2(relu1(bn1(conv1(x)))))))) + downsample(x))``."""

    def __init__(self, before: int, width: int, stride: int, residual_relu: bool) -> None:
        super().__init__()
        after = _EXPANSION * width
        self.conv1 = nn.Conv2d(before, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu2 = nn.ReLU()
        self.conv3 = nn.Conv2d(width, after, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(after)
        self.relu3: nn.Module = nn.ReLU() if residual_relu else nn.Identity()
        self.downsample: nn.Module | None = None
        if stride != 1 or before != after:
            self.downsample = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(N, before, H, W)`` to ``(N, 4 width, H / stride, W / stride)``."""
        inside = self.relu1(self.bn1(self.conv1(x)))
        inside = self.bn3(self.conv3(self.relu2(self.bn2(self.conv2(inside)))))
        return self.relu3(inside + (x if self.downsample is None else self.downsample(x)))


class BottleneckResNet(nn.Module):
    """Stem, stages of bottleneck blocks, global average, ``fc``."""

    def __init__(
        self,
        blocks: tuple[int, ...],
        classes: int,
        channels: int,
        width: int,
        residual_relu: bool,
        stem: Literal["imagenet", "small"],
    ) -> None:
        super().__init__()
        large = stem == "imagenet"
        self.conv1 = nn.Conv2d(channels, width, 7 if large else 3, 2, padding=3 if large else 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.maxpool: nn.Module = nn.MaxPool2d(3, 2, 1) if large else nn.Identity()
        self.stages = [f"layer{i}" for i in range(1, len(blocks) + 1)]
        before = width
        for i, (name, count) in enumerate(zip(self.stages, blocks)):
            inside, stride = width * 2**i, 1 if i == 0 else 2
            stage = [Bottleneck(before, inside, stride, residual_relu)]
            before = _EXPANSION * inside
            stage += [Bottleneck(before, inside, 1, residual_relu) for _ in range(count - 1)]
            self.add_module(name, nn.Sequential(*stage))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(before, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def features(self, x: Tensor) -> Tensor:
        """Map images ``(N, C, H, W)`` to the last residual output."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for name in self.stages:
            x = self.get_submodule(name)(x)
        return x

    def forward(self, x: Tensor) -> Tensor:
        """Map images ``(N, C, H, W)`` to logits ``(N, classes)``."""
        return self.fc(self.avgpool(self.features(x)).flatten(1))

    def dense(self, x: Tensor) -> Tensor:
        """Logits at every place, ``(N, classes, h, w)``; their mean over places is ``forward``."""
        return F.conv2d(self.features(x), self.fc.weight[:, :, None, None], self.fc.bias)


def resnet50(
    classes: int = 1000,
    channels: int = 3,
    width: int = 64,
    blocks: tuple[int, ...] = (3, 4, 6, 3),
    residual_relu: bool = True,
    stem: Literal["imagenet", "small"] = "imagenet",
) -> BottleneckResNet:
    """ResNet-50, or a smaller network of the same kind.

    Its 25,557,032 parameters have the names of torchvision's checkpoints, which load by file. ``residual_relu=False``
    is the modified network of paper 1, section 6 and v2 F.3: nothing acts on the residual outputs, so that their
    neuron basis is not special. The stem ``"imagenet"`` has stride 4 in all, ``"small"`` stride 2.

    Raises:
        ValueError: If a stage has no block.

    Examples:
        >>> import torch
        >>> with torch.device("meta"):
        ...     print(sum(p.numel() for p in resnet50().parameters()))
        25557032
    """
    if not blocks or min(blocks) < 1:
        raise ValueError(f"blocks must be at least 1 in every stage. Got {blocks}.")
    return BottleneckResNet(blocks, classes, channels, width, residual_relu, stem)
