"""Networks without one of their parts: a block of a ResNet, a layer of a VGG (Veit et al., arXiv:1605.06431)."""

from typing import Any

from torch import nn

from ..._evaluation import copied
from .resnet import BasicBlock, ResNet

__all__ = ["removable", "without"]


def removable(model: nn.Module) -> dict[str, bool]:
    """What can be taken out of a network, and whether the network's shapes change there.

    Args:
        model: A ResNet or a flat network ``conv1, bn1, relu1, ...`` such as ``vgg16``.

    Returns:
        Residual blocks, whose shortcut stays; or convolutions with as many outputs as inputs, which go with their batch
        norm and ReLU. The value says whether a block's shortcut changes the shape; no layer's does.

    Raises:
        TypeError: If the network is neither.

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
    """A copy of a network without one block or layer.

    Args:
        model: As for ``removable``; not changed.
        part: One of its names: ``x -> relu(shortcut(x))`` is left of a block, the identity of a layer.

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
