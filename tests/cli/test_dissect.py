"""``intertwine dissect``: the built-in set, resuming, JSON, the page, and bad input."""

import json

import pytest
import torch
from safetensors.torch import save_file

from intertwine.dissection import Dissection
from intertwine.lab import networks

NETWORK = "resnet50:width=2,blocks=1-1,stem=small"
SMALL = ["--examples", "24", "--size", "32x32", "--rotation-seeds", "2", "--quantile", "0.02", "--pictures", "2"]


@pytest.fixture
def checkpoint(tmp_path):
    torch.manual_seed(0)
    save_file(networks.build(f"{NETWORK},classes=5").state_dict(), tmp_path / "net.safetensors")
    return tmp_path / "net.safetensors"


def test_trains_and_dissects_on_the_built_in_set(run, tmp_path):
    ran = run.done("dissect", "--model", NETWORK, "--train", 1, "--layer", "layer2.0", "--rotations", "0,1", *SMALL)
    assert "detect a concept" in ran.out
    assert "G_ReLU" in (tmp_path / "dissection" / "report.html").read_text()
    found = Dissection.load(tmp_path / "dissection" / "results.json")
    assert found.unchanged is True
    assert "permutes and rescales" in found.settings["prediction"]
    assert {a.arm.alpha for a in found.arms} == {0, 1}
    assert (tmp_path / "dissection" / "results.parquet").is_file()


def test_weights_json_and_resuming(run, checkpoint, tmp_path):
    words = ["dissect", "--model", f"{NETWORK},classes=5", "--weights", checkpoint, "--layer", "layer2.0"]
    ran = run.done(*words, "--rotations", "0,0.5", "--json", *SMALL)
    assert "values from 0 to 1: say --mean and --std" in ran.err  # before the work; the card says nothing
    data = json.loads(ran.out)
    assert data["kind"] == "Dissection"
    assert [row["alpha"] for row in data["table"]] == [0, 0.5, 1]
    files = sorted(p.name for p in (tmp_path / "dissection" / "bases").glob("*-*.json"))
    times = {p: (tmp_path / "dissection" / "bases" / p).stat().st_mtime_ns for p in files}
    assert run(*words, "--rotations", "0,0.5,1", "--json", *SMALL).code == 0
    assert len(list((tmp_path / "dissection" / "bases").glob("*-*.json"))) == len(files) + 2
    kept = [p for p in files if (tmp_path / "dissection" / "bases" / p).stat().st_mtime_ns == times[p]]
    assert len(kept) >= len(files) - 1  # one basis may be done again: it is now the middle one, and shown
    run.done("report", tmp_path / "dissection" / "results.json", "--out", "again.html")
    assert "what the best units see" in (tmp_path / "again.html").read_text().lower()


def test_a_hugging_face_directory(run, tmp_path):
    transformers = pytest.importorskip("transformers", reason="needs the extra [hf]")
    config = transformers.ConvNextConfig(num_stages=2, hidden_sizes=[4, 8], depths=[1, 1], num_labels=3)
    transformers.ConvNextForImageClassification(config).save_pretrained(tmp_path / "net")
    words = ["dissect", "--weights", "net", "--layer", "convnext.encoder.stages.1", "--rotations", "0,1", *SMALL]
    assert "values from 0 to 1" in run.done(*words).out
    (tmp_path / "net" / "preprocessor_config.json").write_text(
        '{"image_mean": [0.5, 0.5, 0.5], "image_std": [1, 1, 1]}'
    )
    assert "values from 0 to 1" not in run.done(*words, "--out", "normalised").out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "mlp", "--layer", "layer2.0"], "needs a network with a method dense"),
        (["--model", NETWORK, "--examples", "24", "--size", "32x32", "--layer", "fc"], "one map for each unit"),
    ],
)
def test_bad_input(run, words, message):
    assert message in run.refused("dissect", "--train", 1, *words)
