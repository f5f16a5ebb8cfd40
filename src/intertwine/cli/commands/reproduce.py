"""``intertwine reproduce``: the papers' tables and figures, our numbers beside theirs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from .._command import FAILED, one_thread
from .._options import DeviceOptions, advanced, argument, option
from .._outputs import claim_folder, print_json, print_table, say, tell
from . import iw

if TYPE_CHECKING:
    from ...lab.experiments import Experiment, Reproduction, Setting, Values


class Reproduce(DeviceOptions):
    """Reproduce tables and figures of the papers: their numbers, ours, the difference and a verdict in words.

    Any run may be interrupted: the same command resumes after what is finished. All measured numbers are kept as
    DIR/SCALE/NAME.parquet, and pages are made from them. The exit code is 1 if an experiment failed, or if a statement
    that must hold at this scale does not.

    Example:
      intertwine reproduce --list
      intertwine reproduce table1-groups demonstrations
      intertwine reproduce --all --scale smoke
      intertwine reproduce table2-dissimilarity --scale small --data cifar10:PATH
      intertwine reproduce table2-dissimilarity --scale small --reanalyse
      intertwine reproduce --all --scale paper --dry-run
    """

    python = 'iw.lab.experiments.run_experiments([iw.lab.experiments.experiment("table1-groups")], setting)'

    names: list[str] | None = argument("Experiments to run; without names, all are listed.", metavar="NAME")
    scale: Literal["smoke", "small", "paper"] = option(
        "smoke: seconds on digits; small: what a CPU can train; paper: the papers' sizes.", "smoke"
    )
    everything: bool = option("Run every experiment, reported on one page.", False, "--all")
    data: str = option("Images for small and paper, such as cifar10:PATH or cifar100:PATH.", "cifar10", metavar="DATA")
    concepts: str = option("Labelled images for dissection, such as parquet:FILE.", "generated", metavar="SET")
    listing: bool = option("List experiments with the hours, validity and verdicts kept in --out.", False, "--list")
    reanalyse: bool = option("Rebuild the pages from the values in --out, without running any network.", False)
    against: Path | None = advanced(
        "Fingerprints to check results against at smoke scale: DIR/smoke/NAME.parquet.", metavar="DIR"
    )
    dry_run: bool = option(
        "Show what would be trained and run, for how long, and which effects it can detect; run nothing.", False
    )
    workers: int = option("Processes for jobs; 0 runs them in the main process.", 0, min=0)
    out: Path = option("Folder for networks, finished jobs, values and pages.", Path("reproduction"), metavar="DIR")

    def __call__(self) -> None:
        from ..._io import write_text
        from ...report.pages.reproduce import all_page

        lab = iw.lab.experiments
        chosen = [lab.experiment(name).name for name in self.names or lab.experiments()]
        if self.listing or not (self.names or self.everything):
            rows = [self._listed(name) for name in chosen]
            return print_json(rows) if self.as_json else print_table(rows)
        setting = lab.Setting(
            self.scale, self.out, self.data, self.seed, self.device, self.workers, progress=True, concepts=self.concepts
        )
        if self.dry_run:
            return self._tell_plans([lab.experiment(name) for name in chosen], setting)
        if self.against and not (self.against / "smoke").is_dir():
            raise ValueError(f"--against must hold fingerprints as DIR/smoke/NAME.parquet. Got {str(self.against)!r}.")
        chosen = self._analysable(chosen) if self.reanalyse else chosen
        folder = self.out / self.scale
        claim_folder(folder, ["report.html", *(f"{name}/report.html" for name in chosen)])
        found, failed = self._values(chosen, setting)
        differ = _compare(found, self.against) if self.against and self.scale == "smoke" else {}
        done = [lab.experiment(name).page(values) for name, values in found.items()]
        for r in done:
            r.save(folder / r.name / "results.json")
            iw.report.write_page(r, folder / r.name / "report.html")
        page = write_text(folder / "report.html", iw.report.render(all_page(done, failed)))
        if self.as_json:
            files = {"folder": folder, "page": page}
            print_json({"results": _comparable(done), "failed": failed, "differ": differ, "files": files})
        else:
            print_table(_verdicts(done, failed))
            say(f"wrote {page}")
        if failed or differ or not all(r.passed for r in done):
            raise typer.Exit(FAILED)
        return None

    def _analysable(self, chosen: list[str]) -> list[str]:
        """The chosen experiments of which ``--out`` holds values; all of those that were named must be among them."""
        missing = [name for name in chosen if not self._kept(name).exists()]
        if missing and (len(missing) == len(chosen) or not self.everything):
            raise ValueError(
                f"--out must hold the values to analyse again. Got nothing at {str(self._kept(missing[0]))!r}. "
                "Say --out results for those of this project, or leave --reanalyse out to run it."
            )
        if missing:
            tell(f"no values in {self.out} of {', '.join(missing)}")
        return [name for name in chosen if name not in missing]

    def _values(self, chosen: list[str], setting: Setting) -> tuple[dict[str, Values], dict[str, str]]:
        """Values of experiments, kept or measured now, and errors of those that failed."""
        lab = iw.lab.experiments
        if self.reanalyse:
            return {name: lab.Values.load(self._kept(name)) for name in chosen}, {}
        if self.scale == "smoke":
            one_thread()
        found, failed = lab.run_experiments([lab.experiment(name) for name in chosen], setting)
        if len(chosen) == 1 and failed:
            raise RuntimeError(f"{chosen[0]}: {failed[chosen[0]]}")
        return found, failed

    def _kept(self, name: str) -> Path:
        """The file of an experiment's values at this scale, or at the last scale that the experiment has."""
        scales = iw.lab.experiments.experiment(name).scales
        return iw.lab.experiments.values_path(self.out, name, self.scale if self.scale in scales else scales[-1])

    def _listed(self, name: str) -> dict[str, Any]:
        """An experiment's row of the list: scale, hours, validity and verdicts of what is kept."""
        lab = iw.lab.experiments
        one = lab.experiment(name)
        there = [s for s in reversed(lab.SCALES) if s in one.scales and lab.values_path(self.out, name, s).is_file()]
        known: dict[str, Any] = dict.fromkeys(("kept", "hours", "validity", "verdicts"), "")
        if there:
            page = one.page(lab.Values.load(lab.values_path(self.out, name, there[0])))
            counts = ", ".join(f"{n} {word}" for word, n in Counter(c.verdict for c in page.statements).items())
            known = {"kept": there[0], "hours": page.facts.get("hours")}
            known |= {"validity": lab.validity(self.out, name, there[0]), "verdicts": counts}
        return {"experiment": name, "papers": one.papers, "title": one.title, "scales": ", ".join(one.scales), **known}

    def _tell_plans(self, chosen: list[Experiment], setting: Setting) -> None:
        """Print what would be done, about how long it takes here, and what each statement could detect; run nothing."""
        from ...lab.experiments.plans import outlook_of, tell_plan

        plans = {one.name: tell_plan(one, setting, self.out) for one in chosen}
        table = outlook_of(chosen, setting)
        if self.as_json:
            return print_json({"plans": plans, "outlook": table})
        for name, lines in plans.items():
            say("\n  ".join([name, *lines]))
        return print_table(table)


def _comparable(done: list[Reproduction]) -> dict[str, Any]:
    """Results by name, without date and duration: runs of one seed on one machine agree."""
    results = {r.name: r.to_dict() for r in done}
    for said in results.values():
        said["facts"] = {k: v for k, v in said["facts"].items() if k not in ("date", "hours", "commit")}
    return results


def _verdicts(done: list[Reproduction], failed: dict[str, str]) -> list[dict[str, Any]]:
    """Rows of the printed table."""
    rows = [(r.name, r.verdict + " (what must hold does NOT)" * (not r.passed), r.facts["hours"]) for r in done]
    rows += [(name, f"failed: {error}", "") for name, error in failed.items()]
    return [dict(zip(("experiment", "verdict", "hours"), row)) for row in rows]


def _compare(found: dict[str, Values], kept: Path) -> dict[str, str]:
    """Fingerprints that differ from the kept ones, and where; mere rounding by another processor is only reported."""
    lab = iw.lab.experiments
    differ = {}
    for name, (state, where) in lab.check_against(kept / "smoke", found).items():
        if state == "older than its code":
            differ[name] = where
        if where:
            rounding = " (by rounding only)" * (state == "valid")
            tell(f"{name}: results kept in {kept} are {state}{rounding}: {where}")
    return differ
