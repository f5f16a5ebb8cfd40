"""Training a classifier from a name, a data set, a recipe and a seed."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..._evaluation import copied
from ..._io import check_writable, read_tensors
from ..._random import mixed
from ..._threads import threads
from ..._words import near
from ...errors import CheckpointError
from ..data import DataSplits, load
from ..networks import build, fit_to
from .accuracy import choose_device
from .checkpoint import Card, card_path, digest, load_weights, read_card
from .loop import Loop, TrainingState, check_same_run, conclude, discard_state, load_state, same_run, state_path
from .recipe import RECIPES, Recipe, recipe_for


@dataclass(frozen=True)
class Training:
    """A finished run.

    Args:
        model: With the weights of the best validation epoch, in eval mode, on the CPU.
        card: What was trained, with what, and how well.
        history: One entry for each epoch: epoch, loss, validation accuracy, learning rate. Empty where a finished
            checkpoint was found.
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
    name: str | None = None,
    out: str | Path | None = None,
    resume: bool | Literal["same"] = True,
    device: str | torch.device = "auto",
    progress: bool = True,
) -> Training:
    """Train a classifier and keep the weights of the epoch with the best validation accuracy (the first, if several).

    The test split is looked at once, at the end. With ``out``, the state of the run is written beside it every
    minute and after every epoch; the same call after a kill goes on from there and ends with the very
    weights that an undisturbed run has, bit for bit, on the same machine; it takes ``recipe.threads`` threads, whatever
    the environment says. Arguments that do not fit together raise ``ValueError`` before the first step; a loss or
    weights that become NaN or infinite stop the run with ``RuntimeError``, and the last good state stays on disk.

    Args:
        model: Text for ``networks.build`` (initialised from ``seed``, classes and channels fitted to the data), or a
            module, which is copied.
        data: Splits, or text for ``data.load``.
        recipe: Settings, or a name among ``RECIPES``; by the shape of the inputs if ``None``.
        seed: Of the initial weights, the order of the examples, the augmentation and dropout.
        name: What the card calls a module, such as ``package.module:factory``; its class if ``None``.
        out: Where to write the checkpoint; must end in ``.safetensors``. Nothing is written if ``None``.
        resume: Whether to go on from the state of an interrupted run, or return a finished one, with these settings;
            what is there of other settings is refused. ``"same"`` asks for the same initial weights too, and starts
            over where what is there is of another run.
        device: ``"auto"`` is CUDA where there is one.
        progress: Whether to show a progress bar and a line for each epoch on standard error.

    Examples:
        >>> run = train("digits_cnn:width=8", "digits", RECIPES["digits"].but(epochs=3), progress=False)
        >>> run.card.metrics["test_accuracy"] > 0.8
        True
    """
    chosen = choose_device(device)
    splits = load(data) if isinstance(data, str) else data
    recipe = find_recipe(recipe, splits)
    path = _check_path(out)
    with threads(recipe.threads):
        architecture, network = prepare(model, splits, seed, name)
        _check_fit(network, architecture, splits)
        check_recipe(recipe, splits)
        start = digest(network) if isinstance(model, nn.Module) else ""
        settings = settings_of(architecture, splits, recipe, seed, start)
        if path and resume and (found := finished(path, network, settings, replace=resume == "same")):
            return found
        beside = state_path(path) if path else None
        state = _begun(beside, settings, seed, resume)
        Loop([network.to(chosen)], splits, recipe, state, beside, 1, progress).run(strict=True)
        card = conclude(state, 0, network, splits, path)
    if path and beside:
        card = read_card(path) or card  # with the digest of the weights
        discard_state(beside)
    return Training(network.cpu().eval(), card, state.history[0], path)


def _begun(path: Path | None, settings: dict[str, Any], seed: int, resume: bool | Literal["same"]) -> TrainingState:
    """The state to go on from: the one on disk, or a fresh one; ``"same"`` replaces one of another run."""
    if path and path.is_file() and resume:
        try:
            state = load_state(path)
            check_same_run(path, state, settings, start=resume == "same")
            return state
        except CheckpointError:
            if resume != "same":
                raise
    return TrainingState(settings, [seed])


def find_recipe(recipe: Recipe | str | None, data: DataSplits) -> Recipe:
    """The recipe meant: one by name, or the one for the data."""
    if isinstance(recipe, str):
        if recipe not in RECIPES:
            raise ValueError(f"recipe must be one of {', '.join(RECIPES)}. Got {recipe!r}.{near(recipe, RECIPES)}")
        recipe = RECIPES[recipe]
    return recipe or recipe_for(data.shape)


def check_recipe(recipe: Recipe, data: DataSplits) -> None:
    """Refuse a recipe that these data do not allow."""
    if len(data.shape) != 3 and (recipe.translate or recipe.flip or recipe.cutmix or recipe.crop):
        raise ValueError(
            f"recipe must not move, flip or cut inputs that are no images. Got inputs of shape {data.shape}. "
            "Set translate=0, flip=False, crop=0 and cutmix=0."
        )


def _check_path(out: str | Path | None) -> Path | None:
    if out is None:
        return None
    path = Path(out)
    if path.suffix != ".safetensors":
        raise ValueError(f"out must end in .safetensors. Got {str(path)!r}.")
    return check_writable(path, "out")


def prepare(model: nn.Module | str, data: DataSplits, seed: int, name: str | None) -> tuple[str, nn.Module]:
    """Name and fresh copy of what is trained."""
    if isinstance(model, nn.Module):
        return name or type(model).__name__, copied(model).cpu()
    spec = fit_to(model, data.shape, len(data.classes))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(mixed(seed, "weights"))
        return spec, build(spec)


def _check_fit(model: nn.Module, name: str, data: DataSplits) -> None:
    # Two examples before the long work, so that a wrong size is said in words.
    inputs, _ = data.loader("train").batch(slice(0, 2))
    try:
        with torch.no_grad():
            logits = copied(model).eval()(inputs)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"model {name} must accept inputs of shape {data.shape}. Got an error from it: {reason}. "
            "Choose another network, or resize the data."
        ) from None
    if not isinstance(logits, Tensor) or logits.ndim != 2 or logits.shape[1] < len(data.classes):
        got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(f"model {name} must map inputs to logits (N, {len(data.classes)}) at least. Got {got}.")


def settings_of(name: str, data: DataSplits, recipe: Recipe, seed: int, start: str = "") -> dict[str, Any]:
    """What a card says of a run: two runs with the same settings are one."""
    return {
        "start": start,
        "architecture": name,
        "data": data.name,
        "seed": seed,
        "recipe": recipe.to_dict(),
        "mean": data.mean,
        "std": data.std,
        "classes": data.classes,
        "shape": data.shape,
    }


def finished(path: Path, model: nn.Module, settings: dict[str, Any], replace: bool = False) -> Training | None:
    """The training of a checkpoint that the same call already wrote, and whose state is gone."""
    if not path.is_file() or state_path(path).is_file():
        return None
    card = read_card(path)
    written = {key: getattr(card, key) for key in settings} if card else None
    if card is None or written is None or not same_run(written, settings, start=replace):
        if replace:
            return None
        held = f"{card.architecture} of seed {card.seed}" if card else f"weights without {card_path(path).name}"
        raise ValueError(
            f"out must be a new path, or of a run with the same settings. Got {str(path)!r}, which holds {held}. "
            "Choose another path, or pass resume=False (--restart) to replace it."
        )
    load_weights(model, read_tensors(path), repr(str(path)), card.architecture)
    return Training(model.eval(), card, [], path)
