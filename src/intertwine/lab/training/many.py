"""Many seeds of one architecture, trained at once on one device."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from ..._io import check_writable
from ..._threads import threads
from ..._words import counted
from ..data import DataSplits, load
from .accuracy import choose_device
from .engines.choice import agrees, candidates, draws_random_numbers, engine_for
from .engines.engine import ENGINES, InTurn
from .loop import Loop, conclude, say
from .recipe import Recipe
from .state import TrainingState, check_same_run, discard_state, load_state
from .step_batches import StepBatches
from .train import check_recipe, find_recipe, finished, prepare, settings_of


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
    device: str | torch.device = "auto",
    progress: bool = True,
) -> ManyTraining:
    """Train one architecture from many seeds, several at once, and keep each one's best validation epoch.

    A seed means what it means to ``train``: the same initial weights, the same order of examples, the same
    augmentation, so that each network is, up to rounding, the one that ``train`` would have made. Members whose
    checkpoints lie in the folder already are left alone; the state of the others is written every minute
    and after every epoch, and the same call after a kill goes on from there.

    Networks are trained each by itself, stacked through ``torch.func``, or side by side with grouped convolutions (all,
    or two at a time). With ``engine="auto"`` the kind of network decides, so that the bits are the same on every
    machine of a kind. Each network, or group, is computed on ``recipe.threads`` threads, and as many at a time as torch
    has threads for, which changes no bit. Networks that draw random numbers, and recipes with mixup,
    CutMix, a number of iterations or mixed precision, are trained one by one.

    Args:
        model: Text for ``networks.build``; classes and channels are fitted to the data.
        data: Splits, or text for ``data.load``.
        recipe: Settings, or a name among ``RECIPES``; by the shape of the inputs if ``None``.
        seeds: One for each network.
        out: Folder for checkpoints ``seed-0000.safetensors`` and their cards.
        engine: ``auto``, ``in turn``, ``stacked``, ``grouped`` or ``grouped by 2``.
        together: Networks that are trained at once.
        resume: Whether to keep what is there.
        device: ``"auto"`` is CUDA where there is one.
        progress: Whether to show progress on standard error.

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
    if engine not in ("auto", *ENGINES):
        raise ValueError(f"engine must be one of {', '.join(('auto', *ENGINES))}. Got {engine!r}.")
    if together < 1:
        raise ValueError(f"together must be at least 1. Got {together}.")
    folder = Path(out)
    check_writable(member_path(folder, 0), "out")
    make = _Maker(model, splits, recipe, chosen, engine, folder, progress)
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
        progress: bool,
    ) -> None:
        self.model, self.data, self.recipe, self.device = model, data, recipe, device
        self.engine, self.folder, self.progress = engine, folder, progress
        self.workers = max(1, torch.get_num_threads() // recipe.threads) if device.type == "cpu" else 1

    def all(self, seeds: list[int], together: int, resume: bool) -> ManyTraining:
        """Train what is missing, interrupted groups first."""
        _, network = prepare(self.model, self.data, seeds[0], None)
        if _goes_alone(self.recipe) or draws_random_numbers(network, self.data.loader("train").batch(slice(0, 2))[0]):
            if self.engine not in ("auto", InTurn.name):
                raise ValueError(
                    f"engine must be auto or {InTurn.name} for networks with dropout or stochastic depth, and recipes "
                    f"with mixup, CutMix, a number of iterations or mixed precision. Got {self.engine!r}."
                )
            self.engine, together = InTurn.name, 1
        missing = [seed for seed in seeds if not (resume and self._there(seed))]
        engines: dict[str, int] = {}
        diverged: list[int] = []
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

    def _groups(
        self, missing: list[int], together: int, resume: bool
    ) -> Iterator[tuple[list[int], TrainingState | None]]:
        """Groups that were interrupted as they were, the other seeds in new ones."""
        left = list(missing)
        for path in sorted(self.folder.glob("group-*.training.pt")) if resume else ():
            state = load_state(path)
            if set(state.seeds) <= set(left):
                left = [seed for seed in left if seed not in state.seeds]
                yield state.seeds, state
        for i in range(0, len(left), together):
            yield left[i : i + together], None

    def _group(self, seeds: list[int], state: TrainingState | None) -> tuple[str, list[int]]:
        """Train one group to its end; the engine's name and the seeds that diverged."""
        path = self.folder / f"group-{seeds[0]:04d}-{seeds[-1]:04d}.training.pt"
        spec = prepare(self.model, self.data, seeds[0], None)[0]
        networks = [prepare(self.model, self.data, seed, None)[1].to(self.device).train() for seed in seeds]
        settings = settings_of(spec, self.data, self.recipe, seeds[0])
        if state is None:
            state = TrainingState(settings, seeds, self._choose(networks, seeds))
        check_same_run(path, state, settings)
        Loop(networks, self.data, self.recipe, state, path, self.workers, self.progress).run()
        for i, seed in enumerate(seeds):
            if state.diverged[i]:
                say(f"seed {seed} diverged: its loss or weights are no numbers, nothing is written", self.progress)
            else:
                conclude(state, i, networks[0], self.data, member_path(self.folder, seed))
        discard_state(path)
        return state.engine, [seed for seed, bad in zip(seeds, state.diverged) if bad]

    def _choose(self, networks: Sequence[nn.Module], seeds: list[int]) -> str:
        """Name of the engine."""
        if self.engine == InTurn.name:
            return self.engine
        with torch.random.fork_rng(devices=[]):
            inputs, _ = StepBatches(self.data, self.recipe, seeds, self.device).at(0)
        if self.engine == "auto":
            name = engine_for(networks, inputs[0])
            say(f"training {counted(len(seeds), 'network')} at once: {name}", self.progress)
            return name
        if not agrees(ENGINES[self.engine], networks, inputs[0]):
            able = ", ".join(candidates(networks, inputs[0]))
            raise ValueError(f"engine must be one of {able} for {self.model}. Got {self.engine!r}.")
        return self.engine


def _goes_alone(recipe: Recipe) -> bool:
    return bool(recipe.mixup or recipe.cutmix or recipe.iterations) or recipe.precision != "float32"
