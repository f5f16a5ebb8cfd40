"""The plans: every network and job of every experiment at every scale, as tests/lab/plans.txt keeps them."""

from pathlib import Path

import lab_archives as made
import pytest

from intertwine.lab.data import load
from intertwine.lab.experiments import SCALES, Setting, experiments, plans
from intertwine.lab.experiments.paper2 import tables
from intertwine.lab.training import RECIPES, Recipe

KEPT = Path(__file__).with_name("plans.txt")


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
    for scale in SCALES:
        assert plans.listed(experiments()[name].plan(Setting(scale))) == kept().get((scale, name), [])


def test_every_experiment_that_measures_has_a_plan_at_every_scale():
    measured = {name for name, e in experiments().items() if e.judge is not None}
    assert set(kept()) == {(scale, name) for name in measured for scale in experiments()[name].scales}


def test_a_plan_does_nothing_and_looks_at_no_data(tmp_path, monkeypatch):
    monkeypatch.setattr("intertwine.lab.experiments.zoos.load", None)
    found = experiments()["fig1-stitching-myrtle"].plan(Setting("paper", tmp_path, "cifar10:/nowhere"))
    assert len(found.zoos) == 2  # of both versions
    assert len(found.jobs) == 32 + 32 + 5
    assert not list(tmp_path.iterdir())


def test_cifar_100_joins_where_a_path_is_given():
    jobs = lambda path: [j.data for j in experiments()["p2-table2"].plan(Setting("paper", cifar100=path)).jobs]
    assert jobs("cifar100:/data").count("cifar100:/data") == len(jobs("")) == 50


def test_the_columns_of_cifar_100_are_run_as_soon_as_it_is_there(tmp_path, monkeypatch):
    """On a tiny archive in the official layout: one network for real, and the table of all of them."""
    archive = tmp_path / "cifar-100-python.tar.gz"
    made.write_archive(archive, made.official_files(hundred=True), "cifar-100-python")
    spec, recipe = f"cifar100:{archive}", {"iterations": 2, "boundaries": (1,), "factors": (1.0, 0.1)}
    network = "dlgn:base=vgg16,width=4"
    one = tables.Accuracy(network=network, data=spec, examples=64, recipe=recipe, base_recipe="vgg_resnet", seed=0)
    assert 0 <= one.run(tmp_path) <= 100
    seen = []
    monkeypatch.setattr(Setting, "run", lambda self, jobs: [seen.append(j.data) or 60.0 + j.seed for j in jobs])
    found = experiments()["p2-table2"].run(Setting("small", tmp_path, cifar100=spec))
    assert seen.count(spec) == seen.count("digits") == 60
    assert found.table["vgg16, cifar100"]["DNN"].value == 62.5
    assert {row.paper for row in found.rows if row.group == "vgg16, cifar100"} == {73.4, 70.3, 70.5, 61.5}
    assert any("(cifar100)" in c.text and c.held for c in found.claims)
    with pytest.raises(ValueError, match="cifar100 must be on this machine"):
        experiments()["p2-table2"].run(Setting("small", tmp_path, cifar100="cifar100:/nowhere"))


def test_an_outlook_counts_what_is_there(tmp_path):
    setting = Setting(folder=tmp_path)
    one = experiments()["open-centring"]
    before = plans.outlook(one, setting)
    assert before.networks == (4, 0)
    assert before.jobs == (6, 0)
    assert before.seconds > 0
    assert before.memory > 1e5
    assert str(before).startswith("4 networks (0 trained), 6 jobs (0 done); about ")
    assert plans.total([before, before]).networks == (8, 0)


def test_an_outlook_times_networks_at_the_size_of_their_own_data(tmp_path, monkeypatch):
    """Tables of paper 2 work on digits at the scale ``small``, whatever data are given for the others."""
    seen = []
    monkeypatch.setattr(plans, "_probe", lambda network, shape: seen.append((network, shape)) or (1.0, 1))
    plans.outlook(experiments()["p2-table1"], Setting("small", tmp_path, "cifar10:/nowhere"))
    assert seen
    assert all("channels=1" in network and shape == (1, 8, 8) for network, shape in seen)
    seen.clear()
    plans.outlook(experiments()["p2-chain"], Setting("small", tmp_path, "cifar10:/nowhere"))
    assert {shape for _, shape in seen} == {(1, 4, 4)}  # averaged over squares of four


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
