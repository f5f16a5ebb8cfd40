"""The state of one stitched network in training: its steps, its epochs, and the best of its maps."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import isfinite
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from ..features.evaluate import correct
from ..programs import Replayed
from .layer import StitchingLayer
from .options import Recipe
from .permutation_layers import RelaxedPermutation
from .stitched import Stitched


@dataclass(frozen=True)
class Epoch:
    """Effect of one epoch on one layer."""

    epoch: int  # From 1
    loss: float  # Mean loss of the relaxed layer on the batches of this epoch, without the regulariser
    accuracy: float  # Accuracy of the relaxed layer on these batches
    regulariser: float  # Its value at the end of the epoch
    change: float  # How far the matrix moved, ``|A' - A|_F / |A|_F``: small once the training has converged
    # Share of output channels matched with another input channel than an epoch before; ``None`` without a permutation
    moved: float | None = None
    doubly_stochastic_error: float | None = None  # That of the relaxed permutation at the end; ``None`` without one
    # Training loss of the final map as it would be evaluated, rounded and behind batch norms measured anew; ``None`` if
    # nothing was judged (``keep="last"``)
    evaluated_loss: float | None = None


@dataclass
class TrainingState:
    """The training state of one stitched network, with its optimiser, last finite step and best map."""

    network: Stitched
    optimizer: torch.optim.SGD | None
    history: list[Epoch] = field(default_factory=list)
    stopped_at: int | None = None
    good: list[Tensor] = field(default_factory=list)
    loss_sum: Tensor | float = 0.0
    right: Tensor | int = 0
    examples: int = 0
    matrix: Tensor | None = None
    pairs: Tensor | None = None
    best: dict[str, Any] | None = None  # the best state so far: its epoch, value, layers and tail
    start_loss: float | None = None
    launched: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        """Make loss and gradients of a step one piece of work."""
        self.gradients = Replayed(partial(_gradients, self.network))

    @classmethod
    def of(cls, network: Stitched, recipe: Recipe) -> Self:
        """State before training; without an optimiser if nothing is to be learned."""
        parameters, rate = network.trainable(), recipe.learning_rate
        return cls(network, torch.optim.SGD(parameters, lr=rate, momentum=recipe.momentum) if parameters else None)

    @property
    def live(self) -> bool:
        """Whether it is still learning."""
        return self.optimizer is not None and self.stopped_at is None

    def begin_epoch(self, head_start: bool) -> None:
        """Set the network to training mode and record its current map."""
        self.loss_sum, self.right, self.examples = 0.0, 0, 0
        self.matrix, self.pairs = self.network.layer.matrix().detach().clone(), pairs_of(self.network.layer)
        self.network.train()
        for layer in self.network.layers:
            layer.head_start(head_start)

    def launch(self, crossing: Sequence[Tensor], labels: Tensor) -> None:
        """Compute loss and gradients of one step; ``update`` takes the step."""
        learning = tuple(p.requires_grad for p in self.network.trainable())
        self.launched = self.gradients(*crossing, labels, kind=(learning, self.network.training))

    def update(self, labels: Tensor, rate: float, finite: bool) -> None:
        """Take the step; if loss or gradient is not ``finite``, restore the last finite state of the layer."""
        assert self.optimizer is not None
        parameters = self.network.trainable()
        _, value, outputs, *found = self.launched
        if not finite:
            with torch.no_grad():
                for parameter, good in zip(parameters, self.good):
                    parameter.copy_(good)
            return
        self.good = [p.detach().clone() for p in parameters]
        for parameter, gradient in zip(parameters, found, strict=True):
            parameter.grad = gradient
        self.optimizer.step()
        for layer in self.network.layers:
            layer.after_step(rate)
        right = correct(outputs, labels)
        self.examples += len(right)
        self.loss_sum = self.loss_sum + value * len(right)
        self.right = self.right + right.sum()

    def judge(self, epoch: int, loss: float) -> None:
        """Record the loss as evaluated, and keep the state if it is the best so far. Lasso adds its penalty."""
        if epoch:
            self.history[-1] = replace(self.history[-1], evaluated_loss=loss)
        else:
            self.start_loss = loss
        value = loss + sum(layer.penalty() for layer in self.network.layers)
        if isfinite(value) and (self.best is None or value < self.best["value"]):
            layers = [{k: v.detach().clone() for k, v in layer.state_dict().items()} for layer in self.network.layers]
            self.best = {"epoch": epoch, "value": value, "layers": layers, "tail": self.network.tail.statistics()}

    def end_epoch(self, epoch: int) -> None:
        """Record what the epoch did, and return to evaluation mode."""
        layer = self.network.layer
        assert self.matrix is not None
        self.network.eval()
        matrix, pairs = layer.matrix().detach(), pairs_of(layer)
        self.history.append(
            Epoch(
                epoch=epoch,
                loss=float(self.loss_sum) / max(self.examples, 1),
                accuracy=int(self.right) / max(self.examples, 1),
                regulariser=sum(float(one.regulariser().detach()) for one in self.network.layers),
                change=float((matrix - self.matrix).norm() / self.matrix.norm().clamp_min(1e-12)),
                moved=None if pairs is None or self.pairs is None else float((pairs != self.pairs).double().mean()),
                doubly_stochastic_error=layer.doubly_stochastic_error(),
            )
        )


def _gradients(network: Stitched, *crossing_and_labels: Tensor) -> tuple[Tensor | None, ...]:
    """Whether everything is finite, the loss, the outputs, and the gradient of each parameter that learns."""
    *crossing, labels = crossing_and_labels
    parameters = network.trainable()
    outputs = network.finish(crossing)
    value = F.cross_entropy(outputs, labels)
    for parameter in parameters:
        parameter.grad = None
    (value + sum(layer.regulariser() for layer in network.layers)).backward()
    found = [p.grad for p in parameters]
    checked = [value.detach(), *(g for g in found if g is not None)]
    return torch.stack([c.isfinite().all() for c in checked]).all(), value.detach(), outputs.detach(), *found


def pairs_of(layer: StitchingLayer) -> Tensor | None:
    """The permutation that a relaxed layer has reached."""
    return layer.element()[0] if isinstance(layer, RelaxedPermutation) else None
