"""Superposition as the reason why G_ReLU-CKA decays with depth, as paper 1 speculates (v2 D.8).

Asked of synthetic features, where the answer is known: two networks encode the same sparse features,

- *superposed*: more features than channels, each along a random direction of its own, behind a ReLU;
- *rotated*: as many features as channels, in a random orthogonal basis: no superposition;
- *summed*: the paper's thought experiment, in which each channel sums two of the layer before, drawn anew;
- *summed alike*: the second network is the first, its channels permuted.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from ....groups import Orthogonal, Permutation
from ....similarity import cka
from ...runs import Job
from ..estimates import decreases, minus, of_runs
from ..experiment import Experiment, Measured, Setting
from ..reproduction import Reproduction, Row
from ..verdicts import Claim, claim

Kind = Literal["superposed", "rotated", "summed", "summed alike"]

_POINTS: dict[Kind, tuple[str, ...]] = {
    "superposed": tuple(f"features per channel = {r}" for r in (1, 2, 4, 8)),
    "rotated": ("features per channel = 1",),
    "summed": tuple(f"layer {k}" for k in range(6)),
    "summed alike": tuple(f"layer {k}" for k in range(6)),
}
_KERNELS = {"G_ReLU-CKA": "max", "linear CKA": "linear"}
_DENSITY = 0.1  # share of features that are on
_KEPT = 0.9  # linear CKA of trained networks at equal layers is above it: see table2-dissimilarity


class Encoded(Job):
    """Two networks that encode the same features."""

    kind: Kind  # How
    width: int  # Channels
    examples: int  # Number of them
    seed: int  # Of features and networks

    def run(self, files: Path) -> dict[str, list[float]]:
        """CKA of the two networks by kernel, at each point of the kind."""
        pairs = list(self._pairs(torch.Generator().manual_seed(self.seed)))
        return {name: [cka(a, b, kernel) for a, b in pairs] for name, kernel in _KERNELS.items()}

    def _pairs(self, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        n = self.width
        moved = Permutation(n).random(generator).matrix().float()
        if self.kind in ("superposed", "rotated"):
            for point in _POINTS[self.kind]:
                many = n * int(point.rpartition(" ")[2])
                x = self._features(many, generator)
                if many == n and self.kind == "superposed":  # every feature has a channel of its own
                    yield x, x @ moved.T
                elif many == n:
                    a, b = (Orthogonal(n).random(generator).matrix().float() for _ in range(2))
                    yield x @ a, x @ b
                else:
                    a, b = (torch.randn(many, n, generator=generator) for _ in range(2))
                    yield tuple((x @ (w / w.norm(dim=1, keepdim=True))).relu() for w in (a, b))
            return
        a = self._features(n, generator)
        b = a @ moved.T
        for _ in _POINTS[self.kind]:
            yield a, b
            a = _summed(a, generator)
            b = a @ moved.T if self.kind == "summed alike" else _summed(b, generator)

    def _features(self, count: int, generator: torch.Generator) -> Tensor:
        """Sparse and not negative, ``(examples, count)``."""
        size, on = torch.rand(2, self.examples, count, generator=generator)
        return size * (on < _DENSITY)


def _summed(x: Tensor, generator: torch.Generator) -> Tensor:
    """Each channel is added to another one."""
    order = torch.randperm(x.shape[1], generator=generator)
    return x[:, order] + x[:, order.roll(1)]


def _measure(setting: Setting) -> Measured:
    width, examples, draws = setting.by_scale((32, 200, 3), (128, 1000, 10), (128, 1000, 10))
    jobs = [
        Encoded(kind=kind, width=width, examples=examples, seed=setting.seed + k)
        for kind in _POINTS
        for k in range(draws)
    ]
    values = iter(setting.run(jobs))
    found = {kind: [next(values) for _ in range(draws)] for kind in _POINTS}
    rows = [
        Row.of(point, of_runs(v[measure][k] for v in found[kind]), group=f"{measure}, {kind}")
        for kind, points in _POINTS.items()
        for measure in _KERNELS
        for k, point in enumerate(points)
    ]
    notes = [
        f"{width} channels, {examples} examples, {_DENSITY:.0%} of the features on; {draws} draws of features and "
        "networks, intervals over draws.",
        "Trained networks have a linear CKA above 0.9 at equal layers while G_ReLU-CKA falls (table2-dissimilarity): "
        "an explanation must have both.",
    ]
    return Measured(rows, notes)


def _judge(found: Reproduction) -> list[Claim]:
    of = lambda kind: (found.table[f"{name}, {kind}"] for name in _KERNELS)
    (g_relu, linear), (turned, turned_linear), (summed, summed_linear), (alike, _) = map(of, _POINTS)
    steps = decreases(summed)
    crowded = {k: e for k, e in linear.items() if not k.endswith(" 1")}
    first = dict(list(steps.items())[:2])
    return [
        claim("superposition that differs between networks lowers G_ReLU-CKA with every doubling of the features",
              decreases(g_relu), above=0),
        claim("by more than linear CKA", {k: e for k, e in minus(linear, g_relu).items() if k in crowded}, above=0),
        claim("it leaves linear CKA above 0.9, as trained networks have it", crowded, above=_KEPT),
        claim("without superposition a basis of its own keeps G_ReLU-CKA above 0.9", turned, above=_KEPT),
        claim("and leaves linear CKA above 0.9", turned_linear, above=_KEPT),
        claim("sums of two channels, drawn anew in every network, lower G_ReLU-CKA in the first two layers", first,
              above=0),
        claim("and in every further one", {k: e for k, e in steps.items() if k not in first}, above=0),
        claim("by more than linear CKA, in every layer",
              {k: e for k, e in minus(summed_linear, summed).items() if k != "layer 0"}, above=0),
        claim("where all networks sum alike, nothing is lost: G_ReLU-CKA stays within 0.01 of 1", alike, above=0.99,
              below=1.01, check=True),
    ]  # fmt: skip


_TITLE = "Does superposition explain the decay of G_ReLU-CKA?"

EXPERIMENTS = (Experiment("open-superposition", _TITLE, "left open by v2 D.8", _measure, _judge, data=False),)
