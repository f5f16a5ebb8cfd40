"""The results that are kept: the page shows what the files hold, and names where each comes from."""

import argparse
import importlib.util
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from intertwine.lab.experiments import Reproduction, experiments, is_older

RESULTS = Path(__file__).parents[1] / "results"


@pytest.fixture(scope="module")
def build():
    spec = importlib.util.spec_from_file_location("results_build", RESULTS / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def fidelity():
    spec = importlib.util.spec_from_file_location("results_fidelity", RESULTS / "fidelity.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_fidelity_follows_from_items_and_results(fidelity):
    kept = RESULTS.parent / "docs" / "fidelity.md"
    assert kept.read_text(encoding="utf-8") == fidelity.page(), "run results/fidelity.py"


def test_every_item_names_what_exists_and_says_why_it_was_not_run(fidelity):
    found = fidelity.items()
    assert len({item["item"] for item in found}) == len(found) > 160
    for item in found:
        assert item["function"].startswith("intertwine."), item["item"]
        assert re.fullmatch(r"tests/[\w/]+\.py::test_\w+", item["test"]) or item["note"].startswith("not run"), item[
            "item"
        ]
        assert not item["experiment"] or item["experiment"] in experiments(), item["item"]
    measured = {name for name, e in experiments().items() if not name.startswith("open-")}
    assert measured <= {item["experiment"] for item in found}


def test_notes_do_not_speak_of_results_that_are_made_again(fidelity):
    """The scale and the verdict are read from the results; what a hand wrote of them would grow old."""
    assert [
        item["item"] for item in fidelity.items() if re.search(r"\b(kept|the next|added since)\b", item["note"])
    ] == []


def test_verdicts_of_items_are_those_of_the_results(fidelity, build):
    (item,) = (i for i in fidelity.items() if i["item"] == "v2 Table 2")
    (found,) = (r for _, r in build.kept() if r.name == "table2-dissimilarity")
    told = [c.verdict for c in found.claims]
    scale, verdict = fidelity.judged(item)
    assert scale == "small"
    assert f"{told.count('holds')} holds" in verdict
    assert f"{told.count('cannot be told')} cannot be told" in verdict


def test_the_pages_show_what_the_files_hold(build):
    wanted = build.pages(build.kept())
    assert {str(path.relative_to(RESULTS)) for path in RESULTS.rglob("*.md")} == set(wanted)
    for name, text in wanted.items():
        assert (RESULTS / name).read_text(encoding="utf-8") == text, "run results/build.py"


def test_every_result_is_in_the_index_once(build):
    linked = re.findall(r"\]\((\w+/[\w-]+)\.md\)", (RESULTS / "README.md").read_text(encoding="utf-8"))
    assert sorted(linked) == sorted(f"{scale}/{r.name}" for scale, r in build.kept())


def test_a_page_has_every_number_and_statement_of_its_result(build):
    """What a statement was judged by stands on its page, and so does each number."""
    check = " (a check of the run, no statement)"
    for scale, r in build.kept():
        text = (RESULTS / scale / f"{r.name}.md").read_text(encoding="utf-8")
        assert all(row.shown in text for row in r.rows)
        safe = lambda words: words.replace("|", "&#124;")
        said = lambda c: (f"{c.verdict}: {c.why}" if c.held is None else c.verdict) + check * c.check
        assert all(f"| {safe(c.text)} | {safe(said(c))} | {safe(c.detail)} |" in text for c in r.claims)
        assert f"]({r.name}.json)" in text


def test_a_page_says_what_ran_where_the_plan_is_still_that(build):
    """Sizes of jobs stand in no note."""
    pages = build.pages(build.kept())
    text = pages["small/fig1-stitching-myrtle.md"]
    (one,) = (r for _, r in build.kept() if r.name == "fig1-stitching-myrtle")
    assert ("- 6 x StitchedLayers: examples 1600, tested 1000" in text) == (not is_older(one))
    older = replace(one, facts={**one.facts, "code": "another"})
    assert "What ran" not in build.page(older)


def test_every_file_is_of_an_experiment_and_says_where_it_comes_from(build):
    kept = build.kept()
    assert {path.stem for path in RESULTS.glob("*/*.json")} == {r.name for _, r in kept} <= set(experiments())
    for scale, r in kept:
        assert r.scale == scale
        assert {"commit", "intertwine", "torch", "python", "machine", "date", "seed", "seconds"} <= set(r.facts)
        assert not r.facts["commit"].endswith("+"), "made from code that was never committed"
        assert r.passed


def test_what_is_older_is_made_again_and_every_experiment_has_its_place_in_the_order(build, tmp_path, monkeypatch):
    """With a command that writes what is kept already: it is kept again under today's code, and not under another."""
    monkeypatch.setitem(sys.modules, "build", build)
    spec = importlib.util.spec_from_file_location("results_remake", RESULTS / "remake.py")
    remake = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(remake)
    assert sorted(remake.ORDER) == sorted(experiments())
    monkeypatch.setattr(build, "HERE", tmp_path / "kept")
    monkeypatch.setattr(remake, "HERE", tmp_path / "kept")
    (tmp_path / "kept" / "smoke").mkdir(parents=True)
    name, asked = "e7-counts", argparse.Namespace(data="cifar10", concepts="generated", out=str(tmp_path))
    one = Reproduction.load(RESULTS / "smoke" / f"{name}.json")

    def reproduced(made, code):
        def run(command):
            assert command[2:6] == ["intertwine", "reproduce", name, "--scale"]
            (tmp_path / "smoke" / name).mkdir(parents=True, exist_ok=True)
            made.save(tmp_path / "smoke" / name / "results.json")
            return subprocess.CompletedProcess(command, code)

        return run

    assert remake.missing(name)
    older = replace(one, facts={**one.facts, "code": "another"})
    for made, code, kept in ((older, 0, False), (one, 2, False), (one, 0, True)):
        monkeypatch.setattr(remake.subprocess, "run", reproduced(made, code))
        assert remake.remade(name, asked) is kept
        assert remake.missing(name) is not kept


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
