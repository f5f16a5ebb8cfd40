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

    Everything may be interrupted: the same command goes on from what is finished. All measured numbers are kept as
    DIR/SCALE/NAME.parquet, and pages are made from them. Exit code 1 if an experiment failed, or a statement did not
    hold that must hold at this scale.

    Example:
      intertwine reproduce --list
      intertwine reproduce table1-groups demonstrations
      intertwine reproduce --all --scale smoke
      intertwine reproduce table2-dissimilarity --scale small --data cifar10:PATH
      intertwine reproduce table2-dissimilarity --scale small --reanalyse
      intertwine reproduce --all --scale paper --dry-run
    """

    names: list[str] | None = argument(None, "Experiments; none lists them.", metavar="NAME")
    scale: Scale = option(
        Scale.SMOKE, "smoke: seconds on digits; small: what a CPU can train; paper: the papers' sizes."
    )
    everything: bool = option(False, "Every experiment, on one page.", "--all")
    data: str = option("cifar10", "Images for small and paper, such as cifar10:PATH or cifar100:PATH.", metavar="DATA")
    concepts: str = option("generated", "Labelled images for dissection, such as parquet:FILE.", metavar="SET")
    listing: bool = option(False, "Say of each experiment its hours, validity and verdicts in --out.", "--list")
    reanalyse: bool = option(False, "Make the pages again from the values in --out, without any network.")
    against: Path | None = option(None, "Fingerprints to compare with at smoke scale: DIR/smoke/NAME.parquet.",
                                  metavar="DIR")
    dry_run: bool = option(False, "Say what would be trained and run, how long, and what effects it can tell; do nothing.")
    seed: int = 0
    workers: int = option(0, "Processes for jobs; 0 runs them in this one.", min=0)
    device: str = "auto"
    out: Path = option(Path("reproduction"), "Folder for networks, finished jobs, values and pages.", metavar="DIR")
    as_json: bool = False
