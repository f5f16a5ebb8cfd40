"""Make results again that are missing or older than their code: ``python results/remake.py --data cifar10:PATH``.

One experiment after the other, those first that tell most statements in an hour and share their networks with the next.
Networks and finished jobs stay in ``--out``, so that the same call goes on after a kill; a result is kept as soon as it
is there. ``python results/build.py`` then draws and judges. Names choose among the experiments.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from build import HERE, keep

from intertwine.lab.experiments import Reproduction, experiments, is_older

# By the networks that they share; mathematics has the scale smoke alone.
ORDER = (
    "table1-groups", "e7-counts", "fig17-gelu", "demonstrations",
    # Myrtle CNNs of CIFAR-10
    "table2-dissimilarity", "open-centring", "open-psd", "open-sensitivity", "fig1-stitching-myrtle",
    # digits: minutes each
    "p2-table1", "p2-table3", "p2-table2", "p2-chain", "fig12-cct", "fig13-alpha",
    "open-dgn-dlgn-gap", "open-gating-depth", "open-locations", "open-superposition", "open-differentiability",
    "open-spectral", "p2-width-sweep",
    # Myrtle CNNs again, and those of constant width
    "open-rank-order", "fig15-lasso", "open-momentum", "table4-constant-width", "open-chance",
    # ResNet18s and ResNet20s
    "fig10-resnet18", "fig7-stitching-resnet18", "fig9-resnet20", "fig6-stitching-resnet20", "fig7-below-fig6",
    # the longest
    "fig4-rotation-penalty", "p2-block-removal", "table3-leaky-slopes", "fig8-leaky-slopes", "open-spectral-cnn",
    "open-birkhoff", "open-lifting", "fig3-dissection",
)  # fmt: skip


def main() -> int:
    """Run what is missing or older; 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="experiments; all that are missing or older without")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--concepts", default="generated")
    parser.add_argument("--out", default="reproduction")
    parser.add_argument("--hours", type=float, default=float("inf"), help="start no further one after so many")
    asked = parser.parse_args()
    began, failed = time.monotonic(), 0
    for name in asked.names or [n for n in ORDER if missing(n)]:
        if time.monotonic() - began > 3600 * asked.hours:
            break
        print(f"{time.strftime('%H:%M')} {name}", flush=True)
        failed += not remade(name, asked)
    return int(failed > 0)


def scale_of(name: str) -> str:
    """The scale at which results are kept here."""
    return "small" if "small" in experiments()[name].scales else "smoke"


def missing(name: str) -> bool:
    """Whether there is no result of today's code."""
    path = HERE / scale_of(name) / f"{name}.json"
    return not path.is_file() or is_older(Reproduction.load(path))


def remade(name: str, asked: argparse.Namespace) -> bool:
    """Run one experiment, and keep what it found."""
    scale = scale_of(name)
    command = [sys.executable, "-m", "intertwine", "reproduce", name, "--scale", scale, "--data", asked.data,
               "--concepts", asked.concepts, "--out", asked.out]  # fmt: skip
    done = subprocess.run(command).returncode
    path = Path(asked.out) / scale / name / "results.json"
    if done not in (0, 1) or not path.is_file():  # 1: a claim that must hold does not
        return False
    found = Reproduction.load(path)
    if is_older(found):
        return False
    keep(found)
    return True


if __name__ == "__main__":
    raise SystemExit(main())
