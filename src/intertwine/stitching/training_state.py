"""Training states: one stitched network with its optimiser, last finite step and best map; files that keep them."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from .._io import write_atomically
from .._untrusted.weights import check_weights_file
from ..errors import CheckpointError
from ..features.batches import length, peek
from ..features.evaluate import correct
from ..programs import flat_inputs
from .layer import StitchingLayer
from .options import Recipe
from .penalty import labels_of
from .permutation_layers import RelaxedPermutation
from .stitched import Stitched


@dataclass(frozen=True)
class Epoch:
    """What one epoch did to one layer.

    Attributes:
        epoch: From 1.
        loss: Mean loss of the relaxed layer on the batches of this epoch, without the regulariser.
        accuracy: Of the relaxed layer on these batches.
        regulariser: At the end of the epoch.
        change: How far the matrix moved, ``|A' - A|_F / |A|_F``: small where the training has converged.
        moved: Share of output channels that are matched with another input channel than an epoch before; ``None``
            without a permutation.
        doubly_stochastic_error: Of the relaxed permutation at the end; ``None`` without one.
        evaluated_loss: Training loss of the map at the end as it would be evaluated, rounded and behind batch norms
            measured anew; ``None`` where nothing was judged (``keep="last"``).
    """

    epoch: int
    loss: float
    accuracy: float
    regulariser: float
    change: float
    moved: float | None = None
    doubly_stochastic_error: float | None = None
    evaluated_loss: float | None = None


@dataclass
class Best:
    """The best state so far."""

    epoch: int
    value: float
    layers: list[dict[str, Tensor]]
    tail: dict[str, Tensor]


@dataclass
class TrainingState:
    """The training state of one stitched network."""

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
    best: Best | None = None
    start_loss: float | None = None

    @classmethod
    def of(cls, network: Stitched, recipe: Recipe) -> Self:
        """The state before training; without an optimiser where nothing is to be learned."""
        parameters, rate = network.trainable(), recipe.learning_rate
        return cls(network, torch.optim.SGD(parameters, lr=rate, momentum=recipe.momentum) if parameters else None)

    @property
    def live(self) -> bool:
        """Whether it still learns."""
        return self.optimizer is not None and self.stopped_at is None

    def begin_epoch(self, head_start: bool) -> None:
        """Set the network to training mode and note where its map stands."""
        self.loss_sum, self.right, self.examples = 0.0, 0, 0
        self.matrix, self.pairs = self.network.layer.matrix().detach().clone(), pairs_of(self.network.layer)
        self.network.train()
        for layer in self.network.layers:
            layer.head_start(head_start)

    def update(self, crossing: Sequence[Tensor], labels: Tensor, rate: float) -> bool:
        """One step; False where the loss or its gradient is not finite, and the layer is as when it last was."""
        assert self.optimizer is not None
        outputs = self.network.finish(crossing)
        value = F.cross_entropy(outputs, labels)
        self.optimizer.zero_grad()
        (value + sum(layer.regulariser() for layer in self.network.layers)).backward()
        parameters = self.network.trainable()
        checked = [value.detach(), *(p.grad for p in parameters if p.grad is not None)]
        if not bool(torch.stack([c.isfinite().all() for c in checked]).all()):
            self.restore()
            return False
        self.good = [p.detach().clone() for p in parameters]
        self.optimizer.step()
        for layer in self.network.layers:
            layer.after_step(rate)
        right = correct(outputs.detach(), labels)
        self.examples += len(right)
        self.loss_sum = self.loss_sum + value.detach() * len(right)
        self.right = self.right + right.sum()
        return True

    def judge(self, epoch: int, loss: float) -> None:
        """Note the loss as evaluated, and keep the state if it is the best. Lasso counts its penalty along."""
        if epoch:
            self.history[-1] = replace(self.history[-1], evaluated_loss=loss)
        else:
            self.start_loss = loss
        value = loss + sum(layer.penalty() for layer in self.network.layers)
        if isfinite(value) and (self.best is None or value < self.best.value):
            layers = [{k: v.detach().clone() for k, v in layer.state_dict().items()} for layer in self.network.layers]
            self.best = Best(epoch, value, layers, self.network.tail.statistics())

    def take_best(self) -> None:
        """Go back to the best state, where there is one."""
        if self.best is not None:
            for layer, tensors in zip(self.network.layers, self.best.layers):
                layer.load_state_dict(tensors)
            self.network.tail.load_statistics(self.best.tail)

    @torch.no_grad()
    def restore(self) -> None:
        """Go back to where the loss was last finite."""
        for parameter, good in zip(self.network.trainable(), self.good):
            parameter.copy_(good)

    def end_epoch(self, epoch: int) -> None:
        """Note what the epoch did, and go back to evaluation mode."""
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


def pairs_of(layer: StitchingLayer) -> Tensor | None:
    """The permutation that a relaxed layer has come to."""
    return layer.element()[0] if isinstance(layer, RelaxedPermutation) else None


def identity_of(networks: Sequence[Stitched], loader: Iterable[Any], needed: bool) -> str:
    """What the run is about, so that no file of other networks or data is taken for it: a hash of both."""
    batch = peek(loader)[0]
    labels = labels_of(batch)
    if not needed:
        return ""
    digest = hashlib.blake2b(repr(length(loader)).encode(), digest_size=16)
    tail = networks[0].tail
    moving = tail.statistics()  # these change in training
    weights = [*networks[0].trunk.state_dict().values(), *(v for k, v in tail.state_dict().items() if k not in moving)]
    for tensor in (*weights, *flat_inputs(batch), labels):
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def describe(run: TrainingState) -> dict[str, Any]:
    """What a run is, for the file that keeps it: families, widths and settings of its layers."""
    plain = lambda layer: {
        key: value for key, value in vars(layer).items() if isinstance(value, int | float | str) and key[0] != "_"
    }
    described = [{"kind": type(layer).__name__, **plain(layer), "training": False} for layer in run.network.layers]
    return {"layers": described, "tail_norm": run.network.tail_norm}


def save(path: Path | None, settings: dict[str, Any], runs: list[TrainingState], epochs: int, step: int) -> None:
    """Write the file, where one is wanted."""
    if path is None:
        return
    kept = {
        "settings": settings,
        "epochs": epochs,
        "step": step,
        "runs": [
            {
                "layers": [layer.state_dict() for layer in run.network.layers],
                "optimizer": None if run.optimizer is None else run.optimizer.state_dict(),
                "tail": run.network.tail.statistics(),
                "history": [asdict(epoch) for epoch in run.history],
                "stopped_at": run.stopped_at,
                "best": None if run.best is None else vars(run.best),
                "start_loss": run.start_loss,
            }
            for run in runs
        ],
    }
    write_atomically(path, lambda temporary: torch.save(kept, temporary))


def resume(path: Path | None, settings: dict[str, Any], runs: list[TrainingState]) -> tuple[int, int]:
    """Put every run where the file left it; how many epochs and steps are done."""
    if path is None or not path.is_file():
        return 0, 0
    try:
        kept = torch.load(check_weights_file(path), map_location="cpu", weights_only=True)
        found = kept["settings"]
    except Exception as error:  # torch.load raises nearly anything on a damaged file
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"state must be a file that train_layers wrote. Got {str(path)!r}, which does not read ({reason}). "
            "Remove it to start over."
        ) from None
    if found != settings:
        changed = [key for key in settings if found.get(key) != settings[key]]
        raise CheckpointError(
            f"state must be of the same run. Got {str(path)!r} with another {', '.join(changed)}. "
            "Remove it to start over, or choose another file."
        )
    for run, old in zip(runs, kept["runs"]):
        for layer, tensors in zip(run.network.layers, old["layers"]):
            layer.load_state_dict(tensors)
        if run.optimizer is not None:
            run.optimizer.load_state_dict(old["optimizer"])
        run.network.tail.load_statistics(old["tail"])
        run.history = [Epoch(**epoch) for epoch in old["history"]]
        run.stopped_at, run.start_loss = old["stopped_at"], old["start_loss"]
        run.best = None if old["best"] is None else Best(**old["best"])
    return kept["epochs"], kept["step"]
