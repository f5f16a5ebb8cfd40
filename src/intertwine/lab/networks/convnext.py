"""A small network in the style of ConvNeXt (Liu et al. 2022): no activation on the residual stream."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of ``(N, C, H, W)``."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise every place."""
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


class ConvNeXtBlock(nn.Module):
    """``x + scale * conv3(gelu(conv2(norm(conv1(x)))))`` with a depthwise ``conv1``; ``scale`` starts at 0.1."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = ChannelNorm(width, eps=1e-6)
        self.conv2 = nn.Conv2d(width, 4 * width, 1)
        self.gelu = nn.GELU()
        self.conv3 = nn.Conv2d(4 * width, width, 1)
        self.scale = nn.Parameter(torch.full((width, 1, 1), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(N, width, H, W)`` to the same shape."""
        return x + self.scale * self.conv3(self.gelu(self.conv2(self.norm(self.conv1(x)))))


class ConvNeXt(nn.Module):
    """A 2x2 stem with stride 2, stages of blocks with a 2x2 convolution between them, global average, norm, ``fc``."""

    def __init__(self, widths: tuple[int, ...], blocks: int, classes: int, channels: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(channels, widths[0], 2, 2), ChannelNorm(widths[0], eps=1e-6))
        self.stages = [f"layer{i}" for i in range(1, len(widths) + 1)]
        before = 0
        for name, width in zip(self.stages, widths):
            down = [ChannelNorm(before, eps=1e-6), nn.Conv2d(before, width, 2, 2)] if before else []
            self.add_module(name, nn.Sequential(*down, *(ConvNeXtBlock(width) for _ in range(blocks))))
            before = width
        self.norm = nn.LayerNorm(before, eps=1e-6)
        self.fc = nn.Linear(before, classes)

    def features(self, x: Tensor) -> Tensor:
        """Map images ``(N, C, H, W)`` to the last residual output."""
        x = self.stem(x)
        for name in self.stages:
            x = self.get_submodule(name)(x)
        return x

    def forward(self, x: Tensor) -> Tensor:
        """Map images ``(N, C, H, W)`` to logits ``(N, classes)``."""
        return self.fc(self.norm(self.features(x).mean((2, 3))))

    def dense(self, x: Tensor) -> Tensor:
        """Logits at every place, ``(N, classes, h, w)``."""
        return F.linear(self.norm(self.features(x).movedim(1, -1)), self.fc.weight, self.fc.bias).movedim(-1, 1)


def small_convnext(
    classes: int = 10, channels: int = 3, widths: tuple[int, ...] = (16, 64), blocks: int = 2
) -> ConvNeXt:
    """A ConvNeXt small enough to train on a CPU.

    Raises:
        ValueError: If there is no stage or no block.

    Examples:
        >>> small_convnext().features(torch.zeros(1, 3, 64, 64)).shape
        torch.Size([1, 64, 16, 16])
    """
    if not widths or blocks < 1:
        raise ValueError(f"widths and blocks must name at least one stage and block. Got {widths} and {blocks}.")
    return ConvNeXt(widths, blocks, classes, channels)
