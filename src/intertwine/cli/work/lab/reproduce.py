"""Work of ``intertwine reproduce``."""

from collections import Counter
from pathlib import Path
from typing import Any

import typer

from ....lab.experiments import (
    SCALES,
    Reproduction,
    Setting,
    Values,
    check_against,
    experiment,
    experiments,
    run_experiments,
    validity,
    values_path,
)
from ....lab.experiments.plans import outlook_of, tell_plan
from ....report import write_page
from ....report.pages.reproduce import write_all_page
from ..._command import FAILED
from ..._running import one_thread
from ...commands.lab.reproduce import ReproduceOptions, Scale
from ...outputs.files import claim_folder
from ...outputs.show import print_json, print_table, say, tell


def run(asked: ReproduceOptions) -> None:
    """Reproduce tables and figures of the papers: their numbers, ours, the difference, and a verdict in words."""
    chosen = [experiment(name).name for name in asked.names or experiments()]
    if asked.listing or not (asked.names or asked.everything):
        _list(chosen, asked)
        return
    setting = Setting(
        asked.scale.value, asked.out, asked.data, asked.seed, asked.device, asked.workers, progress=True,
        concepts=asked.concepts,
    )  # fmt: skip
    if asked.dry_run:
        _tell_plans(chosen, setting, asked)
        return
    folder = asked.out / asked.scale.value
    claim_folder(folder, ["report.html", *(f"{name}/report.html" for name in chosen)])
    failed: dict[str, str] = {}
    if not asked.reanalyse:
        if asked.scale is Scale.SMOKE:
            one_thread()
        found, failed = run_experiments([experiment(name) for name in chosen], setting)
        if len(chosen) == 1 and failed:
            raise RuntimeError(f"{chosen[0]}: {failed[chosen[0]]}")
    else:
        found = {name: Values.load(_kept(asked.out, name, asked.scale.value)) for name in chosen}
    differ = _compare(found, asked.against) if asked.against and asked.scale is Scale.SMOKE else {}
    done = [experiment(name).page(values) for name, values in found.items()]
    paths = _write(done, failed, folder)
    if asked.as_json:
        print_json(
            {"results": {r.name: _timeless(r) for r in done}, "failed": failed, "differ": differ, "files": paths}
        )
    else:
        print_table(
            ["experiment", "verdict", "hours"],
            [[r.name, r.verdict + ("" if r.passed else " (what must hold does NOT)"), r.facts["hours"]] for r in done]
            + [[name, f"failed: {error}", ""] for name, error in failed.items()],
        )
        say(f"wrote {paths['page']}")
    if failed or differ or not all(r.passed for r in done):
        raise typer.Exit(FAILED)


def _kept(out: Path, name: str, scale: str) -> Path:
    """Values of an experiment at a scale, or at the nearest that it has."""
    scales = experiment(name).scales
    return values_path(out, name, scale if scale in scales else scales[-1])


def _list(names: list[str], asked: ReproduceOptions) -> None:
    """Every experiment, and what there is of it: scale, hours, validity, verdicts."""
    columns = ["experiment", "papers", "title", "scales", "kept", "hours", "validity", "verdicts"]
    rows: list[list[Any]] = []
    for name in names:
        one = experiment(name)
        head = [name, one.papers, one.title, ", ".join(one.scales)]
        there = [s for s in reversed(SCALES) if s in one.scales and values_path(asked.out, name, s).is_file()]
        if not there:
            rows.append([*head, "", "", "", ""])
            continue
        page = one.page(Values.load(values_path(asked.out, name, there[0])))
        counts = ", ".join(f"{n} {word}" for word, n in Counter(c.verdict for c in page.statements).items())
        rows.append([*head, there[0], page.facts.get("hours"), validity(asked.out, name, there[0]), counts])
    if asked.as_json:
        print_json([dict(zip(columns, row)) for row in rows])
    else:
        print_table(columns, rows)


def _tell_plans(names: list[str], setting: Setting, asked: ReproduceOptions) -> None:
    """What would be done, about how long it takes here, and what each statement could tell; nothing is done."""
    plans = {name: tell_plan(experiment(name), setting, asked.out) for name in names}
    table = outlook_of([experiment(name) for name in names], setting)
    if asked.as_json:
        print_json({"plans": plans, "outlook": table})
        return
    for name, lines in plans.items():
        say("\n  ".join([name, *lines]))
    print_table(list(table[0]), [list(row.values()) for row in table])


def _compare(found: dict[str, Values], kept: Path) -> dict[str, str]:
    """Fingerprints that differ from the kept ones, where; what another processor rounds otherwise is told only."""
    differ = {}
    for name, (state, where) in check_against(kept / "smoke", found).items():
        if state == "older than its code":
            differ[name] = where
        if state != "valid":
            tell(f"{name}: results kept in {kept} are {state}: {where}")
    return differ


def _timeless(found: Reproduction) -> dict[str, Any]:
    """What was found, without day and duration: the same in every run of one seed on one machine."""
    said = found.to_dict()
    return {**said, "facts": {k: v for k, v in said["facts"].items() if k not in ("date", "hours", "commit")}}


def _write(done: list[Reproduction], failed: dict[str, str], folder: Path) -> dict[str, Any]:
    for r in done:
        r.save(folder / r.name / "results.json")
        write_page(r, folder / r.name / "report.html")
    return {"folder": folder, "page": write_all_page(done, failed, folder / "report.html")}
