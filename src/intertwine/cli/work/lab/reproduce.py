"""Work of ``intertwine reproduce``."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import typer

from ....lab.experiments import Reproduction, Setting, experiment, experiments, reproduce
from ....lab.experiments.plans import listed, outlook, total
from ....report import write_page
from ....report.pages.reproduce import write_all_page
from ..._command import FAILED
from ..._running import one_thread
from ...commands.lab.reproduce import ReproduceOptions, Scale
from ...outputs.files import RESULTS, claim_folder
from ...outputs.show import print_json, print_table, say, tell


def run(asked: ReproduceOptions) -> None:
    """Reproduce tables and figures of the papers: their numbers, ours, the difference, and a verdict in words."""
    if not asked.names and not asked.everything:
        known = [[e.name, e.papers, e.title, ", ".join(e.scales)] for e in experiments().values()]
        columns = ["experiment", "papers", "title", "scales"]
        if asked.as_json:
            print_json([dict(zip(columns, row)) for row in known])
        else:
            print_table(columns, known)
        return
    chosen = [experiment(name).name for name in asked.names or experiments()]
    setting = Setting(
        asked.scale.value,
        asked.out,
        asked.data,
        asked.seed,
        asked.device,
        asked.workers,
        progress=True,
        concepts=asked.concepts,
        cifar100=asked.cifar100,
    )
    if asked.dry_run:
        _tell_plans(chosen, setting, asked.as_json)
        return
    for name in chosen:
        within = setting.scale if setting.scale in experiment(name).scales else experiment(name).scales[-1]
        experiment(name).check(replace(setting, scale=within))  # what is missing is said before any work
    claim_folder(
        asked.out / asked.scale.value, ["report.html", *(f"{name}/{file}" for name in chosen for file in RESULTS)]
    )
    if asked.scale is Scale.SMOKE:
        one_thread()
    done, failed = _all(chosen, setting, asked.line)
    paths = _write(done, failed, asked.out, asked.scale.value)
    if asked.as_json:
        print_json({"results": {r.name: _timeless(r) for r in done}, "failed": failed, "files": paths})
    else:
        print_table(
            ["experiment", "verdict", "seconds"],
            [[r.name, r.verdict + ("" if r.passed else " (what must hold does NOT)"), r.facts["seconds"]] for r in done]
            + [[name, f"failed: {error}", ""] for name, error in failed.items()],
        )
        say(f"wrote {paths['page']}")
    if failed or not all(r.passed for r in done):
        raise typer.Exit(FAILED)


def _tell_plans(names: list[str], setting: Setting, as_json: bool) -> None:
    """What would be done, about how long it takes here, and every job in words; nothing is done."""
    plans = {name: listed(experiment(name).plan(setting)) for name in names}
    ahead = {}
    for name in names:  # each as it is known: a timed step of every network takes a while
        ahead[name] = outlook(experiment(name), setting)
        if not as_json:
            say(f"{name}: {ahead[name]}")
    if as_json:
        print_json({name: {**asdict(ahead[name]), "plan": plans[name]} for name in names})
        return
    for name, lines in plans.items():
        say("\n  ".join([name, *lines]))
    say(f"all: {total(list(ahead.values()))}")


def _all(names: list[str], setting: Setting, command: str) -> tuple[list[Reproduction], dict[str, str]]:
    """Run them one after the other; one of several that fails does not stop the others."""
    done: list[Reproduction] = []
    failed: dict[str, str] = {}
    for k, name in enumerate(names, 1):
        scales = experiment(name).scales
        only = "" if setting.scale in scales else f", which has only the scale {' and '.join(scales)}"
        tell(f"{name} ({k} of {len(names)}){only}: {outlook(experiment(name), setting)}")
        try:
            found = reproduce(name, setting)
        except (RuntimeError, ValueError, OSError, ImportError) as error:
            if len(names) == 1:
                raise
            failed[name] = " ".join(str(error).split())
            tell(f"{name} failed: {failed[name]}")
            continue
        done.append(replace(found, facts={**found.facts, "command": command}))
        tell(str(done[-1]))
    return done, failed


def _timeless(found: Reproduction) -> dict[str, Any]:
    """What was found, without day and duration: the same in every run of one seed on one machine."""
    said = found.to_dict()
    return {**said, "facts": {k: v for k, v in said["facts"].items() if k not in ("date", "seconds")}}


def _write(done: list[Reproduction], failed: dict[str, str], out: Path, scale: str) -> dict[str, Any]:
    folder = out / scale
    for r in done:
        r.save(folder / r.name / "results.json")
        r.save(folder / r.name / "results.parquet")
        write_page(r, folder / r.name / "report.html")
    return {"folder": folder, "page": write_all_page(done, failed, folder / "report.html")}
