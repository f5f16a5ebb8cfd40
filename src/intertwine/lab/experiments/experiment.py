"""Experiments: a name, where the papers have it, how it is run, and how its claims are judged."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..data import load
from ..networks import fit_to
from ..runs import InProcess, Job, Jobs, Local, run
from ..runs.code_version import code_version
from .reproduction import Map, Reproduction, Row, Scale, provenance
from .verdicts import Claim

SCALES: tuple[Scale, ...] = ("smoke", "small", "paper")
SHAPES = {"digits": ((1, 8, 8), 10), "cifar10": ((3, 32, 32), 10), "cifar100": ((3, 32, 32), 100)}
# Networks that say something train to this accuracy: well above chance, below what a few epochs reach.
_TRAINED = {"digits": 0.85, "cifar10": 0.75, "cifar100": 0.45}


@dataclass(frozen=True)
class Measured:
    """What an experiment measured, before anything is judged.

    Args:
        rows: Numbers.
        notes: What a reader must know.
        facts: Settings.
        maps: Layer-by-layer matrices.
        claims: Of mathematics, which is exact; other claims are judged from the rows.
    """

    rows: Sequence[Row] = ()
    notes: Sequence[str] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    maps: Sequence[Map] = ()
    claims: Sequence[Claim] = ()


@dataclass
class Planned:
    """What an experiment would do.

    Attributes:
        zoos: Networks to train: folder, architecture, seeds, recipe, data.
        jobs: Jobs behind them.
    """

    zoos: list[dict[str, Any]] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)


class _PlanComplete(Exception):
    """No error: a dry run ends where jobs would begin."""


@dataclass(frozen=True)
class Setting:
    """How big an experiment is and where it may work.

    Args:
        scale: ``smoke`` is seconds on digits, ``small`` what a CPU can train, on CIFAR-10 or digits, ``paper`` the
            paper's sizes.
        folder: Holds zoos and finished jobs, so that the same experiment goes on after a kill.
        data: CIFAR-10, as ``lab.data.load`` takes it; not used at smoke scale.
        seed: Of everything random.
        device: ``auto``, ``cpu``, ``cuda`` ...
        workers: Processes; one for each core if ``None``, and at 0 jobs run in this process.
        progress: Whether to show progress.
        concepts: Images with labelled pixels, as ``lab.data.load_concepts`` takes them; not used at smoke scale.
        cifar100: CIFAR-100 as ``lab.data.load`` takes it: where it is given, tables run their columns of it too.
        name: Of the experiment, whose jobs lie in a folder of their own; ``reproduce`` sets it.
        planned: Receives what would be done, and nothing is done; see ``plan``.
    """

    scale: Scale = "smoke"
    folder: Path = field(default_factory=lambda: Path("reproduction"))
    data: str = "cifar10"
    seed: int = 0
    device: str = "auto"
    workers: int | None = 0
    progress: bool = False
    concepts: str = "generated"
    cifar100: str = ""
    name: str = ""
    planned: Planned | None = None

    @property
    def data_spec(self) -> str:
        """``digits`` at smoke scale, otherwise ``data``."""
        return "digits" if self.scale == "smoke" else self.data

    @property
    def data_name(self) -> str:
        """The data without the place where they lie."""
        return self.data_spec.partition(":")[0]

    @property
    def digits(self) -> bool:
        """Whether it works on digits, which are neither moved, mirrored nor cropped."""
        return self.data_name == "digits"

    def by_scale(self, smoke: Any, small: Any, paper: Any) -> Any:
        """One of three values.

        Examples:
            >>> Setting("small").by_scale(1, 2, 3)
            2
        """
        return {"smoke": smoke, "small": small, "paper": paper}[self.scale]

    def fitted(self, *networks: str) -> str:
        """The network of this scale, fitted to the data (their shape is looked up, where it is not known by name)."""
        network = self.by_scale(*networks) if len(networks) > 1 else networks[0]
        if self.data_name in SHAPES:
            return fit_to(network, *SHAPES[self.data_name])
        data = load(self.data_spec)
        return fit_to(network, data.shape, len(data.classes))

    def run(self, jobs: Sequence[Job]) -> list[Any]:
        """Run all jobs that are not finished yet, and return the values of all in their order.

        An experiment calls this once: its jobs are one run, which ``intertwine runs`` knows by the experiment's name.

        Raises:
            RuntimeError: If a job failed after its retries; the rest is kept.
        """  # noqa: DOC501 - a dry run ends here
        if self.planned is not None:
            self.planned.jobs += jobs
            raise _PlanComplete
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
        measure: Does it. It must be repeatable, work inside ``setting.folder`` only, and keep finished work there.
        judge: The claims, from the numbers (``Reproduction.table``) and facts alone, so that kept results can be judged
            again; ``None`` where ``measure`` makes the claims, because they are of mathematics.
        scales: Scales that it knows; mathematics needs only ``smoke``.
        data: Whether it looks at data.
        digits: Scales at which it works on digits.
        needs: What must be there and is not, and where to put it: an error in words, or nothing.
    """

    name: str
    title: str
    papers: str
    measure: Callable[[Setting], Measured]
    judge: Callable[[Reproduction], list[Claim]] | None = None
    scales: Sequence[Scale] = SCALES
    data: bool = True
    digits: tuple[Scale, ...] = ("smoke",)
    needs: Callable[[Setting], str] = lambda setting: ""

    @property
    def code(self) -> str:
        """A hash of its code and of what it measures with in this room, without the frame, judging and showing."""
        frame = tuple(f"{__package__}.{name}" for name in ("experiment", "printed", "reproduction", "verdicts"))
        return code_version(self.measure.__module__, __package__, frame, Claim.__name__)[:8]

    def check(self, setting: Setting) -> None:
        """Refuse, before any work, what cannot be run.

        Raises:
            ValueError: If something is needed that is not there; the message says what to put where.
        """
        setting = self._own(setting)
        if self.data and setting.planned is None:
            load(setting.data_spec)
            if setting.cifar100:
                load(setting.cifar100)
        if missing := self.needs(setting):
            raise ValueError(missing)

    def run(self, setting: Setting) -> Reproduction:
        """Measure, and judge."""
        self.check(setting)
        setting = self._own(setting)
        found = self.measure(setting)
        facts = {
            **provenance(),
            **({"data": setting.data_name} if self.data else {}),
            "seed": setting.seed,
            "code": self.code,
        }
        made = Reproduction(
            self.name, self.title, self.papers, setting.scale, found.rows, found.claims, setting.scale == "paper",
            found.notes, {**facts, **found.facts}, found.maps,
        )  # fmt: skip
        return self.judged(made)

    def judged(self, found: Reproduction) -> Reproduction:
        """The same numbers, with the verdicts that follow from them today."""
        return found if self.judge is None else replace(found, claims=self.judge(found))

    def plan(self, setting: Setting) -> Planned:
        """What would be done, without doing it or looking at data."""
        planned = Planned()
        if self.judge is not None:  # mathematics has nothing to plan
            with suppress(_PlanComplete):
                self.measure(replace(self._own(setting), planned=planned))
        return planned

    def _own(self, setting: Setting) -> Setting:
        return replace(setting, name=self.name, data="digits" if setting.scale in self.digits else setting.data)


def trained_from(found: Reproduction) -> float:
    """The accuracy from which networks on this data count as trained: 85 % on digits, 75 % on CIFAR-10, 45 % on 100."""
    return _TRAINED.get(str(found.facts.get("data", "cifar10")), 0.5)
