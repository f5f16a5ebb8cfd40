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
from .augmentation import StepBatches
from .engines import ENGINES, InTurn, agrees, candidates, draws_random_numbers, engine_for
from .loop import Loop, TrainingState, check_same_run, conclude, discard_state, load_state, say
from .recipe import Recipe
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

    Networks are trained each by itself, or side by side with grouped convolutions (all, or two at a time). With
    ``engine="auto"`` the kind of network decides, so that the bits are the same on every machine of a kind. Each
    network, or group, is computed on ``recipe.threads`` threads, and as many at a time as torch has threads for, which
    changes no bit. Networks that draw random numbers, and recipes with mixup, CutMix, a number of iterations or mixed
    precision, are trained one by one.

    Args:
        model: Text for ``networks.build``; classes and channels are fitted to the data.
        data: Splits, or text for ``data.load``.
        recipe: Settings, or a name among ``RECIPES``; by the shape of the inputs if ``None``.
        seeds: One for each network.
        out: Folder for checkpoints ``seed-0000.safetensors`` and their cards.
        engine: ``auto``, ``in turn``, ``grouped`` or ``grouped by 2``.
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
    fresh = lambda seed: prepare(model, splits, seed, None)
    with threads(recipe.threads):
        if _goes_alone(recipe, fresh(seeds[0])[1], splits):
            if engine not in ("auto", InTurn.name):
                raise ValueError(
                    f"engine must be auto or {InTurn.name} for networks with dropout or stochastic depth, and recipes "
                    f"with mixup, CutMix, a number of iterations or mixed precision. Got {engine!r}."
                )
            engine, together = InTurn.name, 1
        ended = list[TrainingState]()
        missing = [seed for seed in seeds if not (resume and _is_there(folder, seed, *fresh(seed), splits, recipe))]
        for path, group, state in _groups(folder, missing, together, resume):
            networks = [fresh(seed)[1].to(chosen).train() for seed in group]
            settings = settings_of(fresh(group[0])[0], splits, recipe, group[0])
            if state is None:
                name = engine if engine == InTurn.name else _choose(engine, model, networks, group, splits, recipe)
                say(f"training {counted(len(group), 'network')} at once: {name}", progress and engine == "auto")
                state = TrainingState(settings, group, name)
            check_same_run(path, state, settings)
            workers = max(1, torch.get_num_threads() // recipe.threads) if chosen.type == "cpu" else 1
            Loop(networks, splits, recipe, state, path, workers, progress).run()
            for i, seed in enumerate(group):
                if not state.diverged[i]:
                    conclude(state, i, networks[0], splits, member_path(folder, seed))
                else:
                    say(f"seed {seed} diverged: its loss or weights are no numbers, nothing is written", progress)
            discard_state(path)
            ended.append(state)
    engines = {name: sum(len(s.seeds) for s in ended if s.engine == name) for name in {s.engine: None for s in ended}}
    diverged = tuple(seed for state in ended for seed, bad in zip(state.seeds, state.diverged) if bad)
    return ManyTraining(tuple(member_path(folder, s) for s in seeds if s not in diverged), engines, diverged)


def _goes_alone(recipe: Recipe, network: nn.Module, data: DataSplits) -> bool:
    """Whether networks must be trained one by one, since they draw random numbers or the recipe wants it."""
    if recipe.mixup or recipe.cutmix or recipe.iterations or recipe.precision != "float32":
        return True
    return draws_random_numbers(network, data.loader("train").batch(slice(0, 2))[0])


def _is_there(folder: Path, seed: int, spec: str, network: nn.Module, data: DataSplits, recipe: Recipe) -> bool:
    return finished(member_path(folder, seed), network, settings_of(spec, data, recipe, seed)) is not None


def _groups(
    folder: Path, missing: list[int], together: int, resume: bool
) -> Iterator[tuple[Path, list[int], TrainingState | None]]:
    """Groups of seeds and where their state lies: interrupted ones as they were, the other seeds in new ones."""
    left = list(missing)
    of = lambda seeds: folder / f"group-{seeds[0]:04d}-{seeds[-1]:04d}.training.pt"
    for path in sorted(folder.glob("group-*.training.pt")) if resume else ():
        state = load_state(path)
        if set(state.seeds) <= set(left):
            left = [seed for seed in left if seed not in state.seeds]
            yield of(state.seeds), state.seeds, state
    for i in range(0, len(left), together):
        yield of(left[i : i + together]), left[i : i + together], None


def _choose(
    engine: str, model: str, networks: Sequence[nn.Module], seeds: list[int], data: DataSplits, recipe: Recipe
) -> str:
    """Name of the engine that suits the networks, or of the wanted one if it computes what they compute."""
    device = next((t.device for t in networks[0].parameters()), torch.device("cpu"))
    with torch.random.fork_rng(devices=[]):
        inputs, _ = StepBatches(data, recipe, seeds, device).at(0)
    if engine == "auto":
        return engine_for(networks, inputs[0])
    if not agrees(ENGINES[engine], networks, inputs[0]):
        able = ", ".join(candidates(networks, inputs[0]))
        raise ValueError(f"engine must be one of {able} for {model}. Got {engine!r}.")
    return engine
