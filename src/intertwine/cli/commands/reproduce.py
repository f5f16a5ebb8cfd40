"""``intertwine reproduce``: the papers' tables and figures, ours beside theirs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from .._command import FAILED, one_thread
from .._options import Options, advanced, argument, option
from .._outputs import claim_folder, print_json, print_table, say, tell
from . import iw

if TYPE_CHECKING:
    from ...lab.experiments import Reproduction, Setting, Values


class Scale(StrEnum):
    """How big."""

    SMOKE = "smoke"
    SMALL = "small"
    PAPER = "paper"


@dataclass(frozen=True, kw_only=True)
class Reproduce(Options):
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

    python = 'iw.lab.experiments.run_experiments([iw.lab.experiments.experiment("table1-groups")], setting)'

    names: list[str] | None = argument(None, "Experiments; none lists them.", metavar="NAME")
    scale: Scale = option(
        Scale.SMOKE, "smoke: seconds on digits; small: what a CPU can train; paper: the papers' sizes."
    )
    everything: bool = option(False, "Every experiment, on one page.", "--all")
    data: str = option("cifar10", "Images for small and paper, such as cifar10:PATH or cifar100:PATH.", metavar="DATA")
    concepts: str = option("generated", "Labelled images for dissection, such as parquet:FILE.", metavar="SET")
    listing: bool = option(False, "Say of each experiment its hours, validity and verdicts in --out.", "--list")
    reanalyse: bool = option(False, "Make the pages again from the values in --out, without any network.")
    against: Path | None = advanced(
        None, "Fingerprints to compare with at smoke scale: DIR/smoke/NAME.parquet.", metavar="DIR"
    )
    dry_run: bool = option(
        False, "Say what would be trained and run, how long, and what effects it can tell; do nothing."
    )
    seed: int = 0
    workers: int = option(0, "Processes for jobs; 0 runs them in this one.", min=0)
    device: str = "auto"
    out: Path = option(Path("reproduction"), "Folder for networks, finished jobs, values and pages.", metavar="DIR")

    def __call__(self) -> None:
        lab = iw.lab.experiments
        chosen = [lab.experiment(name).name for name in self.names or lab.experiments()]
        if self.listing or not (self.names or self.everything):
            _list(chosen, self)
            return
        setting = lab.Setting(
            self.scale.value, self.out, self.data, self.seed, self.device, self.workers, progress=True,
            concepts=self.concepts,
        )  # fmt: skip
        if self.dry_run:
            _tell_plans(chosen, setting, self)
            return
        if self.against and not (self.against / "smoke").is_dir():
            raise ValueError(f"--against must hold fingerprints as DIR/smoke/NAME.parquet. Got {str(self.against)!r}.")
        if self.reanalyse and self.everything:
            missing = [name for name in chosen if not _kept(self.out, name, self.scale.value).is_file()]
            if 0 < len(missing) < len(chosen):
                tell(f"no values in {self.out} of {', '.join(missing)}")
                chosen = [name for name in chosen if name not in missing]
        folder = self.out / self.scale.value
        claim_folder(folder, ["report.html", *(f"{name}/report.html" for name in chosen)])
        failed: dict[str, str] = {}
        if not self.reanalyse:
            if self.scale is Scale.SMOKE:
                one_thread()
            found, failed = lab.run_experiments([lab.experiment(name) for name in chosen], setting)
            if len(chosen) == 1 and failed:
                raise RuntimeError(f"{chosen[0]}: {failed[chosen[0]]}")
        else:
            found = {name: lab.Values.load(_kept(self.out, name, self.scale.value)) for name in chosen}
        differ = _compare(found, self.against) if self.against and self.scale is Scale.SMOKE else {}
        done = [lab.experiment(name).page(values) for name, values in found.items()]
        paths = _write(done, failed, folder)
        if self.as_json:
            print_json(
                {"results": {r.name: _timeless(r) for r in done}, "failed": failed, "differ": differ, "files": paths}
            )
        else:
            print_table(
                ["experiment", "verdict", "hours"],
                [
                    [r.name, r.verdict + ("" if r.passed else " (what must hold does NOT)"), r.facts["hours"]]
                    for r in done
                ]
                + [[name, f"failed: {error}", ""] for name, error in failed.items()],
            )
            say(f"wrote {paths['page']}")
        if failed or differ or not all(r.passed for r in done):
            raise typer.Exit(FAILED)


def _kept(out: Path, name: str, scale: str) -> Path:
    """Values of an experiment at a scale, or at the nearest that it has."""
    lab = iw.lab.experiments
    scales = lab.experiment(name).scales
    return lab.values_path(out, name, scale if scale in scales else scales[-1])


def _list(names: list[str], asked: Reproduce) -> None:
    """Every experiment, and what there is of it: scale, hours, validity, verdicts."""
    lab = iw.lab.experiments
    columns = ["experiment", "papers", "title", "scales", "kept", "hours", "validity", "verdicts"]
    rows: list[list[Any]] = []
    for name in names:
        one = lab.experiment(name)
        head = [name, one.papers, one.title, ", ".join(one.scales)]
        there = [s for s in reversed(lab.SCALES) if s in one.scales and lab.values_path(asked.out, name, s).is_file()]
        if not there:
            rows.append([*head, "", "", "", ""])
            continue
        page = one.page(lab.Values.load(lab.values_path(asked.out, name, there[0])))
        counts = ", ".join(f"{n} {word}" for word, n in Counter(c.verdict for c in page.statements).items())
        rows.append([*head, there[0], page.facts.get("hours"), lab.validity(asked.out, name, there[0]), counts])
    if asked.as_json:
        print_json([dict(zip(columns, row)) for row in rows])
    else:
        print_table(columns, rows)


def _tell_plans(names: list[str], setting: Setting, asked: Reproduce) -> None:
    """What would be done, about how long it takes here, and what each statement could tell; nothing is done."""
    from ...lab.experiments.plans import outlook_of, tell_plan

    lab = iw.lab.experiments
    plans = {name: tell_plan(lab.experiment(name), setting, asked.out) for name in names}
    table = outlook_of([lab.experiment(name) for name in names], setting)
    if asked.as_json:
        print_json({"plans": plans, "outlook": table})
        return
    for name, lines in plans.items():
        say("\n  ".join([name, *lines]))
    print_table(list(table[0]), [list(row.values()) for row in table])


def _compare(found: dict[str, Values], kept: Path) -> dict[str, str]:
    """Fingerprints that differ from the kept ones, where; what another processor rounds otherwise is told only."""
    lab = iw.lab.experiments
    differ = {}
    for name, (state, where) in lab.check_against(kept / "smoke", found).items():
        if state == "older than its code":
            differ[name] = where
        if where:
            rounding = " (by rounding only)" * (state == "valid")
            tell(f"{name}: results kept in {kept} are {state}{rounding}: {where}")
    return differ


def _timeless(found: Reproduction) -> dict[str, Any]:
    """What was found, without day and duration: the same in every run of one seed on one machine."""
    said = found.to_dict()
    return {**said, "facts": {k: v for k, v in said["facts"].items() if k not in ("date", "hours", "commit")}}


def _write(done: list[Reproduction], failed: dict[str, str], folder: Path) -> dict[str, Any]:
    from ...report.pages.reproduce import write_all_page

    for r in done:
        r.save(folder / r.name / "results.json")
        iw.report.write_page(r, folder / r.name / "report.html")
    return {"folder": folder, "page": write_all_page(done, failed, folder / "report.html")}
