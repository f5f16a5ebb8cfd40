"""The second paper's plain networks: convolutions of one width, a global average, a linear layer."""

from collections import OrderedDict
from typing import Literal

from torch import Tensor, nn

_Padding = Literal["zeros", "circular"]


def c4gap(classes: int = 10, channels: int = 3, width: int = 128, padding: _Padding = "zeros") -> nn.Sequential:
    """C4GAP: four convolutions of one width and stride 1, global average pooling, a linear layer (P2 figure 3).

    All four layers of gates have one shape, so that their 24 permutations make sense. Print leaves the windows to an
    image; 3x3 that keep the size is ours, after CNN-GAP. Table I has width 128, Table III has 512. Circular padding
    makes theorem 3.2 exact; training used zeros.

    Returns:
        ``conv1, relu1, ..., conv4, relu4, pool, flatten, linear`` as a flat ``nn.Sequential``.

    Examples:
        >>> [sum(p.numel() for p in c4gap(width=width).parameters()) for width in (128, 512)]
        [447626, 7098890]
    """
    return _gap((width,) * 4, (), classes, channels, padding)


def c1gap(classes: int = 10, channels: int = 3, width: int = 512, padding: _Padding = "zeros") -> nn.Sequential:
    """C1GAP: one convolution, global average pooling, a linear layer (P2 figure 4).

    Returns:
        ``conv1, relu1, pool, flatten, linear`` as a flat ``nn.Sequential``.

    Examples:
        >>> sum(p.numel() for p in c1gap().parameters())
        19466
    """
    return _gap((width,), (), classes, channels, padding)


def cnn_gap(classes: int = 10, channels: int = 3, width: int = 64, padding: _Padding = "zeros") -> nn.Sequential:
    """CNN-GAP of P2's figure 2: 64-64-128-128 filters of 3x3, global average pooling, dense layers of 256 and 256.

    Returns:
        ``conv1, relu1, ..., pool, flatten, linear1, relu5, linear2, relu6, linear`` as a flat ``nn.Sequential``.

    Examples:
        >>> sum(p.numel() for p in cnn_gap().parameters())
        361546
    """
    return _gap((width, width, 2 * width, 2 * width), (4 * width, 4 * width), classes, channels, padding)


def c1gap_ensemble(
    members: int = 16, classes: int = 10, channels: int = 3, width: int = 512, padding: _Padding = "zeros"
) -> "Ensemble":
    """C1GAP-16-ENS: as many C1GAPs as VGG-16 has layers, with the mean of their outputs (P2 figure 4).

    The paper trains its members one by one: ``Ensemble`` takes trained ones.

    Raises:
        ValueError: If ``members`` is less than 1.

    Examples:
        >>> sum(p.numel() for p in c1gap_ensemble().parameters())
        311456
    """
    if members < 1:
        raise ValueError(f"members must be at least 1. Got {members}.")
    return Ensemble([c1gap(classes, channels, width, padding) for _ in range(members)])


class Ensemble(nn.Module):
    """The mean of several networks' logits.

    Print does not say what it averages. Logits keep the whole a ReLU network, whose path kernel is the sum of its
    members' over the square of their number; probabilities would not.

    Raises:
        ValueError: If there is no member.

    Examples:
        >>> import torch
        >>> Ensemble([nn.Linear(3, 2), nn.Linear(3, 2)])(torch.zeros(4, 3)).shape
        torch.Size([4, 2])
    """

    def __init__(self, members: list[nn.Module] | list[nn.Sequential]) -> None:
        super().__init__()
        if not members:
            raise ValueError("an ensemble must have at least one member. Got none.")
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        """Map inputs to mean logits ``(N, classes)``."""
        first, *others = (member(x) for member in self.members)
        return sum(others, first) / len(self.members)


def _gap(
    widths: tuple[int, ...], dense: tuple[int, ...], classes: int, channels: int, padding: _Padding
) -> nn.Sequential:
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for i, (before, after) in enumerate(zip((channels, *widths[:-1]), widths), start=1):
        layers[f"conv{i}"] = nn.Conv2d(before, after, kernel_size=3, padding=1, padding_mode=padding)
        layers[f"relu{i}"] = nn.ReLU()
    layers["pool"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    for i, (before, after) in enumerate(zip((widths[-1], *dense[:-1]), dense), start=1):
        layers[f"linear{i}"] = nn.Linear(before, after)
        layers[f"relu{len(widths) + i}"] = nn.ReLU()
    layers["linear"] = nn.Linear((*widths, *dense)[-1], classes)
    return nn.Sequential(layers)
