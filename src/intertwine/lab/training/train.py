"""The training loop."""

from __future__ import annotations

import copy
import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..._progress import track
from ..data import Batches, DataSplits, load
from ..networks import build, fit_to
from .accuracy import accuracy, choose_device
from .augment import augment
from .checkpoint import Card, card_path, load_weights, read_card, save_checkpoint
from .recipe import RECIPES, Recipe, recipe_for
from .state import TrainingState, read_state, state_path, write_state

__all__ = ["Training", "train"]

_PLAIN_EVERY = 5.0  # seconds between plain epoch lines


@dataclass(frozen=True)
class Training:
    """A finished run.

    Args:
        model: With the weights of the best validation epoch, in eval mode, on the CPU.
        card: What was trained, with what, and how well.
        history: One entry for each epoch: epoch, loss, validation accuracy, learning rate.
        path: Of the checkpoint, if one was written.
    """

    model: nn.Module
    card: Card
    history: list[dict[str, float]]
    path: Path | None


def train(
    model: nn.Module | str,
    data: DataSplits | str = "digits",
    recipe: Recipe | str | None = None,
    *,
    seed: int = 0,
    out: str | Path | None = None,
    resume: bool = True,
    save_every: float = 60.0,
    device: str | torch.device = "auto",
    progress: bool = True,
) -> Training:
    """Train a classifier and keep the weights of the epoch with the best validation accuracy (the first, if several).

    The test split is looked at once, at the end. With ``out``, the state of the run is written beside it every
    ``save_every`` seconds and after every epoch; the same call after a kill goes on from there and ends with the very
    weights that an undisturbed run has, bit for bit, on the same machine and number of threads.

    Args:
        model: Text for ``networks.build`` (initialised from ``seed``, classes and channels fitted to the data), or a
            module, which is copied.
        data: Splits, or text for ``data.load``.
        recipe: Settings, or a name among ``RECIPES``; by the shape of the inputs if ``None``.
        seed: Of the initial weights, the order of the examples, the augmentation and dropout.
        out: Where to write the checkpoint; must end in ``.safetensors``. Nothing is written if ``None``.
        resume: Whether to go on from the state of an interrupted run, or return a finished one, with these settings.
        save_every: Seconds between saved states.
        device: ``"auto"`` is CUDA where there is one.
        progress: Whether to show a progress bar and a line for each epoch on standard error.

    Returns:
        The trained model with its card and history.

    Raises:
        ValueError: If an argument is out of its range or the model does not fit the data.
        RuntimeError: If the loss or the weights become NaN or infinite; the last good state stays on disk.

    Example:
        >>> run = train("mlp:widths=16", "digits", RECIPES["digits"].but(epochs=4), progress=False)
        >>> run.card.metrics["validation_accuracy"] > 0.5
        True
    """
    chosen = choose_device(device)
    splits = load(data) if isinstance(data, str) else data
    recipe = _find_recipe(recipe, splits)
    path = _check_path(out)
    name, network = _prepare(model, splits, seed)
    _check_fit(network, name, splits)
    settings = _settings(name, splits, recipe, seed)
    if path and resume and (finished := _finished(path, network, settings)):
        return finished
    run = _Run(network.to(chosen), splits, recipe, seed, chosen, settings, path, save_every, progress)
    state = run.start(resume)
    run.finish_steps(state)
    return run.close(state)


class _Run:
    """One run: what does not change, and the live model and optimizer."""

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
        self.settings, self.path, self.save_every, self.progress = settings, path, save_every, progress
        self.optimizer = recipe.make_optimizer(model)
        self.batches = Batches(data.train.to(device), data.mean, data.std, recipe.batch_size)
        self.validation = Batches(data.validation.to(device), data.mean, data.std)
        n, size = len(data.train), recipe.batch_size
        # Batch norm cannot normalise one example: a last batch of one is left out.
        self.steps_per_epoch = max(n // size + (n % size > 1), 1)
        self.steps = self.steps_per_epoch * recipe.epochs
        self.saved = self.printed = time.monotonic()

    def start(self, resume: bool) -> TrainingState:
        state = read_state(state_path(self.path), self.settings) if self.path and resume else None
        if state is None:
            return TrainingState(self.settings)
        self.model.load_state_dict(state.model)
        self.optimizer.load_state_dict(state.optimizer)
        if self.progress:
            print(f"resuming {self.settings['architecture']} after step {state.step}/{self.steps}", file=sys.stderr)
        return state

    def finish_steps(self, state: TrainingState) -> None:
        remaining = range(state.step, self.steps)
        title = f"training {self.settings['architecture']} on {self.data.name}"
        began = time.monotonic() - state.seconds
        self.model.train()
        with _own_randomness(self.device):
            order = _epoch_order(self.seed, state.step // self.steps_per_epoch, len(self.data.train))
            for step in track(remaining, title, enabled=self.progress):
                epoch, place = divmod(step, self.steps_per_epoch)
                if place == 0:
                    order = _epoch_order(self.seed, epoch, len(self.data.train))
                size = self.recipe.batch_size
                state.loss_sum += self._step(step, order[place * size : (place + 1) * size])
                state.step = step + 1
                state.seconds = time.monotonic() - began
                if place == self.steps_per_epoch - 1:
                    self._end_epoch(state, epoch)
                elif self.path and time.monotonic() - self.saved >= self.save_every:
                    self._save(state)

    def _step(self, step: int, index: Tensor) -> float:
        """One update; the loss before it."""
        torch.manual_seed(_mix(self.seed, 2, step))  # augmentation and dropout
        inputs, labels = self.batches.batch(index)
        inputs = augment(inputs, self.recipe.translate, self.recipe.flip)
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.rate(step, self.steps_per_epoch)
        loss = F.cross_entropy(self.model(inputs), labels, label_smoothing=self.recipe.label_smoothing)
        value = loss.item()
        if not math.isfinite(value):
            raise RuntimeError(self._diverged(f"loss must stay finite. Got {value}", step))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return value

    def _end_epoch(self, state: TrainingState, epoch: int) -> None:
        reached = accuracy(self.model, self.validation)
        entry = {
            "epoch": epoch + 1,
            "loss": state.loss_sum / self.steps_per_epoch,
            "validation_accuracy": reached,
            "learning_rate": self.recipe.rate(state.step - 1, self.steps_per_epoch),
        }
        state.loss_sum = 0.0
        if reached > max((past["validation_accuracy"] for past in state.history), default=-1.0):
            state.best, state.best_epoch = _copy_of(self.model.state_dict()), epoch + 1
        state.history.append(entry)
        if self.path:
            self._save(state)
        last = epoch + 1 == self.recipe.epochs
        if self.progress and (last or time.monotonic() - self.printed >= _PLAIN_EVERY or sys.stderr.isatty()):
            self.printed = time.monotonic()
            print(
                f"epoch {epoch + 1}/{self.recipe.epochs}: loss {entry['loss']:.4f}, "
                f"validation accuracy {reached:.2%} (best {state.history[state.best_epoch - 1]['validation_accuracy']:.2%})",
                file=sys.stderr,
            )

    def _save(self, state: TrainingState) -> None:
        weights = self.model.state_dict()
        if not all(bool(torch.isfinite(t).all()) for t in weights.values() if t.is_floating_point()):
            raise RuntimeError(self._diverged("weights must stay finite. Got NaN or infinite ones", state.step))
        state.model, state.optimizer = weights, self.optimizer.state_dict()
        write_state(state_path(self.path), state)
        self.saved = time.monotonic()

    def _diverged(self, what: str, step: int) -> str:
        state = state_path(self.path) if self.path else None
        kept = f"The last good state is in {str(state)!r}. " if state and state.is_file() else "No state was saved. "
        epoch = step // self.steps_per_epoch + 1
        return f"{what} at step {step} (epoch {epoch}). {kept}Lower learning_rate ({self.recipe.learning_rate}) and retrain."

    def close(self, state: TrainingState) -> Training:
        """Put the best weights in place, test them once, write the checkpoint, remove the state."""
        self.model.load_state_dict(state.best)
        test = accuracy(self.model, Batches(self.data.test.to(self.device), self.data.mean, self.data.std))
        best = state.history[state.best_epoch - 1]
        metrics = {
            "validation_accuracy": best["validation_accuracy"],
            "test_accuracy": test,
            "training_loss": best["loss"],
            "seconds": round(state.seconds, 1),
        }
        model = self.model.cpu().eval()
        card = Card(**self.settings, metrics=metrics, best_epoch=state.best_epoch)
        if self.path:
            save_checkpoint(self.path, model, card)
            state_path(self.path).unlink(missing_ok=True)
        return Training(model, card, state.history, self.path)


def _find_recipe(recipe: Recipe | str | None, data: DataSplits) -> Recipe:
    if isinstance(recipe, str):
        if recipe not in RECIPES:
            raise ValueError(f"recipe must be one of {', '.join(RECIPES)}. Got {recipe!r}.")
        recipe = RECIPES[recipe]
    recipe = recipe or recipe_for(data.shape)
    if len(data.shape) != 3 and (recipe.translate or recipe.flip):
        raise ValueError(f"recipe must not move or flip inputs that are no images. Got inputs of shape {data.shape}.")
    return recipe


def _check_path(out: str | Path | None) -> Path | None:
    if out is None:
        return None
    path = Path(out)
    if path.suffix != ".safetensors":
        raise ValueError(f"out must end in .safetensors. Got {str(path)!r}.")
    return path


def _prepare(model: nn.Module | str, data: DataSplits, seed: int) -> tuple[str, nn.Module]:
    """Name and fresh copy of what is trained."""
    if isinstance(model, nn.Module):
        return type(model).__name__, copy.deepcopy(model).cpu()
    name = fit_to(model, data.shape, len(data.classes))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_mix(seed, 0, 0))
        return name, build(name)


def _check_fit(model: nn.Module, name: str, data: DataSplits) -> None:
    """Run two examples before the long work, so that a wrong size is said in words."""
    probe = copy.deepcopy(model).eval()
    inputs, _ = data.loader("train", batch_size=2).batch(slice(0, 2))
    try:
        with torch.no_grad():
            logits = probe(inputs)
    except RuntimeError as error:
        raise ValueError(
            f"model {name} must accept inputs of shape {data.shape}. Got an error from it: {str(error).splitlines()[0]}. "
            "Choose another network, or resize the data."
        ) from None
    if not isinstance(logits, Tensor) or logits.ndim != 2 or logits.shape[1] < len(data.classes):
        got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(f"model {name} must map inputs to logits (N, {len(data.classes)}) at least. Got {got}.")


def _settings(name: str, data: DataSplits, recipe: Recipe, seed: int) -> dict[str, Any]:
    return {
        "architecture": name,
        "data": data.name,
        "seed": seed,
        "recipe": recipe.to_dict(),
        "mean": data.mean,
        "std": data.std,
        "classes": data.classes,
        "shape": data.shape,
    }


def _finished(path: Path, model: nn.Module, settings: dict[str, Any]) -> Training | None:
    """A checkpoint that the same call already wrote, and whose state is gone."""
    if not path.is_file() or not card_path(path).is_file() or state_path(path).is_file():
        return None
    from ..._io import read_tensors

    card = read_card(path)
    if card is None or any(getattr(card, key) != value for key, value in settings.items()):
        raise ValueError(
            f"out must be a new path, or of a run with the same settings. Got {str(path)!r}, which holds "
            f"{card.architecture if card else 'something else'} of seed {card.seed if card else None}. "
            "Choose another path, or pass resume=False to replace it."
        )
    load_weights(model, read_tensors(path), repr(str(path)), card.architecture)
    return Training(model.eval(), card, [], path)


@contextmanager
def _own_randomness(device: torch.device) -> Iterator[None]:
    """Leave the caller's global random state as it was."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


def _epoch_order(seed: int, epoch: int, n: int) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(_mix(seed, 1, epoch)))


def _mix(seed: int, purpose: int, count: int) -> int:
    """One 63-bit seed for each (seed, purpose, count), spread by a multiplicative hash so that runs share no stream."""
    value = (seed * 3 + purpose) * 0x9E3779B97F4A7C15 + count * 0xBF58476D1CE4E5B9 + 1
    value ^= (value % 2**64) >> 31
    return (value * 0x94D049BB133111EB) % 2**63


def _copy_of(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in state.items()}
