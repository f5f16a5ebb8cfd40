"""Training loop of k networks, with saved states, so that it can be killed at any moment."""

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..._io import write_atomically
from ..._io.scratch import sweep
from ..._progress import is_silent, track
from ..._untrusted.text import printable
from ..._untrusted.weights import check_weights_file
from ..._words import first_line
from ...errors import CheckpointError
from ...features.batches import device_of
from ...features.evaluate import correct
from ..data import Batches, DataSplits
from .accuracy import accuracy
from .augmentation import StepBatches
from .checkpoint import Card, save_checkpoint
from .engines import IN_TURN, Engine
from .recipe import Recipe

SAVE_EVERY = 60.0  # seconds between saved states
_PLAIN_EVERY = 5.0  # seconds between epoch lines without a terminal


@dataclass
class TrainingState:
    """The state of k runs: everything on which the remaining steps depend.

    Random numbers come from generators that are reseeded for every epoch and step, so the number of finished steps
    determines their state.
    """

    settings: dict[str, Any]  # What is trained, on what, with the first seed; runs resume only their own state
    seeds: list[int]  # One seed per network
    engine: str = IN_TURN  # Name of the engine
    step: int = 0  # Finished steps
    seconds: float = 0.0  # Time spent so far
    # Weights, buffers and optimizers of the engine; empty before the first save
    snapshot: dict[str, Any] = field(default_factory=dict)
    # For each network: the summed losses of this epoch's finished steps
    loss_sums: list[float] = field(default_factory=list)
    # State dict of each network's best epoch so far; empty before the end of the first epoch
    best: list[dict[str, Tensor]] = field(default_factory=list)
    best_epochs: list[int] = field(default_factory=list)  # Numbers of the best epochs, from 1; 0 before
    # For each network, one entry per finished epoch: epoch, loss, validation accuracy, learning rate
    history: list[list[dict[str, float]]] = field(default_factory=list)
    diverged: list[bool] = field(default_factory=list)  # Whether a network's loss or weights became NaN or infinite

    def __post_init__(self) -> None:
        """Initialise fields that were not given."""
        k = len(self.seeds)
        self.loss_sums, self.best_epochs = self.loss_sums or [0.0] * k, self.best_epochs or [0] * k
        self.best, self.history = self.best or [{} for _ in range(k)], self.history or [[] for _ in range(k)]
        self.diverged = self.diverged or [False] * k

    def best_of(self, i: int) -> dict[str, float]:
        """The entry of network ``i``'s best epoch, which must exist."""
        return self.history[i][self.best_epochs[i] - 1]


def state_path(path: str | Path) -> Path:
    """The path of the state of the run that will write ``path``."""
    return Path(path).with_suffix(".training.pt")


def load_state(path: Path) -> TrainingState:
    """Read a state written by a loop."""
    try:
        state = TrainingState(**torch.load(check_weights_file(path), map_location="cpu", weights_only=True))
        if state.snapshot and "networks" not in state.snapshot:
            raise ValueError("an earlier version wrote it")
    except Exception as error:  # torch.load may raise nearly anything on a damaged file
        raise CheckpointError(
            f"training state must be a file that train() or train_many() wrote. Got {str(path)!r}, which does not read "
            f"({first_line(error)}). Remove it to start over."
        ) from None
    return state


def discard_state(path: Path) -> None:
    """Remove the state, and leftovers of interrupted writes beside it."""
    path.unlink(missing_ok=True)
    sweep(path.parent)


def differing(written: dict[str, Any], settings: dict[str, Any], start: bool) -> list[str]:
    """Settings in which two runs differ; with ``start``, the initial weights count too."""
    found = [key for key in {**written, **settings} if written.get(key) != settings.get(key)]
    return [] if found == ["start"] and not start else found


def check_same_run(path: Path, state: TrainingState, settings: dict[str, Any], start: bool = False) -> None:
    """Refuse a state that belongs to another run than the one about to resume."""
    if other := differing(state.settings, settings, start):
        changed = [f"{key}: {state.settings.get(key)!r}, now {settings.get(key)!r}" for key in other]
        raise CheckpointError(
            f"training state must be of the same run. Got {str(path)!r} with other settings ({'; '.join(changed)}). "
            "Remove it to start over, or choose another output path."
        )


class Loop:
    """Training of k networks of one architecture, each as if it were alone; a single network is k = 1.

    The given networks, on their device, are left as they are. The state records the progress of the runs, is kept up to
    date, and is written to ``path`` if given. ``workers`` networks, or groups of them, are computed at a time.
    """

    def __init__(
        self,
        networks: Sequence[nn.Module],
        data: DataSplits,
        recipe: Recipe,
        state: TrainingState,
        path: Path | None = None,
        workers: int = 1,
        progress: bool = False,
    ) -> None:
        self.data, self.recipe, self.state, self.path, self.progress = data, recipe, state, path, progress
        self.device = device_of(networks[0]) or torch.device("cpu")
        self.batches = StepBatches(data, recipe, state.seeds, self.device)
        self.steps = recipe.steps(self.batches.per_epoch)
        self._held = Batches(data.validation.to(self.device), data.mean, data.std)
        self._engine = Engine(networks, recipe, state.engine, workers)
        self._saved = self._printed = time.monotonic()

    def run(self, strict: bool = False) -> None:
        """Take all remaining steps; the state then holds each network's weights of its best epoch.

        Networks whose losses or weights become NaN or infinite are marked; with ``strict`` they raise a
        ``RuntimeError``, and the last good state stays on disk. The caller's random state is not changed.
        """  # noqa: DOC501
        state, per_epoch, seeds = self.state, self.batches.per_epoch, self.state.seeds
        if state.snapshot:
            self._engine.restore(state.snapshot)
            say(f"resuming {state.settings['architecture']} after step {state.step} of {self.steps}", self.progress)
        began = time.monotonic() - state.seconds
        sums = torch.tensor(state.loss_sums, dtype=torch.float64, device=self.device)
        several = f", seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else ""
        title = f"training {state.settings['architecture']} on {self.data.name}{several}"
        try:
            with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
                for step in track(range(state.step, self.steps), title, enabled=self.progress):
                    losses = self._engine.step(*self.batches.at(step), self.recipe.rate(step, per_epoch))
                    if strict and not math.isfinite(value := float(losses.sum())):
                        raise RuntimeError(self._diverged(f"loss must stay finite. Got {value}", step))
                    sums += losses
                    state.step, state.seconds = step + 1, time.monotonic() - began
                    ended = state.step % per_epoch == 0 or state.step == self.steps
                    if ended:
                        epoch = step // per_epoch
                        self._end_epoch(epoch, (sums / (state.step - epoch * per_epoch)).tolist())
                        sums.zero_()
                    if ended or time.monotonic() - self._saved >= SAVE_EVERY:
                        state.loss_sums = sums.tolist()
                        self._save(strict)
        finally:
            self._engine.close()

    def _end_epoch(self, epoch: int, losses: list[float]) -> None:
        state, rate = self.state, self.recipe.rate(self.state.step - 1, self.batches.per_epoch)
        right = torch.zeros(self._engine.k, dtype=torch.int64, device=self.device)
        for inputs, labels in self._held:
            right += correct(self._engine.logits(inputs), labels).sum(1)
        reached = [count / len(self.data.validation) for count in right.tolist()]
        for i, (share, loss) in enumerate(zip(reached, losses)):
            state.diverged[i] = state.diverged[i] or not math.isfinite(loss)
            if not state.diverged[i] and (not state.best[i] or share > state.best_of(i)["validation_accuracy"]):
                state.best[i], state.best_epochs[i] = self._engine.member(i), epoch + 1
            state.history[i].append(
                {"epoch": epoch + 1, "loss": loss, "validation_accuracy": share, "learning_rate": rate}
            )
        now, epochs = time.monotonic(), -(-self.steps // self.batches.per_epoch)
        if sys.stderr.isatty() or epoch + 1 == epochs or now - self._printed >= _PLAIN_EVERY:
            self._printed = now
            best = [state.best_of(i)["validation_accuracy"] for i in range(len(losses)) if state.best[i]]
            mean = lambda values: sum(values) / max(len(values), 1)
            accuracies = f"validation accuracy {mean(reached):.2%} (best {mean(best):.2%})"
            say(f"epoch {epoch + 1}/{epochs}: loss {mean(losses):.4f}, {accuracies}", self.progress)

    def _save(self, strict: bool) -> None:
        state = self.state
        for i, diverged in enumerate(state.diverged):
            if not diverged and not all(bool(t.isfinite().all()) for t in self._engine.member(i).values()):
                if strict:
                    raise RuntimeError(self._diverged("weights must stay finite. Got NaN or infinite ones", state.step))
                state.diverged[i] = True
        if self.path:
            state.snapshot = self._engine.snapshot()
            contents = {f.name: getattr(state, f.name) for f in fields(state)}  # readable with ``weights_only=True``
            write_atomically(self.path, lambda temporary: torch.save(contents, temporary))
        self._saved = time.monotonic()

    def _diverged(self, what: str, step: int) -> str:
        on_disk = self.path is not None and self.path.is_file()
        kept = f"The last good state is in {str(self.path)!r}." if on_disk else "No state was saved."
        cure = f"Lower learning_rate (it is {self.recipe.learning_rate}) and train again."
        return f"{what} at step {step} (epoch {step // self.batches.per_epoch + 1}). {kept} {cure}"


def conclude(state: TrainingState, i: int, network: nn.Module, data: DataSplits, path: Path | None) -> Card:
    """Load the best weights of network ``i`` into ``network``, test them once, and write checkpoint and card."""
    network.load_state_dict(state.best[i])
    best = state.best_of(i)
    device = device_of(network) or torch.device("cpu")
    metrics: dict[str, float | None] = {
        "validation_accuracy": best["validation_accuracy"],
        "test_accuracy": accuracy(network, Batches(data.test.to(device), data.mean, data.std)),
        "training_loss": best["loss"],
    }
    if len(state.seeds) > 1:
        metrics["trained_together"] = float(len(state.seeds))
    engine = "" if state.engine == IN_TURN else state.engine
    settings = {**state.settings, "seed": state.seeds[i], "best_epoch": state.best_epochs[i], "engine": engine}
    card = Card(**settings, metrics=metrics)
    if path:
        save_checkpoint(path, network, card)
    return card


def say(line: str, progress: bool) -> None:
    """Print a line on standard error if progress is shown."""
    if progress and not is_silent():
        print(printable(line), file=sys.stderr)
