"""The zoos that experiments draw their pairs from."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..data import load
from ..training import RECIPES, Card, Recipe, fast_precision, train_many
from ..training.many import member_path
from ..zoo import Member, Zoo, read_zoo
from .estimates import Estimate, of_runs
from .experiment import Setting, trained_from
from .printed import Printed
from .reproduction import Reproduction, Row
from .verdicts import Trained

_NETWORKS = "test accuracy of the networks"
_DEEP = ("resnet", "vgg")


def recipe_at(setting: Setting, network: str = "", **changes: Any) -> Recipe:
    """How experiments train their networks, unless they are about training.

    Args:
        setting: Scale and device.
        network: Its name; deep ones need more epochs, and only need to be there at the scale ``smoke``.
        changes: Further settings at every scale.

    Returns:
        A few epochs on digits; at the scale ``small`` a few with one cycle of a large rate, mixed precision where that
        is fast; the first paper's own.
    """
    deep = network.startswith(_DEEP)
    if setting.digits:
        chosen = RECIPES["digits"].but(epochs=setting.by_scale(2 if deep else 10, 20, 20), batch_size=64)
    elif setting.scale == "paper":
        chosen = RECIPES["paper"]
    else:
        cycle: dict[str, Any] = {"schedule": "cyclic", "warmup": 1, "learning_rate": 1e-2, "batch_size": 128}
        chosen = RECIPES["paper"].but(epochs=6 if deep else 4, precision=fast_precision(setting.device), **cycle)
    return chosen.but(**changes)


def zoo_for(setting: Setting, model: str, count: int, recipe: Recipe | None = None, examples: int | None = None) -> Zoo:
    """Networks of one architecture from the seeds ``setting.seed, ...``, trained unless they are there already.

    Experiments at the same setting share a zoo: its folder is named by architecture, data and recipe.

    Args:
        setting: Where, and on which data.
        model: Text for ``networks.build``.
        count: Number of networks.
        recipe: Settings; ``recipe_at(setting, model)`` if ``None``.
        examples: Train on the first so many only; on all if ``None``.

    Returns:
        The zoo, with exactly ``count`` members; in a dry run the members that it would have.

    Raises:
        RuntimeError: If a member diverged.
    """
    recipe = recipe or recipe_at(setting, model)
    seeds = range(setting.seed, setting.seed + count)
    if setting.planned is not None:
        return _planned(setting, model, seeds, recipe, examples)
    data = load(setting.data_spec).first(examples)
    folder = _folder(setting, model, data.name, recipe)
    made = train_many(model, data, recipe, seeds=seeds, out=folder, device=setting.device, progress=setting.progress)
    if made.diverged:
        raise RuntimeError(f"networks of a zoo must train. Got seeds {made.diverged} of {model} that diverged.")
    zoo = read_zoo(folder)
    return replace(zoo, members=[m for m in zoo.members if m.card.seed in seeds])


def _folder(setting: Setting, model: str, data: str, recipe: Recipe) -> Path:
    settings = hashlib.blake2b(json.dumps(recipe.to_dict(), sort_keys=True).encode(), digest_size=4).hexdigest()
    name = "-".join([model.replace(":", "-").replace(",", "-").replace("=", ""), data, settings])
    return setting.folder / "zoos" / name


def _planned(setting: Setting, model: str, seeds: range, recipe: Recipe, examples: int | None) -> Zoo:
    assert setting.planned is not None
    data = setting.data_name + ("" if examples is None else f"[:{examples}]")
    folder = _folder(setting, model, data, recipe)
    zoo = {"folder": folder.as_posix(), "network": setting.fitted(model), "data": data, "seeds": list(seeds)}
    if (entry := {**zoo, "recipe": recipe.to_dict()}) not in setting.planned.zoos:
        setting.planned.zoos.append(entry)
    card = Card(architecture=setting.fitted(model), data=data, recipe=recipe.to_dict())
    return Zoo(folder, [Member(member_path(folder, seed), card.model_copy(update={"seed": seed})) for seed in seeds])


def trained_words(zoo: Zoo) -> str:
    """What a zoo is and how it was trained, from its cards."""
    recipe = Recipe(**zoo.members[0].card.recipe)
    length = f"{recipe.iterations:,} iterations" if recipe.iterations else f"{recipe.epochs} epochs"
    reached = sum(zoo.accuracies) / len(zoo)
    return (
        f"{len(zoo)} networks {zoo.architecture}, {length} of {zoo.members[0].card.data} in batches of "
        f"{recipe.batch_size} (mean test accuracy {reached:.1%})"
    )


def accuracy_rows(zoos: Mapping[str, Zoo], paper: Mapping[str, Printed] | None = None) -> list[Row]:
    """Test accuracies of zoos, mean over networks."""
    printed = paper or {}
    return [Row.of(name, of_runs(zoo.accuracies), printed.get(name), _NETWORKS) for name, zoo in zoos.items()]


def trained(found: Reproduction, least: float | None = None, only: str | None = None) -> Trained:
    """The networks of an experiment, as its accuracy rows say; without such rows nobody can tell.

    Args:
        found: Its numbers.
        least: Accuracy that they need; by the data if ``None``.
        only: One kind of network among several.
    """
    rows = found.table.get(_NETWORKS, {"networks": Estimate(float("nan"))})
    chosen = {name: e for name, e in rows.items() if only is None or name == only}
    return Trained(chosen, trained_from(found) if least is None else least)
