"""``intertwine compare``: real input in, table, files and page out; bad input refused before long work."""

import json
import pickle
import re
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file

from intertwine import similarity
from intertwine.cli.commands import compare
from intertwine.similarity import Comparison, ComparisonSet

FAST = ("--null", 3, "--bootstrap", 0, "--examples", 40)


@pytest.mark.parametrize(("mean", "shape", "size"), [((0.5,), (1, 8, 8), 1000), ((), (128,), 64), ((), (4096,), 8)])
def test_text_is_read_by_tokens(mean, shape, size):
    splits = SimpleNamespace(mean=mean, shape=shape)
    assert compare._size(compare._EXAMPLES, splits) == size


def test_cards_say_everything(run, pair, tmp_path):
    ran = run.done("compare", *pair, *FAST)
    for text in ("relu1", "relu2", "G-ReLU CKA", "The two networks are"):
        assert text in ran.out
    comparison = Comparison.load(tmp_path / "comparison" / "results.json")
    assert comparison.layers_a == comparison.layers_b == ("relu1", "relu2")
    assert comparison.examples == 40
    assert comparison.settings["network_a"]["parameters"] == "682"
    assert comparison.settings["network_a"]["test accuracy"] == "12.5%"
    assert comparison.settings["command"].startswith("intertwine compare ")
    frame = pd.read_parquet(tmp_path / "comparison" / "results.parquet")
    assert len(frame) == 4 * 2 * 2
    html = (tmp_path / "comparison" / "report.html").read_text()
    assert "12.5%" in html
    assert comparison.settings["command"].split()[-1] in html


def test_json_is_all_of_the_output(run, pair):
    ran = run.done("compare", *pair, *FAST, "--json", "--out", "elsewhere", "--measures", "linear_cka")
    told = json.loads(ran.out)
    assert told["kind"] == "Comparison"
    assert told["measures"] == ["linear_cka"]
    assert told["files"]["report.html"].startswith("elsewhere")


def test_data_of_one_class(run, pair, npz):
    one = npz("one.npz", classes=1)
    ran = run.done("compare", *pair, *FAST, "--data", one, "--json")
    assert json.loads(ran.out)["examples"] == 40
    for command in ("train", "gates"):
        ran = run(command, "--model", "mlp", "--data", one, "--out", "out.safetensors")
        assert ran.code == 2 and "must hold at least two classes to" in ran.error, command


def test_many_checkpoints_are_compared_layer_by_layer(run, three, tmp_path):
    ran = run.done("compare", *three, "--examples", 40)
    assert "third.safetensors" in ran.out
    found = ComparisonSet.load(tmp_path / "comparison" / "results.json")
    assert found.names == ("a.safetensors", "b.safetensors", "third.safetensors")
    assert (found.layers, found.examples) == (("relu1", "relu2"), 40)
    assert found.settings["command"].startswith("intertwine compare ")
    assert [network["name"] for network in found.settings["networks"]] == list(found.names)
    assert len(list((tmp_path / "comparison" / "statistics").glob("*.safetensors"))) == 3 + 3  # and untrained ones
    assert found.settings["untrained"] == "3 pairs" and "Beyond chance and untrained networks: " in ran.out
    assert "Layer by layer" in (tmp_path / "comparison" / "report.html").read_text()
    options = "--json", "--measures", "linear_cka", "--untrained", 0, "--bootstrap", 0
    told = json.loads(run("compare", *three, "--examples", 40, *options).out)
    assert (told["kind"], told["measures"], told["untrained_pairs"]) == ("ComparisonSet", ["linear_cka"], {})
    assert told["chance"] and all(x is None for row in told["low"]["linear_cka"][0] for x in row)


def test_workers_score_the_pairs_of_many(run, three, tmp_path):
    run.done("compare", *three, "--examples", 40, "--workers", 1, "--measures", "linear_cka")
    assert len(list((tmp_path / "comparison" / "pairs" / "results").glob("*.json"))) == 2 * 2  # one for each layer
    run("compare", *three, "--examples", 40, "--measures", "linear_cka", "--out", "plain")
    found, alone = (ComparisonSet.load(tmp_path / name / "results.json") for name in ("comparison", "plain"))
    torch.testing.assert_close(found.scores["linear_cka"], alone.scores["linear_cka"])


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["step-100.pt", "step-20.pt", "step-3.pt"], ["step-3.pt", "step-20.pt", "step-100.pt"]),
        (["run/9/a.pt", "run/10/a.pt", "run/1/a.pt"], ["run/1/a.pt", "run/9/a.pt", "run/10/a.pt"]),
        (["rate-0.25.pt", "rate-0.5.pt", "rate-0.1.pt"], ["rate-0.1.pt", "rate-0.25.pt", "rate-0.5.pt"]),
        (["rate-1.pt", "rate-0.5.pt"], ["rate-0.5.pt", "rate-1.pt"]),
        (["b.pt", "a.pt", "c.pt"], ["b.pt", "a.pt", "c.pt"]),
        (["a-2-7.pt", "a-1-8.pt", "a-1-7.pt"], ["a-2-7.pt", "a-1-8.pt", "a-1-7.pt"]),  # two numbers
    ],
)
def test_checkpoints_of_one_training_are_put_in_order(given, meant):
    assert [str(path) for path in compare._in_order([Path(name) for name in given])] == meant


def test_every_measure_can_be_asked_for(run, pair):
    new = ("linear_regression", "r2_cca", "distance_correlation", "soft_matching", "neighbour_jaccard", "cknna")
    names = ",".join([*new, "size_and_shape_procrustes"])
    ran = run.done("compare", pair[0], pair[0], *FAST, "--json", "--measures", names)
    told = json.loads(ran.out)
    assert told["measures"] == names.split(",")
    for measure, matrix in told["scores"].items():
        assert matrix[0][0] == pytest.approx(1, abs=1e-6), measure
    ran = run("compare", *pair, "--measures", "cknn")
    assert ran.code == 2 and "cknna" in ran.err and "soft_matching" in ran.err


def test_the_same_network_twice(run, pair):
    ran = run("compare", pair[0], pair[0], *FAST, "--json")
    scores = json.loads(ran.out)["scores"]
    for measure, matrix in scores.items():
        assert matrix[0][0] == pytest.approx(1, abs=1e-6), measure


def test_other_architectures_and_layers(run, pair, tmp_path):
    small = tmp_path / "small.pt"
    torch.manual_seed(0)
    torch.save(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10), torch.nn.ReLU()).state_dict(), small)
    (tmp_path / "net.py").write_text(
        "from torch import nn\ndef make(width): return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU())\n"
    )
    ran = run.done("compare", pair[0], small, *FAST, "--model", "mlp:widths=8-8", "--model-b", "net.py:make:width=10",
              "--layers", "relu1,linear*", "--layers-b", "2", "--json")  # fmt: skip
    told = json.loads(ran.out)
    assert told["layers_a"] == ["relu1", "linear1", "linear2", "linear"]
    assert told["layers_b"] == ["2"]


def test_a_module_in_the_current_folder(run, tmp_path, npz):
    (tmp_path / "my_nets_here.py").write_text(
        "from torch import nn\nmake = lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU())\n"
    )
    torch.save({"state_dict": {"1.weight": torch.randn(5, 64), "1.bias": torch.randn(5)}}, tmp_path / "a.pt")
    ran = run.done(
        "compare", "a.pt", "a.pt", "--model", "my_nets_here:make", "--data", npz(), "--split", "train", *FAST
    )
    assert "this data's own mean" in ran.out + ran.err  # no card says what the networks were trained with


def test_hugging_face_directories(run, vits):
    words = (*FAST, "--measures", "linear_cka", "--json")
    ran = run.done("compare", "vit_a", "vit_b", "--data", "digits", *words)
    scores = json.loads(ran.out)["scores"]
    file = run.done("compare", "vit_a/model.safetensors", "vit_b", "--model", "hf:vit_a", "--data", "digits", *words)
    assert json.loads(file.out)["scores"] == scores  # the weights of a directory, given as a file
    weights = vits / "vit_b" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:500])
    assert "complete safetensors file" in run.refused("compare", "vit_a", "vit_b", "--data", "digits", *FAST)


class Evil:
    """Would run code where it is unpickled."""

    def __reduce__(self):
        return (print, ("unpickled!",))


def bad_inputs(pair, bare, npz, tmp_path):
    """Words of the command line, and what the error must say."""
    a, b = pair
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(a.read_bytes()[:-40])
    evil = tmp_path / "evil.pt"
    evil.write_bytes(pickle.dumps({"w": Evil()}))
    empty = tmp_path / "empty"
    (empty / "cats").mkdir(parents=True)
    (empty / "dogs").mkdir()
    (tmp_path / "file").write_text("")
    nan = tmp_path / "nan.safetensors"
    save_file({k: torch.full_like(v, torch.nan) for k, v in load_file(a).items()}, nan)
    return {
        "wrong architecture": ((a, b, "--model", "resnet20"), r"checkpoint must be of the architecture resnet20"),
        "wrong arguments": ((a, b, "--model", "mlp:widths=9"), r"architecture mlp:widths=9.*of another shape"),
        "unknown layer": ((a, b, "--layers", "relu9"), r"layers must be names of .* Got 'relu9'. Close names:"),
        "unknown layer of B": ((a, b, "--layers", "relu1", "--layers-b", "x"), r"Got 'x'"),
        "unsafe pickle": ((evil, b, "--model", "mlp"), r"checkpoint must hold tensors only.*unsafe unpickling"),
        "truncated safetensors": ((a, cut), r"checkpoint must be a complete safetensors file"),
        "empty data": ((a, b, "--data", f"images:{empty}"), r"must hold images"),
        "wrong image size": (
            (a, b, "--data", npz("large.npz", shape=(1, 12, 12)), "--model", "mlp:widths=8-8,shape=1-8-8"),
            r"data must be inputs that a\.safetensors accepts. Got inputs of shape \(1, 12, 12\)",
        ),
        "too few examples": ((a, b, "--split", "validation", "--data", npz("few.npz", n=20, classes=2)), r"at least 4"),
        "no card": ((bare, bare, "--data", "digits"), r"--model must be given where .* Got none for ./.*bare"),
        "no data named": ((bare, bare, "--model", "mlp:widths=8-8"), r"--data must be given where no card lies"),
        "out is a file": ((a, b, "--out", tmp_path / "file"), r"--out must be a folder"),
        "an empty file": ((tmp_path / "file", b, "--model", "mlp"), r"safetensors or GGUF file.*\(0 bytes\)"),
        "weights that are not finite": ((a, nan, "--model", "mlp:widths=8-8"), r"must hold finite weights\. Got NaN"),
        "out below a file": ((a, b, "--out", tmp_path / "file" / "x"), r"--out must be a place where files can be"),
        "a folder without a model": ((empty, b), r"checkpoint must be a file, an index of shards, or a directory"),
    }  # fmt: skip


CASES = (
    "wrong architecture", "wrong arguments", "unknown layer", "unknown layer of B", "unsafe pickle",
    "truncated safetensors", "empty data", "wrong image size", "too few examples", "no card", "no data named",
    "out is a file", "a folder without a model", "an empty file", "weights that are not finite", "out below a file",
)  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_refused_before_long_work(run, pair, bare, npz, tmp_path, monkeypatch, case):
    def never(*args, **kwargs):
        raise AssertionError("the long work began")

    monkeypatch.setattr(similarity, "compare", never)
    words, message = bad_inputs(pair, bare, npz, tmp_path)[case]
    ran = run("compare", *words)
    assert ran.code == 2
    assert ran.out == ""
    assert re.search(message, ran.error), ran.error
    assert not (tmp_path / "comparison").exists()


def test_every_bad_input_is_tried(pair, bare, npz, tmp_path):
    assert set(bad_inputs(pair, bare, npz, tmp_path)) == set(CASES)


def test_a_card_cannot_make_us_import_code(run, pair, tmp_path):
    for name in ("c.safetensors", "c.json"):
        (tmp_path / name).write_bytes((pair[0].parent / name.replace("c.", "a.")).read_bytes())
    card = json.loads((tmp_path / "c.json").read_text())
    (tmp_path / "c.json").write_text(json.dumps({**card, "architecture": "danger:go"}))
    (tmp_path / "danger.py").write_text("raise SystemExit(9)")
    assert "Say --model danger:go" in run.refused("compare", "c.safetensors", "c.safetensors")
