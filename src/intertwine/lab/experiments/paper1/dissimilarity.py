"""Similarity of the layers of independently trained networks: paper 1, section 5, D.3 and D.8."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...._zoo_intervals import pair_interval
from ....similarity import compare
from ...data import load
from ...networks import build
from ..experiment import Experiment, Setting
from ..pairs import PairJob, checkpoints, names_of
from ..reproduction import Claim, Reproduction, Row
from ..zoos import recipe_at, zoo_for

__all__ = ["EXPERIMENTS", "LayerSimilarity"]

MEASURES = ("g_relu_procrustes", "orthogonal_procrustes", "g_relu_cka", "linear_cka")
# Means over pairs; the taps 3, 6, 10, 14 are our relu1 to relu4.
TABLE_2 = {
    "g_relu_procrustes": (0.6208, 0.5106, 0.4432, 0.4899),
    "orthogonal_procrustes": (0.7724, 0.5743, 0.5087, 0.5825),
}
TABLE_4 = {
    "g_relu_procrustes": (0.8176, 0.7602, 0.5691, 0.4971),
    "orthogonal_procrustes": (0.8460, 0.6735, 0.5409, 0.6050),
}
_SHUFFLES = 20
_FEW = 6  # layers at smoke scale


class LayerSimilarity(PairJob):
    """Two networks of a zoo, layer by layer.

    Attributes:
        layers: Names of layers.
        examples: Test images.
    """

    layers: tuple[str, ...]
    examples: int

    def run(self, files: Path) -> dict[str, Any]:
        """Compare.

        Returns:
            For each measure, scores of every layer of the first against every layer of the second, and the calibrated
            scores of equal layers.
        """
        a, b = self.networks()
        loader = load(self.data).loader("test", examples=self.examples)
        found = compare(a, b, loader, list(self.layers), MEASURES, null=_SHUFFLES, bootstrap=0)
        calibrated = {m: c.diag().tolist() for m in MEASURES if (c := found.calibrated[m]) is not None}
        return {"scores": {m: found.scores[m].tolist() for m in MEASURES}, "calibrated": calibrated}


def _measure(
    setting: Setting, smoke: str, small: str, paper: str
) -> tuple[tuple[str, ...], list[Any], list[Any], list[str]]:
    """Layers, pairs, what was found for each, and what a reader must know."""
    spec = setting.by_scale(smoke, small, paper)
    members, pairs = setting.by_scale(4, 4, 100), setting.by_scale(8, 6, 32)
    recipe = recipe_at(setting)
    zoo = zoo_for(setting, spec, members, recipe)
    layers = tuple(name for name, _ in build(spec).named_modules() if name.rpartition(".")[2].startswith("relu"))
    if setting.scale == "smoke" and len(layers) > _FEW:
        layers = layers[:: -(-len(layers) // _FEW)]
    drawn = zoo.pairs(pairs, seed=setting.seed)
    examples = setting.by_scale(128, 1000, 10_000)
    jobs = [
        LayerSimilarity(
            **checkpoints(pair), layers=layers, data=setting.data_spec, examples=examples, device=setting.device
        )
        for pair in drawn
    ]
    accuracy = sum(zoo.accuracies) / len(zoo)
    notes = [
        f"{members} networks {zoo.architecture} trained {recipe.epochs} epochs (mean test accuracy {accuracy:.1%}); "
        f"{pairs} ordered pairs drawn with replacement, {examples} test images; intervals leave out models."
    ]
    return layers, names_of(drawn), setting.run(jobs), notes


def _rows(
    layers: Sequence[str], names: Sequence[Any], values: Sequence[Any], paper: Mapping[str, Sequence[float]]
) -> dict[str, list[Row]]:
    """For each measure, equal layers of the two networks; scores first, calibrated scores in a group of their own."""
    found: dict[str, list[Row]] = {}
    for m in MEASURES:
        known = paper.get(m, ())
        for k, layer in enumerate(layers):
            number = known[k] if len(known) == len(layers) else None
            score = pair_interval(names, [v["scores"][m][k][k] for v in values])
            found.setdefault(m, []).append(_at_most_one(Row.of(layer, score, number, group=m)))
            level = Row.of(layer, pair_interval(names, [v["calibrated"][m][k] for v in values]))
            found.setdefault(f"{m}, calibrated", []).append(
                _at_most_one(replace(level, group=f"{m}, chance taken out"))
            )
    return found


def _at_most_one(row: Row) -> Row:
    """No similarity is above 1, whatever an interval of a mean says."""
    return replace(row, high=min(row.high or 0.0, 1.0))


def _claims(layers: Sequence[str], found: Mapping[str, Sequence[Row]]) -> list[Claim]:
    mean = lambda m: [row.ours or 0.0 for row in found[m]]
    relu, rotated = mean("g_relu_procrustes"), mean("orthogonal_procrustes")
    lowest = relu.index(min(relu))
    kept = {m: mean(m)[-2] / mean(m)[0] for m in ("g_relu_cka", "linear_cka")}
    return [
        Claim(
            "G_ReLU-Procrustes is below orthogonal Procrustes in every layer",
            all(r < o for r, o in zip(relu, rotated)),
            ", ".join(f"{r:.2f} < {o:.2f}" if r < o else f"{r:.2f} > {o:.2f}" for r, o in zip(relu, rotated)),
        ),
        Claim(
            "similarity falls with depth, and rises again in the last layer",
            0 < lowest < len(relu) - 1,
            f"lowest at {layers[lowest]}",
        ),
        Claim(
            "CKA decays faster under G_ReLU than under rotations",
            kept["g_relu_cka"] < kept["linear_cka"],
            f"the last but one layer keeps {kept['g_relu_cka']:.2f} of the first, against {kept['linear_cka']:.2f}",
        ),
    ]


def _experiment(
    name: str, title: str, papers: str, model: str, smoke: str, paper: Mapping[str, Sequence[float]], note: str = ""
) -> Experiment:
    def run(setting: Setting) -> Reproduction:
        layers, names, values, notes = _measure(setting, smoke, _narrow(model), model)
        found = _rows(layers, names, values, paper)
        rows = [row for group in found.values() for row in group]
        claims = _claims(layers, found)
        return Reproduction(
            name,
            title,
            papers,
            setting.scale,
            rows,
            claims,
            setting.scale == "paper",
            [*notes, note] if note else notes,
        )

    return Experiment(name, title, papers, run)


def _narrow(model: str) -> str:
    """The architecture of the scale ``small``: all but the ResNet20 are made narrower."""
    narrow = {
        "myrtle_cnn": "myrtle_cnn:base=16",
        "myrtle_cnn:width=512": "myrtle_cnn:width=32",
        "resnet18": "resnet18:width=8",
    }
    return narrow.get(model, model)


EXPERIMENTS = (
    _experiment(
        "table2-dissimilarity", "Similarity of the layers of Myrtle CNNs", "v2 Table 2, Fig. 5 (v1 Figs 5, 6)",
        "myrtle_cnn", "digits_cnn:width=8", TABLE_2,
    ),
    _experiment(
        "table4-constant-width", "The same at constant width", "v2 Table 4, Fig. 16, D.8",
        "myrtle_cnn:width=512", "mlp:widths=32-32-32-32", TABLE_4,
        "The paper's table has G_ReLU-Procrustes above the orthogonal one in relu2 and relu3: the two are normalised "
        "differently, and neither bounds the other.",
    ),
    _experiment(
        "fig9-resnet20", "Similarity of the layers of ResNet20s", "v2 Figs 2, 9 (v1 Figs 2, 11)",
        "resnet20", "resnet20", {},
    ),
    _experiment(
        "fig10-resnet18", "Similarity of the layers of ResNet18s", "v2 Figs 10, 11 (v1 Figs 12, 13)",
        "resnet18", "digits_cnn:width=16", {},
        "At smoke scale, a plain CNN twice as wide as that of table2-dissimilarity stands in for the wider network.",
    ),
)  # fmt: skip
