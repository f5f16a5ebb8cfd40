"""``intertwine reproduce``: the papers' tables and figures, ours beside theirs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ._command import FAILED
from ._options import Device, Json
from ._show import say

if TYPE_CHECKING:
    from ..lab.experiments import Reproduction, Setting

__all__ = ["reproduce"]


class Scale(StrEnum):
    """How big."""

    SMOKE = "smoke"
    SMALL = "small"
    PAPER = "paper"


def reproduce(
    context: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Experiments; none lists them.")] = None,
    scale: Annotated[
        Scale, typer.Option(help="smoke: seconds on digits; small: CIFAR-10 on a CPU; paper: the papers' sizes.")
    ] = Scale.SMOKE,
    everything: Annotated[bool, typer.Option("--all", help="Every experiment, on one page.")] = False,
    data: Annotated[
        str, typer.Option("--data", metavar="DATA", help="CIFAR-10 for small and paper, such as cifar10:PATH.")
    ] = "cifar10",
    concepts: Annotated[
        str, typer.Option("--concepts", metavar="SET", help="Labelled images for dissection, such as parquet:FILE.")
    ] = "generated",
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    workers: Annotated[int, typer.Option(min=0, help="Processes for jobs; 0 runs them in this one.")] = 0,
    device: Device = "auto",
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder for zoos, finished jobs, results and pages.")
    ] = Path("reproduction"),
    as_json: Json = False,
) -> None:
    """Reproduce tables and figures of the papers: their numbers, ours, the difference, and a verdict in words.

    Everything may be interrupted: the same command goes on from what is finished. Exit code 1 if an experiment failed,
    or a statement did not hold that must hold at this scale.

    Example:
      intertwine reproduce
      intertwine reproduce table1-groups demonstrations
      intertwine reproduce --all --scale smoke
      intertwine reproduce table2-dissimilarity --scale small --data cifar10:PATH
    """  # noqa: DOC501
    from ..lab.experiments import Setting, experiment, experiments
    from ._outputs import RESULTS, claim_folder
    from ._show import print_json, print_table
    from ._threads import one_thread

    if not names and not everything:
        listed = [[e.name, e.papers, e.title, ", ".join(e.scales)] for e in experiments().values()]
        columns = ["experiment", "papers", "title", "scales"]
        if as_json:
            print_json([dict(zip(columns, row)) for row in listed])
        else:
            print_table(columns, listed)
        return
    chosen = [experiment(name).name for name in names or experiments()]
    setting = Setting(scale.value, out, data, seed, device, workers, progress=True, concepts=concepts)
    claim_folder(out / scale.value, ["report.html", *(f"{name}/{file}" for name in chosen for file in RESULTS)])
    if scale is Scale.SMOKE:
        one_thread()
    done, failed = _all(chosen, setting, context.obj)
    paths = _write(done, failed, out, scale.value)
    if as_json:
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


def _all(names: list[str], setting: Setting, command: str) -> tuple[list[Reproduction], dict[str, str]]:
    """Run them one after the other; one of several that fails does not stop the others."""  # noqa: DOC501
    from dataclasses import replace

    from ..lab.experiments import experiment
    from ..lab.experiments import reproduce as run
    from ._show import tell

    done: list[Reproduction] = []
    failed: dict[str, str] = {}
    for k, name in enumerate(names, 1):
        scales = experiment(name).scales
        only = "" if setting.scale in scales else f", which has only the scale {' and '.join(scales)}"
        tell(f"{name} ({k} of {len(names)}){only}")
        try:
            found = run(name, setting)
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
    from ..report import write_page
    from ..report.reproduce import write_all_page

    folder = out / scale
    for r in done:
        r.save(folder / r.name / "results.json")
        r.save(folder / r.name / "results.parquet")
        write_page(r, folder / r.name / "report.html")
    return {"folder": folder, "page": write_all_page(done, failed, folder / "report.html")}
