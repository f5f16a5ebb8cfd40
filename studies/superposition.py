"""Superposition as the reason why G_ReLU-CKA decays with depth, as paper 1 speculates (v2 D.8).

Asked of synthetic features, where the answer is known: two networks encode the same sparse features,

- *superposed*: more features than channels, each along a random direction of its own, behind a ReLU;
- *rotated*: as many features as channels, in a random orthogonal basis: no superposition;
- *summed*: the paper's thought experiment, in which each channel sums two of the layer before, drawn anew;
- *summed alike*: the second network is the first, its channels permuted.
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from intertwine.groups import Orthogonal, Permutation
from intertwine.lab.experiments import Design, Experiment, Findings
from intertwine.lab.runs import Job
from intertwine.lab.statistics import Estimate
from intertwine.similarity import cka

CROWDS, LAYERS = tuple(f"features per channel = {r}" for r in (1, 2, 4, 8)), tuple(f"layer {k}" for k in range(6))
POINTS = {"superposed": CROWDS, "rotated": CROWDS[:1], "summed": LAYERS, "summed alike": LAYERS}
KERNELS = {"G_ReLU-CKA": "max", "linear CKA": "linear"}
DENSITY = 0.1  # share of features that are on
KEPT = 0.9  # linear CKA of trained networks at equal layers is above it: see table2-dissimilarity


class Encoded(Job):
    """Two networks that encode the same features."""

    kind: str  # How: one of ``POINTS``
    width: int  # Channels
    examples: int  # Number of them
    seed: int  # Of features and networks

    def run(self, files: Path) -> list[dict[str, Any]]:
        """CKA of the two networks by kernel, at each point of the kind."""
        pairs = zip(POINTS[self.kind], self._pairs(torch.Generator().manual_seed(self.seed)))
        return [{"statistic": name, "layer": point, "value": cka(a, b, kernel)}
                for point, (a, b) in pairs for name, kernel in KERNELS.items()]  # fmt: skip

    def _pairs(self, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        n = self.width
        moved = Permutation(n).random(generator).matrix().float()
        if self.kind == "rotated":
            x, bases = self._features(n, generator), [Orthogonal(n).random(generator).matrix().float() for _ in "ab"]
            yield x @ bases[0], x @ bases[1]
        elif self.kind == "superposed":
            x = self._features(n, generator)
            yield x, x @ moved.T  # every feature has a channel of its own
            for many in (2 * n, 4 * n, 8 * n):
                x, maps = self._features(many, generator), torch.randn(2, many, n, generator=generator)
                a, b = (x @ (maps / maps.norm(dim=2, keepdim=True))).relu()
                yield a, b
        else:
            a = self._features(n, generator)
            b = a @ moved.T
            for _ in LAYERS:
                yield a, b
                a = summed(a, generator)
                b = a @ moved.T if self.kind == "summed alike" else summed(b, generator)

    def _features(self, count: int, generator: torch.Generator) -> Tensor:
        """Sparse and not negative, ``(examples, count)``."""
        size, on = torch.rand(2, self.examples, count, generator=generator)
        return size * (on < DENSITY)


def summed(x: Tensor, generator: torch.Generator) -> Tensor:
    """Each channel is added to another one."""
    order = torch.randperm(x.shape[1], generator=generator)
    return x[:, order] + x[:, order.roll(1)]


def _plan(plan: Design) -> None:
    s = plan.setting
    width, examples, draws = s.by_scale((32, 200, 3), (128, 1000, 10), (128, 1000, 10))
    for kind in POINTS:
        for k in range(s.seed, s.seed + draws):
            plan.add(Encoded(kind=kind, width=width, examples=examples, seed=k), kind, k)
    plan.note(f"{width} channels, {examples} examples, {DENSITY:.0%} of the features on; intervals over {draws} draws.",
              "Trained networks have a linear CKA above 0.9 at equal layers while G_ReLU-CKA falls "
              "(table2-dissimilarity): an explanation must have both.")  # fmt: skip


def _analyse(found: Findings) -> None:
    by = {kind: [found.values.by_layer(name, kind) for name in KERNELS] for kind in POINTS}
    for kind, both in by.items():
        for name, one in zip(KERNELS, both):
            found.show(f"{name}, {kind}", one)
    (relu, linear), (turned, turned_linear), (sums, sums_linear), (alike, _) = by.values()
    falls = lambda one: {b: one[a] - one[b] for a, b in pairwise(one)}
    above = lambda one, other: {k: one[k] - other[k] for k in list(one)[1:]}
    steps, crowded = falls(sums), {k: linear[k] for k in CROWDS[1:]}
    found.state("superposition that differs between networks lowers G_ReLU-CKA with every doubling of the features",
                falls(relu), above=0)  # fmt: skip
    found.state("by more than linear CKA", above(linear, relu), above=0)
    found.state("it leaves linear CKA above 0.9, as trained networks have it", crowded, above=KEPT)
    found.state("without superposition a basis of its own keeps G_ReLU-CKA above 0.9", turned, above=KEPT)
    found.state("and leaves linear CKA above 0.9", turned_linear, above=KEPT)
    found.state("sums of two channels, drawn anew in every network, lower G_ReLU-CKA in the first two layers",
                {k: steps[k] for k in LAYERS[1:3]}, above=0)  # fmt: skip
    found.state("and in every further one", {k: steps[k] for k in LAYERS[3:]}, above=0)
    found.state("by more than linear CKA, in every layer", above(sums_linear, sums), above=0)
    lost = max(abs(x - 1) for one in alike.values() for x in one.means.values())
    found.state("where all networks sum alike, nothing is lost: G_ReLU-CKA stays within 0.01 of 1",
                Estimate(lost, 0.0), below=0.01, check=True)  # fmt: skip


_TITLE = "Does superposition explain the decay of G_ReLU-CKA?"
STUDIES = (Experiment("open-superposition", _TITLE, "left open by v2 D.8", _plan, _analyse),)
