"""The zoos that experiments draw their pairs from."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

from ..data import load
from ..training import RECIPES, Recipe, fast_precision, train_many
from ..zoo import Zoo, read_zoo
from .experiment import Setting

__all__ = ["recipe_at", "zoo_for"]


def recipe_at(setting: Setting, epochs: int = 6) -> Recipe:
    """How experiments train their networks, unless they are about training.

    Args:
        setting: Scale and device.
        epochs: At the scale ``small``.

    Returns:
        A few epochs on digits; ``epochs`` in large batches, mixed precision where that is fast; the first paper's own.
    """
    small = RECIPES["paper"].but(
        epochs=epochs, batch_size=128, learning_rate=3e-3, precision=fast_precision(setting.device)
    )
    return setting.by_scale(RECIPES["digits"].but(epochs=10, batch_size=64), small, RECIPES["paper"])


def zoo_for(setting: Setting, model: str, count: int, recipe: Recipe | None = None, examples: int | None = None) -> Zoo:
    """Networks of one architecture from the seeds ``setting.seed, ...``, trained unless they are there already.

    Experiments at the same setting share a zoo: its folder is named by architecture, data and recipe.

    Args:
        setting: Where, and on which data.
        model: Text for ``networks.build``.
        count: Number of networks.
        recipe: Settings; ``recipe_at(setting)`` if ``None``.
        examples: Train on the first so many only; on all if ``None``.

    Returns:
        The zoo, with exactly ``count`` members.

    Raises:
        RuntimeError: If a member diverged.
    """
    data = load(setting.data_spec).first(examples)
    recipe = recipe or recipe_at(setting)
    settings = hashlib.blake2b(json.dumps(recipe.to_dict(), sort_keys=True).encode(), digest_size=4).hexdigest()
    name = "-".join([model.replace(":", "-").replace(",", "-").replace("=", ""), data.name, settings])
    seeds = range(setting.seed, setting.seed + count)
    folder = setting.folder / "zoos" / name
    made = train_many(model, data, recipe, seeds=seeds, out=folder, device=setting.device, progress=setting.progress)
    if made.diverged:
        raise RuntimeError(f"networks of a zoo must train. Got seeds {made.diverged} of {model} that diverged.")
    zoo = read_zoo(folder)
    return replace(zoo, members=[m for m in zoo.members if m.card.seed in seeds])
