"""Two networks that train on digits in seconds: an MLP and a small CNN."""

from collections import OrderedDict
from math import prod

from torch import nn

from ._activation import rectifier


def mlp(
    classes: int = 10,
    shape: tuple[int, ...] = (1, 8, 8),
    widths: tuple[int, ...] = (64, 64),
    bn: bool = False,
    leaky_slope: float = 0.0,
) -> nn.Sequential:
    """Fully connected ReLU network on flattened inputs, with ``widths`` hidden units and, if asked for, batch norm.

    Returns:
        ``flatten, linear1, [bn1,] relu1, ..., linear`` as a flat ``nn.Sequential``.

    Examples:
        >>> sum(p.numel() for p in mlp().parameters())
        8970
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    before = prod(shape)
    for i, after in enumerate(widths, start=1):
        layers[f"linear{i}"] = nn.Linear(before, after)
        if bn:
            layers[f"bn{i}"] = nn.BatchNorm1d(after)
        layers[f"relu{i}"] = rectifier(leaky_slope)
        before = after
    layers["linear"] = nn.Linear(before, classes)
    return nn.Sequential(layers)


def digits_cnn(
    classes: int = 10, channels: int = 1, width: int = 16, bn: bool = True, leaky_slope: float = 0.0
) -> nn.Sequential:
    """Small CNN for 8x8 images (any size from 4x4 works): three convolutions, one pooling, global average, linear.

    Convolutions have ``width * (1, 2, 4)`` channels, each followed by batch norm if asked for.

    Returns:
        ``conv1, bn1, relu1, conv2, bn2, relu2, pool2, conv3, bn3, relu3, pool3, flatten, linear`` as a flat
        ``nn.Sequential``.

    Examples:
        >>> sum(p.numel() for p in digits_cnn().parameters())
        24170
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    widths = (width, 2 * width, 4 * width)
    for i, (before, after) in enumerate(zip((channels, *widths[:-1]), widths), start=1):
        layers[f"conv{i}"] = nn.Conv2d(before, after, kernel_size=3, padding=1)
        if bn:
            layers[f"bn{i}"] = nn.BatchNorm2d(after)
        layers[f"relu{i}"] = rectifier(leaky_slope)
        if i == 2:
            layers["pool2"] = nn.MaxPool2d(2)
    layers["pool3"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    layers["linear"] = nn.Linear(widths[-1], classes)
    return nn.Sequential(layers)
