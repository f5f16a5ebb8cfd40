"""The plans: every network and job of every experiment at small and paper scale, as tests/lab/plans.txt keeps them."""

from functools import cache
from pathlib import Path

import pytest
from tiny_experiment import TINY

from intertwine.lab.data import load
from intertwine.lab.experiments import Design, Findings, Setting, Values, experiments, plans, registry
from intertwine.lab.training import RECIPES, Recipe

KEPT = Path(__file__).with_name("plans.txt")


@cache
def kept():
    """The lines of every plan, by scale and name."""
    found, lines = {}, []
    for line in KEPT.read_text(encoding="utf-8").splitlines():
        if line.startswith("  "):
            lines.append(line[2:])
        else:
            lines = found[tuple(line.split())] = []
    return found


@pytest.mark.parametrize("name", experiments())
def test_the_plans_are_those_that_are_kept(name):
    """Made by: python -m intertwine.lab.experiments.plans > tests/lab/plans.txt."""
    for scale in ("small", "paper"):
        assert plans.listed(experiments()[name].planned(Setting(scale))) == kept().get((scale, name), [])


def test_no_plan_is_kept_of_what_is_not_there():
    assert {name for _, name in kept()} <= set(experiments())


@pytest.mark.parametrize(("scale", "taken"), [("small", True), ("smoke", False)])
def test_networks_trained_in_the_other_precision_are_kept_where_precision_is_a_matter_of_speed(tmp_path, scale, taken):
    def folder(precision):
        design = Design(Setting(scale, tmp_path, "digits"))
        return design.zoo("here", "mlp:widths=4", 2, Recipe(epochs=1, precision=precision)).members

    there = folder("float32")
    for member in there:
        assert folder("bfloat16")[0].path != there[0].path  # one of two is not enough
        member.path.parent.mkdir(parents=True, exist_ok=True)
        member.path.touch()
    assert (folder("bfloat16")[0].path == there[0].path) is taken


def test_a_plan_does_nothing_and_looks_at_no_data(tmp_path, monkeypatch):
    monkeypatch.setattr("intertwine.lab.experiments.plan.load", None)
    found = experiments()["fig1-stitching-myrtle"].planned(Setting("paper", tmp_path, "cifar10:/nowhere"))
    assert found.zoos
    assert found.tasks
    assert not list(tmp_path.iterdir())


# --- what is left, and how long it takes ---------------------------------------------------------


@pytest.fixture
def probed(monkeypatch):
    """Every network takes a second and a MiB for each image; which ones were asked for, and at which size."""
    seen = []
    monkeypatch.setattr(plans, "_probe", lambda network, shape: seen.append((network, shape)) or (1.0, 2**20))
    return seen


def test_an_outlook_counts_what_is_there(tmp_path, probed):
    setting = Setting("small", tmp_path)
    before, every = plans.outlook_of([TINY], setting)
    assert [before[k] for k in ("networks", "trained", "jobs", "done")] == [3, 0, 6, 0]
    assert before["hours of networks"] == round(3 * 2 * 64 / 3600, 2)  # networks, batches of 128 images, their size
    assert before["MiB"] == 64
    assert every == {**before, "experiment": "all"}
    registry.run_experiments([TINY], setting)
    after = plans.outlook_of([TINY], setting)[0]
    assert [after[k] for k in ("networks", "trained", "jobs", "done")] == [3, 3, 6, 6]
    assert after["hours of networks"] == after["hours of jobs"] == 0


def test_networks_that_experiments_share_are_counted_once_in_all(tmp_path, probed):
    one, two, every = plans.outlook_of([TINY, TINY], Setting("small", tmp_path))
    assert (one["networks"], two["networks"], every["networks"]) == (3, 3, 3)
    assert every["hours of networks"] == one["hours of networks"] > 0
    assert every["jobs"] == 12


def test_an_outlook_times_networks_at_the_size_of_their_own_data(tmp_path, probed):
    plans.outlook_of([experiments()["p2-table1"]], Setting("small", tmp_path, "cifar10:/nowhere"))
    assert {shape for _, shape in probed} == {(3, 16, 16)}  # averaged over squares of two


def test_a_probe_times_a_step():
    seconds, memory = plans._probe("mlp:widths=8", (1, 8, 8))
    assert 0 < seconds < 1
    assert memory > 100


# --- effects that a plan can tell ----------------------------------------------------------------


def test_a_plan_says_the_smallest_effect_of_each_statement(tmp_path):
    setting = Setting("small", tmp_path)
    assert plans.tell_plan(TINY, setting, tmp_path)[-1].endswith("unknown until the experiment has run at smoke scale")
    registry.run_experiments([TINY], Setting(folder=tmp_path))
    told = plans.tell_plan(TINY, setting, tmp_path)[-1]
    assert told.endswith("with 3 networks: networks lie apart (spread as at smoke scale)")
    few = float(told.split()[1])
    more = plans._told(statement(tmp_path), {"zoo": 12}, {"zoo": 3}, 1)
    assert more.endswith("with 12 networks")
    assert float(more.split()[0]) < few / 2
    registry.run_experiments([TINY], setting)
    assert plans.tell_plan(TINY, setting, tmp_path)[-1].endswith("(spread as at small scale)")


def statement(folder):
    """The statement of the tiny experiment, from its values at smoke scale."""
    found = Findings(Values.load(registry.values_path(folder, "tiny", "smoke")))
    TINY.analyse(found)
    return found.statements[0]


def test_the_number_of_training_examples_is_right():
    assert plans._TRAINING["digits"] == len(load("digits").train)


def test_recipes_that_nothing_here_trains():
    """v1's crops, and the modified ResNet-50 of F.3 with its cycle."""
    assert RECIPES["paper_v1"] == Recipe(translate=0, crop=0.08)
    found = RECIPES["resnet50_residual"]
    assert (found.epochs, found.batch_size, found.label_smoothing, found.weight_decay) == (88, 512, 0.1, 1e-4)
    rates = [found.rate(step, 10) for step in (0, 9, 19, 20, 449, 879)]
    assert rates[0] == pytest.approx(1.7 / 20)
    assert rates[2] == pytest.approx(max(rates), rel=1e-2) == pytest.approx(1.7)
    assert rates[4] == pytest.approx(1.7 / 2, rel=3e-3)  # half way down
    assert 0 < rates[5] < 0.01
