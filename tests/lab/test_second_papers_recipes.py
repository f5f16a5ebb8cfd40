"""Appendix C of the second paper: schedules by iterations."""

import pytest
from torch import optim

from intertwine.lab import networks
from intertwine.lab.training import RECIPES, Recipe, read_card, train

STEPS = Recipe(
    iterations=25, schedule="boundaries", boundaries=(4, 20), factors=(0.1, 1, 0.1), learning_rate=0.05,
    optimizer="sgd", batch_size=128, translate=0, flip=False,
)  # fmt: skip


@pytest.mark.parametrize(
    ("step", "rate"),
    [
        (0, 0.01), (399, 0.01), (400, 0.1), (31_999, 0.1), (32_000, 0.01), (47_999, 0.01), (48_000, 0.001),
        (63_999, 1e-3),
    ],
)  # fmt: skip
def test_schedule_of_vgg_and_resnet(step, rate):
    assert RECIPES["vgg_resnet"].rate(step, 391) == pytest.approx(rate)


def test_recipes_are_the_appendixs():
    deep = RECIPES["vgg_resnet"]
    assert (deep.steps(391), deep.batch_size, deep.optimizer) == (64_000, 128, "sgd")
    found = {name: (r.optimizer, r.learning_rate, r.batch_size, r.epochs) for name, r in RECIPES.items()}
    assert found["c4gap"] == found["cnn_gap"] == ("adam", 3e-4, 32, 200)
    assert found["c1gap"] == ("adam", 1e-3, 32, 200) and found["c1gap_long"] == ("adam", 1e-3, 32, 2000)
    assert {RECIPES["c4gap"].rate(step, 10) for step in range(2000)} == {3e-4}
    (group,) = deep.make_optimizer(networks.build("mlp")).param_groups
    assert isinstance(deep.make_optimizer(networks.build("mlp")), optim.SGD) and group["momentum"] == 0.9


def test_training_stops_within_an_epoch(tmp_path):
    """1,295 digits are 11 steps of 128: 25 iterations end in the third pass, after three of its steps."""
    run = train("mlp:widths=8", "digits", STEPS, out=tmp_path / "a.safetensors", progress=False)
    assert [entry["epoch"] for entry in run.history] == [1, 2, 3]
    assert run.history[-1]["learning_rate"] == pytest.approx(0.005)
    assert 0 < run.history[-1]["loss"] < run.history[0]["loss"]
    assert Recipe(**read_card(tmp_path / "a.safetensors").recipe) == STEPS
    again = train("mlp:widths=8", "digits", STEPS, out=tmp_path / "a.safetensors", progress=False)
    assert again.history == [] and again.card == run.card


def test_epochs_take_the_place_of_iterations():
    assert RECIPES["vgg_resnet"].but(epochs=2).steps(10) == 20
    assert RECIPES["vgg_resnet"].but(iterations=7).steps(10) == 7
    assert Recipe(schedule="drops", iterations=50, drops=1).rate(40, 10) == 5e-4
