"""Centring and the measures. Paper 1 writes centred features in the text, and its figures use uncentred ones.

Behind a ReLU every channel has a positive mean, and uncentred features of unrelated networks point the same way: the
chance level is high before anything agrees. Centring takes that away, and with it what the means tell. An *alignment*
is a CKA without its C: the cosine of two Gram matrices of features that are not centred either.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import intertwine as iw
from intertwine.lab.data import load
from intertwine.lab.experiments import Design, Experiment, Findings, PairJob, activations_of, unordered_pairs
from intertwine.lab.statistics import mean_of
from intertwine.similarity import Resampling, compare, inference

KINDS = ("orthogonal", "g_relu", "permutation")
TWINS = {
    **{f"{kind}_procrustes": f"{kind}_procrustes_centered" for kind in KINDS},
    "linear_alignment": "linear_cka",
    "g_relu_alignment": "g_relu_cka",
}
"""Uncentred measures and their centred twins."""
ALIGNMENTS = {"linear_alignment": "linear", "g_relu_alignment": "max"}
PARTS = {"score": "score", "chance": "chance level", "calibrated": "chance taken out"}


def unit_gram(x: Tensor, kernel: str) -> Tensor:
    """Gram matrix ``(N, N)`` at Frobenius norm 1 of uncentred features ``(N, C, *S)``.

    ``"linear"``, or ``"max"``: the largest product of any channel, each divided by its norm.
    """
    if kernel == "linear":
        gram = (x.flatten(1) @ x.flatten(1).T).double()
    else:
        gram = torch.full((len(x), len(x)), -torch.inf, dtype=torch.float64)
        for z in x.double().unbind(1):
            if (norm := z.norm()) > 0:
                gram = torch.maximum(gram, (z.reshape(len(x), -1) / norm) @ (z.reshape(len(x), -1) / norm).T)
    return gram / gram.norm()


def alignment(x: Tensor, y: Tensor, kernel: str = "linear") -> float:
    """Cosine of two Gram matrices of uncentred features."""
    return float((unit_gram(x, kernel) * unit_gram(y, kernel)).sum())


class Centred(PairJob):
    """One pair of networks, by measures with and without centring."""

    layers: tuple[str, ...]  # Where
    examples: int  # Test images
    shuffles: int  # Of the examples, for the chance level
    seed: int  # Of the shuffles

    def run(self, files: Path) -> list[dict[str, Any]]:
        """Equal layers by measure: score, chance level, and the score with chance taken out."""
        (a, b), loader = self.networks(), load(self.data).loader("test", examples=self.examples)
        names = [m for m in (*TWINS, *TWINS.values()) if m not in ALIGNMENTS]
        how = Resampling(null=self.shuffles, bootstrap=0, untrained=0, seed=self.seed)
        rows = []
        for layer in self.layers:
            compared = compare(a, b, loader, [layer], names, resampling=how, progress=False)
            parts = {"score": compared.scores, "chance": compared.chance, "calibrated": compared.calibrated}
            found = {m: {what: float(values[m]) for what, values in parts.items()} for m in names}
            x, y = (iw.collect(model, loader, [layer], progress=False)[layer] for model in (a, b))
            found |= {m: self._aligned(unit_gram(x, kernel), unit_gram(y, kernel)) for m, kernel in ALIGNMENTS.items()}
            rows += [{"statistic": f"{m}, {PARTS[what]}", "layer": layer, "value": value, "draws": self.shuffles}
                     for m, by in found.items() for what, value in by.items()]  # fmt: skip
        return rows

    def _aligned(self, one: Tensor, two: Tensor) -> dict[str, float]:
        generator, score = torch.Generator().manual_seed(self.seed), float((one * two).sum())
        orders = [torch.randperm(len(two), generator=generator) for _ in range(self.shuffles)]
        null = torch.stack([(one * two[order][:, order]).sum() for order in orders])
        return {"score": score, "chance": float(null.mean()), "calibrated": inference.calibrate(score, null)}


def _plan(plan: Design) -> None:
    s = plan.setting
    networks = s.by_scale(("digits_cnn:width=8", 4), ("myrtle_cnn:base=16", 8), ("myrtle_cnn", 10))
    zoo, examples, shuffles = plan.zoo("networks", *networks), s.by_scale(128, 500, 2000), s.by_scale(5, 5, 20)
    plan.baseline()
    for pair in unordered_pairs(zoo):
        plan.pair(Centred, pair, layers=activations_of(zoo.network), examples=examples, shuffles=shuffles, seed=s.seed)
    plan.note(f"{examples} test images. Chance: mean of {shuffles} shuffles of the examples of one side.")


def _analyse(found: Findings) -> None:
    guard, every = found.guard(), (*TWINS, *TWINS.values())
    table = {part: {m: found.values.by_layer(f"{m}, {words}") for m in every} for part, words in PARTS.items()}
    for part, by in table.items():
        for m, one in by.items():
            found.show(f"{m}, {PARTS[part]}", one)
    chance, layers = table["chance"], list(table["chance"][every[0]])
    for plain, centred in TWINS.items():
        lower = {k: chance[plain][k] - chance[centred][k] for k in layers}
        found.state(f"centring lowers the chance level of {plain} in every layer", lower, above=0, guard=guard)
    size = lambda sample: type(sample)({k: abs(v) for k, v in sample.numbers.items()}, sample.variance)
    gaps = {part: mean_of(size(table[part][p][k] - table[part][c][k]) for p, c in TWINS.items() for k in layers)
            for part in ("score", "calibrated")}  # fmt: skip
    found.show("mean difference of twins", gaps)
    found.state("with chance taken out, centring matters less than in raw scores",
                {"raw - calibrated": gaps["score"] - gaps["calibrated"]}, above=0, guard=guard)  # fmt: skip
    floors = {f"{m}, {k}": chance[m][k] for m in ("linear_cka", "g_relu_cka") for k in layers}
    found.state("unbiased CKA needs no calibration: its chance level is within 0.05 of 0", floors, above=-0.05,
                below=0.05, guard=guard)  # fmt: skip
    found.accuracies()


_TITLE, _FROM = "What centring does to the measures", "left open by v2 section 5 and D.7"
STUDIES = (Experiment("open-centring", _TITLE, _FROM, _plan, _analyse),)
