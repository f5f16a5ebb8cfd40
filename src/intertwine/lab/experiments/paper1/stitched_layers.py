"""Pairs of networks stitched at some layers by some families, and the lines that figures draw of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from ...._zoo_intervals import pair_interval
from ....features import layers
from ....stitching import RECIPES, StitchOptions, stitch
from ...data import DataSplits, load
from ...training.augment import Augmented
from ..pairs import PairJob
from ..reproduction import Row

__all__ = ["StitchedLayers", "activations", "by_family", "line", "mean"]

_FEWEST = 3  # models for an interval over models

# family -> layer -> values, in the order of the pairs
Found = dict[str, dict[str, list[float]]]


class StitchedLayers(PairJob):
    """One ordered pair of networks, stitched from closed-form starts.

    Attributes:
        examples: Training examples; all of them if ``None``.
        tested: Test examples; all of them if ``None``.
        layers: Where to stitch; every activation if empty.
        families: Of maps.
        recipe: Settings that differ from the stitching recipe ``v1``.
        translate: Pixels by which training images move at most.
        flip: Whether they are mirrored.
        seed: Of the order of examples.
    """

    examples: int | None
    tested: int | None
    layers: tuple[str, ...]
    families: tuple[str, ...]
    recipe: dict[str, Any]
    translate: int
    flip: bool
    seed: int

    def run(self, files: Path) -> dict[str, Any]:
        """Stitch.

        Returns:
            ``penalties`` and ``sparsities`` by layer (``*`` inside residual blocks) and family, and the accuracies of
            both networks.
        """
        data, (a, b) = load(self.data).first(self.examples), self.networks()
        recipe = replace(RECIPES["v1"], **self.recipe)
        train = Augmented(data.loader("train", recipe.batch_size, shuffle=True), self.translate, self.flip)
        test = data.loader("test", examples=self.tested)
        chosen = list(self.layers) or activations(a, data)
        study = stitch(
            a,
            b,
            chosen,
            list(self.families),
            loader=train,
            eval_loader=test,
            seeds=self.seed,
            method=recipe,
            options=StitchOptions(state=files / "training.pt"),
        )
        found: dict[str, Any] = {"penalties": {}, "sparsities": {}}
        for one in study.stitchings:  # type: ignore[union-attr]  # lists were given
            found["penalties"].setdefault(one.layer_name, {})[one.family] = one.penalty
            found["sparsities"].setdefault(one.layer_name, {})[one.family] = one.sparsity
            found["accuracies"] = [one.accuracy_a, one.accuracy_b]
        return found


def activations(model: nn.Module, data: DataSplits) -> list[str]:
    """Names of a network's activations, in order."""
    example = data.loader("test", 2).batch(slice(0, 2))[0].to(next(model.parameters()).device)
    return [point.name for point in layers(model, example) if point.activation]


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
