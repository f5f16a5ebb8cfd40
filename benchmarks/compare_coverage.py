"""How often the stated error of an estimate holds, and how near its chance level is to that of many shuffles.

    python benchmarks/compare_coverage.py

Estimates of 70 pairs of layers from four architectures, with random weights on three sets of 600 images of CIFAR-10
(noise without it), stand against ``exact=True``; chance and its 95 % point of 30 pairs, 120 images, against the scores
of 2,000 real shuffles with all examples and positions.
"""

import torch
from layer_cka import images
from torch import nn

import intertwine as iw
from intertwine.features import Reading
from intertwine.lab.networks import build
from intertwine.similarity import Resampling, measure
from intertwine.similarity.comparison.all_pairs import score_all
from intertwine.similarity.comparison.compare import points_of
from intertwine.similarity.comparison.estimates import Estimates, How
from intertwine.similarity.comparison.layers import gather
from intertwine.similarity.comparison.positions import common_space, pool
from intertwine.similarity.comparison.statistics import Collector, Wanted
from intertwine.similarity.inference import permutation_scores

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


def estimated(a: nn.Module, b: nn.Module, x: torch.Tensor, layers: list[str] | None) -> dict[str, Estimates]:
    """What one pass tells of all pairs of layers, the 95 % point of chance among it."""
    chosen, running = [measure(m) for m in MEASURES], {}
    for name, model in (("A", a), ("B", b)):
        running[name] = (model, points_of(model, layers, Reading(), x))
    want = Wanted.of(chosen, [p for _, some in running.values() for p in some], len(x), 0)
    found = gather(running, {n: Collector(n, some, want) for n, (_, some) in running.items()}, [x], Reading())
    return score_all(chosen, found["A"], found["B"], How(intervals=False))


def chance() -> None:
    """The second table."""
    print("\n| measure | pairs | mean: largest difference | its standard error | shuffles beyond the 95 % point |")
    print("|---|---|---|---|---|")
    rows: dict[str, list[tuple[float, ...]]] = {m: [] for m in MEASURES}
    x = images(JUDGED)
    for name, (a, b) in architectures().items():
        found = estimated(a, b, x, LAYERS.get(name))
        features = [list(iw.collect(model, [x], LAYERS.get(name)).values()) for model in (a, b)]
        axes = [[p.channel_dim for p in points_of(model, LAYERS.get(name), Reading(), x)] for model in (a, b)]
        sides = [[z.movedim(d, 1) for z, d in zip(some, dims)] for some, dims in zip(features, axes)]
        n = len(sides[0])
        pairs = [(i, j % n) for j in range(n) for i in range(n)][:: max(1, n * n // 8)][:8]
        for (i, j), m in ((at, m) for at in pairs[: PAIRS - len(rows[MEASURES[0]])] for m in MEASURES):
            u, v = sides[0][i], sides[1][j]
            space = common_space(tuple(u.shape[2:]), tuple(v.shape[2:]))
            one, both = measure(m), (u, v) if "cka" in m else (pool(u, space), pool(v, space))
            drawn = permutation_scores(one, *(one.prepare(z) for z in both), SHUFFLES)
            told = found[m]
            beyond = float((drawn > told.upper[i, j]).double().mean())
            rows[m].append((float(told.chance[i, j] - drawn.mean()), float(drawn.std()) / SHUFFLES**0.5, beyond))
    for m, some in rows.items():
        off, error, beyond = torch.tensor(some, dtype=torch.float64).T
        ends = f"{100 * beyond.mean():.1f} % ({100 * beyond.min():.1f} to {100 * beyond.max():.1f} %)"
        print(f"| {m} | {len(some)} | {off.abs().max():.5f} | {error.mean():.5f} | {ends} |", flush=True)


if __name__ == "__main__":
    coverage()
    chance()
