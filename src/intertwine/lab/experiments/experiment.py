"""Experiments: a plan, an analysis of the values that it yields, and the engine between them, shared by all.

plan -> networks and jobs -> values (Parquet) -> analysis -> page. The measured values are kept; analysis and page are
recomputed from them whenever a page is made.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from ..._io.files import versions
from ...errors import DataError
from ..data import load
from ..runs import InProcess, Job, Jobs, Local, RunReport, job_key, run
from ..runs.store import remove
from ..statistics import Estimate, Guard, Sample, Statement, estimates, judge
from ..training import choose_device
from .plan import BASELINE, SCALES, Design, PlannedZoo, Scale, Setting
from .reproduction import Map, Printed, Reproduction, Row
from .values import Values

# Accuracy from which networks count as trained: well above chance, below what a few epochs reach.
_TRAINED = {"digits": 0.85, "cifar10": 0.75, "cifar100": 0.45}
CEILING = "trained to the end"


@dataclass
class Findings:
    """Result of an analysis of a table of values, filled line by line."""

    values: Values
    rows: list[Row] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)  # Not judged yet
    maps: list[Map] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # What a reader must know, in addition to the plan's notes

    @property
    def data(self) -> str:
        """Name of the data."""
        return str(self.values.facts.get("data", "cifar10"))

    def show(
        self, group: str, numbers: Mapping[str, Sample | Estimate], paper: Mapping[str, Printed] | None = None,
        factor: float = 1.0,
    ) -> None:  # fmt: skip
        """Add a group of rows: numbers by name, times a factor (100 for percent), beside the paper's numbers."""
        for what, found in numbers.items():
            self.rows.append(Row.of(what, found.times(factor), (paper or {}).get(what), group))

    def state(self, text: str, effects: Mapping[str, Sample | Estimate] | Sample | Estimate, **how: Any) -> None:
        """Add a statement: numbers lie ``above`` or ``below`` limits (see ``Statement``), or ``within`` x of 0."""
        if (margin := how.pop("within", None)) is not None:
            how |= {"above": -margin, "below": margin}
        self.statements.append(Statement(text, estimates(effects), **how))

    def fact(self, text: str, number: float, required: bool = True, **limits: float) -> None:
        """Add a mathematical statement about a number without error."""
        self.state(text, Estimate(number, 0.0), required=required, **limits)

    def accuracies(self, paper: Mapping[str, Printed] | None = None) -> None:
        """Add a group of rows: test accuracies of all networks and of the trivial baseline."""
        reached = {arm: self.values.sample("accuracy", arm) for arm in self.values.arms("accuracy")}
        trivial = self.values.by_layer("accuracy", BASELINE)
        self.show("test accuracy", {**{a: s for a, s in reached.items() if s.numbers}, **trivial}, paper)

    def guard(
        self, *arms: str, compared: bool = False, least: float | None = None, ended: Collection[str] = ()
    ) -> Guard:
        """Guard of a statement: its networks beat the trivial baseline, are trained, and are not all at the ceiling.

        Without ``arms`` it covers all arms with an accuracy. Networks count as trained from the accuracy ``least`` on,
        those of arms in ``ended`` only with most of what longer training gains. The ceiling counts if ``compared``.
        """
        chosen = arms or [a for a in self.values.arms("accuracy") if a not in (BASELINE, CEILING)]
        floor = max((s.mean for s in self.values.by_layer("accuracy", BASELINE).values()), default=0.0)
        end = self.values.sample("accuracy", CEILING)
        ceiling = end.mean if compared and end.numbers else None
        least = _TRAINED.get(self.data, 0.5) if least is None else least
        reached = {a: self.values.sample("accuracy", a).estimate() for a in chosen}
        return Guard(reached, floor, ceiling, least, {a: end.mean for a in chosen if a in ended and end.numbers})


@dataclass(frozen=True)
class Experiment:
    """A table or figure that can be reproduced."""

    name: str  # What ``intertwine reproduce`` calls it
    title: str  # What it is about, in a line
    papers: str  # Where the papers have it, by version
    # Enters networks, jobs and notes in a plan; it runs nothing, and loads no data set that is known by name
    plan: Callable[[Design], None]
    analyse: Callable[[Findings], None]  # Fills the findings from the values alone
    scales: Sequence[Scale] = SCALES  # Scales that it has; mathematics needs only ``smoke``
    digits: tuple[Scale, ...] = ("smoke",)  # Scales at which it works on digits
    needs: Callable[[Setting], str] = lambda setting: ""  # Error message if something needed is missing, else ""

    def at(self, setting: Setting) -> Setting:
        """The setting that it runs in: the nearest scale that it has, and the data of that scale."""
        scale = setting.scale if setting.scale in self.scales else self.scales[-1]
        return replace(setting, scale=scale, data="digits" if scale in self.digits else setting.data)

    def planned(self, setting: Setting) -> Design:
        """The plan in a setting; nothing is run."""
        plan = Design(self.at(setting))
        self.plan(plan)
        return plan

    def check(self, setting: Setting) -> None:
        """Refuse, before any work, a run that cannot succeed: the ``ValueError`` says what to put where."""
        own = self.at(setting)
        if missing := self.needs(own):
            raise ValueError(missing)
        if any("data" in task.job.model_dump() for task in self.planned(setting).tasks):
            load(own.data_spec)

    def page(self, values: Values) -> Reproduction:
        """The page of this experiment's values: their intervals, the verdicts and everything else that it shows."""
        if others := {*values.frame["experiment"].unique()} - {"", self.name}:
            raise DataError(f"values must be of {self.name}. Got those of {', '.join(sorted(others))}.")
        found, facts = Findings(values), dict(sorted(values.facts.items()))  # in the order of the file
        self.analyse(found)
        notes, scale = facts.pop("notes", ()), facts.pop("scale", "small")
        return Reproduction(
            self.name, self.title, self.papers, scale, found.rows, judge(found.statements), scale == "paper",
            (*notes, *found.notes), facts, found.maps,
        )  # fmt: skip


def measure(chosen: Sequence[Experiment], setting: Setting) -> tuple[dict[str, Values], dict[str, str]]:
    """Train the networks and run the jobs of several experiments: networks first, then all jobs, in one queue each.

    Returns values by name, and error messages of experiments in which something failed. Finished work is kept.
    """
    plans = {one.name: one.planned(setting) for one in chosen}
    zoos: dict[Path, PlannedZoo] = {}  # experiments share networks
    for zoo in (z for plan in plans.values() for z in plan.zoos):
        seeds = {*zoo.seeds, *(zoos[zoo.folder].seeds if zoo.folder in zoos else ())}
        zoos[zoo.folder] = replace(zoo, seeds=tuple(sorted(seeds)))
    # Where a CPU gains by it, one job trains small networks together; every other network is a job of its own.
    on_gpu = choose_device(setting.device).type == "cuda"
    split = lambda zoo: [(s,) for s in zoo.seeds] if on_gpu or zoo.recipe.one_by_one else [zoo.seeds]
    parts = [replace(zoo, seeds=seeds) for zoo in zoos.values() for seeds in split(zoo)]
    training = [part.job(setting.device) for part in parts]
    lost = [job_key(job) for part, job in zip(parts, training) if not all(m.path.is_file() for m in part.members)]
    remove(setting.folder / "runs" / "networks", lost)  # finished jobs whose networks were moved away
    trained = _run("networks", training, setting)
    # Rows, seconds and machine of each network, by folder and seed.
    made: dict[tuple[Path, str], tuple[list[dict[str, Any]], float, str]] = {}
    for part, rows, took, machine in zip(parts, trained.values, trained.spent, trained.machines):
        for row in rows or ():
            own = made.setdefault((part.folder, row["network"]), ([], took / len(part.seeds), machine))
            own[0].append(row)
    members = lambda plan: {(zoo.folder, f"{seed}") for zoo in plan.zoos for seed in zoo.seeds}
    ready = {name for name, plan in plans.items() if members(plan) <= made.keys()}
    jobs = _run("jobs", [t.job for name, plan in plans.items() if name in ready for t in plan.tasks], setting)
    done = iter(zip(jobs.values, jobs.spent, jobs.machines))
    failures = "; ".join([*trained.failed.values(), *jobs.failed.values()][:1])
    found, failed = {}, {}
    for name, plan in plans.items():
        results = [next(done) for _ in plan.tasks] if name in ready else [(None, 0.0, "")]
        if any(rows is None for rows, *_ in results):
            failed[name] = f"a network or job failed ({failures}); finished ones are kept: run the same command again"
            continue
        rows = [{**row, "arm": z.arm} for z in plan.zoos for s in z.seeds for row in made[z.folder, f"{s}"][0]]
        rows += [{**task.columns, **row} for task, (listed, *_) in zip(plan.tasks, results) for row in listed]
        spent = [*(made[member] for member in members(plan)), *results]
        facts = facts_of(plan, sum(took for _, took, _ in spent), {machine for *_, machine in spent})
        found[name] = Values.of(({"experiment": name, **row} for row in rows), facts)
    return found, failed


def _run(name: str, jobs: Sequence[Job], setting: Setting) -> RunReport:
    executor = InProcess() if setting.workers == 0 else Local(setting.workers)
    plan = Jobs(name=name, listed=tuple(jobs))
    return run(plan, setting.folder / "runs", executor=executor, retries=1, progress=setting.progress)


def facts_of(plan: Design, seconds: float, machines: Iterable[str]) -> dict[str, Any]:
    """Provenance of values: scale, data, versions, commit (of a checkout), machines, date, hours on one process."""
    s = plan.setting
    return {
        "scale": s.scale,
        "data": s.data_name if plan.zoos or any("data" in t.job.model_dump() for t in plan.tasks) else "",
        "seed": s.seed,
        "notes": [*(f"{zoo.arm}: {zoo.words}." for zoo in plan.zoos), *plan.notes],
        **commit(),
        **versions(),
        "machine": " and ".join(sorted({*machines} - {""})),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "hours": round(seconds / 3600, 3),
    }


@cache
def commit() -> dict[str, str]:
    """The checkout's commit, with a ``+`` if the experiments' code has changed since; empty without a checkout."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "."], capture_output=True).returncode
    except (OSError, subprocess.CalledProcessError):
        return {}
    return {"commit": head.stdout.strip() + "+" * (changed == 1)}
