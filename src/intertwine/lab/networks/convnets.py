"""Networks without skips, as flat sequences (MLP, small CNNs, Myrtle, VGG-16, global averages); and a ConvNeXt."""

from collections import OrderedDict
from collections.abc import Sequence
from math import prod
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_Padding = Literal["zeros", "circular"]
_Pool = tuple[int, str, nn.Module]  # convolution after which it comes, and its name
_VGG = ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3))  # of each stage: width relative to the first, number of convolutions


def rectifier(leaky_slope: float) -> nn.Module:
    """ReLU, or LeakyReLU with a given negative slope (v2 Table 3); slope 1 gives the identity; never in place."""
    return nn.LeakyReLU(leaky_slope) if leaky_slope else nn.ReLU()


def mlp(
    classes: int = 10, shape: tuple[int, ...] = (1, 8, 8), widths: tuple[int, ...] = (64, 64), bn: bool = False,
    leaky_slope: float = 0.0,
) -> nn.Sequential:  # fmt: skip
    """Fully connected ReLU network ``flatten, linear1, [bn1,] relu1, ..., linear`` with ``widths`` hidden units.

    Examples:
        >>> sum(p.numel() for p in mlp().parameters())
        8970
    """
    return _flat(prod(shape), (), classes, widths, bn=bn, leaky_slope=leaky_slope)


def digits_cnn(
    classes: int = 10, channels: int = 1, width: int = 16, bn: bool = True, leaky_slope: float = 0.0
) -> nn.Sequential:
    """Small CNN for 8x8 images (any size from 4x4 works): three convolutions, one pooling, global average, linear.

    Convolutions have ``width * (1, 2, 4)`` channels, each followed by an optional batch norm: ``conv1, bn1, relu1,
    conv2, bn2, relu2, pool2, conv3, bn3, relu3, pool3, flatten, linear``.

    Examples:
        >>> sum(p.numel() for p in digits_cnn().parameters())
        24170
    """
    pools = [(2, "pool2", nn.MaxPool2d(2)), (3, "pool3", nn.AdaptiveAvgPool2d(1))]
    return _flat(channels, (width, 2 * width, 4 * width), classes, pools=pools, bn=bn, leaky_slope=leaky_slope)


def myrtle_cnn(
    classes: int = 10, channels: int = 3, base: int = 64, width: int | None = None, bn: bool = True,
    leaky_slope: float = 0.0,
) -> nn.Sequential:  # fmt: skip
    """Myrtle CNN for 32x32 images: conv-BN-ReLU four times, pooling to one pixel, linear.

    With batch norm, every convolution and the linear layer have a bias (1,558,026 parameters). Without it, only the
    first convolution has one (1,555,200), exactly as in the paper's summaries. Convolutions have ``base * (1, 2, 4,
    8)`` channels, or all ``width`` (v2 Table 4: 512). Source: v1 Fig. 23 (v2 Fig. 26). Layers are ``conv1, bn1,
    relu1, conv2, ..., relu4, pool4, pool5, flatten, linear``.

    Examples:
        >>> sum(p.numel() for p in myrtle_cnn().parameters())
        1558026
    """
    widths = (width,) * 4 if width else tuple(base * 2**i for i in range(4))
    pools = [*((i, f"pool{i}", nn.MaxPool2d(2)) for i in (2, 3, 4)), (4, "pool5", nn.MaxPool2d(4))]
    return _flat(channels, widths, classes, pools=pools, bn=bn, leaky_slope=leaky_slope, biased=bn)


def vgg16(classes: int = 10, channels: int = 3, width: int = 64) -> nn.Sequential:
    """VGG-16: thirteen 3x3 convolutions in five stages and three linear layers, 15 layers of gates (P2 appendix C).

    The paper replaces max pooling by average pooling, so that a DLGN's gating network is linear and the comparison is
    fair, and keeps batch norm. Since its figure 7 is an image, we chose: batch norm after every layer that has a ReLU,
    hidden linear layers of 512 units (the paper's maximum width), and a global average before them, which is the
    identity for 32x32 inputs and allows smaller ones. Layers are ``conv1, bn1, relu1, ..., pool1, ..., flatten,
    linear1, bn14, relu14, ..., linear``; every ``pool`` ends a stage. Source: Simonyan and Zisserman 2015.

    Examples:
        >>> sum(p.numel() for p in vgg16().parameters())
        15255626
    """
    widths, pools = list[int](), list[_Pool]()
    for stage, (factor, convolutions) in enumerate(_VGG, start=1):
        widths += [factor * width] * convolutions
        pools.append((len(widths), f"pool{stage}", nn.AvgPool2d(2, ceil_mode=True)))  # a single pixel stays
    pools.append((len(widths), "pool", nn.AdaptiveAvgPool2d(1)))
    return _flat(channels, widths, classes, (widths[-1],) * 2, pools=pools, bn=True)


def c4gap(classes: int = 10, channels: int = 3, width: int = 128, padding: _Padding = "zeros") -> nn.Sequential:
    """C4GAP: four convolutions of one width and stride 1, global average pooling, a linear layer (P2 figure 3).

    All four layers of gates have one shape, so that their 24 permutations make sense. The paper shows windows only in
    an image; we chose 3x3 that keep the size, as in CNN-GAP. Table I has width 128, Table III has 512. Circular padding
    makes theorem 3.2 exact; training used zeros. Layers: ``conv1, relu1, ..., conv4, relu4, pool, flatten, linear``.

    Examples:
        >>> [sum(p.numel() for p in c4gap(width=width).parameters()) for width in (128, 512)]
        [447626, 7098890]
    """
    return _averaged(channels, (width,) * 4, classes, padding)


def c1gap(classes: int = 10, channels: int = 3, width: int = 512, padding: _Padding = "zeros") -> nn.Sequential:
    """C1GAP of P2's figure 4: one convolution, global average, linear, as ``conv1, relu1, pool, flatten, linear``.

    Examples:
        >>> sum(p.numel() for p in c1gap().parameters())
        19466
    """
    return _averaged(channels, (width,), classes, padding)


def cnn_gap(classes: int = 10, channels: int = 3, width: int = 64, padding: _Padding = "zeros") -> nn.Sequential:
    """CNN-GAP of P2's figure 2: 64-64-128-128 filters of 3x3, global average pooling, dense layers of 256 and 256.

    Layers are ``conv1, relu1, ..., pool, flatten, linear1, relu5, linear2, relu6, linear``.

    Examples:
        >>> sum(p.numel() for p in cnn_gap().parameters())
        361546
    """
    return _averaged(channels, (width, width, 2 * width, 2 * width), classes, padding, (4 * width,) * 2)


class Ensemble(nn.Module):
    """The mean of several networks' logits.

    The paper does not say what is averaged. With logits, the whole stays a ReLU network whose path kernel is the sum of
    its members' kernels divided by their number squared; with probabilities it would not.
    """

    def __init__(self, members: list[nn.Module] | list[nn.Sequential]) -> None:
        super().__init__()
        if not members:
            raise ValueError("members must be at least one network. Got none.")
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        """Map inputs to mean logits ``(N, classes)``."""
        first, *others = (member(x) for member in self.members)
        return sum(others, first) / len(self.members)


def c1gap_ensemble(
    members: int = 16, classes: int = 10, channels: int = 3, width: int = 512, padding: _Padding = "zeros"
) -> Ensemble:
    """C1GAP-16-ENS: as many C1GAPs as VGG-16 has layers, with averaged outputs (P2 figure 4).

    The paper trains the members one by one: ``Ensemble`` takes trained ones.

    Raises:
        ValueError: If ``members`` is less than 1.

    Examples:
        >>> sum(p.numel() for p in c1gap_ensemble().parameters())
        311456
    """  # noqa: DOC502 - raised by the class
    return Ensemble([c1gap(classes, channels, width, padding) for _ in range(members)])


def _averaged(
    channels: int, widths: Sequence[int], classes: int, padding: _Padding, dense: Sequence[int] = ()
) -> nn.Sequential:
    pool = (len(widths), "pool", nn.AdaptiveAvgPool2d(1))
    return _flat(channels, widths, classes, dense, pools=[pool], padding=padding)


def _flat(
    features: int, widths: Sequence[int], classes: int, dense: Sequence[int] = (), *, pools: Sequence[_Pool] = (),
    bn: bool = False, leaky_slope: float = 0.0, biased: bool = True, padding: _Padding = "zeros",
) -> nn.Sequential:  # fmt: skip
    """``conv1, [bn1,] relu1, ...`` of 3x3, pools after some, ``flatten, linear1, [bn,] relu, ..., linear``.

    Without ``biased``, only the first convolution has a bias, and the last layer has none.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for i, width in enumerate(widths, start=1):
        bias = biased or i == 1
        layers[f"conv{i}"] = nn.Conv2d(features, width, kernel_size=3, padding=1, bias=bias, padding_mode=padding)
        if bn:
            layers[f"bn{i}"] = nn.BatchNorm2d(width)
        layers[f"relu{i}"] = rectifier(leaky_slope)
        layers.update({name: pool for behind, name, pool in pools if behind == i})
        features = width
    layers["flatten"] = nn.Flatten()
    for k, width in enumerate(dense, start=1):
        layers[f"linear{k}"] = nn.Linear(features, width)
        if bn:
            layers[f"bn{len(widths) + k}"] = nn.BatchNorm1d(width)
        layers[f"relu{len(widths) + k}"] = rectifier(leaky_slope)
        features = width
    layers["linear"] = nn.Linear(features, classes, bias=biased)
    return nn.Sequential(layers)


class PlainCNN(nn.Module):
    """Four 3x3 convolutions with ReLUs (the last is optional), and ``fc`` at every place; total stride 4.

    Batch norm follows all convolutions except the last, whose group without its ReLU is then all of GL(64).
    """

    def __init__(self, concepts: int, last_relu: bool) -> None:
        super().__init__()
        layers: dict[str, nn.Module] = {}
        for k, (before, after, stride) in enumerate([(3, 16, 2), (16, 32, 1), (32, 64, 2), (64, 64, 1)], 1):
            layers[f"conv{k}"] = nn.Conv2d(before, after, 3, stride, padding=1)
            if k < 4:  # batch norm would tie the last layer to its channels
                layers[f"norm{k}"] = nn.BatchNorm2d(after)
            layers[f"relu{k}"] = nn.ReLU() if k < 4 or last_relu else nn.Identity()
        self.features = nn.Sequential(OrderedDict(layers))
        self.fc = nn.Conv2d(64, concepts, 1)

    def dense(self, x: Tensor) -> Tensor:
        """Logits at every place, ``(N, concepts, h, w)``."""
        return self.fc(self.features(x))

    def forward(self, x: Tensor) -> Tensor:
        """Map images ``(N, 3, H, W)`` to logits ``(N, concepts)``."""
        return self.dense(x).mean((2, 3))


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of ``(N, C, H, W)``."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the channels at every place."""
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
    """A 2x2 stem of stride 2, stages of blocks joined by 2x2 convolutions, global average, norm, ``fc``."""

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
    """A ConvNeXt small enough to train on a CPU, in the style of Liu et al. 2022: no activation on the residual stream.

    Raises:
        ValueError: If there is no stage or no block.

    Examples:
        >>> small_convnext().features(torch.zeros(1, 3, 64, 64)).shape
        torch.Size([1, 64, 16, 16])
    """
    if not widths or blocks < 1:
        raise ValueError(f"widths and blocks must name at least one stage and block. Got {widths} and {blocks}.")
    return ConvNeXt(widths, blocks, classes, channels)
