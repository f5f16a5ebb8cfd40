"""Pairs of networks stitched at some layers by some families, and the lines that figures draw of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ..._zoo_intervals import pair_interval
from ..runs import Job, Plan
from .gates import subset
from .reproduction import Row

if TYPE_CHECKING:
    from ..zoo import Member, Zoo
    from .experiment import Setting

__all__ = ["StitchedLayers", "StitchedLayersOfPairs", "by_family", "line", "mean", "pairs_at", "paths_of"]

_FEWEST = 3  # models for an interval over models

# family -> layer -> values, in the order of the pairs
Found = dict[str, dict[str, list[float]]]


class StitchedLayers(Job):
    """One ordered pair of networks, stitched from closed-form starts.

    Attributes:
        a: Checkpoint of network A.
        b: Checkpoint of network B.
        data: As ``lab.data.load`` takes it.
        examples: Training examples; all of them if ``None``.
        tested: Test examples; all of them if ``None``.
        layers: Where to stitch; every activation if empty.
        families: Of maps.
        recipe: Settings that differ from the stitching recipe ``v1``.
        translate: Pixels by which training images move at most.
        flip: Whether they are mirrored.
        seed: Of the order of examples.
        device: Where.
    """

    gpus: ClassVar[float] = 0.5

    a: str
    b: str
    data: str
    examples: int | None
    tested: int | None
    layers: tuple[str, ...]
    families: tuple[str, ...]
    recipe: dict[str, Any]
    translate: int
    flip: bool
    seed: int
    device: str = "auto"

    @property
    def label(self) -> str:
        """The two networks."""
        return " and ".join(f"{Path(p).parent.name[:24]}/{Path(p).stem}" for p in (self.a, self.b))

    def run(self, files: Path) -> dict[str, Any]:
        """Stitch.

        Returns:
            ``penalties`` and ``sparsities`` by layer (``*`` inside residual blocks) and family, and the accuracies of
            both networks.
        """
        from ...stitching import RECIPES, stitch
        from ...taps import layers as points
        from ..data import load
        from ..training import choose_device, load_checkpoint
        from ..training.augmented import Augmented

        data, device = subset(load(self.data), self.examples), choose_device(self.device)
        a, b = (load_checkpoint(path).to(device) for path in (self.a, self.b))
        recipe = replace(RECIPES["v1"], **self.recipe)
        train = Augmented(data.loader("train", recipe.batch_size, shuffle=True), self.translate, self.flip)
        test = data.loader("test", examples=self.tested)
        example = data.loader("test", 2).batch(slice(0, 2))[0].to(device)
        chosen = list(self.layers) or [p.name for p in points(a, example) if p.activation]
        study = stitch(
            a, b, chosen, list(self.families), loader=train, eval_loader=test, recipe=recipe, seeds=self.seed,
            state=files / "training.pt",
        )  # fmt: skip
        found: dict[str, Any] = {"penalties": {}, "sparsities": {}}
        for one in study.stitchings:  # type: ignore[union-attr]  # lists were given
            found["penalties"].setdefault(one.layer_name, {})[one.family] = one.penalty
            found["sparsities"].setdefault(one.layer_name, {})[one.family] = one.sparsity
            found["accuracies"] = [one.accuracy_a, one.accuracy_b]
        return found


class StitchedLayersOfPairs(Plan):
    """Any number of pairs."""

    name: ClassVar[str] = "stitched-layers"

    pairs: tuple[StitchedLayers, ...]

    def jobs(self) -> Sequence[Job]:
        """One for each pair."""
        return self.pairs


def pairs_at(setting: Setting, zoo: Zoo, few: int, many: int) -> list[tuple[Member, Member]]:
    """Ordered pairs of a zoo.

    Args:
        setting: Scale and seed.
        zoo: The networks.
        few: Pairs below the scale ``paper``: each network into the next one, because in so few drawn pairs one network
            is often part of all, which leaves no interval over networks.
        many: Pairs at the scale ``paper``, drawn as the paper does.

    Returns:
        The pairs.
    """
    if setting.scale == "paper":
        return zoo.pairs(many, seed=setting.seed)
    return [(zoo[i % len(zoo)], zoo[(i + 1) % len(zoo)]) for i in range(few)]


def paths_of(pair: tuple[Member, Member]) -> dict[str, str]:
    """The two checkpoints of a pair, as jobs name them."""
    a, b = pair
    return {"a": str(a.path.resolve()), "b": str(b.path.resolve())}


def by_family(values: Sequence[Mapping[str, Any]], what: str = "penalties") -> Found:
    """One number for each family, layer and pair.

    Args:
        values: What :class:`StitchedLayers` returned.
        what: ``"penalties"`` or ``"sparsities"``.

    Returns:
        Numbers in the order of the pairs.

    Examples:
        >>> by_family([{"penalties": {"relu1": {"full": 0.1}}}, {"penalties": {"relu1": {"full": 0.2}}}])
        {'full': {'relu1': [0.1, 0.2]}}
    """
    found: Found = {}
    for value in values:
        for layer, families in value[what].items():
            for family, number in families.items():
                found.setdefault(family, {}).setdefault(layer, []).append(number)
    return found


def mean(values: Sequence[float]) -> float:
    """The plain mean."""
    return sum(values) / len(values)


def line(group: str, by_layer: Mapping[str, Sequence[float]], drawn: Sequence[tuple[str, str]]) -> list[Row]:
    """One line of a figure over layers.

    Intervals leave out models; of two models there is none, and the lowest and highest pair stand in its place.

    Args:
        group: Name of the line.
        by_layer: For each layer one number for each pair.
        drawn: The two models of each pair.

    Returns:
        A row for each layer.

    Examples:
        >>> line("full", {"relu1": [0.1, 0.2]}, [("a", "b"), ("b", "a")])[0].high
        0.2
    """
    rows = []
    for layer, numbers in by_layer.items():
        if len({model for pair in drawn for model in pair}) < _FEWEST or _shared(drawn):
            rows.append(Row(layer, mean(numbers), None, min(numbers), max(numbers), group=group))
        else:
            rows.append(Row.of(layer, pair_interval(drawn, numbers), group=group))
    return rows


def _shared(drawn: Sequence[tuple[str, str]]) -> bool:
    """Whether one model is part of every pair, so that leaving it out leaves nothing."""
    return bool(set.intersection(*(set(pair) for pair in drawn)))
