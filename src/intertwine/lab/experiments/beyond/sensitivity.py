"""Sensitivity of the measures to what costs accuracy, which paper 1, section 7, says it did not test.

The tests are those of Ding, Denain and Steinhardt, "Grounding representation similarity through statistical testing"
(NeurIPS 2021), on networks of our own. A *reference* is one layer of one network. Another representation has a
*dissimilarity* from it, by each measure, and a *loss*: the difference of the accuracies of two linear classifiers, one
on each. A good measure orders representations by their loss (rank correlations). And it is neither deaf nor jumpy: as
parts of the reference itself are deleted, it should tell the deletion from a mere change of the random seed before much
accuracy is gone.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ....features import tap
from ....similarity import measure
from ...data import Batches, load
from ...runs import Job
from ...training import choose_device, load_checkpoint
from ..experiment import Experiment, Measured, Setting
from ..over_models import kendall, over_models, spearman
from ..reproduction import Reproduction, Row
from ..verdicts import Claim, claim
from ..zoos import accuracy_rows, trained
from .shared import MEASURES as ALL
from .shared import networks_note, open_zoo, relu_layers

Kind = Literal["components", "channels"]

MEASURES = tuple(m for m in ALL if m != "gates_cka")  # of features averaged over space, which are all switched on
_SPREAD = 1e-3  # ridge of the linear classifiers, as a share of the features' mean variance


class Damaged(Job):
    """One layer of several networks: whole, with parts deleted, and beside their other layers."""

    gpus: ClassVar[float] = 0.25

    layer: str  # The layer of the references
    layers: tuple[str, ...]  # Names of all layers
    networks: tuple[str, ...]  # Checkpoints
    kept: tuple[float, ...]  # Shares of components or channels that are left
    data: str  # As ``lab.data.load`` takes it
    examples: int  # Test images
    probed: int  # Training images of the linear classifiers
    seed: int  # Of the orders in which channels are deleted
    device: str = "auto"  # Where the networks run

    @property
    def label(self) -> str:
        """The layer."""
        return self.layer

    def run(self, files: Path) -> dict[str, Any]:
        """Delete, classify, compare.

        Returns:
            ``representations``: network, layer, kind of deletion (``""`` for none) and share left of each;
            ``accuracies``: of their linear classifiers; ``dissimilarities``: for each measure, one list for each
            representation, with one number for each network's whole layer; ``None`` where a measure refuses.
        """
        labels, features = self._features()
        whole = [network[self.layer] for network in features]
        references = {m: [_prepared(m, test) for _, test in whole] for m in MEASURES}
        found: dict[str, Any] = {"representations": [], "accuracies": [], "dissimilarities": {m: [] for m in MEASURES}}
        for what, train, test in self._representations(features):
            found["representations"].append(what)
            found["accuracies"].append(probe(train, labels[0], test, labels[1]))
            for m in MEASURES:
                found["dissimilarities"][m].append(_dissimilarities(m, references[m], test))
        return found

    def _features(self) -> tuple[list[Tensor], list[dict[str, tuple[Tensor, Tensor]]]]:
        """Labels of training and test images; for each network and layer, the features of both."""
        data = load(self.data)
        loaders = data.loader("train", examples=self.probed), data.loader("test", examples=self.examples)
        features = []
        for path in self.networks:
            model = load_checkpoint(path).to(choose_device(self.device))
            train, test = (_pooled_features(model, self.layers, loader) for loader in loaders)
            features.append({layer: (train[layer], test[layer]) for layer in self.layers})
        return [loader.split.labels for loader in loaders], features

    def _representations(
        self, features: list[dict[str, tuple[Tensor, Tensor]]]
    ) -> Iterator[tuple[list[Any], Tensor, Tensor]]:
        for k, network in enumerate(features):
            for layer in self.layers:
                yield [k, layer, "", 1.0], *network[layer]
            for kind in ("components", "channels"):
                for share in self.kept:
                    yield [k, self.layer, kind, share], *delete(*network[self.layer], kind, share, self.seed + k)


def _pooled_features(model: nn.Module, layers: Sequence[str], loader: Batches) -> dict[str, Tensor]:
    """Channels averaged over space, ``(N, C)`` in float64."""
    parts: dict[str, list[Tensor]] = {layer: [] for layer in layers}
    with tap(model, list(layers)) as tapped:
        for batch in loader:
            for layer, x in tapped(batch).items():
                parts[layer].append(x.double().flatten(2).mean(2).cpu() if x.ndim > 2 else x.double().cpu())
    return {layer: torch.cat(chunks) for layer, chunks in parts.items()}


def _prepared(name: str, x: Tensor) -> Any:
    """A measure's side, or ``None`` where it refuses, such as correlations over the one channel that is left."""
    try:
        return measure(name).prepare(x)
    except ValueError:
        return None


def _dissimilarities(name: str, references: Sequence[Any], x: Tensor) -> list[float | None]:

    side = _prepared(name, x)
    return [None if side is None or r is None else 1 - measure(name).score(r, side) for r in references]


def delete(train: Tensor, test: Tensor, kind: Kind, share: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Features of which only a share is left.

    Args:
        train: Training features ``(N, C)``, which principal components are taken from.
        test: Test features ``(M, C)``.
        kind: ``"components"`` deletes principal components from the lowest variance upwards, ``"channels"`` sets
            channels to 0 in a random order. What is deleted at one share is deleted at all smaller ones.
        share: Of components or channels that are left; one at least.
        seed: Of the order of the channels.

    Examples:
        >>> import torch
        >>> x = torch.tensor([[3.0, 0.1], [-3.0, 0.1], [3.0, -0.1], [-3.0, -0.1]], dtype=torch.float64)
        >>> delete(x, x[:1], "components", 0.5)[1].abs().round(decimals=6).tolist()
        [[3.0, 0.0]]
    """
    width = train.shape[1]
    left = max(1, round(share * width))
    if kind == "channels":
        alive = torch.zeros(width, dtype=train.dtype)
        alive[torch.randperm(width, generator=torch.Generator().manual_seed(seed))[:left]] = 1
        return train * alive, test * alive
    mean = train.mean(0)
    directions = torch.linalg.eigh(torch.cov(train.T).reshape(width, width)).eigenvectors[:, -left:]
    project = directions @ directions.T
    return mean + (train - mean) @ project, mean + (test - mean) @ project


def probe(train: Tensor, labels: Tensor, test: Tensor, truth: Tensor) -> float:
    """Test accuracy of a linear classifier on fixed features: least squares on one-hot labels, with a slight ridge.

    Args:
        train: Training features ``(N, C)``.
        labels: Their classes ``(N,)``.
        test: Test features ``(M, C)``.
        truth: Their classes ``(M,)``.

    Examples:
        >>> import torch
        >>> x, y = torch.tensor([[0.0], [1.0], [4.0], [5.0]]), torch.tensor([0, 0, 1, 1])
        >>> probe(x, y, x + 0.1, y)
        1.0
    """
    mean = train.mean(0)
    x, wanted = train - mean, torch.nn.functional.one_hot(labels).to(train)
    second = x.T @ x
    ridge = _SPREAD * second.diagonal().mean().clamp(min=torch.finfo(train.dtype).tiny)
    second.diagonal().add_(ridge)
    weights = torch.linalg.solve(second, x.T @ (wanted - wanted.mean(0)))
    guess = ((test - mean) @ weights + wanted.mean(0)).argmax(1)
    return float((guess == truth).double().mean())


@dataclass(frozen=True)
class _Found:
    """What a ``Damaged`` job found, ready for statistics of some of its networks."""

    layer: str
    representations: list[list[Any]]
    accuracies: list[float]
    dissimilarities: dict[str, list[list[float | None]]]

    def agreement(
        self, m: str, kind: Kind | Literal["layers"], correlate: Callable[..., float], kept: frozenset[int]
    ) -> float:
        """Mean over references of the rank correlation of dissimilarity and loss, over the other networks' parts."""
        found = []
        for k in kept:
            others = [
                i
                for i, (network, layer, deleted, _) in enumerate(self.representations)
                if network in kept and network != k and (kind == "layers" or layer == self.layer)
                and deleted in ("", kind)
            ]  # fmt: skip
            reference = self._whole(k)
            losses = [abs(self.accuracies[reference] - self.accuracies[i]) for i in others]
            found.append(correlate([self.dissimilarities[m][i][k] for i in others], losses))
        return sum(found) / len(found)

    def unseen(self, m: str, kind: Kind, kept: frozenset[int]) -> float:
        """Mean over references of the accuracy that is lost before a deletion shows more than a change of seed."""
        found = []
        for k in kept:
            seeds = [d for j in kept if j != k and (d := self.dissimilarities[m][self._whole(j)][k]) is not None]
            own = [i for i, what in enumerate(self.representations) if what[0] == k and what[2] == kind]
            if not seeds:
                return nan
            seen = [
                i
                for i in own
                if (d := self.dissimilarities[m][i][k]) is not None and d > sum(seeds) / len(seeds)
            ]  # fmt: skip
            first = max(seen or own, key=lambda i: self.representations[i][3] if seen else -self.representations[i][3])
            found.append(self.accuracies[self._whole(k)] - self.accuracies[first])
        return sum(found) / len(found)

    def _whole(self, network: int) -> int:
        return self.representations.index([network, self.layer, "", 1.0])


_UNSEEN = "accuracy lost unseen"
_RIVALS = (("g_relu_procrustes", "orthogonal_procrustes"), ("g_relu_cka", "linear_cka"))
_AFTER: dict[Kind | Literal["layers"], str] = {
    "components": "principal components deleted",
    "channels": "channels deleted",
    "layers": "other layers",
}


def _rows(found: Sequence[_Found], models: Sequence[int]) -> list[Row]:
    rows = []
    for kind, words in _AFTER.items():
        for name, correlate in (("Spearman", spearman), ("Kendall", kendall)):
            for m in MEASURES:
                statistic = lambda kept, k=kind, c=correlate, m=m: _mean([f.agreement(m, k, c, kept) for f in found])
                rows.append(Row.of(m, over_models(models, statistic).within(-1, 1), group=f"{name}, {words}"))
    for kind in ("components", "channels"):
        for m in MEASURES:
            lost = lambda kept, k=kind, m=m: _mean([f.unseen(m, k, kept) for f in found])
            rows.append(Row.of(m, over_models(models, lost).within(-1, 1), group=f"{_UNSEEN}, {_AFTER[kind]}"))
    for kind in ("components", "channels"):
        for ours, theirs in _RIVALS:
            gap = lambda kept, k=kind, a=ours, b=theirs: _mean(
                [f.agreement(a, k, spearman, kept) - f.agreement(b, k, spearman, kept) for f in found]
            )
            group = f"Spearman above that of its rival, {_AFTER[kind]}"
            rows.append(Row.of(ours, over_models(models, gap), group=group))
    return rows


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _judge(found: Reproduction) -> list[Claim]:
    table, networks = found.table, trained(found)
    claims = [
        claim(f"every measure orders {words} by their loss better than chance"
              + " (SVCCA and PWCCA are means over the directions that are left, and rise as weak ones are deleted)"
              * words.endswith("deleted"),
              table[f"Spearman, {words}"], above=0, trained=networks)
        for words in _AFTER.values()
    ]  # fmt: skip
    unseen = table[f"{_UNSEEN}, {_AFTER['components']}"]
    claims.append(
        claim("linear CKA is deaf: more accuracy is lost unseen than with centred orthogonal Procrustes (Ding et al.)",
              {"linear CKA - Procrustes": unseen["linear_cka"] - unseen["orthogonal_procrustes_centered"]},
              above=0, trained=networks)
    )  # fmt: skip
    for kind in ("components", "channels"):
        words = _AFTER[kind]
        by, gaps = table[f"Spearman, {words}"], table.get(f"Spearman above that of its rival, {words}", {})
        for ours, theirs in _RIVALS:
            gap = gaps.get(ours) or by[ours] - by[theirs]
            claims.append(
                claim(
                    f"{ours} orders {words} by their loss better than {theirs}",
                    {"difference of Spearman": gap},
                    above=0,
                    trained=networks,
                )
            )
    return claims


def _run(setting: Setting) -> Measured:
    zoo = open_zoo(setting)
    layers = relu_layers(zoo)
    layers = layers[1:] if setting.scale == "smoke" else layers
    kept = setting.by_scale((0.5, 0.25, 0.1), (0.8, 0.6, 0.4, 0.2, 0.1, 0.05), (0.9, 0.7, 0.5, 0.2, 0.1, 0.05))
    examples, probed = setting.by_scale(128, 500, 1000), setting.by_scale(600, 2000, 10_000)
    values = setting.run([
        Damaged(
            layer=layer, layers=layers, networks=tuple(str(m.path.resolve()) for m in zoo.members), kept=kept,
            data=setting.data_spec, examples=examples, probed=probed, seed=setting.seed, device=setting.device,
        )
        for layer in layers
    ])  # fmt: skip
    found = [_Found(layer, **value) for layer, value in zip(layers, values)]
    whole = [f.accuracies[f._whole(k)] for f in found for k in range(len(zoo))]
    notes = [
        networks_note(zoo, f"{examples} test images, features averaged over space, {len(layers)} layers"),
        f"Loss: accuracy of a linear classifier, fitted to {probed} training images ({_mean(whole):.1%} on "
        "average on whole layers). Correlations are between dissimilarity from a reference and loss, over parts "
        "of the *other* networks: a measure that a change of seed overwhelms cannot order them. Means over references "
        "and layers.",
        "'Accuracy lost unseen': how much is lost when parts of a network differ more from the whole than another seed "
        "does; where that never happens, at the strongest deletion.",
    ]  # fmt: skip
    return Measured([*accuracy_rows({"networks": zoo}), *_rows(found, range(len(zoo)))], notes)


_NAME, _TITLE, _PAPERS = "open-sensitivity", "Do the measures see what costs accuracy?", "left open by v2 section 7"

EXPERIMENTS = (Experiment(_NAME, _TITLE, _PAPERS, _run, _judge),)
