"""The results that are kept: pages follow from the values, and say where each comes from."""

import argparse
import importlib.util
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from intertwine.lab.experiments import Values, experiment, experiments
from intertwine.report.pages.reproduce import panels

RESULTS = Path(__file__).parents[1] / "results"
MOST = 60 * 2**20  # bytes of all results


def loaded(name):
    spec = importlib.util.spec_from_file_location(f"results_{name}", RESULTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def build():
    return loaded("build")


@pytest.fixture(scope="module")
def kept(build):
    return build.kept()


def test_the_pages_follow_from_the_values_byte_for_byte(build, kept):
    wanted = build.pages(kept)
    own = {p.relative_to(RESULTS).as_posix() for p in RESULTS.rglob("*.md")}
    assert {name for name in own if not name.startswith("earlier/")} == set(wanted)
    for name, text in wanted.items():
        assert (RESULTS / name).read_text(encoding="utf-8") == text, "run results/build.py"


def test_a_page_has_every_number_and_statement_of_its_result(build, kept):
    for r in kept:
        text = (RESULTS / r.scale / f"{r.name}.md").read_text(encoding="utf-8")
        assert all(row.shown in text for row in r.rows)
        safe = lambda words: words.replace("|", "&#124;")
        assert all(f"| {safe(c.text)} | {safe(build._said(c))} | {safe(c.detail)} |" in text for c in r.claims)
        assert f"]({r.name}.parquet)" in text


def test_what_cannot_be_told_has_its_networks_and_hours(build, kept):
    text = (RESULTS / "README.md").read_text(encoding="utf-8")
    assert build.counts(kept) in text
    for r in kept:
        for c in r.statements:
            assert (c.held is None) == (
                f"| {c.text.replace('|', '&#124;')} | {c.detail.replace('|', '&#124;')} |" in text
            )


def test_hours_said_before_stand_beside_those_taken(build, kept):
    """One row for each experiment that was planned; what was not run has no hours."""
    rows = {line.split("|")[1].strip(): line for line in build.hours(kept).splitlines() if line.startswith("| ")}
    assert set(rows) <= {"experiment", *experiments()}
    took = {r.name: f"{r.facts['hours']:.2f}" for r in kept}
    assert {name for name in took if not rows[name].endswith(f"| {took[name]} |")} == set()
    assert rows["p2-table2"].startswith("| p2-table2 | 0 | 63 | 161 | 12.38 |")


def test_every_table_says_where_it_comes_from_and_holds_what_must_hold(kept):
    for r in kept:
        assert {"commit", "intertwine", "torch", "python", "machine", "date", "seed", "hours"} <= set(r.facts)
        assert not r.facts["commit"].endswith("+"), "made from code that was never committed"
        assert r.passed
        assert r.scale == "smoke" or r.facts["fingerprint"]


def test_results_are_small_and_name_no_places_of_a_machine():
    files = [p for p in RESULTS.rglob("*") if p.is_file()]
    assert sum(p.stat().st_size for p in files) < MOST
    for file in RESULTS.rglob("*.parquet"):
        values = Values.load(file)
        assert not re.search(r"[:\s\"]/\w", repr(values.facts)), file.name
        assert not any(str(v).startswith("/") for v in pd.unique(values.frame["layer"]))


def test_every_experiment_has_its_place_in_the_order_and_what_is_older_is_made_again(build, tmp_path, monkeypatch):
    """With a command that writes what is kept already: it is kept again under today's fingerprint."""
    monkeypatch.setitem(sys.modules, "build", build)
    remake = loaded("remake")
    assert sorted(remake.ORDER) == sorted(experiments())
    monkeypatch.setattr(remake, "HERE", tmp_path / "kept")
    name = "e7-counts"
    asked = argparse.Namespace(data="cifar10", concepts="generated", out=str(tmp_path), workers="0")
    values = Values.load(RESULTS / "smoke" / f"{name}.parquet")

    def reproduced(code):
        def run(command):
            assert command[2:6] == ["intertwine", "reproduce", name, "--scale"]
            values.save(tmp_path / "smoke" / f"{name}.parquet")
            return subprocess.CompletedProcess(command, code)

        return run

    assert remake.is_missing(name)
    for code, there in ((2, False), (0, True)):
        monkeypatch.setattr(remake.subprocess, "run", reproduced(code))
        assert remake.remake(name, asked) is there
        assert remake.is_missing(name) is not there


def test_a_result_with_another_fingerprint_is_older_than_its_code(build, tmp_path, monkeypatch, kept):
    smoke = Values.load(next((RESULTS / "smoke").glob("p2-width-sweep.parquet")))
    monkeypatch.setattr(build, "HERE", tmp_path)
    smoke.save(tmp_path / "smoke" / "p2-width-sweep.parquet")
    page = experiment("p2-width-sweep").page(smoke)
    small = lambda digest: replace(page, scale="small", facts={**page.facts, "fingerprint": digest})
    assert not build.is_older(small(smoke.digest()))
    assert build.is_older(small("another"))
    assert build.OLDER in build.pages([small("another")])["small/p2-width-sweep.md"]


def test_a_picture_for_every_series(kept):
    for r in kept:
        assert (RESULTS / r.scale / f"{r.name}.svg").is_file() == any(panel.measured for panel in panels(r))
