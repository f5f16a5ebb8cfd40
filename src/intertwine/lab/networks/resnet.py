"""Residual networks for 32x32 images: ResNet20 and its deeper kin, and ResNet18 with ImageNet's widths."""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from ._activation import rectifier


class PaddingShortcut(nn.Module):
    """Option A: every second pixel, and zero channels on both sides; no parameters."""

    def __init__(self, extra: int, stride: int) -> None:
        super().__init__()
        self.extra, self.stride = extra, stride

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(N, C, H, W)`` to ``(N, C + extra, H / stride, W / stride)``."""
        before = self.extra // 2
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, before, self.extra - before))

    def extra_repr(self) -> str:
        """Arguments for ``print``."""
        return f"extra={self.extra}, stride={self.stride}"


class BasicBlock(nn.Module):
    """``relu2(bn2(conv2(relu1(bn1(conv1(x))))) + shortcut(x))``, ``relu1`` inside, ``relu2`` behind the sum."""

    def __init__(self, before: int, after: int, stride: int, option: Literal["A", "B"], leaky_slope: float) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.relu1 = rectifier(leaky_slope)
        self.conv2 = nn.Conv2d(after, after, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = (
                PaddingShortcut(after - before, stride)
                if option == "A"
                else nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
            )
        self.relu2 = rectifier(leaky_slope)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(N, before, H, W)`` to ``(N, after, H / stride, W / stride)``."""
        inside = self.relu1(self.bn1(self.conv1(x)))
        return self.relu2(self.bn2(self.conv2(inside)) + self.shortcut(x))


class ResNet(nn.Module):
    """Stem, stages of ``blocks`` basic blocks with ``widths`` channels, global average, linear.

    Every stage but the first halves the resolution. Layers are named as most published checkpoints name them: ``conv1,
    bn1, relu, layer1.0.conv1, ..., pool, linear``.
    """

    def __init__(
        self,
        widths: tuple[int, ...],
        blocks: int,
        classes: int = 10,
        channels: int = 3,
        option: Literal["A", "B"] = "A",
        leaky_slope: float = 0.0,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, widths[0], kernel_size=3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.relu = rectifier(leaky_slope)
        self.stages = [f"layer{i}" for i in range(1, len(widths) + 1)]
        before = widths[0]
        for i, (name, after) in enumerate(zip(self.stages, widths)):
            strides = [1 if i == 0 else 2] + [1] * (blocks - 1)
            shapes = zip([before] + [after] * (blocks - 1), strides)
            self.add_module(name, nn.Sequential(*(BasicBlock(c, after, s, option, leaky_slope) for c, s in shapes)))
            before = after
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.linear = nn.Linear(widths[-1], classes)
        self.apply(_he_normal)

    def forward(self, x: Tensor) -> Tensor:
        """Map images ``(N, C, H, W)`` to logits ``(N, classes)``."""
        x = self.relu(self.bn1(self.conv1(x)))
        for name in self.stages:
            x = self.get_submodule(name)(x)
        return self.linear(self.flatten(self.pool(x)))


def cifar_resnet(
    depth: int = 20,
    classes: int = 10,
    channels: int = 3,
    width: int = 16,
    option: Literal["A", "B"] = "A",
    leaky_slope: float = 0.0,
) -> ResNet:
    """ResNet of depth 6k + 2 for CIFAR: three stages of k blocks with 16, 32 and 64 channels.

    Where the shape changes, shortcut ``"A"`` pads with zeros, ``"B"`` is a 1x1 convolution with batch norm.

    Depth 20 with option A has 269,722 parameters. The paper's block table prints 2,384 for a 3x3 convolution of 16 by
    16 channels; it has 2,304, which is also what the paper's total needs. He's normal rule initialises it. Source: v1
    Fig. 24 (v2 Fig. 27).

    Raises:
        ValueError: If the depth is not 6k + 2 with k >= 1.

    Examples:
        >>> sum(p.numel() for p in cifar_resnet(20).parameters())
        269722
    """
    blocks, rest = divmod(depth - 2, 6)
    if rest or blocks < 1:
        raise ValueError(f"depth must be 6k + 2 with k >= 1, such as 20, 32, 44, 56 or 110. Got {depth}.")
    return ResNet((width, 2 * width, 4 * width), blocks, classes, channels, option, leaky_slope)


def resnet18(classes: int = 10, channels: int = 3, width: int = 64, leaky_slope: float = 0.0) -> ResNet:
    """ResNet18 for CIFAR: four stages of two blocks, 64 to 512 channels, a 3x3 stem and no first pooling.

    It has 11,173,962 parameters. The paper's text says three stages; its table and its count have four. Shortcuts are
    option B. Source: v1 Fig. 25 (v2 Fig. 28).

    Examples:
        >>> sum(p.numel() for p in resnet18().parameters())
        11173962
    """
    return ResNet(tuple(width * 2**i for i in range(4)), 2, classes, channels, "B", leaky_slope)


def _he_normal(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.kaiming_normal_(module.weight)
