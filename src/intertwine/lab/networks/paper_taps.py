"""Layers that the numbers in the first paper's figures mean.

The paper numbers layers by their position in ``list(model.modules())`` of its own implementation, the model itself
being 0. For the Myrtle CNN, there a flat ``nn.Sequential``, that is the position in the printed summary: 3, 6, 10, 14
are the four ReLUs of the network with batch norm. A residual block takes eight numbers there: the block, conv, bn,
relu, conv, bn, the *second relu, then the shortcut* (registered last, though it runs before that relu), and two more
for the convolution and batch norm of an option-B shortcut; all blocks sit in one container. So the last block's two
ReLUs are 72 and 75 in a ResNet20, 70 and 73 in a ResNet18, which is how the text speaks of 70 ("penultimate, inside a
residual block"), 72 and 75.
"""

from torch import nn

from .resnet import BasicBlock, ResNet


def paper_taps(model: nn.Module) -> dict[int, str]:
    """Map the first paper's layer numbers to our layer names, for every ReLU.

    Args:
        model: A Myrtle CNN, ResNet20 (or deeper) or ResNet18 of this package.

    Raises:
        TypeError: If the paper has no numbers for such a model.

    Examples:
        >>> from intertwine.lab.networks import build
        >>> paper_taps(build("myrtle_cnn"))
        {3: 'relu1', 6: 'relu2', 10: 'relu3', 14: 'relu4'}
        >>> paper_taps(build("resnet20"))[75]
        'layer3.2.relu2'
    """
    if isinstance(model, ResNet):
        return _residual_taps(model)
    if isinstance(model, nn.Sequential):
        named = enumerate(model.named_children(), start=1)
        return {number: name for number, (name, module) in named if isinstance(module, nn.ReLU | nn.LeakyReLU)}
    raise TypeError(f"model must be a Myrtle CNN or a ResNet of intertwine.lab.networks. Got {type(model).__name__}.")


def _residual_taps(model: ResNet) -> dict[int, str]:
    taps = {3: "relu"}  # 0 the model, 1 conv1, 2 bn1, 3 relu, 4 the container of all blocks
    number = 5
    for name, block in model.named_modules():
        if isinstance(block, BasicBlock):
            taps[number + 3], taps[number + 6] = f"{name}.relu1", f"{name}.relu2"
            projected = isinstance(block.shortcut, nn.Sequential)
            number += 10 if projected else 8
    return taps
