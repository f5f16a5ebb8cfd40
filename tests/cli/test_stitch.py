"""``intertwine stitch``: two networks and three, layers by name, pattern and default, JSON, resuming, bad input."""

import json
import os
from dataclasses import replace

import pytest
import torch
from checkpoints import save_with_card

import intertwine as iw
from intertwine.lab import networks, training
from intertwine.stitching import StitchingStudy
from intertwine.stitching.training_state import TrainingState

QUICK = ["--epochs", "1", "--examples", "64"]
SMALL = "digits_cnn:width=4"


@pytest.fixture(scope="module")
def nets(tmp_path_factory):
    """A short-trained CNN, its planted G_ReLU copy, an independent one, and an MLP."""
    folder = tmp_path_factory.mktemp("nets")
    recipe = replace(training.RECIPES["digits"], epochs=4)
    a, b = (training.train(SMALL, recipe=recipe, seed=seed, progress=False).model for seed in (0, 1))
    symmetry = iw.symmetries(a, torch.randn(2, 1, 8, 8))
    twin = symmetry.act(symmetry.random(seed=3), a)
    torch.manual_seed(0)
    mlp = networks.build("mlp:widths=8-8")
    return [
        save_with_card(folder / f"{name}.safetensors", model, spec)
        for name, model, spec in (
            ("a", a, SMALL), ("twin", twin, SMALL), ("b", b, SMALL), ("mlp", mlp, "mlp:widths=8-8"),
        )
    ]  # fmt: skip


def test_two_networks_all_activations(run, nets, tmp_path):
    ran = run.done("stitch", nets[0], nets[2], "--families", "g_relu,full,rank-1", *QUICK)
    assert "penalty" in ran.out
    assert "relu1" in ran.out
    study = StitchingStudy.load(tmp_path / "stitching" / "results.json")
    assert study.layers == ("relu1", "relu2", "relu3")
    assert study.families == ("g_relu", "full", "rank-1")
    assert study.settings["recipe"]["head_start"] == 0
    assert study.settings["data"]["name"] == "digits"
    assert "<html" in (tmp_path / "stitching" / "report.html").read_text()
    assert (tmp_path / "stitching" / "results.parquet").is_file()
    assert not list((tmp_path / "stitching").glob("*.pt"))  # nothing to resume is left behind


def test_a_planted_copy_costs_nothing_by_direct_matching(run, nets):
    """Theorem 4.2."""
    words = ["stitch", *nets[:2], "--families", "g_relu,identity", "--method", "direct", "--no-recalibrate", "--json"]
    ran = run.done(*words)
    found = json.loads(ran.out)
    assert found["kind"] == "StitchingStudy"
    penalties = {(s["layer_a"], s["family"]): s["penalty"] for s in found["stitchings"]}
    assert [penalties[layer, "g_relu"] for layer in ("relu1", "relu2", "relu3")] == [0, 0, 0]
    assert max(penalties[layer, "identity"] for layer in ("relu1", "relu2", "relu3")) > 0.2


def test_three_networks_every_ordered_pair(run, nets, tmp_path):
    words = ["stitch", *nets[:3], "--layers", "relu3", "--families", "full", "--method", "direct", "--examples", "100"]
    run.done(*words, "--out", "zoo")
    study = StitchingStudy.load(tmp_path / "zoo" / "results.json")
    assert len(study.pairs) == 6
    assert set(study.table()["over"]) == {"models"}


def test_other_architectures_and_layers_by_pattern(run, nets):
    words = [
        "stitch", nets[2], nets[3], "--layers", "flatt*", "--layers-b", "relu1", "--families", "full,g_relu", "--json",
    ]  # fmt: skip
    ran = run.done(*words, *QUICK, "--method", "direct,task_loss", "--alpha", "0.01")
    found = json.loads(ran.out)["stitchings"]
    assert {(s["layer_a"], s["layer_b"], s["c_in"], s["c_out"]) for s in found} == {("flatten", "relu1", 16, 8)}
    assert len(found) == 4
    assert {s["alpha"] for s in found if s["family"] == "g_relu"} == {0.01}


def test_random_start_seeds_augmentation_and_cross_validation(run, nets):
    words = ["stitch", nets[0], nets[2], "--layers", "relu2", "--families", "g_relu", "--json", *QUICK]
    ran = run.done(*words, "--start", "random", "--seeds", "2", "--translate", "1", "--recipe", "v2", "--alpha", "cv")
    found = json.loads(ran.out)
    assert [s["seed"] for s in found["stitchings"]] == [0, 1]
    assert all(s["agreement"] is not None for s in found["stitchings"])  # the share that was recovered
    assert found["settings"]["augmentation"] == {"translate": 1, "flip": False}
    assert found["settings"]["recipe"]["momentum"] == 0


def test_a_stopped_run_goes_on(run, nets, tmp_path, monkeypatch):
    """Killed while pages are written: the same command trains nothing again."""
    words = ["stitch", nets[0], nets[2], "--layers", "relu3", "--families", "full", *QUICK]
    with monkeypatch.context() as patched:
        patched.setattr(StitchingStudy, "to_html", lambda *_: os.replace("nowhere", "here"))
        assert run(*words).code != 0
    assert list((tmp_path / "stitching").glob("*.pt"))
    with monkeypatch.context() as patched:
        patched.setattr(TrainingState, "update", lambda *_: pytest.fail("trained again"))
        ran = run(*words)
    assert ran.code == 0, ran.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--families", "full", "--layers", "relu9"], "Close names: 'relu"),
        (["--families", "rank-99", "--layers", "relu1"], "rank must be from 1 to 4"),
        (["--layers", "relu1", "--layers-b", "relu*"], "--layers-b must name as many layers"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input(run, nets, words, message):
    assert message in run.refused("stitch", nets[0], nets[2], *QUICK, *words)
