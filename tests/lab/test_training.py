"""The recipe, the loop, kills and resumes, checkpoints."""

import json
import math
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils import prune

from intertwine.errors import CheckpointError
from intertwine.lab import data, networks, training
from intertwine.lab.data import DataSplits, Split, make_splits
from intertwine.lab.training import (
    RECIPES,
    Card,
    Recipe,
    accuracy,
    augment,
    load_checkpoint,
    load_weights,
    save_checkpoint,
    train,
    train_many,
)
from intertwine.lab.training.augmentation import OPERATIONS, StepBatches, mix, random_augment
from intertwine.lab.training.engines import Engine
from intertwine.lab.training.loop import state_path

QUICK = RECIPES["digits"].but(epochs=2)


@pytest.fixture(scope="module")
def digits():
    full = data.load("digits")
    fewer = Split(full.train.inputs[:320], full.train.labels[:320])
    return make_splits("few digits", fewer, full.validation, full.test, full.classes)


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# --- recipe --------------------------------------------------------------------------------------


def test_the_default_recipe_is_the_papers():
    recipe = Recipe()
    assert (recipe.epochs, recipe.batch_size, recipe.learning_rate, recipe.optimizer) == (50, 32, 1e-3, "adam")
    assert (recipe.drops, recipe.drop_factor, recipe.translate, recipe.flip) == (4, 0.5, 2, True)
    assert RECIPES["paper"] == recipe


def test_four_evenly_spaced_drops():
    rates = [Recipe().rate(epoch * 7, 7) for epoch in range(50)]
    assert rates == [1e-3 * 0.5 ** (epoch // 10) for epoch in range(50)]
    assert Recipe().rate(70, 7) == 5e-4
    assert Recipe().rate(69, 7) == 1e-3


def test_cosine_falls_from_the_rate_to_zero():
    recipe = Recipe(schedule="cosine", epochs=2)
    rates = [recipe.rate(step, 50) for step in range(100)]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == 1e-3
    assert rates[50] == pytest.approx(5e-4)
    assert rates[-1] < 1e-6


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_cyclic_run_that_ends_before_its_peak_only_rises(epochs):
    recipe = RECIPES["resnet50_residual"].but(epochs=epochs)
    rates = [recipe.rate(step, 5) for step in range(5 * epochs)]
    assert rates == pytest.approx([1.7 * (step + 1) / 10 for step in range(5 * epochs)])


def test_warmup_rises_to_the_schedule():
    rates = [Recipe(warmup=2).rate(step, 10) for step in range(30)]
    assert rates[:20] == pytest.approx([1e-3 * (step + 1) / 20 for step in range(20)])
    assert rates[20:] == [1e-3] * 10


@pytest.mark.parametrize(
    ("optimizer", "kind"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW), ("sgd", torch.optim.SGD)]
)
def test_optimizers(optimizer, kind):
    made = Recipe(optimizer=optimizer, weight_decay=0.1).make_optimizer(nn.Linear(2, 2))
    assert type(made) is kind
    assert made.defaults["weight_decay"] == 0.1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1. Got 0"),
        ({"epochs": 1.5}, "epochs must be a whole number. Got 1.5"),
        ({"translate": True}, "translate must be a whole number. Got True"),
        ({"flip": "no"}, "flip must be true or false. Got 'no'"),
        ({"learning_rate": "1e-3"}, "learning_rate must be a number. Got '1e-3'"),
        ({"batch_size": 1}, "batch_size must be at least 2. Got 1"),
        ({"learning_rate": float("nan")}, "learning_rate must be positive and finite. Got nan"),
        ({"optimizer": "lbfgs"}, "optimizer must be one of adam, adamw, sgd. Got 'lbfgs'"),
        ({"schedule": "steps"}, "schedule must be one of drops, cosine, boundaries, cyclic. Got 'steps'"),
        ({"iterations": -1}, "iterations must be at least 0. Got -1"),
        ({"boundaries": (5, 5), "factors": (1, 1, 1)}, "boundaries must grow from above 0"),
        ({"boundaries": (0,), "factors": (1, 1)}, "boundaries must grow from above 0"),
        ({"boundaries": (5,)}, r"one more than boundaries. Got \(5,\) and \(1.0,\)"),
        ({"factors": (0.0,)}, "factors be positive"),
        ({"mixup": -1.0}, "mixup must be at least 0 and finite. Got -1.0"),
        ({"mixup": math.inf}, "mixup must be at least 0 and finite. Got inf"),
        ({"crop": 1.5}, "crop must be from 0 to 1. Got 1.5"),
        ({"label_smoothing": 1.0}, r"label_smoothing must be in \[0, 1\)"),
    ],
)
def test_bad_recipes(changes, message):
    with pytest.raises(ValueError, match=message):
        Recipe(**changes)


def test_unknown_settings_are_listed():
    with pytest.raises(TypeError, match=r"setting must be one of epochs, batch_size.*Got 'lr'"):
        Recipe().but(lr=1)


# --- augmentation --------------------------------------------------------------------------------


def test_augmentation_is_a_shift_with_zeros_and_a_mirror():
    x = torch.rand(200, 2, 6, 7) + 1
    torch.manual_seed(0)
    y = augment(x, translate=2, flip=True)
    seen = set()
    padded = nn.functional.pad(x, (2, 2, 2, 2))
    for before, after in zip(padded, y):
        candidates = {
            (dy, dx, mirrored): window.flip(-1) if mirrored else window
            for dy in range(5)
            for dx in range(5)
            for mirrored in (False, True)
            for window in (before[:, dy : dy + 6, dx : dx + 7],)
        }
        matches = [key for key, image in candidates.items() if torch.equal(image, after)]
        assert len(matches) == 1
        seen.update(matches)
    assert len(seen) > 45  # of 50: every shift in both orientations occurs


def test_augmentation_of_nothing_and_of_vectors():
    x = torch.rand(3, 5)
    assert augment(x, 0, False) is x
    with pytest.raises(ValueError, match=r"must be a batch of images .*Got shape \(3, 5\)"):
        augment(x, 1, False)


def test_each_operation_of_random_augment_does_what_its_name_says():
    x = (torch.rand(2, 3, 9, 9, generator=torch.Generator().manual_seed(0)) * 255).round() / 255
    of = lambda name, level: OPERATIONS[name](x, torch.full((2, 1, 1, 1), level))
    close = lambda a, b: torch.testing.assert_close(a, b, atol=2e-6, rtol=0)
    moves = ["Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY"]
    for name in [*moves, "Color", "Contrast", "Brightness", "Solarize"]:
        close(of(name, 0.0), x)
    close(of("Invert", 0.5), 1 - x)
    close(of("Brightness", 0.5), 1.45 * x)
    close(of("Solarize", -0.25), torch.where((255 * x).round() < 192, x, 1 - x))
    close(of("SolarizeAdd", 1.0), torch.where(x < 0.5, x + 110 / 255, x))
    assert of("Posterize", 0.9).mul(255).round().remainder(128).unique().tolist() == [0]  # one bit is left
    grey = (x * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(1, keepdim=True)
    close(of("Color", -1.0), 0.9 * grey + 0.1 * x)
    close(of("Contrast", -1.0), 0.9 * grey.mean((2, 3), keepdim=True) + 0.1 * x)
    stretched = of("AutoContrast", 1.0)
    close(stretched.amin((2, 3)), torch.zeros(2, 3))
    close(stretched.amax((2, 3)), torch.ones(2, 3))
    assert of("Equalize", 1.0).flatten(2).sort(2).values.sub(torch.linspace(0, 1, 81)).abs().max() < 0.1
    by = 2 / 9 / (2 * 0.45)  # a pixel
    close(of("TranslateX", by)[..., :-1], x[..., 1:])
    close(of("TranslateY", -by)[:, :, 1:], x[:, :, :-1])
    close(of("TranslateX", by)[..., -1], torch.full((2, 3, 9), 0.5))


def test_random_augment_changes_some_images_and_is_repeatable():
    x = torch.rand(64, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(1)
    one = random_augment(x, 9.0)
    torch.manual_seed(1)
    assert torch.equal(one, random_augment(x, 9.0))
    assert float(one.min()) >= 0 and float(one.max()) <= 1
    same = (one == x).flatten(1).all(1).float().mean()
    assert 0.1 < same < 0.45  # a quarter, and operations that change nothing here


def test_a_recipe_without_it_is_written_as_before_there_was_one():
    assert "automatic" not in RECIPES["paper"].to_dict()
    assert RECIPES["cct"].to_dict()["automatic"] == 9.0
    assert Recipe(**RECIPES["cct"].to_dict()) == RECIPES["cct"]
    with pytest.raises(ValueError, match="automatic must be from 0 to 10"):
        Recipe(automatic=11.0)


def test_mixup_is_the_same_mixture_of_inputs_and_targets():
    labels = torch.arange(6)
    x = nn.functional.one_hot(labels, 6).double()[:, :, None, None].expand(6, 6, 4, 4)
    mixed, targets = mix(x, labels, 6, mixup=0.8, cutmix=0.0)
    torch.testing.assert_close(mixed.mean((2, 3)), targets)
    torch.testing.assert_close(targets.sum(1), torch.ones(6, dtype=torch.float64))
    assert len(targets.unique()) > 2


def test_cutmix_pastes_one_rectangle_and_counts_its_area():
    labels = torch.arange(6)
    x = nn.functional.one_hot(labels, 6).double()[:, :, None, None].expand(6, 6, 9, 7)
    areas = set()
    for _ in range(50):
        mixed, targets = mix(x, labels, 6, mixup=0.0, cutmix=1.0)
        assert set(mixed.unique().tolist()) <= {0.0, 1.0}
        torch.testing.assert_close(mixed.mean((2, 3)), targets)
        areas.add(round(float(targets[0, 0]), 6))
    assert len(areas) > 10
    assert x.sum() == 6 * 63  # the given images are untouched


def test_mixing_nothing_gives_plain_targets_and_both_methods_occur():
    x, labels = torch.rand(4, 1, 6, 6), torch.tensor([0, 1, 1, 0])
    assert mix(x, labels, 2, 0.0, 0.0)[0] is x
    pasted = [torch.isin(mix(x, labels, 2, 0.5, 0.5)[0], x).all().item() for _ in range(60)]
    assert 10 < sum(pasted) < 50


def test_the_border_has_the_mean_colour():
    splits = make_splits("colours", Split(torch.rand(60, 3, 4, 4) * 0.1 + 0.7, torch.arange(60) % 2))
    mean = torch.tensor(splits.mean).view(1, 3, 1, 1).expand(1, 3, 4, 4)
    batches = splits.loader("train")
    assert float(batches.normalise(mean).abs().max()) < 1e-6


# --- accuracy ------------------------------------------------------------------------------------


def test_accuracy_counts_and_restores_each_mode():
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.9))
    model[0].eval()
    batches = [(torch.eye(3) * 5, torch.tensor([0, 1, 0])), (torch.eye(3)[:1], torch.tensor([0]), "more")]
    assert accuracy(model, batches) == 3 / 4
    assert model.training
    assert not model[0].training
    assert model[1].training
    with pytest.raises(ValueError, match="at least one example"):
        accuracy(model, [])


def test_devices():
    assert training.choose_device("cpu").type == "cpu"
    with pytest.raises(ValueError, match="device must be auto"):
        training.choose_device("gpuu")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="CUDA is not available"):
            training.choose_device("cuda")


# --- the loop ------------------------------------------------------------------------------------


def test_digits_are_learned(tmp_path):
    run = train("digits_cnn", recipe=RECIPES["digits"].but(epochs=6), out=tmp_path / "a.safetensors", progress=False)
    assert run.card.metrics["test_accuracy"] > 0.95
    assert accuracy(run.model, data.load("digits").loader("test")) == run.card.metrics["test_accuracy"]
    assert not run.model.training
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json", "a.safetensors"]


def test_same_seed_same_weights_other_seed_other_weights(digits):
    a, b, c = (train("mlp", digits, QUICK, seed=s, progress=False).model.state_dict() for s in (1, 1, 2))
    assert same(a, b)
    assert not same(a, c)


def test_the_callers_random_state_and_module_are_untouched(digits):
    model = networks.build("mlp")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    trained = train(model, digits, QUICK, progress=False).model
    assert torch.equal(torch.rand(3), expected)
    assert same(model.state_dict(), before)
    assert not same(trained.state_dict(), before)


def test_training_on_the_cpu_leaves_random_numbers_of_accelerators_alone(digits, monkeypatch):
    seeds = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    train("mlp", digits, QUICK.but(epochs=1), device="cpu", progress=False)
    assert not seeds


def test_the_best_epoch_on_the_validation_split_is_kept(digits):
    # A rate this large makes accuracy go up and down.
    run = train("mlp", digits, QUICK.but(epochs=8, learning_rate=0.05), seed=3, progress=False)
    reached = [epoch["validation_accuracy"] for epoch in run.history]
    assert run.card.best_epoch == reached.index(max(reached)) + 1
    assert run.card.metrics["validation_accuracy"] == max(reached)
    assert accuracy(run.model, digits.loader("validation")) == max(reached)


def test_the_test_split_has_no_say(digits):
    garbage = Split(torch.rand_like(digits.test.inputs), digits.test.labels.flip(0))
    other = DataSplits("few digits", digits.train, digits.validation, garbage, digits.classes, digits.mean, digits.std)
    a, b = (train("mlp", d, QUICK, progress=False) for d in (digits, other))
    assert same(a.model.state_dict(), b.model.state_dict())


def test_one_step_is_adam_on_the_cross_entropy(digits):
    """The loop against its plain definition, on one batch that is the whole epoch."""
    n = len(digits.train)
    recipe = Recipe(epochs=1, batch_size=n, learning_rate=0.01, translate=0, flip=False)
    start = networks.build("mlp").double()
    trained = train(start.float(), digits, recipe, progress=False).model
    optimizer = torch.optim.Adam(start.parameters(), 0.01)
    x, y = digits.loader("train", n).batch(slice(None))
    nn.functional.cross_entropy(start(x), y).backward()
    optimizer.step()
    for name, tensor in start.state_dict().items():
        torch.testing.assert_close(trained.state_dict()[name], tensor, atol=1e-5, rtol=1e-4)


def test_a_last_batch_of_one_is_left_out():
    full, few = (Split(torch.rand(n, 1, 8, 8), torch.arange(n) % 2) for n in (65, 6))
    splits = make_splits("toy", full, few, few)
    run = train("mlp:bn=true", splits, QUICK.but(batch_size=32, epochs=1), progress=False)
    assert StepBatches(splits, QUICK.but(batch_size=32), [0], torch.device("cpu")).per_epoch == 2
    assert math.isfinite(run.history[0]["loss"])


def test_classes_and_channels_are_fitted_to_the_data():
    splits = make_splits("toy", Split(torch.rand(90, 2, 8, 8), torch.arange(90) % 3))
    run = train("digits_cnn:width=2", splits, QUICK.but(epochs=1), progress=False)
    assert run.card.architecture == "digits_cnn:width=2,classes=3,channels=2"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "resnet2"}, "network must be one of"),
        ({"model": "myrtle_cnn"}, r"model myrtle_cnn:channels=1 must accept inputs of shape \(1, 8, 8\)"),
        ({"model": "mlp:classes=4"}, r"must map inputs to logits \(N, 10\) at least. Got \(2, 4\)"),
        ({"model": nn.Flatten(0)}, r"Got \(128,\)"),
        ({"recipe": "best"}, "recipe must be one of paper, .*digits, cct, .*vgg_resnet. Got 'best'"),
        ({"out": "a.pt"}, "out must end in .safetensors. Got 'a.pt'"),
    ],
)
def test_wrong_arguments_are_said_before_any_step(digits, arguments, message):
    with pytest.raises(ValueError, match=message):
        train(**{"model": "mlp", "data": digits, "progress": False, **arguments})


def test_the_transformers_recipe_has_what_the_paper_names():
    """v2 D.4: AdamW with a cosine schedule, weight decay, mixup, CutMix and label smoothing."""
    r = RECIPES["cct"]
    assert (r.optimizer, r.schedule, r.learning_rate, r.epochs, r.batch_size) == ("adamw", "cosine", 5.5e-4, 300, 128)
    assert (r.weight_decay, r.label_smoothing, r.mixup, r.cutmix) == (0.06, 0.1, 0.8, 1.0)
    assert isinstance(r.make_optimizer(torch.nn.Linear(2, 2)), torch.optim.AdamW)


def test_the_transformers_recipe_runs(digits):
    recipe = RECIPES["cct"].but(epochs=1, warmup=1, batch_size=64)
    run = train("cct_6_3x1:blocks=1,width=8", digits, recipe, progress=False)
    assert run.card.architecture == "cct_6_3x1:blocks=1,width=8,channels=1,size=8"


def test_a_network_with_more_outputs_than_classes_learns_from_mixed_targets(digits):
    run = train("mlp:classes=12", digits, QUICK.but(mixup=0.8), progress=False)
    assert run.history[-1]["loss"] < run.history[0]["loss"] and run.card.metrics["test_accuracy"] > 0.5


def test_a_wrapped_module_is_found_again(digits, tmp_path):
    wrapped = nn.DataParallel(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    first, again = (train(wrapped, digits, QUICK, out=tmp_path / "a.safetensors", progress=False) for _ in range(2))
    assert again.history == [] and same(first.model.state_dict(), again.model.state_dict())
    plain = load_checkpoint(tmp_path / "a.safetensors", nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    assert same(plain.state_dict(), first.model.module.state_dict())


def test_a_module_is_called_what_the_caller_says(digits, tmp_path):
    out = tmp_path / "a.safetensors"
    run = train(networks.build("mlp"), digits, QUICK, name="my.module:net", out=out, progress=False)
    assert run.card.architecture == "my.module:net"
    with pytest.raises(CheckpointError, match=r"names no built-in network. Got 'my\.module:net'.*Pass the module"):
        load_checkpoint(out)
    assert same(load_checkpoint(out, networks.build("mlp")).state_dict(), run.model.state_dict())


def test_vectors_are_not_moved():
    splits = make_splits("vectors", Split(torch.randn(60, 5), torch.arange(60) % 2))
    train("mlp", splits, progress=False)
    with pytest.raises(ValueError, match=r"recipe must not move, flip or cut .*Got inputs of shape \(5,\)"):
        train("mlp", splits, "paper", progress=False)


def test_progress_lines(digits, capsys):
    train("mlp", digits, QUICK, progress=True)
    shown = capsys.readouterr().err
    assert "epoch 2/2: loss" in shown
    assert "training mlp on few digits: 20 done" in shown
    train("mlp", digits, QUICK, progress=False)
    assert capsys.readouterr().err == ""


# --- divergence ----------------------------------------------------------------------------------


class _Fails(nn.Module):
    """Gives NaN from its n-th training batch on."""

    def __init__(self, after):
        super().__init__()
        self.linear = nn.Linear(64, 10)
        self.register_buffer("calls", torch.tensor(0))
        self.after = after

    def forward(self, x):
        self.calls += int(self.training)
        return self.linear(x.flatten(1)) * (float("nan") if self.training and self.calls > self.after else 1.0)


@pytest.mark.usefixtures("every_step")
def test_nan_stops_with_the_step_and_keeps_the_last_good_state(digits, tmp_path):
    out = tmp_path / "a.safetensors"
    with pytest.raises(
        RuntimeError, match=r"Got nan at step 13 \(epoch 2\). The last good state is in .*a.training.pt"
    ):
        train(_Fails(13), digits, QUICK, out=out, progress=False)
    state = torch.load(state_path(out), weights_only=True)
    assert state["step"] == 13
    assert all(torch.isfinite(tensor).all() for tensor in state["snapshot"]["networks"][0].values())
    with pytest.raises(RuntimeError, match=r"at step 3 \(epoch 1\). No state was saved. Lower learning_rate"):
        train(_Fails(3), digits, QUICK, progress=False)


@pytest.mark.usefixtures("every_step")
def test_weights_that_are_not_finite_are_never_saved(digits, tmp_path):
    out = tmp_path / "a.safetensors"
    with pytest.raises(RuntimeError, match="must stay finite"):
        train("mlp", digits, QUICK.but(optimizer="sgd", learning_rate=1e30), out=out, progress=False)
    if state_path(out).is_file():
        state = torch.load(state_path(out), weights_only=True)
        assert all(torch.isfinite(tensor).all() for tensor in state["snapshot"]["networks"][0].values())


# --- kill and resume -----------------------------------------------------------------------------

_CHILD = """
import sys, torch
torch.set_num_threads(1)
from intertwine.lab import training
from intertwine.lab.training import loop
loop.SAVE_EVERY = 0.0
recipe = training.RECIPES["digits"].but(epochs=3, translate=1, flip=True)
training.train("digits_cnn:width=4", f"npz:{sys.argv[1]}", recipe, seed=7, out=sys.argv[2], progress=False)
"""


def test_killed_at_any_moment_it_ends_with_the_same_bits(tmp_path, private_cache):
    """Somewhere in a step or a write after the first state is on disk, in a process of its own; this one goes on."""
    source = private_cache / "toy.npz"  # quicker to read than digits
    np.savez(source, x=np.random.default_rng(0).random((900, 8, 8)), y=np.arange(900) % 10)
    straight, killed = tmp_path / "straight.safetensors", tmp_path / "killed.safetensors"
    child = subprocess.Popen([sys.executable, "-c", _CHILD, str(source), str(killed)])
    while child.poll() is None and not state_path(killed).is_file():
        time.sleep(0.005)
    time.sleep(0.03)
    assert child.poll() is None
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert torch.load(state_path(killed), weights_only=True)["step"] > 0
    assert not killed.exists()
    left = f".{state_path(killed).name}~iw{child.pid}-left.pt"  # as a kill in the middle of a write leaves it
    (tmp_path / left).touch()
    recipe = RECIPES["digits"].but(epochs=3, translate=1, flip=True)
    for out in (killed, straight):
        train("digits_cnn:width=4", f"npz:{source}", recipe, seed=7, out=out, progress=False)
    assert killed.read_bytes() == straight.read_bytes()
    cards = [json.loads(path.with_suffix(".json").read_text()) for path in (straight, killed)]
    assert cards[0] == cards[1]
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".json", ".json", ".safetensors", ".safetensors"]


class _Interrupted(Exception):
    pass


# The third pass over ten batches ends after five.
ITERATIONS = {"iterations": 25, "schedule": "boundaries", "boundaries": (4, 20), "factors": (0.1, 1, 0.1)}


@pytest.mark.usefixtures("every_step")
@pytest.mark.parametrize(("steps", "changes"), [(1, {}), (9, {}), (10, {}), (11, {}), (19, {}), (23, ITERATIONS)])
def test_resuming_after_any_step_gives_the_same_bits(digits, tmp_path, monkeypatch, steps, changes):
    """Dropout and augmentation included: the model draws from the global generator."""
    spec = "digits_cnn:width=2"
    recipe = QUICK.but(translate=1, flip=True, **changes)
    expected = train(_with_dropout(spec), digits, recipe, progress=False)
    out = tmp_path / "a.safetensors"
    original, taken = Engine.step, []

    def update(self, *batch):
        if len(taken) == steps:
            raise _Interrupted
        taken.append(batch)
        return original(self, *batch)

    monkeypatch.setattr(Engine, "step", update)
    with pytest.raises(_Interrupted):
        train(_with_dropout(spec), digits, recipe, out=out, progress=False)
    monkeypatch.undo()
    resumed = train(_with_dropout(spec), digits, recipe, out=out, progress=False)
    assert same(resumed.model.state_dict(), expected.model.state_dict())
    assert resumed.history == expected.history


def _with_dropout(spec):
    torch.manual_seed(0)
    return nn.Sequential(nn.Dropout(0.2), networks.build(spec))


@pytest.mark.usefixtures("every_step")
def test_state_of_other_settings_is_refused(digits, tmp_path):
    out = tmp_path / "a.safetensors"
    with pytest.raises(RuntimeError, match="must stay finite"):
        train(_Fails(5), digits, QUICK, out=out, progress=False)
    with pytest.raises(ValueError, match=r"seed must be a whole number from 0. Got -1"):
        train(_Fails(5), digits, QUICK, seed=-1, out=out, progress=False)
    with pytest.raises(CheckpointError, match=r"of the same run. Got .*seed: 0, now 1\). Remove it"):
        train(_Fails(5), digits, QUICK, seed=1, out=out, progress=False)
    state_path(out).write_bytes(state_path(out).read_bytes()[:500])
    with pytest.raises(CheckpointError, match="training state must be a file that train"):
        train(_Fails(5), digits, QUICK, out=out, progress=False)
    train(_Fails(99), digits, QUICK, out=out, resume=False, progress=False)


def test_a_module_may_have_to_have_the_weights_it_began_with(digits, tmp_path):
    out = tmp_path / "a.safetensors"
    one, other = networks.build("mlp"), networks.build("mlp")
    first = train(one, digits, QUICK, out=out, progress=False)
    assert train(one, digits, QUICK, out=out, progress=False).history == []
    assert train(other, digits, QUICK, out=out, progress=False).history == []  # a fresh module of the same script
    again = train(other, digits, QUICK, out=out, resume="same", progress=False)
    assert train(other, digits, QUICK, out=out, resume="same", progress=False).history == []
    assert again.history and again.card.start != first.card.start


def test_a_finished_run_is_returned_and_not_repeated_or_replaced(digits, tmp_path):
    out = tmp_path / "a.safetensors"
    first = train("mlp", digits, QUICK, out=out, progress=False)
    written = out.stat().st_mtime_ns
    again = train("mlp", digits, QUICK, out=out, progress=False)
    assert out.stat().st_mtime_ns == written
    assert same(first.model.state_dict(), again.model.state_dict())
    assert again.card == first.card
    for other in ({"seed": 1}, {"recipe": QUICK.but(warmup=1)}):  # one setting that differs is another run
        with pytest.raises(ValueError, match=r"out must be a new path.*holds mlp of seed 0.*resume=False"):
            train("mlp", digits, **{"recipe": QUICK, "out": out, "progress": False, **other})
    assert train("mlp", digits, QUICK, seed=1, out=out, resume=False, progress=False).card.seed == 1


# --- checkpoints ---------------------------------------------------------------------------------


@pytest.fixture
def checkpoint(tmp_path):
    model = networks.build("mlp:widths=8-6")
    return save_checkpoint(tmp_path / "a.safetensors", model, Card(architecture="mlp:widths=8-6")), model


def test_a_checkpoint_round_trip(checkpoint):
    path, model = checkpoint
    for given in (None, "mlp:widths=8-6", networks.build("mlp:widths=8-6")):
        loaded = load_checkpoint(path, given)
        assert same(loaded.state_dict(), model.state_dict())
        assert not loaded.training


@pytest.mark.parametrize(
    "given", [None, "mlp:widths=8-6", networks.build("mlp:widths=8-6")], ids=["card", "spec", "module"]
)
def test_weights_that_are_not_the_cards_are_refused_whoever_names_the_model(checkpoint, given):
    path, _ = checkpoint
    other = save_checkpoint(path.with_name("b.safetensors"), networks.build("mlp:widths=8-6"), Card(architecture="mlp"))
    path.write_bytes(other.read_bytes())
    before = {k: v.clone() for k, v in given.state_dict().items()} if isinstance(given, nn.Module) else {}
    with pytest.raises(CheckpointError, match=r"Got '.*a.safetensors', of another SHA-256 than 'a.json' says"):
        load_checkpoint(path, given)
    assert not before or same(given.state_dict(), before)
    training.card_path(path).unlink()  # without a card nothing is promised of them
    assert load_checkpoint(path, given or "mlp:widths=8-6") is not None


def test_the_card_says_what_it_is(digits, tmp_path):
    out = tmp_path / "a.safetensors"
    train("mlp:widths=8", digits, QUICK, seed=4, out=out, progress=False)
    card = json.loads((tmp_path / "a.json").read_text())
    assert card["architecture"] == "mlp:widths=8"
    assert card["data"] == "few digits"
    assert card["seed"] == 4
    assert Recipe(**card["recipe"]) == QUICK
    assert set(card["metrics"]) == {"validation_accuracy", "test_accuracy", "training_loss"}
    assert set(card["versions"]) == {"intertwine", "torch", "python"}
    assert training.read_card(out).best_epoch in (1, 2)


def test_the_wrong_architecture_names_the_tensors(checkpoint):
    path, _ = checkpoint
    with pytest.raises(
        CheckpointError,
        match=r"architecture mlp:widths=8-7. Got .*a.safetensors' with tensors 3 of another shape: "
        r"linear2.weight \(6, 8\) for \(7, 8\), linear2.bias \(6,\) for \(7,\), linear.weight",
    ):
        load_checkpoint(path, "mlp:widths=8-7")
    with pytest.raises(
        CheckpointError, match=r"275 missing: conv1.weight, .* and 270 more; 4 unexpected: linear1.bias"
    ):
        load_checkpoint(path, "resnet56")


def test_a_mismatch_changes_nothing(checkpoint):
    path, _ = checkpoint
    model = networks.build("mlp:widths=8-7")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(CheckpointError):
        load_checkpoint(path, model)
    assert same(model.state_dict(), before)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod.", "net.", "net._orig_mod."])
def test_weights_of_data_parallel_compiled_lightning_and_old_training_load(tmp_path, prefix):
    model = networks.build("digits_cnn")
    old = {f"{prefix}{k}": v for k, v in model.state_dict().items() if not k.endswith("num_batches_tracked")}
    torch.save({"state_dict": old}, tmp_path / "a.pt")
    loaded = load_checkpoint(tmp_path / "a.pt", "digits_cnn")
    assert torch.equal(loaded.conv1.weight, model.conv1.weight)


@pytest.mark.parametrize("place", ["_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"])
@pytest.mark.parametrize("prefix", ["", "module.", "_fsdp_wrapped_module.", "net._orig_mod."])
def test_weights_of_modules_that_were_wrapped_one_by_one_load(tmp_path, place, prefix):
    model = networks.build("digits_cnn")
    inside = {prefix + k.replace("conv1.", f"conv1.{place}."): v for k, v in model.state_dict().items()}
    torch.save(inside, tmp_path / "a.pt")
    loaded = load_checkpoint(tmp_path / "a.pt", "digits_cnn")
    assert torch.equal(loaded.conv1.weight, model.conv1.weight)


def test_weights_of_an_average_over_training_load_also_where_the_model_is_wrapped(tmp_path):
    model = networks.build("digits_cnn")
    average = torch.optim.swa_utils.AveragedModel(model)
    torch.save(average.state_dict(), tmp_path / "a.pt")
    for into, want in (("digits_cnn", average.module), (average, average)):
        assert same(load_checkpoint(tmp_path / "a.pt", into).state_dict(), want.state_dict())


@pytest.mark.parametrize("kept", ["first.weight", "last.weight"])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_of_tied_weights_one_name_is_enough(kept, device):
    """As safetensors' ``save_model`` writes them."""

    def tied():
        model = nn.ModuleDict({"first": nn.Linear(3, 3, bias=False), "last": nn.Linear(3, 3, bias=False)})
        model["last"].weight = model["first"].weight
        return model

    with torch.device(device):
        model = tied()
    weight = torch.randn(3, 3)
    load_weights(model, {kept: weight}, "'a'", "tied")
    assert model["first"].weight is model["last"].weight and torch.equal(model["first"].weight, weight)
    with pytest.raises(CheckpointError, match=r"2 missing: first\.weight, last\.weight"):
        load_weights(tied(), {"other": weight}, "'a'", "tied")


def test_missing_damaged_and_unsafe_files(checkpoint, tmp_path):
    path, _ = checkpoint
    with pytest.raises(CheckpointError, match="must be an existing file"):
        load_checkpoint(tmp_path / "gone.safetensors")
    (tmp_path / "cut.safetensors").write_bytes(path.read_bytes()[:-50])
    with pytest.raises(CheckpointError, match="complete safetensors file"):
        load_checkpoint(tmp_path / "cut.safetensors", "mlp")
    (tmp_path / "evil.pt").write_bytes(pickle.dumps({"a": Path("x")}, protocol=2))
    with pytest.raises(CheckpointError, match="needs unsafe unpickling"):
        load_checkpoint(tmp_path / "evil.pt", "mlp")


def test_without_a_card_the_model_must_be_named(checkpoint):
    path, _ = checkpoint
    training.card_path(path).write_text("{}")
    with pytest.raises(CheckpointError, match="card must be a JSON file that save_checkpoint wrote"):
        load_checkpoint(path)
    training.card_path(path).unlink()
    assert training.read_card(path) is None
    with pytest.raises(CheckpointError, match="Name the network, such as model='resnet20'"):
        load_checkpoint(path)
    with pytest.raises(ValueError, match=r"must end in \.safetensors\. Got 'a\.bin'"):
        save_checkpoint("a.bin", nn.Linear(1, 1), Card(architecture="x"))


@pytest.mark.parametrize("spec", ["mlp:widths=32", "digits_cnn:width=4"])
def test_mixed_precision_learns_the_same_and_ends_in_float32(spec, tmp_path):
    recipe = RECIPES["digits"].but(epochs=2)
    full = train(spec, "digits", recipe, progress=False)
    mixed = train(spec, "digits", recipe.but(precision="bfloat16"), out=tmp_path / "a.safetensors", progress=False)
    assert all(p.dtype == torch.float32 and p.is_contiguous() for p in mixed.model.parameters())
    differences = [
        (a - b).abs().max().item() for a, b in zip(full.model.parameters(), mixed.model.parameters(), strict=True)
    ]
    assert max(differences) > 0  # it was not ignored
    assert abs(full.card.metrics["test_accuracy"] - mixed.card.metrics["test_accuracy"]) < 0.05
    assert mixed.card.recipe["precision"] == "bfloat16"


def test_a_zoo_in_mixed_precision_is_trained_one_by_one(tmp_path):
    recipe = RECIPES["digits"].but(epochs=1, precision="bfloat16")
    made = train_many("mlp:widths=16", "digits", recipe, seeds=range(2), out=tmp_path, progress=False)
    assert [training.read_card(path).engine for path in made.paths] == ["", ""]


def test_a_model_on_the_meta_device_takes_the_tensors_and_stays_tied(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
            self.head.weight = self.embed.weight

    full = Tied()
    path = tmp_path / "tied.safetensors"
    weight = full.embed.weight.detach()
    save_file({"embed.weight": weight, "head.weight": weight.clone()}, path)
    with torch.device("meta"):
        empty = Tied()
    loaded = training.load_checkpoint(path, empty)
    assert loaded.head.weight is loaded.embed.weight
    assert torch.equal(loaded.head.weight, full.head.weight)
    assert loaded.head.weight.requires_grad


def test_layers_that_are_pruned_through_a_mask_say_what_to_do():
    model = nn.Sequential(nn.Linear(4, 3))
    prune.l1_unstructured(model[0], "weight", 0.5)
    with pytest.raises(CheckpointError, match=r"2 unexpected: 0\.weight_orig, 0\.weight_mask\. Call .*prune\.remove"):
        load_weights(nn.Sequential(nn.Linear(4, 3)), model.state_dict(), "'a'", "own")


def test_a_file_with_averaged_weights_beside_others_says_which_are_read(tmp_path):
    model = networks.build("mlp:widths=8")
    torch.save({"model": model.state_dict(), "model_ema": model.state_dict(), "epoch": 3}, tmp_path / "a.pt")
    with pytest.warns(UserWarning, match=r"holds 'model_ema' besides 'model', which is read"):
        load_checkpoint(tmp_path / "a.pt", "mlp:widths=8")
