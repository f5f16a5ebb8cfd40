"""A small CNN that names concepts at every place, with and without its last ReLU."""

from collections import OrderedDict

from torch import Tensor, nn


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
