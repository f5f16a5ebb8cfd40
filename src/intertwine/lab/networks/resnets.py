"""Residual networks: ResNet20 and deeper, ResNet18, ResNet-50; the paper's layer numbers, and removal of layers."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from ..._evaluation import copied
from .convnets import rectifier

_EXPANSION = 4  # factor of a bottleneck's channels


class PaddingShortcut(nn.Module):
    """Shortcut option A: every second pixel, with zero channels on both sides; no parameters."""

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
    """``relu2(bn2(conv2(relu1(bn1(conv1(x))))) + shortcut(x))``: ``relu1`` is inside, ``relu2`` after the sum."""

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


def _add_stages(
    model: nn.Module, before: int, widths: Sequence[int], blocks: Sequence[int], block: Callable[..., nn.Module],
    expansion: int = 1,
) -> list[str]:  # fmt: skip
    """Add stages ``layer1``, ... of blocks, all but the first of which halve the resolution; returns their names."""
    for i, (width, count) in enumerate(zip(widths, blocks)):
        after = expansion * width
        first = block(before, width, 1 if i == 0 else 2)
        model.add_module(f"layer{i + 1}", nn.Sequential(first, *(block(after, width, 1) for _ in range(count - 1))))
        before = after
    return [f"layer{i}" for i in range(1, len(widths) + 1)]


class ResNet(nn.Module):
    """Stem, stages of ``blocks`` basic blocks with ``widths`` channels, global average, linear.

    Layers are named as in most published checkpoints: ``conv1, bn1, relu, layer1.0.conv1, ..., pool, linear``.
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
        block = lambda before, width, stride: BasicBlock(before, width, stride, option, leaky_slope)
        self.stages = _add_stages(self, widths[0], widths, [blocks] * len(widths), block)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.linear = nn.Linear(widths[-1], classes)
        self.apply(self._init_weights)

    @staticmethod
    def _init_weights(module: nn.Module) -> None:
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight)

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

    Where the shape changes, shortcut ``"A"`` pads with zeros, and ``"B"`` is a 1x1 convolution with batch norm.

    Depth 20 with option A has 269,722 parameters. The paper's block table prints 2,384 for a 3x3 convolution of 16 by
    16 channels; it has 2,304, as the paper's total requires. It is initialised by He's normal rule. Source: v1 Fig. 24
    (v2 Fig. 27).

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

    It has 11,173,962 parameters. The paper's text says three stages, but its table and its count have four. Shortcuts
    are option B. Source: v1 Fig. 25 (v2 Fig. 28).

    Examples:
        >>> sum(p.numel() for p in resnet18().parameters())
        11173962
    """
    return ResNet(tuple(width * 2**i for i in range(4)), 2, classes, channels, "B", leaky_slope)


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
        self, blocks: tuple[int, ...], classes: int, channels: int, width: int, residual_relu: bool, stem: str
    ) -> None:
        super().__init__()
        large = stem == "imagenet"
        self.conv1 = nn.Conv2d(channels, width, 7 if large else 3, 2, padding=3 if large else 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.maxpool: nn.Module = nn.MaxPool2d(3, 2, 1) if large else nn.Identity()
        widths = [width * 2**i for i in range(len(blocks))]
        block = lambda before, inside, stride: Bottleneck(before, inside, stride, residual_relu)
        self.stages = _add_stages(self, width, widths, blocks, block, _EXPANSION)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(_EXPANSION * widths[-1], classes)
        self.apply(self._init_weights)

    @staticmethod
    def _init_weights(module: nn.Module) -> None:
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

    Its 25,557,032 parameters have the names of torchvision's checkpoints, which load from a file.
    ``residual_relu=False`` is the modified network of paper 1, section 6 and v2 F.3: no nonlinearity acts on the
    residual outputs, so their neuron basis is not special. The stem ``"imagenet"`` has total stride 4, ``"small"`` 2.

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


def paper_taps(model: nn.Module) -> dict[int, str]:
    """A map from the first paper's layer numbers to our layer names, for every ReLU.

    The paper numbers layers by their position in ``list(model.modules())`` of its own implementation, where the model
    itself is 0. For the Myrtle CNN, there a flat ``nn.Sequential``, this is the position in the printed summary: 3, 6,
    10, 14 are the four ReLUs of the network with batch norm. A residual block takes eight numbers there: the block,
    conv, bn, relu, conv, bn, the *second relu, then the shortcut* (registered last, though it runs before that relu),
    and two more for the convolution and batch norm of an option-B shortcut; all blocks are in one container. So the
    last block's two ReLUs are 72 and 75 in a ResNet20, 70 and 73 in a ResNet18. This explains the text's 70
    ("penultimate, inside a residual block"), 72 and 75.

    Raises:
        TypeError: If the model is not a Myrtle CNN, ResNet20 (or deeper) or ResNet18 of this package.

    Examples:
        >>> from intertwine.lab.networks import build
        >>> paper_taps(build("myrtle_cnn"))
        {3: 'relu1', 6: 'relu2', 10: 'relu3', 14: 'relu4'}
        >>> paper_taps(build("resnet20"))[75]
        'layer3.2.relu2'
    """
    if isinstance(model, ResNet):
        taps = {3: "relu"}  # 0 the model, 1 conv1, 2 bn1, 3 relu, 4 the container of all blocks
        number = 5
        for name, block in model.named_modules():
            if isinstance(block, BasicBlock):
                taps[number + 3], taps[number + 6] = f"{name}.relu1", f"{name}.relu2"
                projected = isinstance(block.shortcut, nn.Sequential)
                number += 10 if projected else 8
        return taps
    if isinstance(model, nn.Sequential):
        named = enumerate(model.named_children(), start=1)
        return {number: name for number, (name, module) in named if isinstance(module, nn.ReLU | nn.LeakyReLU)}
    raise TypeError(f"model must be a Myrtle CNN or a ResNet of intertwine.lab.networks. Got {type(model).__name__}.")


def removable(model: nn.Module) -> dict[str, bool]:
    """The parts that can be removed from a network, and whether shapes change there (Veit et al. 2016).

    Of a ResNet these are blocks, whose shortcut stays and may change the shape; of a flat network ``conv1, bn1, relu1,
    ...`` such as ``vgg16`` convolutions with as many outputs as inputs, which go with their batch norm and ReLU.

    Raises:
        TypeError: If the network is neither a ResNet nor flat.

    Examples:
        >>> from intertwine.lab.networks import build
        >>> [name for name, changes in removable(build("resnet20")).items() if changes]
        ['layer2.0', 'layer3.0']
        >>> list(removable(build("vgg16")))
        ['conv2', 'conv4', 'conv6', 'conv7', 'conv9', 'conv10', 'conv11', 'conv12', 'conv13']
    """
    if isinstance(model, ResNet):
        blocks = {name: m for name, m in model.named_modules() if isinstance(m, BasicBlock)}
        return {name: not isinstance(block.shortcut, nn.Identity) for name, block in blocks.items()}
    if isinstance(model, nn.Sequential):
        layers = {name: m for name, m in model.named_children() if isinstance(m, nn.Conv2d)}
        return {name: False for name, m in layers.items() if m.in_channels == m.out_channels and m.stride == (1, 1)}
    raise TypeError(f"model must be a ResNet or a flat network of this package. Got {type(model).__name__}.")


def without(model: nn.Module, part: str) -> nn.Module:
    """A copy of a network without one of its ``removable`` blocks or layers (Veit et al. 2016, arXiv:1605.06431).

    A removed block leaves ``x -> relu(shortcut(x))``, a removed layer the identity.

    Raises:
        ValueError: If the part cannot be removed.
    """
    if part not in removable(model):
        raise ValueError(f"part must be one of {', '.join(removable(model))}. Got {part!r}.")
    twin: Any = copied(model)
    if isinstance(twin, nn.Sequential):
        number = part.removeprefix("conv")
        for kind in ("conv", "bn", "relu"):
            setattr(twin, f"{kind}{number}", nn.Identity())
        return twin
    parent, _, last = part.rpartition(".")
    block: Any = twin.get_submodule(part)
    setattr(twin.get_submodule(parent), last, nn.Sequential(block.shortcut, block.relu2))
    return twin
