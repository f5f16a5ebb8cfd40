"""Many seeds of one architecture, trained at once on one device."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..._io import check_writable
from ..._progress import track
from ..._random import mixed
from ..._threads import threads
from ..._untrusted.text import printable
from ..._words import counted
from ...errors import CheckpointError
from ..data import Batches, DataSplits, load
from .accuracy import accuracy, choose_device
from .augment import draw_moves, move
from .checkpoint import Card, save_checkpoint
from .choice import agrees, candidates, draws_random_numbers, engine_for, fastest_engine
from .engines import ENGINES, Engine, InTurn
from .order import order, steps_per_epoch
from .recipe import Recipe, with_defaults
from .state import load_state, write_state
from .train import check_recipe, find_recipe, finished, prepare, settings_of, train

__all__ = ["ManyTraining", "member_path", "train_many"]


_CHOICES = ("auto", "measured")


@dataclass(frozen=True)
class ManyTraining:
    """Finished runs.

    Args:
        paths: Checkpoints, in the order of the seeds, without those that diverged.
        engines: How they were trained, by name of the engine: numbers of networks. Empty where all were there.
        diverged: Seeds whose loss or weights became NaN or infinite; nothing is written for them.
    """

    paths: tuple[Path, ...]
    engines: dict[str, int] = field(default_factory=dict)
    diverged: tuple[int, ...] = ()


@dataclass
class _State:
    """Where a group of runs stands: all that the rest depends on."""

    settings: dict[str, Any]
    seeds: list[int]
    engine: str
    step: int = 0
    seconds: float = 0.0
    snapshot: dict[str, Any] = field(default_factory=dict)
    loss_sums: list[float] = field(default_factory=list)
    best: list[dict[str, Tensor]] = field(default_factory=list)
    best_epochs: list[int] = field(default_factory=list)
    best_accuracies: list[float] = field(default_factory=list)
    best_losses: list[float] = field(default_factory=list)
    diverged: list[bool] = field(default_factory=list)


def member_path(folder: str | Path, seed: int) -> Path:
    """Where the checkpoint of a seed lies.

    Examples:
        >>> member_path("zoo", 7).name
        'seed-0007.safetensors'
    """
    return Path(folder) / f"seed-{seed:04d}.safetensors"


def train_many(
    model: str,
    data: DataSplits | str = "digits",
    recipe: Recipe | str | None = None,
    *,
    seeds: Iterable[int],
    out: str | Path,
    engine: str = "auto",
    together: int = 16,
    resume: bool = True,
    save_every: float = 60.0,
    device: str | torch.device = "auto",
    progress: bool = True,
) -> ManyTraining:
    """Train one architecture from many seeds, several at once, and keep each one's best validation epoch.

    A seed means what it means to ``train``: the same initial weights, the same order of examples, the same
    augmentation, so that each network is, up to rounding, the one that ``train`` would have made. Members whose
    checkpoints lie in the folder already are left alone; the state of the others is written every ``save_every``
    seconds and after every epoch, and the same call after a kill goes on from there.

    Networks are trained each by itself, stacked through ``torch.func``, or side by side with grouped convolutions (all,
    four or two at a time). With ``engine="auto"`` the kind of network decides, so that the bits are the same on every
    machine of a kind; ``"measured"`` times a few real steps of every engine and takes the fastest, the plain loop
    unless another is at least 5 % faster. Each network, or group, is computed on ``recipe.threads`` threads, and as
    many at a time as torch has threads for, which changes no bit. Networks with dropout, and recipes with mixup,
    CutMix, a number of iterations or mixed precision, go through ``train``, one by one.

    Args:
        model: Text for ``networks.build``; classes and channels are fitted to the data.
        data: Splits, or text for ``data.load``.
        recipe: Settings, or a name among ``RECIPES``; by the shape of the inputs if ``None``.
        seeds: One for each network.
        out: Folder for checkpoints ``seed-0000.safetensors`` and their cards.
        engine: ``auto``, ``measured``, ``in turn``, ``stacked``, ``grouped``, ``grouped by 4`` or ``grouped by 2``.
        together: Networks that are trained at once.
        resume: Whether to keep what is there.
        save_every: Seconds between saved states.
        device: ``"auto"`` is CUDA where there is one.
        progress: Whether to show progress on standard error.

    Returns:
        Where the checkpoints are.

    Raises:
        ValueError: If arguments do not fit together, before the first step.

    Examples:
        >>> import tempfile
        >>> from intertwine.lab.training import RECIPES, read_card, train_many
        >>> folder = tempfile.mkdtemp()
        >>> recipe = RECIPES["digits"].but(epochs=2)
        >>> zoo = train_many("mlp:widths=16", "digits", recipe, seeds=range(3), out=folder, progress=False)
        >>> [read_card(path).seed for path in zoo.paths]
        [0, 1, 2]
    """
    chosen = choose_device(device)
    splits = load(data) if isinstance(data, str) else data
    recipe = find_recipe(recipe, splits)
    check_recipe(recipe, splits)
    seeds = list(dict.fromkeys(seeds))
    if not seeds or min(seeds) < 0:
        raise ValueError(f"seeds must be at least one whole number from 0. Got {seeds}.")
    if engine not in (*_CHOICES, *ENGINES):
        raise ValueError(f"engine must be one of {', '.join((*_CHOICES, *ENGINES))}. Got {engine!r}.")
    if together < 1:
        raise ValueError(f"together must be at least 1. Got {together}.")
    folder = Path(out)
    check_writable(member_path(folder, 0), "out")
    make = _Maker(model, splits, recipe, chosen, engine, folder, save_every, progress)
    with threads(recipe.threads):
        return make.all(seeds, together, resume)


class _Maker:
    """One call of ``train_many``: what does not change."""

    def __init__(
        self,
        model: str,
        data: DataSplits,
        recipe: Recipe,
        device: torch.device,
        engine: str,
        folder: Path,
        save_every: float,
        progress: bool,
    ) -> None:
        self.model, self.data, self.recipe, self.device = model, data, recipe, device
        self.engine, self.folder, self.save_every, self.progress = engine, folder, save_every, progress
        self.batches = Batches(data.train.to(device), data.mean, data.std, recipe.batch_size)
        self.steps_per_epoch = steps_per_epoch(len(data.train), recipe.batch_size)
        self.steps = self.steps_per_epoch * recipe.epochs
        self.workers = max(1, torch.get_num_threads() // recipe.threads) if device.type == "cpu" else 1

    def all(self, seeds: list[int], together: int, resume: bool) -> ManyTraining:
        """Train what is missing, interrupted groups first.

        Raises:
            ValueError: If the engine cannot train these networks.
        """
        _, network = prepare(self.model, self.data, seeds[0], None)
        alone = _goes_alone(self.recipe) or draws_random_numbers(network)
        if alone and self.engine not in (*_CHOICES, InTurn.name):
            raise ValueError(
                f"engine must be auto or {InTurn.name} for networks with dropout, and recipes with mixup, CutMix, a "
                f"number of iterations or mixed precision. Got {self.engine!r}."
            )
        missing = [seed for seed in seeds if not (resume and self._there(seed))]
        engines: dict[str, int] = {}
        diverged: list[int] = []
        if alone:
            for seed in missing:
                self._alone(seed, resume)
            engines = {InTurn.name: len(missing)} if missing else {}
        else:
            for group, state in self._groups(missing, together, resume):
                name, bad = self._group(group, state)
                engines[name] = engines.get(name, 0) + len(group)
                diverged += bad
        paths = tuple(member_path(self.folder, seed) for seed in seeds if seed not in diverged)
        return ManyTraining(paths, engines, tuple(diverged))

    def _there(self, seed: int) -> bool:
        spec, network = prepare(self.model, self.data, seed, None)
        settings = settings_of(spec, self.data, self.recipe, seed)
        return finished(member_path(self.folder, seed), network, settings) is not None

    def _alone(self, seed: int, resume: bool) -> None:
        train(
            self.model,
            self.data,
            self.recipe,
            seed=seed,
            out=member_path(self.folder, seed),
            resume=resume,
            save_every=self.save_every,
            device=self.device,
            progress=self.progress,
        )

    def _groups(self, missing: list[int], together: int, resume: bool) -> Iterator[tuple[list[int], _State | None]]:
        """Groups that were interrupted as they were, the other seeds in new ones."""
        left = list(missing)
        for path in sorted(self.folder.glob("group-*.training.pt")) if resume else ():
            state = load_state(path, _State, "train_many", "to train its seeds anew")
            if set(state.seeds) <= set(left):
                left = [seed for seed in left if seed not in state.seeds]
                yield state.seeds, state
        for i in range(0, len(left), together):
            yield left[i : i + together], None

    def _group(self, seeds: list[int], state: _State | None) -> tuple[str, list[int]]:
        """Train one group to its end; the engine's name and the seeds that diverged."""
        path = self.folder / f"group-{seeds[0]:04d}-{seeds[-1]:04d}.training.pt"
        spec = prepare(self.model, self.data, seeds[0], None)[0]
        networks = [prepare(self.model, self.data, seed, None)[1].to(self.device).train() for seed in seeds]
        settings = settings_of(spec, self.data, self.recipe, seeds[0])
        if state is None:
            state = _fresh(seeds, settings, self._choose(networks, seeds))
        _check_same(path, state.settings, settings)
        engine = ENGINES[state.engine](networks, self.recipe, self.workers)
        if state.snapshot:
            engine.restore(state.snapshot)
            self._say(f"going on with {counted(len(seeds), 'network')} at step {state.step} of {self.steps}")
        try:
            self._finish(engine, state, path)
        finally:
            engine.close()
        self._write(networks[0], spec, state)
        path.unlink(missing_ok=True)
        return state.engine, [seed for seed, bad in zip(seeds, state.diverged) if bad]

    def _choose(self, networks: Sequence[nn.Module], seeds: list[int]) -> str:
        """Name of the engine.

        Raises:
            ValueError: If the one that was asked for cannot train these networks.
        """
        orders = [order(len(self.data.train), seed, 0) for seed in seeds]
        inputs, targets = self._batch(seeds, orders, 0)
        if self.engine == InTurn.name:
            return self.engine
        if self.engine == "auto":
            name = engine_for(networks, inputs[0])
            self._say(f"training {counted(len(seeds), 'network')} at once: {name}")
            return name
        if self.engine != "measured":
            if not agrees(ENGINES[self.engine], networks, inputs[0]):
                able = ", ".join(candidates(networks, inputs[0]))
                raise ValueError(f"engine must be one of {able} for {self.model}. Got {self.engine!r}.")
            return self.engine
        name, seconds = fastest_engine(networks, self.recipe, inputs, targets, self.workers)
        timed = ", ".join(f"{key} {1000 * value:.3g} ms" for key, value in seconds.items())
        self._say(f"training {counted(len(seeds), 'network')} at once: {name} (a step of all: {timed})")
        return name

    def _finish(self, engine: Engine, state: _State, path: Path) -> None:
        seeds = state.seeds
        began, saved = time.monotonic() - state.seconds, time.monotonic()
        title = f"training {self.model} on {self.data.name}, seeds {seeds[0]} to {seeds[-1]}"
        orders = [order(len(self.data.train), seed, state.step // self.steps_per_epoch) for seed in seeds]
        sums = torch.tensor(state.loss_sums, device=self.device)
        for step in track(range(state.step, self.steps), title, enabled=self.progress):
            epoch, place = divmod(step, self.steps_per_epoch)
            if place == 0:
                orders = [order(len(self.data.train), seed, epoch) for seed in seeds]
                sums = torch.zeros_like(sums)
            inputs, targets = self._batch(seeds, orders, step)
            sums = sums + engine.step(inputs, targets, self.recipe.rate(step, self.steps_per_epoch))
            state.step = step + 1
            at_end = place == self.steps_per_epoch - 1
            if at_end:
                self._end_epoch(engine, state, epoch, (sums / self.steps_per_epoch).tolist())
            if at_end or time.monotonic() - saved >= self.save_every:
                saved, state.seconds = time.monotonic(), time.monotonic() - began
                state.loss_sums, state.snapshot = sums.tolist(), engine.snapshot()
                write_state(path, state)
        state.seconds = time.monotonic() - began

    def _batch(self, seeds: list[int], orders: list[Tensor], step: int) -> tuple[Tensor, Tensor]:
        """The batch that each seed's own run would see at this step, ``(k, B, C, *S)`` and ``(k, B)``."""
        size, recipe = self.recipe.batch_size, self.recipe
        place = step % self.steps_per_epoch
        index = torch.stack([order[place * size : (place + 1) * size] for order in orders])
        inputs, targets = self.batches.batch(index.flatten())
        if recipe.translate or recipe.flip:
            generator, moves = torch.Generator(), []
            for seed in seeds:
                generator.manual_seed(mixed(seed, "step", step))
                moves.append(draw_moves(index.shape[1], recipe.translate, recipe.flip, generator))
            shifts, mirrored = torch.cat([m[0] for m in moves], 1), torch.cat([m[1] for m in moves])
            inputs = move(inputs, shifts, mirrored, recipe.translate)
        return inputs.unflatten(0, index.shape), targets.view(index.shape)

    def _end_epoch(self, engine: Engine, state: _State, epoch: int, losses: list[float]) -> None:
        accuracies = self._accuracies(engine, "validation")
        for i, (reached, loss) in enumerate(zip(accuracies, losses)):
            state.diverged[i] = state.diverged[i] or not math.isfinite(loss)
            if reached > state.best_accuracies[i] and not state.diverged[i]:
                state.best[i], state.best_epochs[i] = engine.member(i), epoch + 1
                state.best_accuracies[i], state.best_losses[i] = reached, loss
        best = sum(state.best_accuracies) / len(accuracies)
        if epoch + 1 == self.recipe.epochs or sys.stderr.isatty():
            self._say(f"epoch {epoch + 1}/{self.recipe.epochs}: mean best validation accuracy {best:.2%}")

    def _accuracies(self, engine: Engine, split: str) -> list[float]:
        held = self.data.split(split).to(self.device)  # type: ignore[arg-type]
        right = torch.zeros(engine.k, dtype=torch.int64, device=self.device)
        for inputs, labels in Batches(held, self.data.mean, self.data.std):
            right += (engine.logits(inputs).argmax(2) == labels).sum(1)
        return (right / len(held)).tolist()

    def _write(self, network: nn.Module, spec: str, state: _State) -> None:
        """Test the best weights of each network once, and write checkpoints and cards."""
        test = Batches(self.data.test.to(self.device), self.data.mean, self.data.std)
        for i, seed in enumerate(state.seeds):
            if state.diverged[i]:
                self._say(f"seed {seed} diverged: its loss is no number any more, and nothing is written for it")
                continue
            network.load_state_dict(state.best[i])
            metrics: dict[str, float | None] = {
                "validation_accuracy": state.best_accuracies[i],
                "test_accuracy": accuracy(network, test),
                "training_loss": state.best_losses[i],
                "trained_together": float(len(state.seeds)),
            }
            settings = settings_of(spec, self.data, self.recipe, seed)
            engine = "" if state.engine == InTurn.name else state.engine
            card = Card(**settings, metrics=metrics, best_epoch=state.best_epochs[i], engine=engine)
            save_checkpoint(member_path(self.folder, seed), network, card)

    def _say(self, line: str) -> None:
        if self.progress:
            print(printable(line), file=sys.stderr)


def _goes_alone(recipe: Recipe) -> bool:
    return bool(recipe.mixup or recipe.cutmix or recipe.iterations) or recipe.precision != "float32"


def _fresh(seeds: list[int], settings: dict[str, Any], engine: str) -> _State:
    k = len(seeds)
    return _State(
        settings,
        seeds,
        engine,
        loss_sums=[0.0] * k,
        best=[{} for _ in seeds],
        best_epochs=[0] * k,
        best_accuracies=[-1.0] * k,
        best_losses=[math.nan] * k,
        diverged=[False] * k,
    )


def _check_same(path: Path, saved: dict[str, Any], settings: dict[str, Any]) -> None:
    if with_defaults(saved) != settings:
        raise CheckpointError(
            f"training state must be of the same settings. Got {str(path)!r} of another network, data set or recipe. "
            "Remove it to train its seeds anew, or choose another folder."
        )
