"""Training stitching layers: many families, seeds and alphas at one tap at once, behind one run of the frozen trunk.

Differs from the paper's reference code, which trains the tail's batch norms along, has weight decay that the paper does
not mention, and keeps the epoch with the best *test* accuracy: here nothing but the layers learns (``tail_norm`` of the
stitched network says what batch norms do meanwhile), and the epoch that counts is chosen by *training* loss.

Differs from the paper, which takes the last epoch (``Recipe(keep="last")``): what training lowers is the loss of a
relaxed map, what is evaluated is its nearest permutation behind batch norms measured anew, and the second can get worse
while the first gets better. So the start and every epoch's map are judged as they would be evaluated, on training data,
and the best one is kept, in every family alike.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from .._io import check_writable, write_atomically
from .._progress import track
from .._random import mixed, seeded
from .._untrusted.weights import check_weights_file
from ..errors import CheckpointError
from ..features.batches import device_of, length, size
from ..features.repeatable import repeatable
from ..programs import flat_inputs
from ._batches import check_loader, first_batch, labels_of
from .judgement import evaluated_losses, some_batches
from .layer import StitchingLayer
from .layers.relaxed import RelaxedPermutation
from .stitched import Stitched, Trunk

__all__ = ["RECIPES", "Epoch", "Recipe", "Trained", "train_layers"]


@dataclass(frozen=True)
class Recipe:
    """How stitching layers are trained (paper 1, D.2).

    Attributes:
        epochs: Passes over the training data.
        learning_rate: Constant.
        momentum: 0.9 in v1, none in v2.
        head_start: Epochs in which permutations learn while scales are held.
        batch_size: Of the loaders that the command line makes; a loader given to ``train_layers`` has its own.
        keep: ``"best"`` keeps, of the start and all epochs, the map with the least training loss as it is evaluated;
            ``"last"`` the last epoch's, as in the paper.
        judged: Training examples that ``"best"`` is judged on: the first batches that hold so many.

    Raises:
        ValueError: If a number is out of range.
    """

    epochs: int = 20
    learning_rate: float = 1e-3
    momentum: float = 0.9
    head_start: int = 10
    batch_size: int = 32
    keep: Literal["best", "last"] = "best"
    judged: int = 2048

    def __post_init__(self) -> None:
        for name in ("epochs", "head_start"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0. Got {getattr(self, name)}.")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate must be positive. Got {self.learning_rate}.")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be from 0 to below 1. Got {self.momentum}.")
        for name in ("batch_size", "judged"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1. Got {getattr(self, name)}.")
        if self.keep not in ("best", "last"):
            raise ValueError(f'keep must be "best" or "last". Got {self.keep!r}.')


RECIPES: Mapping[str, Recipe] = {"v1": Recipe(), "v2": Recipe(momentum=0.0)}


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


@dataclass(frozen=True)
class Trained:
    """A layer after training.

    Attributes:
        network: The stitched network, in evaluation mode; its layer was trained in place.
        history: One entry for each finished epoch.
        stopped_at: Step, from 1, at which the loss or its gradient was no longer finite; ``None`` if it always was. The
            layer is then as it was when the loss was last finite, or the best that was judged before.
        seconds: Time of the whole run, which all layers trained together share.
        kept: The epoch whose map the layer holds, 0 for the start; ``None`` where the last state counts.
        start_loss: Training loss of the start as it would be evaluated; ``None`` where nothing was judged.
    """

    network: Stitched
    history: tuple[Epoch, ...]
    stopped_at: int | None
    seconds: float
    kept: int | None = None
    start_loss: float | None = None

    @property
    def layer(self) -> StitchingLayer:
        """The stitching layer."""
        return self.network.layer


@dataclass
class _Best:
    """The best state so far."""

    epoch: int
    value: float
    layers: list[dict[str, Tensor]]
    tail: dict[str, Tensor]


@dataclass
class _Run:
    """One network on its way."""

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
    best: _Best | None = None
    start_loss: float | None = None

    @property
    def layers(self) -> list[StitchingLayer]:
        return [self.network.layer, *cast("list[StitchingLayer]", list(self.network.skip_layers))]

    @property
    def live(self) -> bool:
        return self.optimizer is not None and self.stopped_at is None

    def begin_epoch(self, head_start: bool) -> None:
        self.loss_sum, self.right, self.examples = 0.0, 0, 0
        self.matrix, self.pairs = self.network.layer.matrix().detach().clone(), _pairs(self.network.layer)
        self.network.train()
        for layer in self.layers:
            layer.head_start(head_start)

    def update(self, crossing: Sequence[Tensor], labels: Tensor, rate: float) -> bool:
        """One step; False where the loss or its gradient is not finite, and the layer is as when it last was."""
        assert self.optimizer is not None
        outputs = self.network.finish(crossing)
        value = F.cross_entropy(outputs, labels)
        self.optimizer.zero_grad()
        (value + sum(layer.regulariser() for layer in self.layers)).backward()
        parameters = self.network.trainable()
        checked = [value.detach(), *(p.grad for p in parameters if p.grad is not None)]
        if not bool(torch.stack([c.isfinite().all() for c in checked]).all()):
            self.restore()
            return False
        self.good = [p.detach().clone() for p in parameters]
        self.optimizer.step()
        for layer in self.layers:
            layer.after_step(rate)
        self.examples += len(labels)
        self.loss_sum = self.loss_sum + value.detach() * len(labels)
        self.right = self.right + (outputs.detach().argmax(1) == labels).sum()
        return True

    def judge(self, epoch: int, loss: float) -> None:
        """Note the loss as evaluated, and keep the state if it is the best. Lasso counts its penalty along."""
        if epoch:
            self.history[-1] = replace(self.history[-1], evaluated_loss=loss)
        else:
            self.start_loss = loss
        value = loss + sum(layer.penalty() for layer in self.layers)
        if isfinite(value) and (self.best is None or value < self.best.value):
            layers = [{k: v.detach().clone() for k, v in layer.state_dict().items()} for layer in self.layers]
            self.best = _Best(epoch, value, layers, self.network.tail.statistics())

    def take_best(self) -> None:
        """Go back to the best state, where there is one."""
        if self.best is not None:
            for layer, tensors in zip(self.layers, self.best.layers):
                layer.load_state_dict(tensors)
            self.network.tail.load_statistics(self.best.tail)

    @torch.no_grad()
    def restore(self) -> None:
        for parameter, good in zip(self.network.trainable(), self.good):
            parameter.copy_(good)

    def end_epoch(self, epoch: int) -> None:
        layer = self.network.layer
        assert self.matrix is not None
        self.network.eval()
        matrix, pairs = layer.matrix().detach(), _pairs(layer)
        self.history.append(
            Epoch(
                epoch=epoch,
                loss=float(self.loss_sum) / max(self.examples, 1),
                accuracy=int(self.right) / max(self.examples, 1),
                regulariser=sum(float(one.regulariser().detach()) for one in self.layers),
                change=float((matrix - self.matrix).norm() / self.matrix.norm().clamp_min(1e-12)),
                moved=None if pairs is None or self.pairs is None else float((pairs != self.pairs).double().mean()),
                doubly_stochastic_error=layer.doubly_stochastic_error(),
            )
        )


def train_layers(
    networks: Sequence[Stitched],
    loader: Iterable[Any],
    recipe: Recipe | str = "v1",
    *,
    seed: int = 0,
    recalibration: bool = True,
    state: str | Path | None = None,
    progress: bool = False,
) -> list[Trained]:
    """Train the layers of stitched networks that share a trunk, each on the cross-entropy of its own tail's outputs.

    For every batch the frozen trunk runs once and every tail once, forwards and backwards. A layer's result does not
    depend on which others are trained along: random numbers are drawn anew for each step of each. Layers without
    parameters pass through. A layer whose loss or gradient stops being finite stops alone.

    A layer ends as the best of its start and its epochs, judged on training data as it is evaluated, so that its
    training loss is never above that of its start; ``Recipe(keep="last")`` takes the last epoch.

    Args:
        networks: From ``Cut.stitch`` of one cut; their layers are trained in place.
        loader: Batches ``(inputs, labels, ...)``, readable several times. One that shuffles by torch's global random
            numbers has the same order for the same seed.
        recipe: ``"v1"``, ``"v2"`` or a :class:`Recipe`.
        seed: Of the order of examples, and of noise in layers.
        recalibration: Whether maps are judged behind batch norms measured anew; say ``False`` if they will not be.
        state: File that keeps the run after every epoch; the same call after a kill goes on from there, and ends where
            an undisturbed run ends.
        progress: Whether to show how far it is.

    Returns:
        One entry for each network, in order.

    Raises:
        ValueError: If there are no networks, they do not share a trunk, two share a layer, or batches have no labels.
        RuntimeError: If the loss of every layer that learns stopped being finite.
        CheckpointError: If ``state`` is damaged or of another run.
    """  # noqa: DOC502 - the helpers raise
    chosen = _recipe(recipe)
    trunk = _shared_trunk(networks)
    check_loader(loader)
    loader = repeatable(loader, mixed(seed, "order"))
    runs = [_Run(network, _optimizer(network, chosen)) for network in networks]
    path = None if state is None else check_writable(state, "state")
    device = device_of(networks[0])
    began = time.monotonic()
    settings = {"recipe": asdict(chosen), "seed": seed, "layers": [_describe(run) for run in runs]}
    settings["recalibration"] = recalibration
    settings["networks and data"] = _identity(networks, loader, path is not None)
    done, step = _resume(path, settings, runs)
    judge = _Judge.of(runs, loader, chosen, recalibration)
    if not done:
        judge(runs, 0)
    per_epoch = length(loader)
    total = None if per_epoch is None else per_epoch * (chosen.epochs - done)
    passes = _passes(loader, range(done, chosen.epochs), seed)
    for place, batch in track(passes, _title(runs), total, progress):
        live = [run for run in runs if run.live]
        if not live:
            break
        if place.first:
            for run in live:
                run.begin_epoch(place.epoch < chosen.head_start)
        step += 1
        _update(live, trunk, batch, step, chosen.learning_rate, seed, device)
        if place.last:
            for run in runs:
                if run.live:
                    run.end_epoch(place.epoch + 1)
            judge(runs, place.epoch + 1)
            _save(path, settings, runs, place.epoch + 1, step)
    for run in runs:
        run.network.eval()
        run.take_best()
        for layer in run.layers:
            layer.head_start(False)
    if any(run.stopped_at for run in runs) and not any(run.live for run in runs):
        raise RuntimeError(_diverged(runs, chosen))
    seconds = time.monotonic() - began
    return [
        Trained(
            run.network,
            tuple(run.history),
            run.stopped_at,
            seconds,
            None if run.best is None else run.best.epoch,
            run.start_loss,
        )
        for run in runs
    ]


@dataclass(frozen=True)
class _Judge:
    """Judges maps as they would be evaluated, on the same training batches every time."""

    batches: list[Any]
    recalibration: bool

    @classmethod
    def of(cls, runs: Sequence[_Run], loader: Iterable[Any], recipe: Recipe, recalibration: bool) -> _Judge:
        wanted = recipe.keep == "best" and recipe.epochs > 0 and any(run.live for run in runs)
        return cls(some_batches(loader, recipe.judged) if wanted else [], recalibration)

    def __call__(self, runs: Sequence[_Run], epoch: int) -> None:
        live = [run for run in runs if run.live and self.batches]
        networks = [run.network for run in live]
        for run, loss in zip(live, evaluated_losses(networks, self.batches, recalibration=self.recalibration)):
            run.judge(epoch, loss)


@dataclass(frozen=True)
class _Place:
    """Where a batch stands: epoch and batch from 0."""

    epoch: int
    batch: int
    last: bool

    @property
    def first(self) -> bool:
        return self.batch == 0


def _update(
    live: list[_Run],
    trunk: Trunk,
    batch: Any,
    step: int,
    rate: float,
    seed: int,
    device: torch.device | None,
) -> None:
    if size(batch) == 1 and any(run.network.tail_norm == "train" for run in live):
        return  # batch norm cannot normalise one example
    crossing = trunk(*flat_inputs(batch, device))
    labels = labels_of(batch).to(crossing[0].device)
    for run in live:
        with seeded(mixed(seed, "step", step), device):
            if not run.update(crossing, labels, rate):
                run.stopped_at = step
                run.network.eval()


def _passes(loader: Iterable[Any], epochs: range, seed: int) -> Iterator[tuple[_Place, Any]]:
    """All batches of all epochs, each epoch in an order of its own."""
    for epoch in epochs:
        batches = iter(repeatable(loader, mixed(seed, "order", epoch)))
        ahead = next(batches, None)
        count = 0
        while ahead is not None:
            batch, ahead = ahead, next(batches, None)
            yield _Place(epoch, count, ahead is None), batch
            count += 1


def _recipe(recipe: Recipe | str) -> Recipe:
    if isinstance(recipe, Recipe):
        return recipe
    if recipe not in RECIPES:
        raise ValueError(f"recipe must be one of {', '.join(RECIPES)}, or a Recipe. Got {recipe!r}.")
    return RECIPES[recipe]


def _shared_trunk(networks: Sequence[Stitched]) -> Trunk:
    if not networks:
        raise ValueError("networks must hold at least one stitched network. Got none.")
    if any(network.trunk is not networks[0].trunk for network in networks):
        raise ValueError("networks must share a trunk: make all of them from one cut. Got several trunks.")
    if len({id(network.layer) for network in networks}) < len(networks):
        raise ValueError("every network must have a layer of its own. Got one layer in two networks.")
    return networks[0].trunk


def _optimizer(network: Stitched, recipe: Recipe) -> torch.optim.SGD | None:
    parameters = network.trainable()
    return torch.optim.SGD(parameters, lr=recipe.learning_rate, momentum=recipe.momentum) if parameters else None


def _pairs(layer: StitchingLayer) -> Tensor | None:
    return layer.element()[0] if isinstance(layer, RelaxedPermutation) else None


def _title(runs: list[_Run]) -> str:
    return f"stitching by {len(runs)} layers" if len(runs) > 1 else f"stitching by {runs[0].network.layer.family}"


def _diverged(runs: list[_Run], recipe: Recipe) -> str:
    stops = ", ".join(f"{run.network.layer.family} at step {run.stopped_at}" for run in runs if run.stopped_at)
    return (
        f"the loss and its gradient must stay finite. Got NaN or infinity: {stops}. Each layer is as it was when its "
        f"loss was last finite. Lower the learning rate (it is {recipe.learning_rate})."
    )


def _identity(networks: Sequence[Stitched], loader: Iterable[Any], needed: bool) -> str:
    """What the run is about, so that no file of other networks or data is taken for it: a hash of both."""
    batch = first_batch(loader)
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


def _describe(run: _Run) -> dict[str, Any]:
    """What a run is, for the file that keeps it: families, widths and settings of its layers."""
    plain = lambda layer: {
        key: value for key, value in vars(layer).items() if isinstance(value, int | float | str) and key[0] != "_"
    }
    described = [{"kind": type(layer).__name__, **plain(layer), "training": False} for layer in run.layers]
    return {"layers": described, "tail_norm": run.network.tail_norm}


def _save(path: Path | None, settings: dict[str, Any], runs: list[_Run], epochs: int, step: int) -> None:
    if path is None:
        return
    kept = {
        "settings": settings,
        "epochs": epochs,
        "step": step,
        "runs": [
            {
                "layers": [layer.state_dict() for layer in run.layers],
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


def _resume(path: Path | None, settings: dict[str, Any], runs: list[_Run]) -> tuple[int, int]:
    """Put every run where the file left it; how many epochs and steps are done.

    Raises:
        CheckpointError: If the file is damaged or of another run.
    """
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
        for layer, tensors in zip(run.layers, old["layers"]):
            layer.load_state_dict(tensors)
        if run.optimizer is not None:
            run.optimizer.load_state_dict(old["optimizer"])
        run.network.tail.load_statistics(old["tail"])
        run.history = [Epoch(**epoch) for epoch in old["history"]]
        run.stopped_at, run.start_loss = old["stopped_at"], old["start_loss"]
        run.best = None if old["best"] is None else _Best(**old["best"])
    return kept["epochs"], kept["step"]
