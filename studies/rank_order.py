"""The order in which measures and stitching penalties rank networks and layers, which paper 1 does not compare.

A stitching penalty says by what it costs how different two layers are; a dissimilarity measure says it for far less
work. Where the two rank pairs of layers alike, the measure may stand in for the stitching. Rank correlations (Spearman)
are over all pairs of networks and all layers, which the trend with depth dominates, and within each layer, where only
the networks differ.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from intertwine.lab.data import load
from intertwine.lab.experiments import Design, Experiment, Findings, PairJob, activations_of, unordered_pairs
from intertwine.lab.statistics import jackknife, spearman
from intertwine.similarity import compare
from intertwine.stitching import RECIPES, StitchOptions, stitch

FAMILIES, HOWS = ("g_relu", "full"), ("over pairs and layers", "within layers")
MEASURES = (
    "orthogonal_procrustes", "orthogonal_procrustes_centered", "g_relu_procrustes", "g_relu_procrustes_centered",
    "permutation_procrustes", "linear_cka", "g_relu_cka", "laplace_cka", "rbf_cka", "svcca", "mutual_knn", "rsa",
)  # fmt: skip
RIVALS = (("g_relu_procrustes", "orthogonal_procrustes"), ("g_relu_cka", "linear_cka"))


class Ranked(PairJob):
    """One pair of networks: stitched at all layers, and measured there."""

    layers: tuple[str, ...]  # Where
    examples: int | None  # Training images of the stitches
    measured: int  # Test images of the measures
    epochs: int  # Of training maps; half of them are the head start
    seed: int  # Of the training order

    def run(self, files: Path) -> list[dict[str, Any]]:
        """Penalties on all test images by family, and dissimilarities by measure, at each layer."""
        (a, b), data = self.networks(), load(self.data).first(self.examples)
        recipe = replace(RECIPES["v1"], epochs=self.epochs, head_start=self.epochs // 2, keep="last")
        study: Any = stitch(
            a, b, list(self.layers), list(FAMILIES), loader=data.loader("train", recipe.batch_size, shuffle=True),
            eval_loader=data.loader("test"), seeds=self.seed, method=recipe,
            options=StitchOptions(state=files / "training.pt", progress=False),
        )  # fmt: skip
        rows = [{"statistic": f"penalty, {one.family}", "layer": one.layer_name.rstrip("*"), "value": one.penalty,
                 "images": len(data.test)} for one in study.stitchings]  # fmt: skip
        loader = data.loader("test", examples=self.measured)
        for layer in self.layers:
            scores = compare(a, b, loader, [layer], list(MEASURES), resampling=None, progress=False).scores
            rows += [{"statistic": m, "layer": layer, "value": 1 - float(scores[m])} for m in MEASURES]
        return rows


def agreement(one: list[dict[Any, float]], two: list[dict[Any, float]], how: str, kept: frozenset[Any]) -> float:
    """Rank correlation of two quantities, given by layer and pair of networks, among the networks that are kept.

    Over pairs and layers, or the mean over layers in which both vary.
    """
    layers = [([x[pair] for pair in x if kept >= {*pair}], [y[pair] for pair in x if kept >= {*pair}])
              for x, y in zip(one, two)]  # fmt: skip
    if how == HOWS[0]:
        return spearman(*([v for layer in layers for v in layer[side]] for side in (0, 1)))
    known = [r for x, y in layers if (r := spearman(x, y)) == r]
    return sum(known) / len(known) if known else float("nan")


def _plan(plan: Design) -> None:
    s = plan.setting
    zoo = plan.zoo("networks", *s.by_scale(("digits_cnn:width=8", 4), ("myrtle_cnn:base=16", 8), ("myrtle_cnn", 10)))
    plan.baseline()
    examples, measured, epochs = s.by_scale((128, 128, 1), (3200, 500, 2), (None, 2000, 20))
    for pair in unordered_pairs(zoo):
        plan.pair(Ranked, pair, layers=activations_of(zoo.network), examples=examples, measured=measured, epochs=epochs,
                  seed=s.seed)  # fmt: skip
    plan.note(f"Stitches start at their closed-form solutions and are trained {epochs} epochs on {examples or 'all'} "
              f"images; {measured} test images for the measures. Many measures cannot tell A into B from B into A, "
              "penalties can.")  # fmt: skip


def _analyse(found: Findings) -> None:
    names = (*MEASURES, *(f"penalty, {family}" for family in FAMILIES))
    by = {name: [one.means for one in found.values.by_layer(name).values()] for name in names}
    networks, guard = sorted({network for pair in by[MEASURES[0]][0] for network in pair}), found.guard()
    rank = lambda family, how, m, kept: agreement(by[m], by[f"penalty, {family}"], how, kept)
    over = lambda *of: {m: jackknife(networks, partial(rank, *of, m)) for m in MEASURES}
    table = {(family, how): over(family, how) for how in HOWS for family in FAMILIES}
    for (family, how), each in table.items():
        found.show(f"{family}, Spearman {how}", each)
    for family in FAMILIES:
        found.show(f"{family}, penalty", found.values.by_layer(f"penalty, {family}"))
        found.state(f"every measure ranks {family} penalties better than chance", table[family, HOWS[0]], above=0,
                    guard=guard)  # fmt: skip
    gap = lambda a, b, kept: rank("g_relu", HOWS[0], a, kept) - rank("g_relu", HOWS[0], b, kept)
    for a, b in RIVALS:
        effect = {"difference of Spearman": jackknife(networks, partial(gap, a, b))}
        found.state(f"{a} ranks G_ReLU penalties better than {b}", effect, above=0, guard=guard)
    found.state("some measure ranks G_ReLU penalties of networks at one and the same layer",
                table["g_relu", HOWS[1]], above=0, but=len(MEASURES) - 1, guard=guard)  # fmt: skip
    found.accuracies()


_TITLE, _FROM = "Do the measures rank as stitching penalties do?", "left open by v2 sections 4 and 5"
STUDIES = (Experiment("open-rank-order", _TITLE, _FROM, _plan, _analyse),)
