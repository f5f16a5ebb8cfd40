"""``intertwine gates``: from nothing, from checkpoints, conversion, JSON, and bad input."""

import json
import re

import pytest
import torch
from checkpoints import save_with_card
from safetensors.torch import load_file, save_file
from torch import nn
from typer.testing import CliRunner

import intertwine as iw
from intertwine.cli import app
from intertwine.cli._catalogue import VERSIONS
from intertwine.cli.commands.gates import _affordable
from intertwine.gates import GateStudy
from intertwine.lab import networks, training

SMALL = ["--examples", "80", "--kernel-examples", "20"]
FILES = {"results.json", "results.parquet", "report.html", "kernels.safetensors"}


@pytest.fixture
def checkpoint(tmp_path):
    return save_with_card(tmp_path / "a.safetensors")


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """A checkpoint, the folder of all its gated versions, and what the command said that made them."""
    folder = tmp_path_factory.mktemp("converted")
    own = save_with_card(folder / "a.safetensors")
    words = ["gates", own, "--gated", ",".join(VERSIONS), "--epochs", 0, "--json", "--out", folder / "gates", *SMALL]
    return own, folder / "gates", CliRunner().invoke(app, [str(word) for word in words])


def test_trains_converts_and_writes_a_page_from_nothing(run, tmp_path):
    ran = run.done("gates", "--model", "mlp:widths=8-8", "--epochs", 1, "--gated", "dgn,dlgn-ones", *SMALL)
    assert "DLGN(x, 1)" in ran.out and "relu2" in ran.out and "paths are on for this input" in ran.out
    assert "No checkpoint was given: training mlp" in ran.err
    found = GateStudy.load(tmp_path / "gates" / "results.json")
    assert [a["network"] for a in found.settings["accuracies"]] == ["mlp:widths=8-8", "DGN(x, x)", "DLGN(x, 1)"]
    assert all(0 <= a["test accuracy"] <= 1 for a in found.settings["accuracies"])
    assert FILES.issubset(f.name for f in (tmp_path / "gates").iterdir())
    page = (tmp_path / "gates" / "report.html").read_text()
    assert "What the gates look for" in page and "data:image/jpeg" in page and "DLGN(x, 1)" in page
    weights = load_file(tmp_path / "gates" / "dlgn-ones.safetensors")
    again = iw.gates.dlgn(networks.build("mlp:widths=8-8"), input="ones")
    again.load_state_dict(weights)  # the checkpoint is that of the documented call
    maps = iw.gates.effective_maps(again, torch.zeros(1, 1, 8, 8), positions="centre")
    torch.testing.assert_close(maps["relu1"].weights, found.features["relu1"].weights)


def test_a_network_that_was_trained_here_is_trained_anew_for_other_settings(run, tmp_path):
    words = ["gates", "--model", "mlp:widths=8", "--gated", "none", *SMALL]
    for epochs in (1, 2):
        run.done(*words, "--epochs", epochs)
        assert json.loads((tmp_path / "gates" / "network.json").read_text())["recipe"]["epochs"] == epochs


def test_gated_versions_of_fewer_examples_say_so(run, checkpoint, tmp_path):
    ran = run.done("gates", checkpoint, "--gated", "dlgn", "--epochs", 1, "--train-examples", 50, *SMALL)
    assert "saw 50 training examples, 1 times" in ran.out
    assert json.loads((tmp_path / "gates" / "dlgn.json").read_text())["data"] == "digits[:50]"


def test_every_version_can_be_converted(converted):
    own, folder, ran = converted
    assert ran.exit_code == 0, ran.stderr
    said = json.loads(ran.stdout)
    assert said["kind"] == "GateStudy" and "trained" not in ran.stderr
    assert [a["test accuracy"] is None for a in said["accuracies"]] == [False] + [True] * len(VERSIONS)
    learnt = load_file(folder / "dgn-fl.safetensors")
    assert all(torch.equal(learnt[f"gating.network.{name}"], t) for name, t in load_file(own).items())


def test_gated_checkpoints_name_themselves_and_open_in_other_commands(run, converted):
    own, folder, _ = converted
    for name in VERSIONS:
        path = folder / f"{name}.safetensors"
        opened = training.load_checkpoint(path)
        assert opened.frozen == (name in ("dgn-fr", "dgn-fl")) and opened.gate == ("hard" if opened.frozen else "soft")
        assert opened.input == ("ones" if name.endswith("-ones") else "x")
        assert set(load_file(path)) == set(opened.state_dict())
    run.done("compare", folder / "dgn-fl.safetensors", own, "--examples", 100, "--json")
    x = torch.randn(4, 1, 8, 8)
    fixed, network = training.load_checkpoint(folder / "dgn-fl.safetensors"), training.load_checkpoint(own)
    assert torch.equal(fixed.gates(x)[0].bool(), iw.gates.gate_patterns(network, x)["relu1"])


@pytest.mark.parametrize(("name", "linear"), [("dlgn-ones", True), ("dgn-fl", False)])
def test_gated_checkpoints_are_taken_apart_too(run, converted, tmp_path, name, linear):
    path = converted[1] / f"{name}.safetensors"
    run.done("gates", path, *SMALL)
    found = GateStudy.load(tmp_path / "gates" / "results.json")
    network = training.load_checkpoint(path)
    assert [layer.name for layer in found.layers] == ["relu1", "relu2"]
    assert (found.features is not None) == linear
    assert found.settings["accuracies"][0]["value network is given"] == ("1" if network.input == "ones" else "x")
    assert "tangent kernel is that of its value network" in found.notes[-1]
    assert ("soft gates count as on above 1/2" in found.notes[-1]) == (network.gate == "soft")
    page = (tmp_path / "gates" / "report.html").read_text()
    assert ("What the gates look for" in page) == linear


def test_gated_checkpoints_have_no_gated_versions_and_no_partner(run, converted):
    own, folder, _ = converted
    said = run.refused("gates", folder / "dgn-fl.safetensors", "--gated", "dlgn", *SMALL)
    assert "--gated must be none where A is a gated network. Got dlgn" in said
    said = run.refused("gates", own, folder / "dgn-fl.safetensors", *SMALL)
    assert "B must be given with two ReLU networks only" in said


def test_kernels_are_those_of_the_library(run, checkpoint, tmp_path):
    assert run("gates", checkpoint, "--gated", "none", *SMALL).code == 0
    found = GateStudy.load(tmp_path / "gates" / "results.json")
    kernels = load_file(tmp_path / "gates" / "kernels.safetensors")
    torch.testing.assert_close(kernels["npk"], found.npk)
    assert set(kernels) == {"npk", "ntk", "labels", "base/relu1", "base/relu2"}
    assert kernels["npk"].shape == (20, 20) and torch.bincount(kernels["labels"]).tolist() == [2] * 10


def test_a_second_network_is_aligned(run, checkpoint, tmp_path):
    a = networks.build("mlp:widths=8-8")
    a.load_state_dict(load_file(checkpoint))
    symmetry = iw.symmetries(a, torch.zeros(2, 1, 8, 8))
    twin = symmetry.act(symmetry.random(seed=3), a)
    b = tmp_path / "b.safetensors"
    training.save_checkpoint(b, twin, training.read_card(checkpoint))
    ran = run.done("gates", checkpoint, b, "--gated", "none", *SMALL)
    assert "alignment 1.000, of two untrained networks 0." in ran.out
    assert re.search(r"100\.0% of gates agree \(before .*%, .*% of untrained networks\)", ran.out)
    page = (tmp_path / "gates" / "report.html").read_text()
    assert "Beside b.safetensors" in page and "that nobody trained are aligned to 0." in page


def test_an_example_beyond_the_data(run, checkpoint):
    assert "--example must be below 80" in run.refused("gates", checkpoint, "--gated", "none", "--example", 80, *SMALL)


def test_a_network_that_is_no_relu_network_is_refused_before_training(run, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "def make(act='GELU'):\n"
        "    acts = [getattr(nn, act)()] if act else []\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), *acts, nn.Linear(8, 10))\n"
    )
    for act, message in (("GELU", "ReLUs, leaky ReLUs"), ("", "model must have ReLUs")):
        weights = tmp_path / "w.safetensors"
        acts = [nn.GELU()] if act else []
        save_file(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), *acts, nn.Linear(8, 10)).state_dict(), weights)
        ran = run("gates", weights, "--model", f"mine.py:make:act={act}", "--data", "digits", *SMALL)
        assert ran.code == 2 and message in ran.error, ran.err
        assert "Training" not in ran.err


def test_a_version_that_cannot_be_built_is_refused_before_another_is_trained(run, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.conv, self.head = nn.Conv2d(1, 4, 3), nn.Linear(36, 10)\n"
        "    def forward(self, x):\n"
        "        return self.head(nn.functional.max_pool2d(self.conv(x).relu(), 2).flatten(1))\n"
    )
    weights = nn.Module()
    weights.conv, weights.head = nn.Conv2d(1, 4, 3), nn.Linear(36, 10)
    save_file(weights.state_dict(), tmp_path / "w.safetensors")
    words = ["gates", "w.safetensors", "--model", "mine.py:Net", "--data", "digits", "--epochs", 1, *SMALL]
    ran = run(*words)
    assert ran.code == 2 and "use the nn.MaxPool modules" in ran.error and "leave dlgn out of --gated" in ran.error
    assert "Training" not in ran.err and not (tmp_path / "gates").exists()
    converted = run(*words, "--gated", "dlgn", "--epochs", 0)
    assert converted.code == 2 and not (tmp_path / "gates").exists()


def test_too_few_examples_of_a_class_are_refused_before_training(run, checkpoint):
    for words in ((checkpoint,), ()):
        ran = run("gates", *words, "--examples", 12, "--epochs", 1)
        assert ran.code == 2 and "every class must have at least two examples" in ran.error, ran.err
        assert "raining" not in ran.err


def test_kernels_take_what_can_be_paid_for():
    model, x = networks.build("digits_cnn").eval(), torch.zeros(100, 1, 8, 8)
    assert _affordable(model, x, None) == (60, []) and _affordable(model, x, 90) == (90, [])
    count, (note,) = _affordable(networks.build("resnet20").eval(), torch.zeros(60, 3, 32, 32), None)
    assert 8 <= count < 60 and "Say --kernel-examples for more" in note


def test_gated_versions_of_your_own_network_open_again(run, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "def make():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))\n"
        "def smooth():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.GELU(), nn.Linear(8, 10))\n"
    )
    words = ["--model", "mine.py:make", "--data", "digits"]
    assert run("gates", *words, "--gated", "dlgn,dgn-ones", "--epochs", 1, *SMALL).code == 0
    assert training.read_card(tmp_path / "gates" / "dlgn.safetensors").architecture == "gated dlgn"
    run.done("gates", "gates/dlgn.safetensors", *words, "--out", "again", *SMALL)
    refused = run("gates", "gates/dlgn.safetensors", "--data", "digits", "--out", "again2", *SMALL)
    assert refused.code == 2 and "the network that it was built from" in refused.err
    smooth = run("gates", "--model", "mine.py:smooth", "--data", "digits", "--out", "g3", *SMALL)
    assert smooth.code == 2 and "model must have ReLUs" in smooth.err and "training" not in smooth.err


def test_gated_versions_are_found_again_but_never_those_of_another_network(run, checkpoint, tmp_path):
    words = ["--gated", "dgn-fl", "--epochs", 1, *SMALL]
    read = lambda: (load_file(tmp_path / "gates" / "dgn-fl.safetensors"), training.read_card(written))
    written = tmp_path / "gates" / "dgn-fl.safetensors"
    assert run("gates", checkpoint, *words).code == 0
    time, (weights, card) = written.stat().st_mtime_ns, read()
    assert run("gates", checkpoint, *words).code == 0
    assert written.stat().st_mtime_ns == time  # the same run: not trained again
    assert run("gates", save_with_card(tmp_path / "b.safetensors", seed=1), *words).code == 0
    other, other_card = read()
    assert card.start and other_card.start != card.start
    assert any(not torch.equal(weights[name], other[name]) for name in weights)
