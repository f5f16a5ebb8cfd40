"""``intertwine reproduce``: the papers' tables and figures, ours beside theirs."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from ..._options import Options, argument, option


class Scale(StrEnum):
    """How big."""

    SMOKE = "smoke"
    SMALL = "small"
    PAPER = "paper"


@dataclass(frozen=True)
class ReproduceOptions(Options):
    """Reproduce tables and figures of the papers: their numbers, ours, the difference, and a verdict in words.

    Everything may be interrupted: the same command goes on from what is finished. Exit code 1 if an experiment failed,
    or a statement did not hold that must hold at this scale.

    Example:
      intertwine reproduce
      intertwine reproduce table1-groups demonstrations
      intertwine reproduce --all --scale smoke
      intertwine reproduce table2-dissimilarity --scale small --data cifar10:PATH
      intertwine reproduce --all --scale paper --dry-run
    """

    names: list[str] | None = argument(None, "Experiments; none lists them.", metavar="NAME")
    scale: Scale = option(
        Scale.SMOKE, "smoke: seconds on digits; small: what a CPU can train; paper: the papers' sizes."
    )
    everything: bool = option(False, "Every experiment, on one page.", "--all")
    data: str = option("cifar10", "CIFAR-10 for small and paper, such as cifar10:PATH.", metavar="DATA")
    concepts: str = option("generated", "Labelled images for dissection, such as parquet:FILE.", metavar="SET")
    cifar100: str = option("", "CIFAR-100 for tables that have it: cifar100:PATH.", metavar="DATA")
    dry_run: bool = option(False, "Say what would be trained and run, and about how long; do nothing.")
    seed: int = 0
    workers: int = option(0, "Processes for jobs; 0 runs them in this one.", min=0)
    device: str = "auto"
    out: Path = option(Path("reproduction"), "Folder for zoos, finished jobs, results and pages.", metavar="DIR")
    as_json: bool = False
