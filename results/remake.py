"""Make results that are missing or older than their code: ``python results/remake.py --data cifar10:PATH --hours 2``.

One experiment after the other, first those that tell most statements in an hour and share networks with the next.
Networks and finished jobs stay in ``--out``, so that the same call goes on after a kill; values are kept here as soon
as an experiment is done, and pages follow. Networks of less than a megabyte are kept here too (``small/zoos``), and are
not trained again. Of an experiment that is not done, finished jobs are kept (``unfinished``). Names choose among the
experiments.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path

from build import HERE, keep
from build import main as build

from intertwine.lab.experiments import Values, experiments, values_path

ORDER = (
    "table1-groups", "e7-counts", "fig17-gelu", "demonstrations", "p2-width-sweep",
    "table2-dissimilarity", "p2-block-removal", "fig9-resnet20", "table4-constant-width", "fig10-resnet18",
    "fig3-dissection", "fig1-stitching-myrtle", "fig15-lasso", "fig13-alpha", "fig4-rotation-penalty",
    "table3-leaky-slopes", "fig6-stitching-resnet20", "fig7-stitching-resnet18", "fig7-below-fig6", "p2-table2",
    "p2-table1", "p2-table3", "p2-chain", "fig8-leaky-slopes", "fig12-cct", "fig1-to-the-end",
)  # fmt: skip


_LARGEST = 2**20  # bytes of a network that is kept


def main() -> int:
    """Run what is missing or older; 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="experiments; all that are missing or older without")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--concepts", default="generated")
    parser.add_argument("--out", default="reproduction")
    parser.add_argument("--workers", default="1")
    parser.add_argument("--hours", type=float, default=float("inf"), help="start no further one after so many")
    asked = parser.parse_args()
    began, failed = time.monotonic(), 0
    copy_zoos(HERE, Path(asked.out))
    for job in (HERE / "unfinished").glob("*/*.json"):  # by the key of its settings: a changed plan does not find it
        target = Path(asked.out) / "small" / "runs" / "jobs" / "results" / job.name
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(job, target)
    for name in asked.names or [n for n in ORDER if is_missing(n)]:
        if time.monotonic() - began > 3600 * asked.hours:
            break
        print(f"{time.strftime('%H:%M')} {name}", flush=True)
        failed += not remake(name, asked)
    build([])
    return int(failed > 0)


def scale_of(name: str) -> str:
    """The scale at which results are kept here."""
    return "small" if "small" in experiments()[name].scales else "smoke"


def is_missing(name: str) -> bool:
    """Whether there is no result with the fingerprint that is kept."""
    path, smoke = (values_path(HERE, name, scale) for scale in (scale_of(name), "smoke"))
    if not (path.is_file() and smoke.is_file()):
        return True
    return path != smoke and Values.load(path).facts.get("fingerprint") != Values.load(smoke).digest()


def remake(name: str, asked: argparse.Namespace) -> bool:
    """Run one experiment, and keep its values and its fingerprint."""
    command = [sys.executable, "-m", "intertwine", "reproduce", name, "--scale", scale_of(name), "--data", asked.data,
               "--concepts", asked.concepts, "--out", asked.out, "--workers", asked.workers]  # fmt: skip
    if subprocess.run(command).returncode not in (0, 1):  # 1: a claim that must hold does not
        return False
    for scale in dict.fromkeys(("smoke", scale_of(name))):
        path = values_path(Path(asked.out), name, scale)
        if not path.is_file():
            return False
        keep(Values.load(path), HERE, name)
    copy_zoos(Path(asked.out), HERE)
    return True


def copy_zoos(source: Path, target: Path) -> None:
    """Copy the zoos of small networks that are not there yet."""
    for zoo in (source / "small" / "zoos").glob("*/"):
        new, files = target / "small" / "zoos" / zoo.name, [f for f in zoo.iterdir() if f.suffix != ".pt"]
        if not new.exists() and all(f.stat().st_size < _LARGEST for f in files):
            new.mkdir(parents=True)
            for file in files:
                shutil.copy2(file, new)


if __name__ == "__main__":
    raise SystemExit(main())
