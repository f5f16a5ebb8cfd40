"""The results that are kept: the page shows what the files hold, and names where each comes from."""

import importlib.util
import re
from dataclasses import replace
from pathlib import Path

import pytest

from intertwine.lab.experiments import experiments

RESULTS = Path(__file__).parents[1] / "results"


@pytest.fixture(scope="module")
def build():
    spec = importlib.util.spec_from_file_location("results_build", RESULTS / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_shows_what_the_files_hold(build):
    assert (RESULTS / "README.md").read_text(encoding="utf-8") == build.page(build.kept()), "run results/build.py"


def test_every_file_is_of_an_experiment_and_says_where_it_comes_from(build):
    kept = build.kept()
    assert {path.stem for path in RESULTS.glob("*/*.json")} == {r.name for _, r in kept} <= set(experiments())
    for scale, r in kept:
        assert r.scale == scale
        assert {"commit", "intertwine", "torch", "python", "machine", "date", "seed", "seconds"} <= set(r.facts)
        assert not r.facts["commit"].endswith("+"), "made from code that was never committed"
        assert r.passed


def test_a_picture_for_every_series(build):
    for scale, r in build.kept():
        assert (RESULTS / scale / f"{r.name}.svg").is_file() == any(panel.measured for panel in r.panels)


def test_what_is_kept_names_no_places_of_a_machine(build, tmp_path, monkeypatch):
    assert all("PATH" in r.facts["command"] for _, r in build.kept())
    for file in RESULTS.glob("*/*.json"):
        assert not re.search(r"[:\s\"]/\w", file.read_text(encoding="utf-8")), file.name
    _, one = build.kept()[0]
    monkeypatch.setattr(build, "HERE", tmp_path)
    (tmp_path / one.scale).mkdir()
    command = "intertwine reproduce x --data cifar10:/data/cifar --concepts parquet:/a/b.parquet+colours --out /tmp/out"
    build.keep(replace(one, facts={**one.facts, "command": command}))
    kept = type(one).load(tmp_path / one.scale / f"{one.name}.json")
    expected = "intertwine reproduce x --data cifar10:PATH --concepts parquet:PATH+colours --out PATH"
    assert kept.facts == {**one.facts, "command": expected}
