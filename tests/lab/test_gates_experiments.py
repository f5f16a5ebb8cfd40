"""The second paper's tables in small: jobs, claims that can fail, gates that really stay frozen."""

import itertools

import pytest
import torch

import intertwine as iw
from intertwine.lab import networks
from intertwine.lab.data import load
from intertwine.lab.experiments import Setting, experiments, reproduce
from intertwine.lab.experiments.paper2 import chain, tables, width_sweep
from intertwine.lab.training import RECIPES, digest, read_card, train

ONE = RECIPES["c4gap"].but(epochs=1, learning_rate=3e-3)


def accuracy_job(network, **changes):
    settings = {"data": "digits", "examples": 64, "recipe": ONE.to_dict(), "seed": 0, "device": "cpu"}
    return tables.Accuracy(network=network, **(settings | changes))


def mean_accuracy(rows, arm=None):
    """Over blocks of equal size."""
    found = [r["value"] for r in rows if r["statistic"] == "accuracy" and r.get("arm") == arm]
    return sum(found) / len(found)


def test_they_are_registered():
    assert {"p2-table1", "p2-table2", "p2-table3", "p2-chain", "p2-width-sweep"} <= set(experiments())


def test_every_column_of_table_1_is_a_network_that_can_be_built():
    for column, order in itertools.product(tables.COLUMNS[1:], [None, (3, 2, 1, 0)]):
        model = networks.build(tables.column("c4gap", column, 4, order))
        assert model.input == ("ones" if column.endswith("1)") else "x") and model.permutation == order
        assert (column[:4] == "DLGN") == model.gating.linear
    assert tables.column("vgg16", "DNN", None) == "vgg16" and tables.column("vgg16", "DNN", 4) == "vgg16:width=4"
    assert tables.column("c4gap", "DLGN-SF(x, 1)", 4) == "dlgn_sf:base=c4gap,width=4,input=ones"


@pytest.mark.parametrize("count", [1, 2, 5, 23])
def test_permutations_leave_the_identity_out(count):
    found = tables._permutations(count)
    assert len(set(found)) == count and (0, 1, 2, 3) not in found
    assert found[0] == (3, 2, 1, 0) or count == 23


def test_a_job_trains_tests_and_does_not_train_twice(tmp_path, monkeypatch):
    job = accuracy_job("dlgn:base=c4gap,width=4")
    found = job.run(tmp_path)
    card = read_card(tmp_path / "0.safetensors")
    assert mean_accuracy(found) == pytest.approx(card.metrics["test_accuracy"]) and card.data == "digits[:64]"
    assert {r["statistic"] for r in found} == {"accuracy", "loss"}
    assert sum(r["images"] for r in found if r["statistic"] == "accuracy") == 359
    monkeypatch.setattr("intertwine.lab.training.engines.Engine.step", None)
    assert job.run(tmp_path) == found


def test_a_table_that_was_killed_goes_on_from_its_finished_jobs(tmp_path, monkeypatch):
    """Run, kill in the third job, run again, and once more: no job is done twice."""
    ran = []

    def job(self, files):
        if len(ran) == 2 and not (tmp_path / "killed").exists():
            (tmp_path / "killed").touch()
            raise KeyboardInterrupt
        ran.append((self.network, self.seed))
        return [{"statistic": "accuracy", "value": 0.5 + 0.01 * self.seed, "images": 100}]

    monkeypatch.setattr(tables.Accuracy, "run", job)
    setting = Setting(folder=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        reproduce("p2-table2", setting)
    assert len(ran) == 2
    first = reproduce("p2-table2", setting)
    assert len(ran) == len(set(ran)) > 2
    again = reproduce("p2-table2", setting)
    assert len(ran) == len(set(ran))
    assert again.digest() == first.digest()


def test_an_ensemble_is_of_members_trained_one_by_one(tmp_path):
    job = accuracy_job("c1gap_ensemble:width=4,members=2", seed=3)
    found = job.run(tmp_path)
    assert sorted(p.name for p in tmp_path.glob("*.safetensors")) == ["3000.safetensors", "3001.safetensors"]
    data, recipe = load("digits").first(64), ONE
    models = [train("c1gap:width=4", data, recipe, seed=s, progress=False, device="cpu").model for s in (3000, 3001)]
    x, y = data.loader("test").batch(slice(None))
    with torch.no_grad():
        expected = ((models[0](x) + models[1](x)).argmax(1) == y).double().mean()
    assert mean_accuracy(found) == pytest.approx(float(expected))


def one_chain(folder, **changes):
    how = {"network": "cnn_gap:width=2", "data": "digits", "examples": 110, "tested": 2, "pool": 4, "prefix": "few, ",
           "recipe": ONE.to_dict(), "seed": 0, "device": "cpu"} | changes  # fmt: skip
    return chain.Chain(**how).run(folder / f"{len(list(folder.iterdir()))}")


@pytest.fixture(scope="module")
def chain_rows(tmp_path_factory):
    return one_chain(tmp_path_factory.mktemp("chain"))


def test_fixed_gates_are_frozen_and_others_are_not(chain_rows):
    frozen = {r["arm"]: r["value"] for r in chain_rows if r["statistic"] == "frozen"}
    assert frozen == {"few, FR gates": 1.0, "few, FL gates": 1.0}
    torch.manual_seed(0)
    learning = iw.gates.dgn(networks.build("cnn_gap:width=2,channels=1"))
    before = digest(learning.gating)
    run = train(learning, load("digits").first(40), ONE, progress=False)
    assert digest(run.model.gating) != before


def test_a_gate_that_moves_is_seen(tmp_path, monkeypatch):
    seen = itertools.count()
    monkeypatch.setattr(chain, "digest", lambda module: next(seen))
    assert {r["value"] for r in one_chain(tmp_path, tested=None) if r["statistic"] == "frozen"} == {0.0}


def test_networks_and_kernels_of_the_chain_see_the_same_few_examples(chain_rows):
    """All arms have the same test images in the same blocks; the baseline is of the same examples too."""
    blocks = {}
    for r in chain_rows:
        if r["statistic"] == "accuracy":
            blocks.setdefault(r["arm"], []).append((r.get("block", -1), r["images"]))
    assert set(blocks) == {f"few, {arm}" for arm in (*chain._ORDER, "trivial baseline")}
    assert {tuple(b) for b in blocks.values()} == {tuple((k, 1) for k in range(2))}


def test_a_seed_draws_its_own_training_examples_and_never_one_of_the_test(tmp_path):
    job = lambda **how: chain.Chain(network="cnn_gap:width=2", data="digits", recipe=ONE.to_dict(), prefix="", **how)
    one, same, other = (job(examples=100, tested=30, pool=2, seed=s)._data() for s in (0, 0, 1))
    assert torch.equal(one.train.inputs, same.train.inputs) and not torch.equal(one.train.inputs, other.train.inputs)
    assert torch.equal(one.test.inputs, other.test.inputs) and len(one.train) == 100 and len(one.test) == 30
    assert not any((one.test.inputs == x).flatten(1).all(1).any() for x in one.train.inputs)
    assert one.train.inputs.shape[1:] == (1, 4, 4)


def test_every_setting_of_the_chain_changes_its_numbers(tmp_path, chain_rows):
    values = [r["value"] for r in chain_rows]
    assert [r["value"] for r in one_chain(tmp_path)] == values
    for change in ({"seed": 1}, {"examples": 120}, {"recipe": ONE.but(learning_rate=2e-3).to_dict()},
                   {"network": "cnn_gap:width=3"}):  # fmt: skip
        assert [r["value"] for r in one_chain(tmp_path, **change)] != values, change
    score = lambda arm: [r["value"] for r in chain_rows if r["arm"] == arm and r["statistic"].startswith("score")]
    scores = [score(f"few, {arm}") for arm in chain._ORDER if "NPK" in arm or "NTK" in arm]
    assert len({s for (s,) in scores}) == len(scores) == 4  # no kernel is another one's


def test_batch_norm_of_frozen_gates_does_not_drift():
    """Running statistics are buffers, which an optimizer's list of parameters does not protect."""
    model = networks.build("digits_cnn:width=2")
    fixed = iw.gates.dgn(model, regime="fixed_learnt")
    before = digest(fixed.gating), digest(fixed.value)
    run = train(fixed, load("digits").first(64), RECIPES["digits"].but(epochs=1), progress=False)
    assert digest(run.model.gating) == before[0] and digest(run.model.value) != before[1]


@pytest.mark.parametrize("family", ["fully connected", "convolutions", "residual"])
def test_distance_to_the_limit_shrinks_with_width_and_to_another_one_stays(family, tmp_path, monkeypatch):
    error = lambda width: sum(
        width_sweep.Distance(family=family, width=width, examples=6, seed=s).run(tmp_path)[0]["value"] for s in range(6)
    )
    assert error(256) < 0.5 * error(16)
    one = width_sweep.Distance(family=family, width=8, examples=4, seed=1)
    assert one.run(tmp_path) == one.run(tmp_path)
    right = width_sweep._limit
    monkeypatch.setattr(width_sweep, "_limit", lambda *a: 1.5 * right(*a))
    assert error(256) > 0.8 * 6 * (1 - 1 / 1.5)
