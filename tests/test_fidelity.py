"""The page of fidelity is true: every row names what exists and what is valid, and mistakes are seen."""

import importlib.util
import runpy
from dataclasses import replace
from pathlib import Path

import pytest

from intertwine.lab.experiments import experiments

RESULTS = Path(__file__).parents[1] / "results"


@pytest.fixture(scope="module")
def fidelity():
    spec = importlib.util.spec_from_file_location("results_fidelity", RESULTS / "fidelity.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_row_names_functions_tests_mutants_and_results_that_are_there(fidelity):
    assert fidelity.mistakes(fidelity.items()) == []


def test_every_mutation_of_the_experiments_still_finds_the_code_that_it_changes():
    root = RESULTS.parent
    mutations = runpy.run_path(str(root / "benchmarks" / "mutate_experiments.py"))["MUTATIONS"]
    assert [old for file, old, *_ in mutations if old not in (root / file).read_text(encoding="utf-8")] == []


def test_every_item_stands_once_with_a_function_and_a_test(fidelity):
    found = fidelity.items()
    assert len({item["item"] for item in found}) == len(found) > 170
    assert all(item["function"] and item["test"] and item["paper"] in ("1", "2") for item in found)
    descriptive = {"fig1-to-the-end"}  # one pair of networks: numbers, no statement
    assert set(experiments()) - descriptive <= {item["experiment"] for item in found}


def test_what_is_measured_below_the_papers_scale_says_in_what_it_is_weaker(fidelity):
    exact = {name for name, one in experiments().items() if len(one.scales) == 1}
    for item in fidelity.items():
        if item["experiment"] in set(experiments()) - exact or item["note"].startswith("not run"):
            assert item["weaker"], item["item"]


def test_the_page_follows_from_rows_and_results(fidelity):
    written = RESULTS.parent / "docs" / "fidelity.md"
    assert written.read_text(encoding="utf-8") == fidelity.page(), "run results/fidelity.py"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"function": "intertwine.groups.capacity.no_such"}, "function must exist"),
        ({"function": "intertwine.no_such.room"}, "function must exist"),
        ({"function": "os.path.join"}, "function must be of intertwine or studies"),
        ({"test": "tests/test_fidelity.py::test_no_such"}, "test must exist"),
        ({"test": "tests/test_no_such.py::test_it"}, "test must exist"),
        ({"test": ""}, "test must exist"),
        ({"mutant": "tables.py: no such text"}, "mutant must be"),
        ({"mutant": "tables.py: "}, "mutant must be"),
        ({"experiment": "table99"}, "experiment must exist"),
        ({"experiment": "e7-counts", "claims": "no such words"}, "claims must be some of e7-counts"),
        ({"experiment": "", "claims": "words"}, "claims must be of an experiment"),
    ],
    ids=lambda one: one if isinstance(one, str) else "-".join(one),
)
def test_mistakes_are_seen(fidelity, change, said):
    right = next(item for item in fidelity.items() if item["experiment"] == "e7-counts")
    assert fidelity.mistakes([right]) == []
    (line,) = fidelity.mistakes([right | change])
    assert line.startswith(f"{right['item']}: {said}")


def test_a_result_with_another_fingerprint_is_not_valid(fidelity, monkeypatch):
    row = next(item for item in fidelity.items() if item["experiment"] == "p2-width-sweep")
    kept = fidelity._kept("e7-counts")
    small = lambda digest: replace(
        kept, name="e7-counts", scale="small", facts=kept.facts | {"fingerprint": digest}
    )  # fmt: skip
    smoke = fidelity.Values.load(RESULTS / "smoke" / "e7-counts.parquet").digest()
    for digest, valid in ((smoke, True), ("another", False)):
        monkeypatch.setattr(fidelity, "_kept", lambda name, digest=digest: small(digest))
        assert (fidelity.mistakes([row | {"claims": ""}]) == []) is valid
        assert fidelity.judged(row | {"claims": ""})[1].endswith("(older than its code)") is not valid
