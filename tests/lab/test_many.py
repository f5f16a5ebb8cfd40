"""Many seeds at once: every engine computes what one network alone does; zoos, kills, pairs."""

import copy
import subprocess
import sys
from importlib import import_module

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from intertwine.lab import networks
from intertwine.lab.data import load
from intertwine.lab.training import RECIPES, Recipe, load_checkpoint, member_path, read_card, train, train_many
from intertwine.lab.training.engines import (
    ENGINES,
    Engine,
    Ungroupable,
    agrees,
    draws_random_numbers,
    engine_for,
    group_networks,
)
from intertwine.lab.zoo import draw_pairs, read_zoo

QUICK = RECIPES["digits"].but(epochs=2, batch_size=64)
SHAPES = {"mlp": (1, 8, 8), "mlp:bn=true": (1, 8, 8), "digits_cnn:width=4": (1, 8, 8)}
SHAPES |= {"myrtle_cnn:base=2": (3, 32, 32), "resnet20": (3, 16, 16), "resnet20:option=B": (3, 16, 16)}


def build(spec, k=3):
    found = []
    for seed in range(k):
        torch.manual_seed(seed)
        found.append(networks.build(spec).double().train())
    return found


def reference(network, inputs, targets, recipe, rate):
    """The plain loop."""
    network, losses = copy.deepcopy(network), []
    optimizer = recipe.make_optimizer(network)
    for x, y in zip(inputs, targets):
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = F.cross_entropy(network(x), y, label_smoothing=recipe.label_smoothing)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return network, torch.stack(losses)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("spec", SHAPES)
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_every_engine_takes_the_steps_that_each_network_takes_alone(engine, spec, optimizer):
    recipe = Recipe(optimizer=optimizer, weight_decay=1e-3, label_smoothing=0.1)
    nets, steps = build(spec), 4
    inputs = torch.randn(steps, 3, 6, *SHAPES[spec], dtype=torch.float64)
    targets = torch.randint(0, 10, (steps, 3, 6))
    joint = Engine(nets, recipe, engine)
    losses = torch.stack([joint.step(x, y, 1e-3) for x, y in zip(inputs, targets)], 1)
    logits = joint.logits(inputs[0, 0])
    for i, net in enumerate(nets):
        alone, wanted = reference(net, inputs[:, i], targets[:, i], recipe, 1e-3)
        assert torch.allclose(losses[i], wanted, rtol=1e-10, atol=1e-10)
        assert torch.allclose(logits[i], alone.eval()(inputs[0, 0]), rtol=1e-8, atol=1e-10)
        state = alone.state_dict()
        assert joint.member(i).keys() == state.keys()
        for name, tensor in joint.member(i).items():  # running statistics of batch norm among them
            assert torch.allclose(tensor, state[name], rtol=1e-8, atol=1e-10), name
    joint.close()


def test_the_networks_that_are_given_are_not_changed():
    nets = build("digits_cnn:width=4")
    before = [{k: v.clone() for k, v in n.state_dict().items()} for n in nets]
    x, y = torch.randn(3, 6, 1, 8, 8, dtype=torch.float64), torch.randint(0, 10, (3, 6))
    for engine in ENGINES:
        joint = Engine(nets, Recipe(), engine)
        joint.step(x, y, 1e-2)
        joint.close()
    for net, state in zip(nets, before):
        assert all(torch.equal(v, state[k]) for k, v in net.state_dict().items())
        assert all(p.grad is None for p in net.parameters())


@pytest.mark.parametrize("engine", ENGINES)
def test_a_snapshot_brings_an_engine_back(engine):
    nets = build("digits_cnn:width=4")
    x, y = torch.randn(6, 3, 6, 1, 8, 8, dtype=torch.float64), torch.randint(0, 10, (6, 3, 6))
    straight = Engine(nets, Recipe(), engine)
    for t in range(3):
        straight.step(x[t], y[t], 1e-2)
    saved = copy.deepcopy(straight.snapshot())
    resumed = Engine(nets, Recipe(), engine)
    resumed.restore(saved)
    for t in range(3, 6):
        assert torch.equal(straight.step(x[t], y[t], 1e-2), resumed.step(x[t], y[t], 1e-2))
    for joint in (straight, resumed):
        joint.close()


class Mixing(nn.Sequential):
    """Its forward mixes the channels behind the back of its layers."""

    def forward(self, x):
        x = self[0](x)
        return self[1]((x - x.mean(1, keepdim=True)).mean((2, 3)))


def test_an_engine_that_would_compute_something_else_is_not_offered():
    nets = [Mixing(nn.Conv2d(1, 4, 3), nn.Linear(4, 10)) for _ in range(2)]
    x = torch.randn(4, 1, 8, 8)
    assert not agrees("grouped", nets, x)
    assert engine_for(nets, x) == "in turn"
    plain = [nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 10)) for _ in range(2)]
    assert engine_for(plain, x) == "grouped"


def test_layers_without_a_counterpart_are_named():
    with pytest.raises(Ungroupable, match="Got LayerNorm"):
        group_networks([nn.Sequential(nn.LayerNorm(3)), nn.Sequential(nn.LayerNorm(3))])
    with pytest.raises(Ungroupable, match="padding_mode='circular'"):
        group_networks([nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular")] * 2)


@pytest.mark.parametrize(
    ("spec", "k", "shape", "wanted"),
    [
        ("mlp", 3, (1, 8, 8), "grouped"),
        ("digits_cnn", 8, (1, 8, 8), "grouped by 2"),
        ("digits_cnn", 2, (1, 8, 8), "grouped"),
        ("digits_cnn", 1, (1, 8, 8), "in turn"),
        ("myrtle_cnn:base=4", 3, (3, 32, 32), "grouped by 2"),
        ("mlp:widths=1024-1024", 3, (1, 8, 8), "in turn"),  # wide layers fill a machine alone
        ("small_convnext", 3, (3, 32, 32), "in turn"),  # has no grouped counterpart
    ],
)
def test_the_kind_of_network_decides(spec, k, shape, wanted):
    nets = [networks.build(spec) for _ in range(k)]
    assert engine_for(nets, torch.randn(4, *shape)) == wanted


@pytest.mark.parametrize("engine", ["in turn", "grouped by 2"])
def test_workers_change_no_bit(engine):
    nets = [n.float() for n in build("myrtle_cnn:base=4", 5)]
    x, y = torch.randn(3, 5, 16, 3, 32, 32), torch.randint(0, 10, (3, 5, 16))
    found = []
    for workers in (1, 3):
        joint = Engine(nets, Recipe(), engine, workers)
        losses = [joint.step(a, b, 1e-3) for a, b in zip(x, y)]
        found.append([*losses, joint.logits(x[0, 0]), *(t for i in range(5) for t in joint.member(i).values())])
        joint.close()
    assert all(torch.equal(one, other) for one, other in zip(*found))


def test_narrow_shortcuts_stay_within_their_memory():
    code = """
import torch
from torch import nn
from intertwine.lab.training import Recipe
from intertwine.lab.training.engines import Engine
net = nn.Sequential(nn.Conv2d(1, 4, 1), nn.Conv2d(4, 8, 1, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
Engine([net] * 3, Recipe(), "grouped by 2").step(torch.ones(3, 2, 1, 256, 256), torch.zeros(3, 2).long(), 1e-3)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)  # oneDNN would kill it
    assert done.returncode == 0, done.stderr


def test_random_numbers_are_seen():
    x = torch.randn(2, 1, 8, 8)
    assert draws_random_numbers(nn.Sequential(nn.Dropout(0.1)), x)
    assert not draws_random_numbers(nn.Sequential(nn.Dropout(0.0), nn.ReLU()), x)
    assert draws_random_numbers(networks.build("cct_6_3x1:blocks=2,width=8,size=8,channels=1,dropout=0"), x)


def test_networks_that_draw_random_numbers_are_what_train_makes_of_their_seeds(tmp_path):
    """Stochastic depth without dropout: the second network's draws are its own, not those that the first one left."""
    data, spec = load("digits").first(64), "cct_6_3x1:blocks=2,width=8,dropout=0,depth_dropout=0.5"
    recipe = PLAIN.but(epochs=1, batch_size=16)
    made = train_many(spec, data, recipe, seeds=[3, 5], out=tmp_path, progress=False)
    alone = train(spec, data, recipe, seed=5, progress=False).model.state_dict()
    together = load_checkpoint(made.paths[1]).state_dict()
    assert all(torch.equal(together[name], tensor) for name, tensor in alone.items())


# --- zoos ----------------------------------------------------------------------------------------

PLAIN = QUICK.but(optimizer="sgd", learning_rate=0.02)  # Adam makes steps of any rounding error of a zero gradient


@pytest.fixture
def take(monkeypatch):
    """Have every zoo trained by an engine, whatever the kind of network."""
    module = import_module("intertwine.lab.training.train")
    return lambda name: monkeypatch.setattr(module, "engine_for", lambda *_: name)


@pytest.mark.parametrize("engine", ENGINES)
def test_members_are_what_train_makes_of_their_seeds(tmp_path, engine, take):
    take(engine)
    made = train_many("mlp:widths=16,bn=true", "digits", PLAIN, seeds=[3, 5], out=tmp_path, progress=False)
    assert made.paths == (member_path(tmp_path, 3), member_path(tmp_path, 5))
    for seed, member in zip([3, 5], read_zoo(tmp_path)):
        alone = train("mlp:widths=16,bn=true", "digits", PLAIN, seed=seed, progress=False)
        card = read_card(member.path)
        assert card.engine == ("" if engine == "in turn" else engine)
        other_file = {"metrics": {}, "sha256": "", "engine": ""}  # of training alone, nothing was written
        assert {**card.model_dump(), **other_file} == {**alone.card.model_dump(), **other_file}
        assert card.metrics["test_accuracy"] == pytest.approx(alone.card.metrics["test_accuracy"], abs=0.02)
        for name, tensor in member.load().state_dict().items():
            assert torch.allclose(tensor, alone.model.state_dict()[name], atol=1e-4), name
        # and another seed is another network
        other = train("mlp:widths=16,bn=true", "digits", PLAIN, seed=seed + 1, progress=False).model.state_dict()
        assert not torch.allclose(other["linear1.weight"], member.load().state_dict()["linear1.weight"], atol=2e-2)


def test_augmentation_is_the_single_runs(tmp_path, take):
    take("grouped")
    recipe = PLAIN.but(translate=2, flip=True, epochs=1)
    train_many("digits_cnn:width=4", "digits", recipe, seeds=[0, 1], out=tmp_path, progress=False)
    alone = train("digits_cnn:width=4", "digits", recipe, seed=1, progress=False).model.state_dict()
    made = read_zoo(tmp_path)[1].load().state_dict()
    assert all(torch.allclose(made[name], alone[name], atol=1e-4) for name in alone)


@pytest.mark.usefixtures("every_step")
@pytest.mark.parametrize("engine", ["grouped", "in turn"])
def test_a_zoo_that_was_killed_goes_on_bit_for_bit(tmp_path, engine, take, monkeypatch):
    digits = load("digits").first(320)  # five steps for each epoch
    options = {"seeds": range(3), "together": 2, "progress": False}
    take(engine)
    whole = train_many("digits_cnn:width=4", digits, QUICK, out=tmp_path / "a", **options)
    count = 0

    def killed(self, *arguments, step=Engine.step):
        nonlocal count
        count += 1
        if count == 8:  # in the middle of the second epoch of the first group
            raise KeyboardInterrupt
        return step(self, *arguments)

    monkeypatch.setattr(Engine, "step", killed)
    with pytest.raises(KeyboardInterrupt):
        train_many("digits_cnn:width=4", digits, QUICK, out=tmp_path / "b", **options)
    monkeypatch.undo()
    take(engine)
    assert [p.name for p in (tmp_path / "b").iterdir()] == ["group-0000-0001.training.pt"]
    again = train_many("digits_cnn:width=4", digits, QUICK, out=tmp_path / "b", **options)
    for one, two in zip(whole.paths, again.paths):
        assert one.read_bytes() == two.read_bytes()
        first, second = read_card(one), read_card(two)
        assert first.best_epoch == second.best_epoch
        assert first.metrics["training_loss"] == second.metrics["training_loss"]
    assert not list((tmp_path / "b").glob("*.training.pt"))


def test_a_zoo_that_was_killed_while_it_was_written_takes_no_step_again(tmp_path, monkeypatch):
    options = {"seeds": range(3), "out": tmp_path, "progress": False}
    training, written = import_module("intertwine.lab.training.train"), []

    def killed(state, i, *others, conclude=training.conclude):
        if written:
            raise KeyboardInterrupt
        written.append(i)
        return conclude(state, i, *others)

    monkeypatch.setattr(training, "conclude", killed)
    with pytest.raises(KeyboardInterrupt):
        train_many("mlp:widths=8", "digits", QUICK, **options)
    monkeypatch.undo()
    before = member_path(tmp_path, 0).stat().st_mtime_ns
    monkeypatch.setattr(Engine, "step", lambda *_: pytest.fail("a step was taken again"))
    made = train_many("mlp:widths=8", "digits", QUICK, **options)
    assert [read_card(path).seed for path in made.paths] == [0, 1, 2]
    assert member_path(tmp_path, 0).stat().st_mtime_ns == before
    assert not list(tmp_path.glob("*.training.pt"))


def test_a_zoo_that_was_killed_before_a_card_was_written_goes_on(tmp_path, monkeypatch):
    options = {"seeds": range(2), "out": tmp_path, "progress": False}

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(import_module("intertwine.lab.training.checkpoint"), "write_json", killed)
    with pytest.raises(KeyboardInterrupt):
        train_many("mlp:widths=8", "digits", QUICK, **options)
    monkeypatch.undo()
    assert member_path(tmp_path, 0).is_file() and read_card(member_path(tmp_path, 0)) is None
    for other in ({"recipe": QUICK.but(epochs=1)}, {"recipe": QUICK, "model": "mlp:widths=9"}):
        with pytest.raises(ValueError, match="out must be a new path, or of a run with the same settings"):
            train_many(**{"model": "mlp:widths=8", "data": "digits", **other, **options})
    made = train_many("mlp:widths=8", "digits", QUICK, **options)
    assert [read_card(path).seed for path in made.paths] == [0, 1]


def test_only_missing_members_are_trained(tmp_path):
    train_many("mlp:widths=8", "digits", QUICK, seeds=[0], out=tmp_path, progress=False)
    before = member_path(tmp_path, 0).stat().st_mtime_ns
    made = train_many("mlp:widths=8", "digits", QUICK, seeds=range(2), out=tmp_path, progress=False)
    assert [read_card(path).engine for path in made.paths] == ["grouped"] * 2
    assert member_path(tmp_path, 0).stat().st_mtime_ns == before
    with pytest.raises(ValueError, match="out must be a new path, or of a run with the same settings"):
        train_many("mlp:widths=9", "digits", QUICK, seeds=[0], out=tmp_path, progress=False)


def test_a_folder_of_another_zoo_is_refused_before_training(tmp_path):
    train_many("mlp:widths=8", "digits", QUICK, seeds=[0], out=tmp_path, progress=False)
    for spec, recipe in (("mlp:widths=9", QUICK), ("mlp:widths=8", QUICK.but(epochs=1))):
        for resume in (True, False):
            with pytest.raises(ValueError, match="out must be a new folder, or of a zoo with the same settings"):
                train_many(spec, "digits", recipe, seeds=[1], out=tmp_path, progress=False, resume=resume)
    train_many("mlp:widths=9", "digits", QUICK, seeds=[0], out=tmp_path, progress=False, resume=False)
    assert [member.card.architecture for member in read_zoo(tmp_path)] == ["mlp:widths=9"]


def test_a_member_that_diverges_takes_no_other_along(tmp_path, monkeypatch):
    def poisoned(self, inputs, targets, rate, step=Engine.step):
        inputs = inputs.clone()
        inputs[0] *= float("nan")
        return step(self, inputs, targets, rate)

    monkeypatch.setattr(Engine, "step", poisoned)
    made = train_many("digits_cnn:width=4", "digits", QUICK, seeds=[0, 1], out=tmp_path, progress=False)
    assert made.diverged == (0,)
    assert made.paths == (member_path(tmp_path, 1),)
    assert read_card(member_path(tmp_path, 1)).metrics["validation_accuracy"] > 0.5
    assert not member_path(tmp_path, 0).exists()


def test_networks_with_mixup_are_trained_one_by_one(tmp_path):
    recipe = QUICK.but(mixup=0.2)
    made = train_many("digits_cnn:width=4", "digits", recipe, seeds=[0, 1], out=tmp_path, progress=False)
    alone = train("digits_cnn:width=4", "digits", recipe, seed=1, out=tmp_path / "alone.safetensors", progress=False)
    assert made.paths[1].read_bytes() == alone.path.read_bytes()
    assert read_card(made.paths[1]) == alone.card


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"seeds": []}, "seeds must be at least one whole number"),
        ({"seeds": [-1]}, "seeds must be at least one whole number"),
        ({"together": 0}, "together must be at least 1"),
        ({"model": "alexnet"}, "network must be one of"),
        ({"model": "myrtle_cnn"}, r"model myrtle_cnn:channels=1 must accept inputs of shape \(1, 8, 8\)"),
        ({"model": "mlp:classes=4"}, r"must map inputs to logits \(N, 10\) at least. Got \(2, 4\)"),
        ({"recipe": "best"}, "recipe must be one of"),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused(tmp_path, wrong, message):
    options = {"model": "mlp", "data": "digits", "recipe": QUICK, "seeds": [0], "out": tmp_path, **wrong}
    with pytest.raises(ValueError, match=message):
        train_many(**options, progress=False)


def test_a_damaged_state_is_named(tmp_path):
    (tmp_path / "group-0000-0001.training.pt").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="training state must be a file that train"):
        train_many("mlp", "digits", QUICK, seeds=[0, 1], out=tmp_path, progress=False)


# --- pairs ---------------------------------------------------------------------------------------


def test_pairs_are_ordered_distinct_and_uniform():
    pairs = draw_pairs(5, 20_000, seed=1)
    assert all(i != j for i, j in pairs)
    counts = torch.zeros(5, 5)
    for i, j in pairs:
        counts[i, j] += 1
    assert (counts[~torch.eye(5, dtype=torch.bool)] / 1000 - 1).abs().max() < 0.1
    assert draw_pairs(5, 10, seed=2) == draw_pairs(5, 10, seed=2)
    assert draw_pairs(5, 10, seed=2) != draw_pairs(5, 10, seed=3)


def test_too_few_models_or_no_zoo_are_refused(tmp_path):
    with pytest.raises(ValueError, match="models must be at least 2"):
        draw_pairs(1, 4)
    with pytest.raises(ValueError, match="count must be at least 1"):
        draw_pairs(3, 0)
    with pytest.raises(ValueError, match="zoo must be a folder with checkpoints"):
        read_zoo(tmp_path)
