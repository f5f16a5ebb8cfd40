"""Small networks: an MLP and a CNN that train on digits in seconds, and a CNN that names concepts at every place."""

from collections import OrderedDict
from math import prod

from torch import Tensor, nn

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


class PlainCNN(nn.Module):
    """Four 3x3 convolutions with ReLUs, the last of which is optional, and ``fc`` at every place; stride 4 in all.

    Batch norm follows all convolutions but the last, whose group without its ReLU is then all of GL(64).

    Args:
        concepts: Outputs.
        last_relu: Whether ``relu4`` is there.
    """

    def __init__(self, concepts: int, last_relu: bool) -> None:
        super().__init__()
        layers: dict[str, nn.Module] = {}
        for k, (before, after, stride) in enumerate([(3, 16, 2), (16, 32, 1), (32, 64, 2), (64, 64, 1)], 1):
            layers[f"conv{k}"] = nn.Conv2d(before, after, 3, stride, padding=1)
            if k < 4:  # it would tie the last layer to its channels
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
