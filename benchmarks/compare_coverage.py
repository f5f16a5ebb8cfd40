"""How often the stated error of an estimate holds, and how near its chance level is to that of many shuffles.

    python benchmarks/compare_coverage.py

Estimates of 40 pairs of layers from four architectures, with random weights on CIFAR-10 (noise without it), stand
against ``exact=True``; the closed-form chance of 30 pairs against 2,000 shuffles of their Gram matrices.
"""

import torch
from layer_cka import images
from torch import nn

import intertwine as iw
from intertwine.lab.networks import build
from intertwine.similarity import Resampling
from intertwine.similarity.comparison.kernel_alignment import Chance, spread_factor, third_moment, third_sums
from intertwine.similarity.hsic import center_gram
from intertwine.similarity.measures.kernels import linear_gram

MEASURES = ("linear_cka", "g_relu_cka", "orthogonal_procrustes_centered", "g_relu_procrustes_centered")
EXAMPLES, SHUFFLES = 600, 2000


def architectures() -> dict[str, tuple[nn.Module, nn.Module, list[torch.Tensor]]]:
    """Pairs of networks with their data."""
    x = images(EXAMPLES)
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
        found[name] = (make().eval(), make().eval(), list(x.split(200)))
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
    for name, (a, b, x) in architectures().items():
        layers = None if name != "ResNet20" else ["relu", "layer1.1.relu2", "layer2.1.relu2", "layer3.2.relu2"]
        plain = {"resampling": Resampling(null=0, bootstrap=0, untrained=0), "progress": False}
        found = iw.compare(a, b, x, layers, MEASURES, exact=False, **plain)
        oracle = iw.compare(a, b, x, layers, MEASURES, exact=True, **plain)
        for m in MEASURES:
            off = (found.scores[m] - oracle.scores[m]).abs()
            error = found.error[m]
            held = f"{100 * (off <= error + 1e-6).double().mean():.0f} %"
            numbers = f"{off.max():.4f} | {off.square().mean().sqrt():.4f} | {error.mean():.4f}"
            print(f"| {name} | {m} | {off.numel()} | {numbers} | {held} |", flush=True)


def chance() -> None:
    """The second table."""
    print("\n| pairs | statistic | largest difference | standard error of the shuffles |")
    print("|---|---|---|---|")
    grams, generator = [], torch.Generator().manual_seed(0)
    for a, _, x in architectures().values():
        for features in list(iw.collect(a, [x[0][:100]]).values())[:4]:
            grams.append(center_gram(linear_gram(features).double()))
    pairs = [(i, j) for i in range(len(grams)) for j in range(i, len(grams))][:: max(1, len(grams) // 4)][:30]
    off = torch.zeros(len(pairs), 3, dtype=torch.float64)
    for row, (i, j) in enumerate(pairs):
        k, l = grams[i], grams[j]
        size = k.norm() * l.norm()
        drawn = torch.stack(
            [(k * l[order][:, order]).sum() / size for order in
             (torch.randperm(len(k), generator=generator) for _ in range(SHUFFLES))]
        )  # fmt: skip
        n = len(k)
        deviation = torch.tensor(spread_factor(n)).double().sqrt()
        third = third_moment(n, third_sums(k[None]), third_sums(l[None]))[0, 0] / size**3
        known = Chance(torch.zeros(1).double(), deviation[None], third[None] / deviation**3)
        off[row, 0] = drawn.mean() / (deviation / SHUFFLES**0.5)
        off[row, 1] = (drawn.std() / deviation - 1) * (2 * SHUFFLES) ** 0.5
        level = (drawn > known.quantile()).double().mean()
        off[row, 2] = (level - 0.05) / (0.05 * 0.95 / SHUFFLES) ** 0.5
    for k, what in enumerate(("mean", "standard deviation", "share beyond the 95 % quantile")):
        z = off[:, k].abs()
        print(f"| {len(pairs)} | {what} | {z.max():.2f} standard errors | within two for {int((z <= 2).sum())} |")


if __name__ == "__main__":
    coverage()
    chance()
