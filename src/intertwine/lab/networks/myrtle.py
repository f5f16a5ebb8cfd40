"""The Myrtle CNN: four convolutions and a linear layer, no skips."""

from collections import OrderedDict

from torch import nn

from ._activation import rectifier


def myrtle_cnn(
    classes: int = 10,
    channels: int = 3,
    base: int = 64,
    width: int | None = None,
    bn: bool = True,
    leaky_slope: float = 0.0,
) -> nn.Sequential:
    """Myrtle CNN for 32x32 images: conv-BN-ReLU four times, pooling to one pixel, linear.

    With batch norm every convolution and the linear layer have a bias (1,558,026 parameters). Without it only the first
    convolution has one (1,555,200): the paper's summaries show exactly this. Convolutions have ``base * (1, 2, 4, 8)``
    channels, or all of them ``width`` (v2 Table 4: 512). Source: v1 Fig. 23 (v2 Fig. 26).

    Returns:
        A flat ``nn.Sequential`` with layers ``conv1, bn1, relu1, conv2, ..., relu4, pool4, pool5, flatten, linear``.

    Examples:
        >>> sum(p.numel() for p in myrtle_cnn().parameters())
        1558026
    """
    widths = (width,) * 4 if width else tuple(base * 2**i for i in range(4))
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for i, (before, after) in enumerate(zip((channels, *widths[:-1]), widths), start=1):
        layers[f"conv{i}"] = nn.Conv2d(before, after, kernel_size=3, padding=1, bias=bn or i == 1)
        if bn:
            layers[f"bn{i}"] = nn.BatchNorm2d(after)
        layers[f"relu{i}"] = rectifier(leaky_slope)
        if i > 1:
            layers[f"pool{i}"] = nn.MaxPool2d(2)
    layers["pool5"] = nn.MaxPool2d(4)
    layers["flatten"] = nn.Flatten()
    layers["linear"] = nn.Linear(widths[-1], classes, bias=bn)
    return nn.Sequential(layers)
