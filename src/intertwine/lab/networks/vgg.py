"""VGG-16 as the second paper uses it: for 32x32 images, with average pooling and batch norm."""

from collections import OrderedDict

from torch import nn

_STAGES = ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3))  # width of each stage over the first's, and its convolutions


def vgg16(classes: int = 10, channels: int = 3, width: int = 64) -> nn.Sequential:
    """VGG-16: thirteen 3x3 convolutions in five stages and three linear layers, 15 layers of gates (P2 appendix C).

    The paper replaces max pooling by average pooling, so that a DLGN's gating network is linear and the comparison
    fair, and keeps batch norm. Its figure 7 is an image; ours are: batch norm after every layer that has a ReLU, hidden
    linear layers of 512 units (the paper's maximum width), and a global average before them, which is the identity for
    32x32 inputs and lets smaller ones in.

    Returns:
        ``conv1, bn1, relu1, ..., pool1, ..., flatten, linear1, bn14, relu14, ..., linear`` as a flat
        ``nn.Sequential``; every ``pool`` ends a stage.

    Examples:
        >>> sum(p.numel() for p in vgg16().parameters())
        15255626
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    before, i = channels, 0
    for stage, (factor, convolutions) in enumerate(_STAGES, start=1):
        for _ in range(convolutions):
            i += 1
            layers[f"conv{i}"] = nn.Conv2d(before, factor * width, kernel_size=3, padding=1)
            layers[f"bn{i}"] = nn.BatchNorm2d(factor * width)
            layers[f"relu{i}"] = nn.ReLU()
            before = factor * width
        layers[f"pool{stage}"] = nn.AvgPool2d(2, ceil_mode=True)  # one pixel stays one pixel
    layers["pool"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    for k in (1, 2):
        layers[f"linear{k}"] = nn.Linear(before, before)
        layers[f"bn{i + k}"] = nn.BatchNorm1d(before)
        layers[f"relu{i + k}"] = nn.ReLU()
    layers["linear"] = nn.Linear(before, classes)
    return nn.Sequential(layers)
