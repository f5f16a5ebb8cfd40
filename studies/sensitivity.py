"""Sensitivity of the measures to what costs accuracy, which paper 1, section 7, says it did not test.

The tests are those of Ding, Denain and Steinhardt (NeurIPS 2021). One layer of one network is a reference. What is left
of a layer has a *dissimilarity* from it, by each measure, and a *loss*: the difference of the accuracies of two linear
classifiers. A good measure orders by loss, and tells deletions from a change of seed before much is lost.
"""

from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from sklearn.linear_model import RidgeClassifier

import intertwine as iw
from intertwine.lab.data import load
from intertwine.lab.experiments import Design, Experiment, Findings, activations_of
from intertwine.lab.runs import Job
from intertwine.lab.statistics import jackknife, spearman
from intertwine.lab.training import load_checkpoint
from intertwine.similarity import measure as named

MEASURES = ("orthogonal_procrustes", "orthogonal_procrustes_centered", "g_relu_procrustes", "permutation_procrustes",
            "linear_cka", "g_relu_cka", "laplace_cka", "svcca", "mutual_knn", "rsa")  # fmt: skip
KINDS, WHOLE, PROBED = ("components", "channels"), "whole", "accuracy of a linear classifier"


class Damaged(Job):
    """One layer of several networks, channels averaged over space: whole, and with parts deleted."""

    layer: str  # Where
    checkpoints: tuple[str, ...]  # Networks
    kept: tuple[float, ...]  # Shares of components or channels that are left, falling
    data: str  # As ``lab.data.load`` takes it
    examples: tuple[int, int]  # Training images of the linear classifiers, test images

    def run(self, files: Path) -> list[dict[str, Any]]:
        """Accuracy of each representation's classifier, dissimilarity from each network's whole layer by measure."""
        data, features, rows = load(self.data), [], []
        loaders = [data.loader(split, examples=n) for split, n in zip(("train", "test"), self.examples)]
        labels, truth = (loader.split.labels.numpy() for loader in loaders)
        for path in self.checkpoints:
            found = [iw.collect(load_checkpoint(path), x, self.layer, progress=False)[self.layer] for x in loaders]
            features.append([x.double().flatten(2).mean(2) if x.ndim > 2 else x.double() for x in found])
        references = {m: [named(m).prepare(test) for _, test in features] for m in MEASURES}
        for k, whole in enumerate(features):
            parts = {f"{of}, {share:g} left": delete(*whole, of, share, k) for of in KINDS for share in self.kept}
            for arm, (train, test) in {WHOLE: whole, **parts}.items():
                row = {"network": f"{k}", "arm": arm, "layer": self.layer}
                ridge = RidgeClassifier(alpha=1e-3 * len(train) * float(train.var(0).mean())).fit(train.numpy(), labels)
                share = ridge.score(test.numpy(), truth)
                rows.append({**row, "statistic": PROBED, "value": share, "images": len(truth)})
                for m, own in references.items():
                    apart = map(partial(named(m).score, named(m).prepare(test)), own)
                    rows += [{**row, "statistic": m, "partner": f"{j}", "value": 1 - x} for j, x in enumerate(apart)]
        return rows


def delete(train: torch.Tensor, test: torch.Tensor, kind: str, share: float, seed: int = 0) -> Any:
    """Features of which a share is left: the first principal components of the first, or channels in a random order."""
    mean, width = train.mean(0) * (kind == "components"), train.shape[1]
    order = torch.randperm(width, generator=torch.Generator().manual_seed(seed))
    basis = torch.eye(width).to(train)[:, order] if kind == "channels" else torch.linalg.eigh(train.T.cov())[1].flip(1)
    left = basis[:, : max(2, round(share * width))]
    return tuple(mean + (x - mean) @ left @ left.T for x in (train, test))


def statistics(accuracy: Mapping[Any, float], apart: Mapping[Any, Any], kind: str, kept: frozenset[Any]) -> Any:
    """Rank correlation with loss over parts of *other* networks, and accuracy lost before more shows than by a seed."""
    ordered, unseen = [], []
    for (layer, k), own in apart.items():
        lost = lambda n, arm, layer=layer, k=k: accuracy[layer, k, WHOLE] - accuracy[layer, n, arm]
        others = [(n, arm) for n, arm in own if n != k and kept >= {n, k} and arm.startswith((WHOLE, kind))]
        if others:
            ordered.append(spearman([own[one] for one in others], [abs(lost(*one)) for one in others]))
            seeds = [own[one] for one in others if one[1] == WHOLE]
            parts = [arm for n, arm in own if n == k and arm.startswith(kind)]
            first = next((arm for arm in parts if own[k, arm] > sum(seeds) / len(seeds)), parts[-1])
            unseen.append(lost(k, first))
    return [torch.tensor(one, dtype=torch.float64).nanmean().item() for one in (ordered, unseen)]


def _plan(plan: Design) -> None:
    s = plan.setting
    zoo = plan.zoo("networks", *s.by_scale(("digits_cnn:width=8", 4), ("myrtle_cnn:base=16", 8), ("myrtle_cnn", 10)))
    plan.baseline()
    kept, examples = s.by_scale((0.5, 0.25), *[(0.8, 0.6, 0.4, 0.2, 0.1)] * 2), s.by_scale(600, 5000, 10_000)
    for layer in activations_of(zoo.network):
        plan.add(Damaged(layer=layer, checkpoints=tuple(one.path.as_posix() for one in zoo.members), kept=kept,
                         data=s.data_spec, examples=(examples, s.by_scale(128, 1000, 1000))))  # fmt: skip


def _analyse(found: Findings) -> None:
    accuracy, apart, guard = dict[Any, float](), {m: dict[Any, dict[Any, float]]() for m in MEASURES}, found.guard()
    columns = ["statistic", "layer", "network", "partner", "arm", "value"]
    for m, layer, network, partner, arm, value in found.values.frame[columns].itertuples(index=False):
        if m == PROBED:
            accuracy[layer, network, arm] = value
        elif m in apart:
            apart[m].setdefault((layer, partner), {})[network, arm] = value
    both = cache(lambda kind, m, kept: statistics(accuracy, apart[m], kind, kept))
    of = lambda what, kind, m, kept: both(kind, m, kept)[what]
    gap = lambda what, kind, a, b, kept: of(what, kind, a, kept) - of(what, kind, b, kept)
    over = lambda *terms: jackknife(sorted({network for _, network, _ in accuracy}), partial(*terms))
    state = lambda text, effects: found.state(text, effects, above=0, guard=guard)
    for kind in KINDS:
        orders = {m: over(of, 0, kind, m) for m in MEASURES}
        found.show(f"Spearman, {kind} deleted", orders)
        found.show(f"accuracy lost unseen, {kind} deleted", {m: over(of, 1, kind, m) for m in MEASURES})
        state(f"every measure orders {kind} deleted by their loss better than chance", orders)
        for a, b in (("g_relu_procrustes", "orthogonal_procrustes"), ("g_relu_cka", "linear_cka")):
            state(f"{a} orders {kind} deleted by their loss better than {b}", over(gap, 0, kind, a, b))
    deaf = over(gap, 1, KINDS[0], "linear_cka", "orthogonal_procrustes_centered")
    state("linear CKA is deaf: more accuracy is lost unseen than with centred Procrustes (Ding et al.)", deaf)
    found.accuracies()


_TITLE, _FROM = "Do the measures see what costs accuracy?", "left open by v2 section 7"
STUDIES = (Experiment("open-sensitivity", _TITLE, _FROM, _plan, _analyse),)
