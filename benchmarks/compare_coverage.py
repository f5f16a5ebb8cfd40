"""How often the stated error of an estimate holds, and how near its chance level is to that of many shuffles.

    python benchmarks/compare_coverage.py

Estimates of 70 pairs of layers from four architectures, with random weights on three sets of 600 images of CIFAR-10
(noise without it), stand against ``exact=True``; chance and its 95 % point of 30 pairs, 120 images, against the scores
of 2,000 real shuffles of the same rows of channels, and the mean against those of all positions.
"""

from typing import Any

import torch
from layer_cka import images
from torch import nn

import intertwine as iw
from intertwine.features import Reading
from intertwine.lab.networks import build
from intertwine.similarity import Measure, Procrustes, Resampling, measure
from intertwine.similarity.base import placed
from intertwine.similarity.comparison.all_pairs import score_all
from intertwine.similarity.comparison.compare import points_of
from intertwine.similarity.comparison.estimates import How
from intertwine.similarity.comparison.keepers import Collector, Wanted
from intertwine.similarity.comparison.layers import Network, common_space, gather, pool

MEASURES = ("linear_cka", "g_relu_cka", "orthogonal_procrustes_centered", "g_relu_procrustes_centered")
EXAMPLES, DRAWS = 600, 3
JUDGED, SHUFFLES, PAIRS = 120, 2000, 30
LAYERS = {"ResNet20": ["relu", "layer1.1.relu2", "layer2.1.relu2", "layer3.2.relu2"]}


def architectures() -> dict[str, tuple[nn.Module, nn.Module]]:
    """Pairs of networks with random weights."""
    mlp = lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(3072, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU()
    )
    plain = lambda: nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(),
    )  # fmt: skip
    encoder = lambda: nn.Sequential(
        nn.Conv2d(3, 64, 8, stride=8), nn.Flatten(2), Transposed(),
        *(nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True) for _ in range(3)),
    )  # fmt: skip
    makes = {"ResNet20": lambda: build("resnet20"), "MLP": mlp, "CNN": plain, "transformer": encoder}
    found = {}
    for name, make in makes.items():
        torch.manual_seed(0)
        found[name] = (make().eval(), make().eval())
    return found


class Transposed(nn.Module):
    """Tokens as the second axis."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Swap the last axes."""
        return x.mT


def coverage() -> None:
    """The first table."""
    print("| architecture | measure | pairs | largest difference | root mean square | mean stated error | holds |")
    print("|---|---|---|---|---|---|---|")
    every = images(EXAMPLES * DRAWS).split(EXAMPLES)
    plain = {"resampling": Resampling(null=0, bootstrap=0, untrained=0), "progress": False}
    for name, (a, b) in architectures().items():
        ways = [
            [iw.compare(a, b, list(x.split(200)), LAYERS.get(name), MEASURES, exact=way, **plain) for x in every]
            for way in (False, True)
        ]
        for m in MEASURES:
            found, oracle = (torch.stack([one.scores[m] for one in way]) for way in ways)
            error, off = torch.stack([one.error[m] for one in ways[0]]), (found - oracle).abs()
            held = f"{100 * (off <= error + 1e-6).double().mean():.0f} %"
            numbers = f"{off.max():.4f} | {off.square().mean().sqrt():.4f} | {error.mean():.4f}"
            print(f"| {name} | {m} | {off.numel()} | {numbers} | {held} |", flush=True)


def networks(a: nn.Module, b: nn.Module, x: torch.Tensor, layers: list[str] | None) -> tuple[Network, Network]:
    """What one pass keeps of both networks."""
    chosen, running = [measure(m) for m in MEASURES], {}
    for name, model in (("A", a), ("B", b)):
        running[name] = (model, points_of(model, layers, Reading(), x))
    want = Wanted.of(chosen, [some for _, some in running.values()], len(x), 0)
    found = gather(running, {n: Collector(n, some, want) for n, (_, some) in running.items()}, [x], Reading())
    return found["A"], found["B"]


def shuffled(m: Measure[Any], x: torch.Tensor, y: torch.Tensor, count: int) -> torch.Tensor:
    """Scores of shuffled features."""
    a, b = m.prepare(x), m.prepare(y)
    generator = torch.Generator().manual_seed(0)
    orders = (torch.randperm(a.n, generator=generator) for _ in range(count))
    if not isinstance(m, Procrustes):
        return torch.tensor([m.score(a, b.take(order)) for order in orders], dtype=torch.float64)
    left, right = (side.block(slice(0, side.n)).unflatten(0, (side.n, -1)) for side in (a, b))
    left = left.flatten(0, 1).T.contiguous()
    crosses = (placed(left @ right[order].flatten(0, 1), a.kept, b.kept) for order in orders)
    traces = [m.best_trace(m.gains(c, a.norms, b.norms)) for c in crosses]
    return m.score_trace(torch.tensor(traces, dtype=torch.float64), a.norms, b.norms)


def chance() -> None:
    """The second table."""
    print("\n| measure | pairs | mean | its standard error | beyond the 95 % point | mean, all positions |")
    print("|---|---|---|---|---|---|")
    rows: dict[str, list[tuple[float, ...]]] = {m: [] for m in MEASURES}
    x = images(JUDGED)
    for name, (a, b) in architectures().items():
        kept = networks(a, b, x, LAYERS.get(name))
        found = score_all([measure(m) for m in MEASURES], *kept, How(intervals=False))
        features = [iw.collect(model, [x], LAYERS.get(name)) for model in (a, b)]
        axes = [{p.name: p.channel_dim for p in points_of(model, LAYERS.get(name), Reading(), x)} for model in (a, b)]
        sides = [[z.movedim(dims[n], 1) for n, z in some.items()] for some, dims in zip(features, axes)]
        n = len(sides[0])
        pairs = [(i, j % n) for j in range(n) for i in range(n)][:: max(1, n * n // 8)][:8]
        for i, j in pairs[: PAIRS - len(rows[MEASURES[0]])]:
            u, v = sides[0][i], sides[1][j]
            space = common_space(tuple(u.shape[2:]), tuple(v.shape[2:]))
            pooled = pool(u, space), pool(v, space)
            seen = [side.layers[k].rows(space)[0].mT for side, k in zip(kept, (i, j))]  # of the sampled positions
            for m in MEASURES:
                one, told, kernel = measure(m), found[m], "cka" in m
                drawn = shuffled(one, *((u, v) if kernel else seen), SHUFFLES)
                every = drawn if kernel or seen[0].numel() == pooled[0].numel() else None
                every = shuffled(one, *pooled, SHUFFLES // 10) if every is None else every
                beyond, mean = float((drawn > told.upper[i, j]).double().mean()), float(told.chance[i, j])
                error = float(drawn.std()) / SHUFFLES**0.5
                rows[m].append((mean - float(drawn.mean()), error, beyond, mean - float(every.mean())))
    for m, some in rows.items():
        off, error, beyond, whole = torch.tensor(some, dtype=torch.float64).T
        ends = f"{100 * beyond.mean():.1f} % ({100 * beyond.min():.1f} to {100 * beyond.max():.1f} %)"
        numbers = f"{off.abs().max():.5f} | {error.mean():.5f} | {ends} | {whole.abs().max():.5f}"
        print(f"| {m} | {len(some)} | {numbers} |", flush=True)


if __name__ == "__main__":
    coverage()
    chance()
