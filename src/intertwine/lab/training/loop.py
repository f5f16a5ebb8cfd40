"""The steps of one training run: what is updated, watched, and saved."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..._progress import track
from ..._random import mixed
from ..._untrusted.text import printable
from ...errors import CheckpointError
from ..data import Batches, DataSplits
from .accuracy import accuracy
from .augment import augment
from .mix import mix
from .order import order, steps_per_epoch
from .recipe import Recipe
from .state import TrainingState, read_state, state_path, write_state

__all__ = ["Run"]

_PLAIN_EVERY = 5.0  # seconds between epoch lines where there is no terminal


class Run:
    """One training run: the live model and optimizer, and what does not change.

    Args:
        model: Trained in place, on ``device``.
        data: Splits.
        recipe: Settings.
        seed: Of the order of examples, augmentation, mixing and dropout.
        device: Where to train.
        settings: What the run is, for its card and its state.
        path: Of the checkpoint to come, or ``None`` to write nothing.
        save_every: Seconds between saved states.
        progress: Whether to show progress.
    """

    def __init__(
        self,
        model: nn.Module,
        data: DataSplits,
        recipe: Recipe,
        seed: int,
        device: torch.device,
        settings: dict[str, Any],
        path: Path | None,
        save_every: float,
        progress: bool,
    ) -> None:
        self.model, self.data, self.recipe, self.seed, self.device = model, data, recipe, seed, device
        self.settings, self.save_every, self.progress = settings, save_every, progress
        self.state_path = state_path(path) if path else None
        self.half = recipe.precision == "bfloat16"
        if self.half:  # the layout in which bfloat16 convolutions are fast
            cast(Any, model).to(memory_format=torch.channels_last)  # not all releases type it
        self.optimizer = recipe.make_optimizer(model)
        self.batches = Batches(data.train.to(device), data.mean, data.std, recipe.batch_size)
        self.validation = Batches(data.validation.to(device), data.mean, data.std)
        self.steps_per_epoch = steps_per_epoch(len(data.train), recipe.batch_size)
        self.steps = recipe.steps(self.steps_per_epoch)
        self.epochs = -(-self.steps // self.steps_per_epoch)
        self.saved = self.printed = time.monotonic()

    def start(self, resume: bool | Literal["same"]) -> TrainingState:
        """The state to go on from: the one on disk, or a fresh one; ``"same"`` replaces one of another run.

        Raises:
            CheckpointError: If the one on disk is of another run, or does not read.
        """
        state = None
        if self.state_path and resume:
            try:
                state = read_state(self.state_path, self.settings, start=resume == "same")
            except CheckpointError:
                if resume != "same":
                    raise
        if state is None:
            return TrainingState(self.settings)
        self.model.load_state_dict(state.model)
        self.optimizer.load_state_dict(state.optimizer)
        self._say(f"resuming {self.settings['architecture']} after step {state.step} of {self.steps}")
        return state

    def finish(self, state: TrainingState) -> None:
        """Take all steps that ``state`` lacks, and leave the weights of the best epoch in the model."""
        began = time.monotonic() - state.seconds
        n, size = len(self.data.train), self.recipe.batch_size
        self.model.train()
        with _own_randomness(self.device):
            places = order(n, self.seed, state.step // self.steps_per_epoch)
            for step in track(range(state.step, self.steps), self._title(), enabled=self.progress):
                epoch, place = divmod(step, self.steps_per_epoch)
                if place == 0:
                    places = order(n, self.seed, epoch)
                state.loss_sum += self._update(step, places[place * size : (place + 1) * size])
                state.step = step + 1
                state.seconds = time.monotonic() - began
                if place == self.steps_per_epoch - 1 or state.step == self.steps:
                    self._end_epoch(state, epoch)
                elif time.monotonic() - self.saved >= self.save_every:
                    self._save(state)
        self.model.load_state_dict(state.best)
        cast(Any, self.model).to(memory_format=torch.contiguous_format).eval()

    def _update(self, step: int, index: Tensor) -> float:
        # One optimizer step; returns the loss before it.
        torch.manual_seed(mixed(self.seed, "step", step))  # augmentation, mixing and dropout
        inputs, labels = self.batches.batch(index)
        inputs = augment(inputs, self.recipe.translate, self.recipe.flip)
        targets = labels
        if self.recipe.mixup or self.recipe.cutmix:
            inputs, targets = mix(inputs, labels, len(self.data.classes), self.recipe.mixup, self.recipe.cutmix)
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.rate(step, self.steps_per_epoch)
        if self.half and inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.half):
            logits = self.model(inputs)
        logits = logits.float() if self.half else logits
        loss = F.cross_entropy(logits, targets, label_smoothing=self.recipe.label_smoothing)
        value = loss.item()
        if not math.isfinite(value):
            raise RuntimeError(self._diverged(f"loss must stay finite. Got {value}", step))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return value

    def _end_epoch(self, state: TrainingState, epoch: int) -> None:
        reached = accuracy(self.model, self.validation)
        best = max((past["validation_accuracy"] for past in state.history), default=-1.0)
        if reached > best:
            state.best = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
            state.best_epoch, best = epoch + 1, reached
        loss = state.loss_sum / (state.step - epoch * self.steps_per_epoch)  # iterations may end within an epoch
        rate = self.recipe.rate(state.step - 1, self.steps_per_epoch)
        state.history.append({"epoch": epoch + 1, "loss": loss, "validation_accuracy": reached, "learning_rate": rate})
        state.loss_sum = 0.0
        self._save(state)
        now = time.monotonic()
        if sys.stderr.isatty() or epoch + 1 == self.epochs or now - self.printed >= _PLAIN_EVERY:
            self.printed = now
            accuracies = f"validation accuracy {reached:.2%} (best {best:.2%})"
            self._say(f"epoch {epoch + 1}/{self.epochs}: loss {loss:.4f}, {accuracies}")

    def _save(self, state: TrainingState) -> None:
        weights = self.model.state_dict()
        if not all(bool(torch.isfinite(t).all()) for t in weights.values() if t.is_floating_point()):
            raise RuntimeError(self._diverged("weights must stay finite. Got NaN or infinite ones", state.step))
        if self.state_path:
            state.model, state.optimizer = weights, self.optimizer.state_dict()
            write_state(self.state_path, state)
        self.saved = time.monotonic()

    def _diverged(self, what: str, step: int) -> str:
        on_disk = self.state_path is not None and self.state_path.is_file()
        kept = f"The last good state is in {str(self.state_path)!r}." if on_disk else "No state was saved."
        cure = f"Lower learning_rate (it is {self.recipe.learning_rate}) and train again."
        return f"{what} at step {step} (epoch {step // self.steps_per_epoch + 1}). {kept} {cure}"

    def _title(self) -> str:
        return f"training {self.settings['architecture']} on {self.data.name}"

    def _say(self, line: str) -> None:
        if self.progress:
            print(printable(line), file=sys.stderr)


@contextmanager
def _own_randomness(device: torch.device) -> Iterator[None]:
    """Leave the caller's global random state as it was."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield
