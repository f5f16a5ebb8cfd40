"""Plans of stitching: the layers, families, methods and seeds asked for, checked, and the networks that they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ..groups import Group
from .layers.families import family_of, takes
from .networks.cut import Cut
from .networks.pair import At
from .networks.stitched import Stitched
from .options import StitchOptions
from .training.recipe import RECIPES, Recipe
from .training.train_layers import Trained

Family = str | Group
Method = Literal["task_loss", "direct"] | Recipe


@dataclass
class Planned:
    """One network of a plan.

    Attributes:
        cut: Where it is stitched.
        place: Which of the plan's cuts that is.
        family: Of its layer.
        method: ``"task_loss"`` or ``"direct"``.
        seed: Of its start and training order.
        network: The network, changed in place while the plan is carried out.
        trained: Its training, afterwards.
    """

    cut: Cut
    place: int
    family: Family
    method: str
    seed: int
    network: Stitched
    trained: Trained | None = None


@dataclass(frozen=True)
class Plan:
    """What to stitch.

    Attributes:
        at: Layers.
        families: Families.
        methods: ``"task_loss"`` or ``"direct"``.
        seeds: Seeds.
        recipe: Of the training.
        options: Of the whole.
        single: Whether one network was asked for, not lists of one.
    """

    at: tuple[At, ...]
    families: tuple[Family, ...]
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    recipe: Recipe
    options: StitchOptions
    single: bool

    @classmethod
    def of(cls, at: Any, family: Any, method: Any, seeds: Any, options: StitchOptions) -> Plan:
        """The plan of what a user gave.

        Raises:
            ValueError: If something is missing or unknown.
        """
        pair = isinstance(at, tuple) and len(at) == 2 and all(isinstance(x, str) for x in at)
        layers = (at,) if isinstance(at, str) or pair else tuple(at)
        families = (family,) if isinstance(family, str | Group) else tuple(family)
        given = (method,) if isinstance(method, str | Recipe) else tuple(method)
        numbers = (seeds,) if isinstance(seeds, int) else tuple(seeds)
        for name, values in (("at", layers), ("family", families), ("method", given), ("seeds", numbers)):
            if not values:
                raise ValueError(f"{name} must hold at least one. Got none.")
        methods = tuple("task_loss" if isinstance(one, Recipe) else one for one in given)
        for one in methods:
            if one not in ("task_loss", "direct"):
                raise ValueError(f'method must be "task_loss", "direct" or a Recipe. Got {one!r}.')
        if len(set(methods)) < len(methods):
            raise ValueError(f"method must hold one way of training at most. Got {len(methods)} methods, {given}.")
        unknown = [key for key in options.settings if not any(takes(one, key) for one in families)]
        if unknown:
            raise ValueError(f"settings must be of the families {families}. Got {', '.join(unknown)}.")
        recipe = next((one for one in given if isinstance(one, Recipe)), RECIPES["v1"])
        single = all(
            not isinstance(value, list) and len(values) == 1
            for value, values in ((at, layers), (family, families), (method, given), (seeds, numbers))
        )
        return cls(layers, families, methods, numbers, recipe, options, single)

    @property
    def facts(self) -> Mapping[str, Any]:
        """Options that results keep."""
        options = self.options
        return {
            "recipe": asdict(self.recipe), "start": options.start, "tail_norm": options.tail_norm,
            "recalibration": options.recalibration, "bias": options.bias, "options": dict(options.settings),
        }  # fmt: skip

    def networks(self, cuts: Sequence[Cut]) -> list[Planned]:
        """A network for every cut, family, method and seed; what is not trained needs one seed only."""
        return [
            Planned(cut, place, family, method, seed, self._network(cut, family, seed))
            for place, cut in enumerate(cuts)
            for family in self.families
            for method in self.methods
            for seed in (self.seeds if method == "task_loss" else self.seeds[:1])
        ]

    def _network(self, cut: Cut, family: Family, seed: int) -> Stitched:
        settings = {k: v for k, v in self.options.settings.items() if takes(family, k) and v != "cv"}
        layers = [
            family_of(
                family, one.c_in, one.c_out, bias=self.options.bias, channel_dim=one.channel_dim, seed=seed, **settings
            ).to(cut.device)
            for one in cut.mapped
        ]
        return cut.stitch(layers[0], layers[1:], self.options.tail_norm)
