"""Validity by behaviour: what changes values at smoke scale loses a result, what does not keeps it; nothing is lost."""

import json
import shutil

import pytest
import tiny_experiment as tiny
from tiny_experiment import TINY, behaviour, ran

from intertwine.errors import DataError
from intertwine.lab.experiments import (
    Setting,
    Values,
    check_against,
    compare,
    experiments,
    fingerprints,
    registry,
    values_path,
)
from intertwine.lab.experiments.registry import set_aside, source_version
from intertwine.lab.training import member_path


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch):
    """Today's code is what it is at the start of each test; ``ran`` lists the jobs that ran."""
    for name, value in behaviour.items():
        monkeypatch.setitem(behaviour, name, value)
    ran.clear()


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """The fingerprint that stands beside a result."""
    return taken(tmp_path_factory.mktemp("kept"))


def taken(folder):
    found, failed = fingerprints([TINY], Setting(folder=folder))
    assert not failed
    return found["tiny"]


def source(monkeypatch, text):
    """As if the files of the package had other bytes."""
    monkeypatch.setattr(registry, "source_version", lambda: text)


def rounded(values, factor, **facts):
    """The same values up to a factor, with other facts."""
    frame = values.frame.copy()
    frame["value"] *= factor
    return Values(frame, {**values.facts, **facts})


# --- what keeps a result, and what does not ------------------------------------------------------


def test_other_words_keep_it(kept, tmp_path, monkeypatch):
    """A renamed function and a changed comment: other bytes, everything anew, the same values."""
    source(monkeypatch, "other bytes")
    monkeypatch.setattr(tiny, "euclidean", tiny.measure, raising=False)
    monkeypatch.setattr(tiny, "measure", lambda a, b: tiny.euclidean(a, b))
    assert compare(kept, taken(tmp_path)) == ("valid", "")
    assert len(ran) == 6


CHANGES = {
    "penalty": lambda m: m.setitem(behaviour, "penalty", 1.001),
    "learning rate": lambda m: m.setitem(behaviour, "rate", 3.01e-3),
    "seed": lambda m: m.setitem(behaviour, "seed", 1),
    "number of networks": lambda m: m.setitem(behaviour, "count", 4),
    "network": lambda m: m.setattr(tiny, "NETWORK", "mlp:widths=9"),
    "measure": lambda m: m.setattr(tiny, "measure", lambda a, b: float((a - b).abs().sum())),
    "measure, a little": lambda m: m.setattr(tiny, "measure", lambda a, b: float((a - b).norm()) * (1 + 1e-4)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_other_behaviour_loses_it(change, kept, tmp_path, monkeypatch):
    CHANGES[change](monkeypatch)
    state, where = compare(kept, taken(tmp_path))
    assert state == "older than its code"
    assert "tiny" in where


def test_roundings_are_none_and_more_is_open_on_other_versions(kept):
    state, where = compare(kept, rounded(kept, 1 + 1e-8))
    assert state == "valid" and "numbers differ" in where
    for facts in ({"torch": "9.9"}, {"machine": "another"}):
        assert compare(kept, rounded(kept, 1 + 1e-8, **facts))[0] == "valid"
        assert compare(kept, rounded(kept, 1 + 1e-4, **facts))[0] == "not known here"
    assert compare(kept, rounded(kept, 1 + 1e-4))[0] == "older than its code"
    assert compare(kept, rounded(kept, 1.0, commit="another", date="another", hours=9.0)) == ("valid", "")


def test_a_difference_near_zero_is_measured_by_its_statistic():
    """What rounding leaves of a score whose chance level was taken out."""
    row = lambda network, value: {"network": network, "statistic": "score", "value": value}
    kept = Values.of([row("0", 0.5), row("1", 1e-7)], {})
    assert compare(kept, Values.of([row("0", 0.5), row("1", 3e-6)], {}))[0] == "valid"
    assert compare(kept, Values.of([row("0", 0.5), row("1", 3e-5)], {}))[0] == "older than its code"


def test_kept_fingerprints_are_checked_by_name(kept, tmp_path):
    assert check_against(tmp_path, {"tiny": kept}) == {}
    kept.save(tmp_path / "tiny.parquet")
    assert check_against(tmp_path, {"tiny": kept}) == {"tiny": ("valid", "")}
    (tmp_path / "tiny.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match="readable Parquet"):
        check_against(tmp_path, {"tiny": kept})


def test_networks_at_smoke_scale_are_the_same_whatever_runs_beside_them():
    """Networks of one folder are trained at once, which changes their last bits: one zoo, one folder."""
    zoos = [zoo for one in experiments().values() for zoo in one.planned(Setting(device="cpu")).zoos]
    seeds = {zoo.folder: zoo.seeds for zoo in zoos}
    assert all(seeds[zoo.folder] == zoo.seeds for zoo in zoos)
    assert len(seeds) < len(zoos)  # some are shared


# --- what is finished is found -------------------------------------------------------------------


def test_an_idle_second_run_runs_nothing(tmp_path):
    first = taken(tmp_path)
    assert len(ran) == 6
    checkpoints = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.safetensors")}
    assert len(checkpoints) == 3
    assert taken(tmp_path).digest() == first.digest()
    assert len(ran) == 6
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.safetensors")} == checkpoints


def test_other_bytes_are_measured_anew(tmp_path, monkeypatch):
    taken(tmp_path)
    source(monkeypatch, "other bytes")
    taken(tmp_path)
    assert len(ran) == 12
    assert [p.name for p in (tmp_path / "smoke" / "work").iterdir()] == ["other bytes"]


@pytest.mark.parametrize("scale", ["smoke", "small"])
def test_an_interrupted_run_loses_nothing(scale, tmp_path, monkeypatch, kept):
    """One job fails: no values are written, the others stay, and the second call runs only that one."""
    setting = Setting(scale, folder=tmp_path)
    if scale == "small":
        registry.run_experiments([TINY], Setting(folder=tmp_path))
        ran.clear()
    broken = "seed-0001"
    monkeypatch.setitem(behaviour, "fails", () if scale == "small" else (broken,))
    if scale == "small":  # the fingerprint is there; only the longer run is interrupted
        monkeypatch.setattr(tiny.Distance, "run", interrupted(tiny.Distance.run))
        with pytest.raises(KeyboardInterrupt):
            registry.run_experiments([TINY], setting)
    else:
        found, failed = registry.run_experiments([TINY], setting)
        assert found == {}
        assert "no luck with seed-0001" in failed["tiny"]
        assert "finished ones are kept" in failed["tiny"]
    assert not values_path(tmp_path, "tiny", scale).exists()
    done = len(ran)
    assert 0 < done < 6
    monkeypatch.undo()
    found, failed = registry.run_experiments([TINY], setting)
    assert failed == {}
    assert len(ran) == 6
    assert Values.load(values_path(tmp_path, "tiny", scale)).digest() == found["tiny"].digest()
    if scale == "smoke":
        assert found["tiny"].digest() == kept.digest()


def interrupted(run):
    """Ctrl-C in the second call."""
    calls = []

    def called(self, files):
        calls.append(self)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return run(self, files)

    return called


# --- results at larger scales --------------------------------------------------------------------


def test_a_result_is_valid_until_behaviour_changes(tmp_path, monkeypatch):
    setting = Setting("small", folder=tmp_path)
    registry.run_experiments([TINY], setting)
    state = lambda: registry.validity(tmp_path, "tiny", "small")
    assert state() == "valid"
    ran.clear()
    source(monkeypatch, "other words")
    assert state() == "not checked: run it at smoke scale"
    registry.run_experiments([TINY], Setting(folder=tmp_path))
    assert state() == "valid"
    registry.run_experiments([TINY], setting)
    assert len(ran) == 6  # the fingerprint; what is finished at the larger scale counts
    source(monkeypatch, "other behaviour")
    monkeypatch.setitem(behaviour, "penalty", 2.0)
    registry.run_experiments([TINY], Setting(folder=tmp_path))
    assert state() == "older than its code"


@pytest.fixture
def longer(tmp_path):
    """A finished longer run: setting in the folder of its scale."""
    registry.run_experiments([TINY], Setting("small", folder=tmp_path))
    ran.clear()
    return Setting("small", folder=tmp_path / "small")


def test_what_other_code_left_is_moved_away(longer, kept, monkeypatch):
    folder = TINY.planned(longer).zoos[0].folder
    results = sorted((longer.folder / "runs" / "jobs" / "results").glob("*.json"))
    source(monkeypatch, "other behaviour")
    moved = set_aside(TINY, longer, rounded(kept, 1.1))
    assert folder.name in moved
    assert len(moved) == 1 + 6  # networks and jobs
    assert not member_path(folder, 0).exists()
    assert not any(r.exists() for r in results)
    assert len(list((longer.folder / "older").rglob("*.safetensors"))) == 3
    assert len(list((longer.folder / "older").rglob("*.json"))) >= 6
    assert set_aside(TINY, longer, rounded(kept, 1.1)) == []


def test_what_the_same_behaviour_left_stays(longer, kept, monkeypatch):
    source(monkeypatch, "other words")
    assert set_aside(TINY, longer, kept) == []
    assert set_aside(TINY, longer, rounded(kept, 1.1, torch="9.9")) == []  # open: nothing is thrown away
    assert member_path(TINY.planned(longer).zoos[0].folder, 0).exists()


def test_networks_that_this_very_code_made_stay(longer, kept):
    """Another experiment moved the shared zoo away, and it was trained again by today's code."""
    assert source_version() == (TINY.planned(longer).zoos[0].folder / "source.txt").read_text()
    moved = set_aside(TINY, longer, rounded(kept, 1.1))
    assert len(moved) == 6
    assert member_path(TINY.planned(longer).zoos[0].folder, 0).exists()


def test_a_run_after_other_behaviour_trains_and_measures_anew(longer, tmp_path, monkeypatch):
    source(monkeypatch, "other behaviour")
    monkeypatch.setattr(tiny, "measure", lambda a, b: float((a - b).abs().sum()))
    before = Values.load(values_path(tmp_path, "tiny", "small"))
    found, _ = registry.run_experiments([TINY], Setting("small", folder=tmp_path))
    assert len(ran) == 12
    assert found["tiny"].sample("distance", "zoo").mean > 2 * before.sample("distance", "zoo").mean


def test_a_lost_folder_of_networks_is_trained_again(longer, tmp_path):
    shutil.rmtree(longer.folder / "zoos")
    next((longer.folder / "runs" / "jobs" / "results").glob("*.json")).unlink()  # of a job that needs them
    before = Values.load(values_path(tmp_path, "tiny", "small"))
    found, failed = registry.run_experiments([TINY], Setting("small", folder=tmp_path))
    assert failed == {}
    assert found["tiny"].digest() == before.digest()


def test_a_damaged_result_of_a_job_is_run_again(longer, tmp_path):
    results = sorted((longer.folder / "runs" / "jobs" / "results").glob("*.json"))
    results[0].write_text('{"half')
    results[1].write_text(json.dumps({"value": 3}))
    _, failed = registry.run_experiments([TINY], Setting("small", folder=tmp_path))
    assert failed == {}
    assert len(ran) == 2
