"""``intertwine reproduce``: the papers' tables and figures, ours beside theirs."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ..._options import Device, Json, Options


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

    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Experiments; none lists them.")] = None
    scale: Annotated[
        Scale, typer.Option(help="smoke: seconds on digits; small: what a CPU can train; paper: the papers' sizes.")
    ] = Scale.SMOKE
    everything: Annotated[bool, typer.Option("--all", help="Every experiment, on one page.")] = False
    data: Annotated[
        str, typer.Option("--data", metavar="DATA", help="CIFAR-10 for small and paper, such as cifar10:PATH.")
    ] = "cifar10"
    concepts: Annotated[
        str, typer.Option("--concepts", metavar="SET", help="Labelled images for dissection, such as parquet:FILE.")
    ] = "generated"
    cifar100: Annotated[
        str, typer.Option("--cifar100", metavar="DATA", help="CIFAR-100 for tables that have it: cifar100:PATH.")
    ] = ""
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be trained and run, and about how long; do nothing.")
    ] = False
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0
    workers: Annotated[int, typer.Option(min=0, help="Processes for jobs; 0 runs them in this one.")] = 0
    device: Device = "auto"
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder for zoos, finished jobs, results and pages.")
    ] = Path("reproduction")
    as_json: Json = False
