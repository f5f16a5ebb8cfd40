"""Experiments: a name, where the papers have it, and a function of the scale."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..runs import InProcess, Job, Jobs, Local, run
from .reproduction import Reproduction, Scale

__all__ = ["SCALES", "Experiment", "Setting"]

SCALES: tuple[Scale, ...] = ("smoke", "small", "paper")


@dataclass(frozen=True)
class Setting:
    """How big an experiment is and where it may work.

    Args:
        scale: ``smoke`` is seconds on digits, ``small`` CIFAR-10 within an hour on a CPU, ``paper`` the paper's sizes.
        folder: Holds zoos and finished jobs, so that the same experiment goes on after a kill.
        data: CIFAR-10, as ``lab.data.load`` takes it; not used at smoke scale.
        seed: Of everything random.
        device: ``auto``, ``cpu``, ``cuda`` ...
        workers: Processes; one for each core if ``None``, and at 0 jobs run in this process.
        progress: Whether to show progress.
        concepts: Images with labelled pixels, as ``lab.data.load_concepts`` takes them; not used at smoke scale.
        name: Of the experiment, whose jobs lie in a folder of their own; ``reproduce`` sets it.
    """

    scale: Scale = "smoke"
    folder: Path = field(default_factory=lambda: Path("reproduction"))
    data: str = "cifar10"
    seed: int = 0
    device: str = "auto"
    workers: int | None = 0
    progress: bool = False
    concepts: str = "generated"
    name: str = ""

    @property
    def data_spec(self) -> str:
        """``digits`` at smoke scale, otherwise ``data``."""
        return "digits" if self.scale == "smoke" else self.data

    def by_scale(self, smoke: Any, small: Any, paper: Any) -> Any:
        """One of three values.

        Examples:
            >>> Setting("small").by_scale(1, 2, 3)
            2
        """
        return {"smoke": smoke, "small": small, "paper": paper}[self.scale]

    def run(self, jobs: Sequence[Job]) -> list[Any]:
        """Run all jobs that are not finished yet, and return the values of all in their order.

        An experiment calls this once: its jobs are one run, which ``intertwine runs`` knows by the experiment's name.

        Raises:
            RuntimeError: If a job failed after its retries; the rest is kept.
        """
        executor = InProcess() if self.workers == 0 else Local(self.workers)
        plan = Jobs(name=self.name or "jobs", listed=tuple(jobs))
        report = run(plan, self.folder / "runs", executor=executor, progress=self.progress)
        if report.failed:
            first = next(iter(report.failed.values()))
            raise RuntimeError(
                f"jobs must all finish. Got {len(report.failed)} of {len(report.values)} that failed, the first with: "
                f"{first}. The others are kept in {str(report.folder)!r}; run the same again to try these."
            )
        return report.values


@dataclass(frozen=True)
class Experiment:
    """A table or figure that can be reproduced.

    Args:
        name: What ``intertwine reproduce`` calls it.
        title: What it is about, in a line.
        papers: Where it is, by version.
        run: Does it. It must be repeatable, work inside ``setting.folder`` only, and keep finished work there.
        scales: Scales that it knows; mathematics needs only ``smoke``.
        data: Whether it looks at data.
    """

    name: str
    title: str
    papers: str
    run: Callable[[Setting], Reproduction]
    scales: Sequence[Scale] = SCALES
    data: bool = True
