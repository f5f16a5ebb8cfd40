"""Rotation penalties (paper 1, v1 D.0.1 and Fig. 7, v2 section 3.3 and Fig. 4): can later layers undo a map of units?

A network is trained, and one of its *pre-activation* layers is transformed, ``W_l, b_l -> A W_l, A b_l``. Everything up
to and including that layer is frozen, and the rest is retrained with the same recipe. An element of G_ReLU passes
through the ReLU, so that ``W_{l+1} phi(A)^-1`` undoes it; no matrix undoes a rotation.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from ..._evaluation import copied
from ...groups import Orthogonal, PositiveMonomial
from ...programs import capture
from ..data import Batches, DataSplits
from .accuracy import accuracy
from .recipe import Recipe
from .train import train

Kind = Literal["orthogonal", "g_relu"]


@dataclass(frozen=True)
class RotationPenalty:
    """The cost of transforming one layer: accuracies on test images, 0 to 1."""

    before: float  # Accuracy of the trained network
    transformed: float  # Accuracy right after the transformation
    after: float  # Accuracy after fine-tuning the later layers
    loss: float  # Training loss of the fine-tuning epoch that was kept

    @property
    def penalty(self) -> float:
        """Accuracy before minus accuracy after, as a fraction."""
        return self.before - self.after


def transform_layer(model: nn.Module, layer: str, matrix: torch.Tensor) -> nn.Module:
    """A copy with ``A W_l`` and ``A b_l``: channels of a convolution or linear layer mapped by ``(C, C)``."""
    twin = copied(model)
    module = _layer(twin, layer)
    if matrix.shape != (len(module.weight), len(module.weight)):
        raise ValueError(f"matrix must be {len(module.weight)} x {len(module.weight)}. Got {tuple(matrix.shape)}.")
    with torch.no_grad():
        a = matrix.to(module.weight)
        module.weight.copy_((a @ module.weight.flatten(1)).view_as(module.weight))
        if module.bias is not None:
            module.bias.copy_(a @ module.bias)
    return twin


def freeze_up_to(model: nn.Module, layer: str, example: torch.Tensor) -> tuple[str, ...]:
    """Freeze, in place, every parameter on which the layer's output depends in one run; returns their names."""
    program = capture(model, (example,))
    read = {name for call in program.before(layer) for name in program.parameters_of(call)}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in read)
    return tuple(name for name, _ in model.named_parameters() if name in read)


def rotation_penalty(
    model: nn.Module, layer: str, kind: Kind, data: DataSplits, recipe: Recipe | str, *, seed: int, device: str = "auto"
) -> RotationPenalty:
    """Transform a layer of a trained network, freeze it and everything before it, retrain the rest, and compare.

    As in the paper: a network without batch norm, ``D`` lognormal with ``E[D] = 1``, the fine-tuning recipe that of the
    training (50 epochs). Rotations are Haar distributed; a QR decomposition alone, as the paper's, is not. The element
    and fine-tuning follow from ``seed``.

    Raises:
        ValueError: If ``kind`` is neither, the layer is no convolution or linear layer, or the network has batch norm.
    """
    if kind not in ("orthogonal", "g_relu"):
        raise ValueError(f'kind must be "orthogonal" or "g_relu". Got {kind!r}.')
    norms = [name for name, m in model.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    if norms:
        raise ValueError(
            f"model must have no batch norm, which would undo scales by itself. Got {norms[0]}. Use "
            '"myrtle_cnn:bn=false".'
        )
    width = len(_layer(model, layer).weight)
    group = Orthogonal(width) if kind == "orthogonal" else PositiveMonomial(width)
    turned = transform_layer(model, layer, group.random(generator=seed).matrix())
    test = Batches(data.test, data.mean, data.std)
    before, transformed = accuracy(model, test), accuracy(turned, test)
    freeze_up_to(turned, layer, next(iter(test))[0][:2])
    tuned = train(turned, data, recipe, seed=seed + 1, name=f"{kind} at {layer}", device=device, progress=False)
    loss = tuned.card.metrics.get("training_loss")
    return RotationPenalty(before, transformed, accuracy(tuned.model, test), loss or float("nan"))


def _layer(model: nn.Module, layer: str) -> Any:
    module = dict(model.named_modules()).get(layer)
    if not isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
        raise ValueError(
            f"layer must be a convolution or linear layer, before its activation. Got {layer!r} "
            f"({type(module).__name__})."
        )
    if getattr(module, "groups", 1) > 1:  # no weights mix channels computed from other inputs
        raise ValueError(f"layer must not be a grouped convolution. Got {layer!r} with {module.groups} groups.")
    return module
