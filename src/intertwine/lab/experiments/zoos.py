"""The zoos that experiments draw their pairs from."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from .experiment import Setting

if TYPE_CHECKING:
    from ..training import Recipe
    from ..zoo import Zoo

__all__ = ["zoo_for"]


def zoo_for(setting: Setting, model: str, count: int, recipe: Recipe | None = None) -> Zoo:
    """Networks of one architecture from the seeds ``setting.seed, ...``, trained unless they are there already.

    Experiments at the same setting share a zoo: its folder is named by architecture, data and recipe.

    Args:
        setting: Where, and on which data.
        model: Text for ``networks.build``.
        count: Number of networks.
        recipe: Settings; by the shape of the data if ``None``.

    Returns:
        The zoo, with exactly ``count`` members.

    Raises:
        RuntimeError: If a member diverged.
    """
    from dataclasses import replace

    from ..data import load
    from ..training import recipe_for, train_many
    from ..zoo import read_zoo

    data = load(setting.data_spec)
    recipe = recipe or recipe_for(data.shape)
    settings = hashlib.blake2b(json.dumps(recipe.to_dict(), sort_keys=True).encode(), digest_size=4).hexdigest()
    name = "-".join([model.replace(":", "-").replace(",", "-").replace("=", ""), data.name, settings])
    seeds = range(setting.seed, setting.seed + count)
    folder = setting.folder / "zoos" / name
    made = train_many(model, data, recipe, seeds=seeds, out=folder, device=setting.device, progress=setting.progress)
    if made.diverged:
        raise RuntimeError(f"networks of a zoo must train. Got seeds {made.diverged} of {model} that diverged.")
    zoo = read_zoo(folder)
    return replace(zoo, members=[m for m in zoo.members if m.card.seed in seeds])
