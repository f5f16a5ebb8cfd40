"""Training of stitching layers: many families, seeds and alphas at one tap together, behind one frozen trunk run.

Differs from the paper's reference code, which also trains the tail's batch norms, has weight decay that the paper does
not mention, and keeps the epoch with the best *test* accuracy: here nothing but the layers learns (``tail_norm`` of the
stitched network says what batch norms do meanwhile). Differs from the paper, which takes the last epoch
(``Recipe(keep="last")``): the start and every epoch's map are judged as they would be evaluated, on *training* data,
and the best one is kept, since a relaxed map can improve while its nearest permutation gets worse.
"""

import hashlib
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from .._evaluation import in_usual_mode
from .._io import check_writable, digest, write_atomically
from .._nested import leaves
from .._progress import track
from .._random import mixed, seeded
from .._untrusted.weights import check_weights_file
from ..errors import CheckpointError
from ..features.batches import check_repeatable, device_of, length, peek, repeatable, size
from ..features.evaluate import known
from ..programs import Part, flat_inputs
from ..programs.operations import BATCH_NORMS, SCALED_DOT_PRODUCTS
from .layer import StitchingLayer
from .options import Recipe, recipe_of
from .penalty import evaluated_losses, labels_of
from .stitched import Stitched, Trunk
from .training_state import Epoch, TrainingState

_ROUNDING = 1e-5  # tolerance of summaries of inputs, ten times what two machines differ by


@dataclass(frozen=True)
class Trained:
    """A layer after training."""

    network: Stitched  # The stitched network, in evaluation mode; its layer was trained in place
    history: tuple[Epoch, ...]  # One entry for each finished epoch
    # Step, from 1, at which the loss or its gradient was no longer finite; ``None`` if it always was. The layer is then
    # as it was when the loss was last finite, or the best that was judged before
    stopped_at: int | None
    seconds: float  # Time of the whole run, shared by all layers trained together
    # The epoch whose map the layer holds, 0 for the start; ``None`` if the last state counts
    kept: int | None = None
    # Training loss of the start as it would be evaluated; ``None`` if nothing was judged
    start_loss: float | None = None

    @classmethod
    def of(cls, run: TrainingState, seconds: float) -> Self:
        """The result of a run: the best state if states were judged, in evaluation mode."""
        run.network.eval()
        for layer, best in zip(run.network.layers, run.best["layers"] if run.best else ()):
            layer.load_state_dict(best)
        if run.best:
            run.network.tail.load_statistics(run.best["tail"])
        for layer in run.network.layers:
            layer.head_start(False)
        kept = run.best["epoch"] if run.best else None
        return cls(run.network, tuple(run.history), run.stopped_at, seconds, kept, run.start_loss)

    @property
    def layer(self) -> StitchingLayer:
        """The stitching layer."""
        return self.network.layer


@in_usual_mode
def train_layers(
    networks: Sequence[Stitched],
    loader: Iterable[Any],
    recipe: Recipe | str = "v1",
    *,
    seed: int = 0,
    recalibration: bool = True,
    state: str | Path | None = None,
    progress: bool | None = None,
) -> list[Trained]:
    """Train the layers of stitched networks that share a trunk, each on the cross-entropy of its own tail's outputs.

    For every batch the frozen trunk runs once, and every tail once, forwards and backwards. A layer's result does not
    depend on which others are trained with it: random numbers are drawn anew for each step of each layer. Layers
    without parameters pass through. A layer whose loss or gradient stops being finite stops alone.

    Args:
        networks: From ``Cut.stitch`` of one cut; their layers are trained in place.
        loader: Batches ``(inputs, labels, ...)``, readable several times. One that shuffles by torch's global random
            numbers has the same order for the same seed.
        recipe: ``"v1"``, ``"v2"`` or a :class:`Recipe`.
        seed: Seed of the order of examples, and of noise in layers.
        recalibration: Whether maps are judged behind batch norms measured anew; pass ``False`` if they will not be.
        state: File that keeps the run after every epoch. After a kill, the same call continues from there and ends
            where an undisturbed run ends.
        progress: Whether to show progress.

    Raises:
        ValueError: If there are no networks, they do not share a trunk, two share a layer, or batches have no labels.
        RuntimeError: If the loss of every layer that learns stopped being finite.
        CheckpointError: If ``state`` is damaged or of another run.
    """  # noqa: DOC502 - the helpers raise
    if not networks:
        raise ValueError("networks must hold at least one stitched network. Got none.")
    chosen, trunk = recipe_of(recipe), networks[0].trunk
    if any(network.trunk is not trunk for network in networks):
        raise ValueError("networks must share a trunk: make all of them from one cut. Got several trunks.")
    if len({id(network.layer) for network in networks}) < len(networks):
        raise ValueError("every network must have a layer of its own. Got one layer in two networks.")
    check_repeatable(loader)
    loader = repeatable(loader, mixed(seed, "order"))
    runs = [TrainingState.of(network, chosen) for network in networks]
    path = None if state is None else check_writable(state, "state")
    device, began, batch = device_of(networks[0]), time.monotonic(), peek(loader)[0]
    labels = labels_of(batch)
    settings = {
        "recipe": asdict(chosen), "seed": seed, "layers": [_described(run) for run in runs],
        "recalibration": recalibration, **(_identity(networks, loader, batch, labels) if path else {}),
    }  # fmt: skip
    done, step = _resumed(path, settings, runs)
    wanted = chosen.keep == "best" and chosen.epochs > 0 and any(run.live for run in runs)
    judged = _first(loader, chosen.judged) if wanted else []  # the same ones every time

    def judge(epoch: int) -> None:
        live = [run for run in runs if run.live and judged]
        losses = evaluated_losses([run.network for run in live], judged, recalibration=recalibration)
        for run, loss in zip(live, losses):
            run.judge(epoch, loss)

    if not done:
        judge(0)
    per_epoch = length(loader)
    total = None if per_epoch is None else per_epoch * (chosen.epochs - done)
    passes = _passes(loader, range(done, chosen.epochs), seed)
    title = f"stitching by {len(runs)} layers" if len(runs) > 1 else f"stitching by {runs[0].network.layer.family}"
    for epoch, first, last, batch in track(passes, title, total, progress):
        live = [run for run in runs if run.live]
        if not live:
            break
        if first:
            for run in live:
                run.begin_epoch(epoch < chosen.head_start)
        step += 1
        _update(live, trunk, batch, step, chosen.learning_rate, seed, device)
        if last:
            for run in runs:
                if run.live:
                    run.end_epoch(epoch + 1)
            judge(epoch + 1)
            _save(path, settings, runs, epoch + 1, step)
    trained = [Trained.of(run, time.monotonic() - began) for run in runs]
    if any(run.stopped_at for run in runs) and not any(run.live for run in runs):
        stops = (f"{run.network.layer.family} at step {run.stopped_at}" for run in runs if run.stopped_at)
        raise RuntimeError(
            f"the loss and its gradient must stay finite. Got NaN or infinity: {', '.join(stops)}. Each layer is as it "
            f"was when its loss was last finite. Lower the learning rate (it is {chosen.learning_rate})."
        )
    return trained


def _update(
    live: list[TrainingState], trunk: Trunk, batch: Any, step: int, rate: float, seed: int, device: torch.device | None
) -> None:
    if size(batch) == 1 and any(run.network.tail_norm == "train" for run in live):
        return  # batch norm cannot normalise one example
    labels = labels_of(batch, live[0].network.classes)
    if not known(labels).any():
        return  # the mean loss of no labels is not a number
    crossing = trunk(*flat_inputs(batch, trunk.a.program, device))
    labels = labels.to(crossing[0].device)
    for run in live:  # on a GPU they are computed side by side
        with seeded(mixed(seed, "step", step), device):
            run.launch(crossing, labels)
    for run in live:
        run.gradients.join()
    for run, finite in zip(live, torch.stack([run.launched[0] for run in live]).tolist()):  # one wait for all
        run.update(labels, rate, finite)
        if not finite:
            run.stopped_at = step
            run.network.eval()


def _first(loader: Iterable[Any], examples: int) -> list[Any]:
    """The first whole batches, until they hold so many examples or no more come."""
    found = list[Any]()
    for batch in repeatable(loader):
        found.append(batch)
        if sum(map(size, found)) >= examples:
            break
    return found


def _passes(loader: Iterable[Any], epochs: range, seed: int) -> Iterator[tuple[int, bool, bool, Any]]:
    """Epoch, whether the batch is its first, whether its last, and the batch; each epoch in its own order."""
    for epoch in epochs:
        batches = iter(repeatable(loader, mixed(seed, "order", epoch)))
        first, ahead = True, next(batches, None)
        while ahead is not None:
            batch, ahead = ahead, next(batches, None)
            yield epoch, first, ahead is None, batch
            first = False


def _identity(networks: Sequence[Stitched], loader: Iterable[Any], batch: Any, labels: Tensor) -> dict[str, Any]:
    """Identity of the run, so that no file of other networks or data is mistaken for its own.

    A hash covers operations, weights, labels, lengths and whole numbers of the first batch. Its real inputs, whose last
    bits differ between machines, enter by a size for each example and, in units of it, by means that tell places apart.
    """
    trunk, tail = networks[0].trunk, networks[0].tail
    inputs = flat_inputs(batch, trunk.a.program)
    moving = tail.statistics()  # these change in training
    weights = [*trunk.state_dict().values(), *(v for k, v in tail.state_dict().items() if k not in moving)]
    steps = [_steps(part) for part in (trunk.a, trunk.b, tail)]
    parts = [repr((length(loader), steps)), *weights, *(repr(x.shape) if x.is_floating_point() else x for x in inputs)]
    summaries = [torch.empty(0, dtype=torch.float64)]
    for x in inputs:
        if x.is_floating_point():
            x = x.detach().cpu().double().reshape(len(x) if x.ndim else 1, -1)
            sizes, places = x.square().mean(1).sqrt(), torch.arange(x.shape[1], dtype=x.dtype).cos()
            summaries += [sizes, (x * places).mean(1) / sizes.clamp_min(1e-300)]
    hashed = digest([*parts, labels], hashlib.blake2b(digest_size=16))
    return {"networks and data": hashed, "inputs": torch.cat(summaries)}


def _steps(part: Part | None) -> list[Any]:
    """Operations of a part with their plain numbers, without those that backends name in their own ways."""
    calls = () if part is None else part.program.calls
    plain = lambda call: [x for x in leaves(call.args) if isinstance(x, int | float | str)]
    return [(call.op, plain(call)) for call in calls if call.op not in BATCH_NORMS | SCALED_DOT_PRODUCTS]


def _agree(one: Any, two: Any) -> bool:
    """Whether two settings agree, summaries of inputs up to 1e-5."""
    if isinstance(one, Tensor) and isinstance(two, Tensor):
        return one.shape == two.shape and torch.allclose(one, two, _ROUNDING, _ROUNDING, equal_nan=True)
    return bool(one == two)


def _described(run: TrainingState) -> dict[str, Any]:
    """Description of a run, for the file that keeps it: families, widths and settings of its layers."""
    plain = lambda layer: {
        key: value for key, value in vars(layer).items() if isinstance(value, int | float | str) and key[0] != "_"
    }
    described = [{"kind": type(layer).__name__, **plain(layer), "training": False} for layer in run.network.layers]
    return {"layers": described, "tail_norm": run.network.tail_norm}


def _save(path: Path | None, settings: dict[str, Any], runs: list[TrainingState], epochs: int, step: int) -> None:
    """Write the file, if one is wanted."""
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
                "best": run.best,
                "start_loss": run.start_loss,
            }
            for run in runs
        ],
    }
    write_atomically(path, lambda temporary: torch.save(kept, temporary))


def _resumed(path: Path | None, settings: dict[str, Any], runs: list[TrainingState]) -> tuple[int, int]:
    """Put every run where the file left it; return how many epochs and steps are done."""
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
    if changed := [key for key in settings if not _agree(found.get(key), settings[key])]:
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
        run.stopped_at, run.start_loss, run.best = old["stopped_at"], old["start_loss"], old["best"]
    return kept["epochs"], kept["step"]
