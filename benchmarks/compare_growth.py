"""Time of ``compare`` against images, layers and width, beside the bare forward passes: docs/images/compare-growth.svg.

    python benchmarks/compare_growth.py

Process time of one thread, networks of 3x3 convolutions on 16x16 maps with random weights, scores with error, interval
and chance, untrained networks left out. Slopes are those of straight lines through the logarithms.
"""

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

import intertwine as iw
from intertwine.similarity import Resampling

OUT = Path(__file__).parent.parent / "docs" / "images" / "compare-growth.svg"
CASES = {"images": (250, 500, 1000), "layers": (4, 8, 16), "channels": (16, 32, 64)}
FIXED = {"images": 500, "layers": 8, "channels": 32}


def network(layers: int, channels: int, seed: int) -> nn.Module:
    """Convolutions and ReLUs."""
    torch.manual_seed(seed)
    widths = [3, *[channels] * layers]
    return nn.Sequential(*(part for n, m in pairwise(widths) for part in (nn.Conv2d(n, m, 3, padding=1), nn.ReLU())))


def timed(work: Callable[[], object]) -> float:
    """Seconds, best of two."""
    found = []
    for _ in range(2):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return min(found)


def measured(images: int, layers: int, channels: int) -> tuple[float, float]:
    """Seconds of the bare passes and of the comparison."""
    a, b = (network(layers, channels, seed).eval() for seed in (0, 1))
    x = torch.randn(images, 3, 16, 16, generator=torch.Generator().manual_seed(0)).split(125)

    def forward(parts: tuple[Tensor, ...]) -> None:
        with torch.no_grad():
            for part in parts:
                a(part), b(part)

    drawn = Resampling(untrained=0)
    return timed(lambda: forward(x)), timed(lambda: iw.compare(a, b, x, exact=False, resampling=drawn, progress=False))


def slope(sizes: tuple[int, ...], seconds: list[float]) -> float:
    """The exponent of a power law."""
    u, v = (torch.tensor(z, dtype=torch.float64).log() for z in (sizes, seconds))
    u, v = u - u.mean(), v - v.mean()
    return float((u @ v) / (u @ u))


def main() -> None:
    """Measure and draw."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt

    torch.set_num_threads(1)
    figure, axes = plt.subplots(1, 3, figsize=(9, 3), sharey=True, layout="constrained")
    for axis, (what, sizes) in zip(axes, CASES.items()):
        bare, whole = zip(*(measured(**(FIXED | {what: size})) for size in sizes))
        found = [slope(sizes, list(seconds)) for seconds in (whole, bare)]
        for seconds, name, power in zip((whole, bare), ("compare", "forward passes"), found):
            axis.loglog(sizes, seconds, "o-", label=f"{name}: slope {power:.2f}")
        axis.set_xlabel(what)
        axis.set_xticks(sizes, map(str, sizes), minor=False)
        axis.minorticks_off()
        axis.legend(fontsize=8)
        print(what, sizes, [f"{w / b:.2f} x" for w, b in zip(whole, bare)], [f"{p:.2f}" for p in found], flush=True)
    axes[0].set_ylabel("seconds")
    figure.savefig(OUT)


if __name__ == "__main__":
    main()
