"""Positive semi-definite kernels beside the max kernel, whose CKA paper 1 (v2, remark 5.5) calls "rule-bending".

The theory of CKA is for positive semi-definite kernels, which the max kernel is not. How far is it from one on real
features? And do kernels of the same symmetry that are positive semi-definite tell the same, such as the Laplace kernel
and sums over channels of kernels of one channel? It is said of centred Gram matrices: a CKA sees nothing else.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import intertwine as iw
from intertwine.lab.data import load
from intertwine.lab.experiments import Design, Experiment, Findings, PairJob, activations_of, unordered_pairs
from intertwine.lab.statistics import Estimate, Sample, jackknife, spearman
from intertwine.similarity import measure, prepare_gram

CKAS = {"max": "g_relu_cka"} | {name: f"{name}_cka" for name in ("laplace", "channel_normalized", "rbf", "linear")}
CUT = "max without its negative part"
SUMS: dict[str, Callable[[Tensor], Tensor]] = {  # of one channel, by its products, whose diagonal is 1 on average
    "cubes": lambda p: p**3,  # positive semi-definite by Schur's product theorem, and a soft maximum
    "gaussians": lambda p: (-(p.diagonal()[:, None] + p.diagonal() - 2 * p).clamp(min=0) / 4).exp(),
}
SYMMETRIC, ROUNDING = (
    ("laplace", *SUMS, "channel_normalized"),
    1e-6,
)  # of the max kernel's symmetry; share of a spectrum


def channel_gram(x: Tensor, kind: str) -> Tensor:
    """Gram matrix ``(N, N)`` of a kernel of single channels of ``(N, C, *S)``, centred and scaled, summed over them."""
    total = torch.zeros(len(x), len(x), dtype=torch.float64)
    for c in range(x.shape[1]):
        z = x[:, c].double().reshape(len(x), -1)
        z = z - z.mean()
        total += SUMS[kind]((z @ z.T) / z.square().sum().clamp(min=1e-300) * len(z))
    return total


def negative_share(gram: Tensor) -> float:
    """Share of a symmetric matrix's spectrum that is negative: ``sum max(-l, 0) / sum |l|``."""
    values = torch.linalg.eigvalsh(gram)
    return float(values.clamp(max=0).abs().sum() / values.abs().sum())


def without_negative_part(gram: Tensor) -> Tensor:
    """The nearest positive semi-definite matrix in Frobenius norm: negative eigenvalues become 0."""
    values, vectors = torch.linalg.eigh(gram)
    return (vectors * values.clamp(min=0)) @ vectors.T


def grams(x: Tensor) -> dict[str, Tensor]:
    """Centred Gram matrices of all kernels, in float64: rounding must not look like a negative part."""
    found = {name: measure(f"{m}_biased").prepare(x.double()).gram.double() for name, m in CKAS.items()}
    found[CUT] = without_negative_part(found["max"])
    centred = lambda k: k - k.mean(0) - k.mean(1, keepdim=True) + k.mean()
    return found | {kind: centred(channel_gram(x, kind)) for kind in SUMS}


class KernelPair(PairJob):
    """One pair of networks by all kernels: unbiased CKA of all layers, and what is negative in equal layers."""

    layers: tuple[str, ...]  # Where
    examples: int  # Test images

    def run(self, files: Path) -> list[dict[str, Any]]:
        """Rows by kernel and layer; the negative share is the mean of both networks."""
        loader = load(self.data).loader("test", examples=self.examples)
        sides = [{k: grams(x) for k, x in iw.collect(model, loader, list(self.layers), progress=False).items()}
                 for model in self.networks()]  # fmt: skip
        unbiased = [{(k, n): prepare_gram(g).gram for k, by in side.items() for n, g in by.items()} for side in sides]
        names = list(sides[0][self.layers[0]])
        rows = [{"statistic": f"CKA, {n}", "layer": k, "partner_layer": j,
                 "value": float((unbiased[0][k, n] * unbiased[1][j, n]).sum())}
                for n in names for k in self.layers for j in self.layers]  # fmt: skip
        share = lambda k, n: sum(negative_share(side[k][n]) for side in sides) / 2
        return rows + [{"statistic": f"negative share, {n}", "layer": k, "value": share(k, n)}
                       for n in names for k in self.layers]  # fmt: skip


def _plan(plan: Design) -> None:
    s = plan.setting
    zoo = plan.zoo("networks", *s.by_scale(("digits_cnn:width=8", 4), ("myrtle_cnn:base=16", 8), ("myrtle_cnn", 10)))
    plan.baseline()
    for pair in unordered_pairs(zoo):
        plan.pair(KernelPair, pair, layers=activations_of(zoo.network), examples=s.by_scale(128, 500, 2000))
    plan.note(f"{', '.join(SYMMETRIC)}: positive semi-definite, of the max kernel's symmetry; rbf, linear: rotations.")


def _analyse(found: Findings) -> None:
    values, guard, cells = found.values, found.guard(), dict[str, dict[Any, list[float]]]()
    for (statistic, *pair), own in values.frame.groupby(["statistic", "network", "partner"], sort=False):
        if statistic.startswith("CKA, "):
            cells.setdefault(statistic[5:], {})[tuple(pair)] = own["value"].tolist()
    others, networks = [n for n in cells if n != "max"], Sample.of(dict.fromkeys(cells["max"], 0.0)).networks
    within = lambda n, kept: [x for pair, own in cells[n].items() if kept >= {*pair} for x in own]
    rank = lambda n, kept: spearman(within(n, kept), within("max", kept))
    ranked = {n: jackknife(networks, lambda kept, n=n: rank(n, kept)) for n in others}
    nearer = jackknife(networks, lambda kept: rank("laplace", kept) - rank("linear", kept))
    apart = Sample.of({k: sum(abs(a - b) for a, b in zip(v, cells["max"][k])) / len(v) for k, v in cells[CUT].items()})
    negative = {n: values.by_layer(f"negative share, {n}") for n in cells}
    for n in cells:
        found.show(f"{n}, CKA", values.by_layer(f"CKA, {n}", diagonal=True))
    found.show("max, negative share of the spectrum", negative["max"])
    found.show("Spearman with the max kernel", ranked)
    worst = max(x for n in others for one in negative[n].values() for x in one.means.values())
    found.state("all kernels but max are semi-definite", Estimate(worst, 0.0), below=ROUNDING, check=True)
    found.state("on real features the max kernel is not", negative["max"], above=ROUNDING, guard=guard)
    found.state("what is negative does not matter: scores change by less than 0.02", apart, below=0.02, guard=guard)
    text = "some positive semi-definite kernel with its symmetry ranks pairs of layers as it does, Spearman above 0.9"
    found.state(text, {n: ranked[n] for n in SYMMETRIC}, above=0.9, but=len(SYMMETRIC) - 1, guard=guard)
    found.state("the Laplace kernel agrees with it better than linear CKA does", nearer, above=0, guard=guard)
    found.accuracies()


_TITLE, _FROM = "Positive semi-definite kernels beside the max kernel", "left open by v2 remark 5.5"
STUDIES = (Experiment("open-psd", _TITLE, _FROM, _plan, _analyse),)
