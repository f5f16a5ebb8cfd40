"""``intertwine runs``, ``zoo`` and ``reproduce``."""

import json

import pytest

from intertwine.lab.experiments import Values
from intertwine.lab.experiments.paper1 import group_tables


@pytest.fixture
def made(tmp_path):
    """A run with a job that fails."""
    from run_jobs import moods, squares

    from intertwine.lab.runs import InProcess, run

    run(moods("fine", "raises"), tmp_path / "runs", executor=InProcess(), retries=0, progress=False)
    run(squares(count=3), tmp_path / "runs", executor=InProcess(), progress=False)
    return tmp_path / "runs"


def test_runs_are_listed_and_shown(run, made):
    listed = run.done("runs")
    assert "moods" in listed.out
    assert "3 Square" in listed.out
    shown = run("runs", "show", "moods")
    assert "ValueError: no luck with 1" in shown.out
    jobs = json.loads(run("runs", "show", "squares", "--json").out)["jobs"]
    assert [job["state"] for job in jobs] == ["done"] * 3


def test_resuming_runs_what_is_missing_and_says_what_failed(run, made):
    resumed = run("runs", "resume", "moods", "--workers", 1, "--retries", 0)
    assert resumed.code == 1
    assert "moods: 0 run, 1 found, 1 failed" in resumed.out
    assert "failed: mood=raises, x=1: ValueError: no luck with 1" in resumed.err


@pytest.mark.parametrize("text", ["[", None])
def test_a_run_without_its_log_is_resumed(run, made, text):
    log = made / "squares" / "jobs.json"
    log.write_text(text) if text else log.unlink()
    assert "squares: 0 run, 3 found" in run.done("runs", "resume", "squares", "--workers", 1).out
    assert json.loads(run.done("runs", "show", "squares", "--json").out)["jobs"][0]["state"] == "done"


def test_cleaning_removes_what_is_not_planned_or_everything(run, made):
    assert "removed 0 results of earlier plans" in run("runs", "clean", "squares").out
    assert json.loads(run("runs", "clean", "squares", "--all", "--json").out) == {"removed": 3}
    assert not (made / "squares").exists()


def test_no_runs_is_no_error_and_no_run_of_a_name_is(run):
    assert run("runs").out == "no runs in runs\n"
    assert run("runs", "show", "nothing").code == 2
    assert "folder must be of a run" in run("runs", "show", "nothing").error


def test_a_zoo_is_trained_kept_and_shown(run, tmp_path):
    words = ("zoo", "train", "--model", "mlp:widths=16", "--count", 3, "--epochs", 1)
    assert "3 networks mlp:widths=16 on digits" in run.done(*words).out
    files = sorted(p.name for p in (tmp_path / "zoo").iterdir())
    assert files == [f"seed-000{k}.{end}" for k in range(3) for end in ("json", "safetensors")]
    cards = json.loads(run("zoo", "show", "--json").out)["members"]
    assert [m["card"]["seed"] for m in cards] == [0, 1, 2]
    before = (tmp_path / "zoo" / "seed-0000.safetensors").stat().st_mtime_ns
    assert run(*words).code == 0
    assert (tmp_path / "zoo" / "seed-0000.safetensors").stat().st_mtime_ns == before


def test_networks_that_diverged_are_in_the_json_of_a_zoo(run, monkeypatch):
    from intertwine.lab.training.engines import Engine

    monkeypatch.setattr(
        Engine, "step", lambda self, x, y, rate, step=Engine.step: step(self, x * float("nan"), y, rate)
    )
    ran = run("zoo", "train", "--model", "mlp:widths=8", "--count", 2, "--epochs", 1, "--json")
    assert ran.code == 1
    assert json.loads(ran.out)["diverged"] == [0, 1] and json.loads(ran.out)["members"] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("zoo", "train"), "--model must be a built-in network. Got None"),
        (("zoo", "show"), "zoo must be a folder with checkpoints"),
    ],
    ids=str,
)
def test_wrong_words_are_refused(run, words, message):
    assert message in run.refused(*words)


def test_experiments_are_listed_and_reproduced(run, tmp_path):
    assert "table2-dissimilarity" in run("reproduce").out
    assert "6 of 6 claims hold" in run.done("reproduce", "e7-counts", "table1-groups", "--out", "r").out
    page = (tmp_path / "r" / "smoke" / "report.html").read_text()
    assert "Intertwiner groups of activations" in page
    assert (tmp_path / "r" / "smoke" / "e7-counts.parquet").is_file()
    assert sorted(p.name for p in (tmp_path / "r" / "smoke" / "e7-counts").iterdir()) == ["report.html", "results.json"]
    assert run("report", "r/smoke/e7-counts/results.json").code == 0
    listed = {row["experiment"]: row for row in json.loads(run("reproduce", "--list", "--out", "r", "--json").out)}
    assert listed["e7-counts"]["validity"] == "valid"
    assert listed["e7-counts"]["verdicts"] == "1 holds"
    assert listed["table2-dissimilarity"]["kept"] == ""


def test_pages_are_made_again_from_values_byte_for_byte(run, tmp_path):
    """Without a job: what jobs return lies elsewhere by then."""
    assert run("reproduce", "e7-counts", "--out", "r").code == 0
    page = tmp_path / "r" / "smoke" / "e7-counts" / "report.html"
    before = page.read_bytes()
    page.unlink()
    (tmp_path / "r" / "smoke" / "work").rename(tmp_path / "away")
    assert run("reproduce", "e7-counts", "--reanalyse", "--out", "r").code == 0
    assert page.read_bytes() == before
    assert not (tmp_path / "r" / "smoke" / "work").exists()
    everything = run.done("reproduce", "--all", "--reanalyse", "--out", "r")  # of those that there are
    assert "no values in r of table1-groups, fig17-gelu, " in everything.err
    values = tmp_path / "r" / "smoke" / "e7-counts.parquet"
    values.write_bytes(values.read_bytes()[:100])
    refused = run("reproduce", "e7-counts", "--reanalyse", "--out", "r")
    assert (refused.code, refused.error.count("values must be readable Parquet")) == (2, 1)


def test_values_that_differ_from_the_kept_ones_are_told(run, tmp_path):
    assert run("reproduce", "e7-counts", "--out", "r").code == 0
    assert run("reproduce", "e7-counts", "--out", "again", "--against", "r").code == 0
    said = run.refused("reproduce", "e7-counts", "--out", "again", "--against", "rr")
    assert "--against must hold fingerprints as DIR/smoke/NAME.parquet. Got 'rr'." in said
    kept = Values.load(tmp_path / "r" / "smoke" / "e7-counts.parquet")
    kept.frame.loc[0, "value"] *= 1.001
    kept.save(tmp_path / "r" / "smoke" / "e7-counts.parquet")
    found = run("reproduce", "e7-counts", "--out", "again", "--against", "r")
    assert found.code == 1
    assert "older than its code: 1 of 40 numbers differ" in found.err


def test_an_experiment_that_fails_does_not_stop_the_others(run, monkeypatch):
    def fail(job, files):
        raise RuntimeError("no luck")

    monkeypatch.setattr(group_tables.Counts, "run", fail)
    done = run("reproduce", "e7-counts", "table1-groups", "--json")
    assert done.code == 1
    said = json.loads(done.out)
    assert list(said["results"]) == ["table1-groups"]
    assert "no luck" in said["failed"]["e7-counts"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("e7-counts", "fig3-dissection", "--scale", "paper"), "--concepts broden:FOLDER"),
        (("e7-counts", "table2-dissimilarity", "--scale", "small", "--data", "npz:none.npz"), "none.npz"),
    ],
)
def test_missing_data_ends_with_code_2_before_any_work(run, tmp_path, words, message):
    assert message in run.refused("reproduce", *words)
    assert not (tmp_path / "reproduction").exists()


def test_a_dry_run_says_what_is_to_do_and_does_nothing(run, tmp_path):
    done = run.done("reproduce", "table2-dissimilarity", "--dry-run", "--json")
    said = json.loads(done.out)
    (outlook,) = (one for one in said["outlook"] if one["experiment"] == "table2-dissimilarity")
    assert [outlook[name] for name in ("networks", "trained", "jobs", "done")] == [4, 0, 7, 0]
    assert any(line.startswith("6 x LayerSimilarity: ") for line in said["plans"]["table2-dissimilarity"])
    assert not (tmp_path / "reproduction").exists()
    assert "6 x LayerSimilarity: " in run("reproduce", "table2-dissimilarity", "--dry-run").out
