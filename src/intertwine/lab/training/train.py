"""Training of classifiers from a name, a data set, a recipe and a seed; also of many seeds at once on one device."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..._evaluation import copied
from ..._io import check_writable, read_tensors
from ..._random import mixed, seeded
from ..._threads import threads
from ..._words import check_known, counted, first_line
from ...errors import CheckpointError
from ..data import DataSplits, load
from ..networks import build, fit_to
from .accuracy import choose_device
from .checkpoint import Card, card_path, digest, load_weights, read_card
from .engines import IN_TURN, draws_random_numbers, engine_for
from .loop import Loop, TrainingState, check_same_run, conclude, differing, discard_state, load_state, say, state_path
from .recipe import RECIPES, Recipe, recipe_for


@dataclass(frozen=True)
class Training:
    """A finished run."""

    model: nn.Module  # The network with the weights of the best validation epoch, in eval mode, on the CPU
    card: Card  # What was trained, with what, and how well
    # One entry per epoch: epoch, loss, validation accuracy, learning rate. Empty if a finished checkpoint was found
    history: list[dict[str, float]]
    path: Path | None  # Path of the checkpoint, if one was written


def train(
    model: nn.Module | str,
    data: DataSplits | str = "digits",
    recipe: Recipe | str | None = None,
    *,
    seed: int = 0,
    name: str | None = None,
    out: str | Path | None = None,
    resume: bool | Literal["same"] = True,
    device: str | torch.device = "auto",
    progress: bool = True,
) -> Training:
    """Train a classifier and keep the weights of the epoch with the best validation accuracy (the first, if several).

    The test split is used once, at the end. With ``out``, the state of the run is written beside it every minute and
    after every epoch. After a kill, the same call resumes from there and ends with the same weights as an uninterrupted
    run, bit for bit, on the same machine. It uses ``recipe.threads`` threads, whatever the environment says.

    Args:
        model: Text for ``networks.build`` (initialised from ``seed``, classes and channels fitted to the data), or a
            module, which is copied.
        data: Splits, or text for ``data.load``.
        recipe: Settings, or a name among ``RECIPES``; if ``None``, chosen by the shape of the inputs.
        seed: Seed of the initial weights, the order of the examples, the augmentation and dropout.
        name: Name of a module on the card, such as ``package.module:factory``; its class if ``None``.
        out: Path of the checkpoint, ending in ``.safetensors``. If ``None``, nothing is written.
        resume: Whether to resume an interrupted run with these settings, or return a finished one; a run with other
            settings is refused. ``"same"`` also requires the same initial weights, and starts over if the existing run
            is another one.
        device: ``"auto"`` is CUDA if available.
        progress: Whether to show progress on standard error.

    Raises:
        ValueError: If arguments do not fit together, before the first step.
        CheckpointError: If the state to resume from is damaged or of another run.
        RuntimeError: If the loss or weights become NaN or infinite; the last good state stays on disk.

    Examples:
        >>> run = train("digits_cnn:width=8", "digits", RECIPES["digits"].but(epochs=3), progress=False)
        >>> run.card.metrics["test_accuracy"] > 0.8
        True
    """  # noqa: DOC502 - the loop raises it
    chosen, splits, recipe = _prepared(device, data, recipe)
    path = None if out is None else Path(out)
    if path and path.suffix != ".safetensors":
        raise ValueError(f"out must end in .safetensors. Got {str(path)!r}.")
    if seed < 0:
        raise ValueError(f"seed must be a whole number from 0. Got {seed}.")
    if path:
        check_writable(path, "out")
    with threads(recipe.threads):
        if isinstance(model, nn.Module):
            architecture, network = name or type(model).__name__, copied(model).cpu()
        else:
            architecture = fit_to(model, splits.shape, len(splits.classes))
            network = _fresh(architecture, seed)
        _check_fit(network, architecture, splits)
        start = digest(network) if isinstance(model, nn.Module) else ""
        settings = _settings_of(architecture, splits, recipe, seed, start)
        if path and resume and (found := _finished(path, network, settings, replace=resume == "same")):
            return found
        state, beside = TrainingState(settings, [seed]), state_path(path) if path else None
        if beside and beside.is_file() and resume:
            try:
                there = load_state(beside)
                check_same_run(beside, there, settings, start=resume == "same")
                state = there
            except CheckpointError:
                if resume != "same":
                    raise
        Loop([network.to(chosen)], splits, recipe, state, beside, 1, progress).run(strict=True)
        card = conclude(state, 0, network, splits, path)
    if path and beside:
        card = read_card(path) or card  # with the digest of the weights
        discard_state(beside)
    return Training(network.cpu().eval(), card, state.history[0], path)


@dataclass(frozen=True)
class ManyTraining:
    """The finished runs of several seeds."""

    paths: tuple[Path, ...]  # Checkpoints, in the order of the seeds, without diverged runs
    diverged: tuple[int, ...] = ()  # Seeds whose loss or weights became NaN or infinite, for which nothing is written


def member_path(folder: str | Path, seed: int) -> Path:
    """The path of a seed's checkpoint, such as ``seed-0007.safetensors`` for seed 7."""
    return Path(folder) / f"seed-{seed:04d}.safetensors"


def train_many(
    model: str,
    data: DataSplits | str = "digits",
    recipe: Recipe | str | None = None,
    *,
    seeds: Iterable[int],
    out: str | Path,
    together: int = 16,
    resume: bool = True,
    device: str | torch.device = "auto",
    progress: bool = True,
) -> ManyTraining:
    """Train one architecture from many seeds, several at once, and keep the best validation epoch of each.

    A seed has the same meaning as in ``train``: the same initial weights, order of examples and augmentation, so that
    each network equals, up to rounding, the one that ``train`` would have made. Members whose checkpoints are already
    in the folder are left alone. The state of the others is written every minute and after every epoch, and after a
    kill the same call resumes from there.

    Networks are trained one by one, or side by side with grouped convolutions (all, or two at a time), depending on the
    kind of network, so that the bits are the same on every machine of a kind. Each network, or group, is computed on
    ``recipe.threads`` threads, with as many at a time as torch has threads for, which changes no bit. Networks that
    draw random numbers, and recipes with mixup, CutMix, a number of iterations or mixed precision, are trained one by
    one.

    Checkpoints ``seed-0000.safetensors`` and their cards go to the folder ``out``. Existing ones are kept unless
    ``resume`` is false; seeds with other settings there are refused. At most ``together`` networks are trained at once.
    Other arguments are those of ``train``.

    Raises:
        ValueError: If arguments do not fit together, before the first step.

    Examples:
        >>> import tempfile
        >>> recipe, folder = RECIPES["digits"].but(epochs=2), tempfile.mkdtemp()
        >>> zoo = train_many("mlp:widths=16", "digits", recipe, seeds=range(3), out=folder, progress=False)
        >>> [read_card(path).seed for path in zoo.paths]
        [0, 1, 2]
    """
    chosen, splits, recipe = _prepared(device, data, recipe)
    seeds = list(dict.fromkeys(seeds))
    if not seeds or min(seeds) < 0:
        raise ValueError(f"seeds must be at least one whole number from 0. Got {seeds}.")
    if together < 1:
        raise ValueError(f"together must be at least 1. Got {together}.")
    folder, spec = Path(out), fit_to(model, splits.shape, len(splits.classes))
    check_writable(member_path(folder, 0), "out")
    settings = {seed: _settings_of(spec, splits, recipe, seed) for seed in seeds}
    begun = _begun(folder, settings) if resume else set()  # a kill may have left weights without their card
    there = lambda seed: (
        resume and _finished(member_path(folder, seed), _fresh(spec, seed), settings[seed], replace=seed in begun)
    )
    diverged: list[int] = []
    with threads(recipe.threads):
        few, _ = splits.loader("train").batch(slice(0, 4))
        first = _fresh(spec, seeds[0])
        _check_fit(first, spec, splits)
        alone = recipe.one_by_one or draws_random_numbers(first, few)
        missing = [seed for seed in seeds if not there(seed)]
        _check_others(folder, {member_path(folder, seed) for seed in seeds}, settings[seeds[0]])
        for path, group, state in _groups(folder, seeds, missing, 1 if alone else together, resume):
            networks = [_fresh(spec, seed).to(chosen).train() for seed in group]
            if state is None:
                name = IN_TURN if alone else engine_for(networks, few.to(chosen))
                say(f"training {counted(len(group), 'network')} at once: {name}", progress and not alone)
                state = TrainingState(settings[group[0]], group, name)
            check_same_run(path, state, settings[group[0]])
            workers = max(1, torch.get_num_threads() // recipe.threads) if chosen.type == "cpu" else 1
            Loop(networks, splits, recipe, state, path, workers, progress).run()
            for i, seed in enumerate(group):
                if seed not in missing:
                    continue
                if not state.diverged[i]:
                    conclude(state, i, networks[0], splits, member_path(folder, seed))
                else:
                    say(f"seed {seed} diverged: its loss or weights are no numbers, nothing is written", progress)
                    diverged.append(seed)
            discard_state(path)
    return ManyTraining(tuple(member_path(folder, s) for s in seeds if s not in diverged), tuple(diverged))


def _begun(folder: Path, settings: dict[int, dict[str, Any]]) -> set[int]:
    """Seeds of interrupted groups with the same settings."""
    states = map(load_state, folder.glob("group-*.training.pt"))
    same = lambda state: not differing(state.settings, settings.get(state.seeds[0], {}), start=True)
    return {seed for state in states if same(state) for seed in state.seeds}


def _groups(
    folder: Path, seeds: list[int], missing: list[int], together: int, resume: bool
) -> Iterator[tuple[Path, list[int], TrainingState | None]]:
    """Groups of seeds and the paths of their states: interrupted groups as they were, other seeds in new groups.

    A group that was interrupted while writing its checkpoints lacks only some of its seeds.
    """
    left = list(missing)
    of = lambda seeds: folder / f"group-{seeds[0]:04d}-{seeds[-1]:04d}.training.pt"
    for path in sorted(folder.glob("group-*.training.pt")) if resume else ():
        state = load_state(path)
        if set(state.seeds) & set(left) and set(state.seeds) <= {*left, *(set(seeds) - set(missing))}:
            left = [seed for seed in left if seed not in state.seeds]
            yield of(state.seeds), state.seeds, state
    for i in range(0, len(left), together):
        yield of(left[i : i + together]), left[i : i + together], None


def _prepared(
    device: str | torch.device, data: DataSplits | str, recipe: Recipe | str | None
) -> tuple[torch.device, DataSplits, Recipe]:
    """The device, the data, and the recipe: by name, or the one that suits the data."""
    chosen, splits = choose_device(device), load(data) if isinstance(data, str) else data
    splits.need_labels("to train on", classes=2)
    if isinstance(recipe, str):
        check_known("recipe", recipe, RECIPES)
        recipe = RECIPES[recipe]
    recipe = recipe or recipe_for(splits.shape)
    if len(splits.shape) != 3 and (recipe.translate or recipe.flip or recipe.cutmix or recipe.crop):
        raise ValueError(
            f"recipe must not move, flip or cut inputs that are no images. Got inputs of shape {splits.shape}. "
            "Set translate=0, flip=False, crop=0 and cutmix=0."
        )
    return chosen, splits, recipe


def _fresh(spec: str, seed: int) -> nn.Module:
    """The network that ``build`` makes of a text, with the weights of a seed."""
    with seeded(mixed(seed, "weights")):
        return build(spec)


def _check_fit(model: nn.Module, name: str, data: DataSplits) -> None:
    # Run two examples before the long work, so that a wrong size is reported clearly.
    inputs, _ = data.loader("train").batch(slice(0, 2))
    try:
        with torch.no_grad():
            logits = copied(model).eval()(inputs)
    except RuntimeError as error:
        raise ValueError(
            f"model {name} must accept inputs of shape {data.shape}. Got an error from it: {first_line(error)}. "
            "Choose another network, or resize the data."
        ) from None
    if not isinstance(logits, Tensor) or logits.ndim != 2 or logits.shape[1] < len(data.classes):
        got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(f"model {name} must map inputs to logits (N, {len(data.classes)}) at least. Got {got}.")


def _settings_of(name: str, data: DataSplits, recipe: Recipe, seed: int, start: str = "") -> dict[str, Any]:
    """The settings of a run, as on its card: two runs with equal settings count as the same."""
    of_data = {"mean": data.mean, "std": data.std, "classes": data.classes, "shape": data.shape}
    said = {"start": start, "architecture": name, "data": data.name, "seed": seed, "recipe": recipe.to_dict()}
    return {**said, **of_data}


def _check_others(folder: Path, own: Collection[Path], settings: dict[str, Any]) -> None:
    """Refuse a folder with members that differ in more than their seeds, even if those seeds were not requested."""
    for path in sorted({*folder.glob("*.safetensors")}.difference(own)):
        card = read_card(path)
        other = [] if card is None else [k for k, v in settings.items() if k != "seed" and getattr(card, k) != v]
        if card and other:
            raise ValueError(
                f"out must be a new folder, or of a zoo with the same settings. Got {str(path)!r}, which holds "
                f"{card.architecture} on {card.data} (other {', '.join(other)}). Choose another folder."
            )


def _finished(path: Path, model: nn.Module, settings: dict[str, Any], replace: bool = False) -> Training | None:
    """The finished training of a checkpoint that the same call already wrote, and whose state was removed."""
    if not path.is_file() or state_path(path).is_file():
        return None
    card = read_card(path)
    written = {key: getattr(card, key) for key in settings} if card else None
    if card is None or written is None or differing(written, settings, start=replace):
        if replace:
            return None
        held = f"{card.architecture} of seed {card.seed}" if card else f"weights without {card_path(path).name}"
        raise ValueError(
            f"out must be a new path, or of a run with the same settings. Got {str(path)!r}, which holds {held}. "
            "Choose another path, or pass resume=False (--restart) to replace it."
        )
    load_weights(model, read_tensors(path), repr(str(path)), card.architecture)
    return Training(model.eval(), card, [], path)
