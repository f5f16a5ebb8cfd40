"""How the time of ``compare`` grows with images, layers and width: ``python benchmarks/compare_growth.py --figure``.

Two networks of 3x3 convolutions on images of noise, 32x32, default measures and chance levels without untrained
networks; process time of one thread, best of three. One of the three numbers grows at a time. Slopes are those of a
line through the logarithms: 1 grows in proportion.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from matplotlib import pyplot
from torch import nn

import intertwine as iw
from intertwine.similarity import Resampling

FIGURE = Path(__file__).parent.parent / "docs" / "images" / "compare-growth.svg"
USUAL = {"images": 256, "layers": 8, "width": 32}
GROWN = {"images": (256, 512, 1024, 2048), "layers": (4, 8, 16, 32), "width": (16, 32, 64, 128)}
_SIDE, _REPEATS = 16, 3


def network(layers: int, width: int, seed: int) -> nn.Module:
    """Convolutions of one width, each behind a ReLU."""
    torch.manual_seed(seed)
    found: list[nn.Module] = []
    for k in range(layers):
        found += [nn.Conv2d(width if k else 3, width, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*found, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)).eval()


def seconds(images: int, layers: int, width: int) -> tuple[float, float]:
    """Process time of both forward passes, and of ``compare``."""
    a, b = (network(layers, width, seed) for seed in (0, 1))
    batches = torch.randn(images, 3, _SIDE, _SIDE, generator=torch.Generator().manual_seed(0)).split(128)
    best = [float("inf")] * 2
    for _ in range(_REPEATS):
        began = time.process_time()
        with torch.no_grad():
            for batch in batches:
                a(batch), b(batch)
        passed = time.process_time()
        iw.compare(a, b, batches, resampling=Resampling(untrained=0), exact=False, progress=False)
        best = [min(best[0], passed - began), min(best[1], time.process_time() - passed)]
    return best[0], best[1]


def slope(xs: tuple[int, ...], ys: list[float]) -> float:
    """Of a line through the logarithms."""
    return float(np.polyfit(np.log(xs), np.log(ys), 1)[0])


def main() -> None:
    """A line for each size, and the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--figure", action="store_true", help=f"write {FIGURE.name}")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    seconds(128, 2, 8)  # imports
    figure, axes = pyplot.subplots(1, 3, figsize=(9, 3), sharey=True, layout="constrained")
    for ax, (what, sizes) in zip(axes, GROWN.items()):
        bare, whole = zip(*(seconds(**{**USUAL, what: size}) for size in sizes))
        slopes = slope(sizes, list(bare)), slope(sizes, list(whole))
        for size, one, two in zip(sizes, bare, whole):
            print(f"| {what} {size} | forward {one:.2f} s | compare {two:.2f} s | {two / one:.1f} x |", flush=True)
        print(f"{what}: slope {slopes[0]:.2f} of the forward passes, {slopes[1]:.2f} of compare", flush=True)
        ax.loglog(sizes, bare, "o--", color="0.6", label=f"forward passes, slope {slopes[0]:.2f}")
        ax.loglog(sizes, whole, "o-", label=f"compare, slope {slopes[1]:.2f}")
        ax.set_xticks(sizes, labels=map(str, sizes))
        ax.minorticks_off()
        ax.set_xlabel(what)
        ax.legend(frameon=False, fontsize=8)
    axes[0].set_ylabel("seconds of one thread")
    if asked.figure:
        figure.savefig(FIGURE)


if __name__ == "__main__":
    main()
