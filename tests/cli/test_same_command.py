"""``intertwine same`` prints a verdict and a residual, and every verdict has exit code 0."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import intertwine as iw
from intertwine.lab import networks, training
from intertwine.symmetry import transformation


@pytest.fixture
def files(tmp_path):
    torch.manual_seed(0)
    spec = "mlp:width=8"
    try:
        model = networks.build(spec)
    except (TypeError, ValueError):
        spec = "digits_cnn"
        model = networks.build(spec)
    model.eval()
    example = torch.randn(2, *networks.NETWORKS[spec.partition(":")[0]].input_shape)
    sym = iw.symmetries(model, example)
    twin = sym.act(sym.random(seed=1), model)
    torch.manual_seed(1)
    made = {"a": model, "b": twin.bfloat16().float(), "c": networks.build(spec)}
    for name, network in made.items():
        save_file(network.state_dict(), tmp_path / f"{name}.safetensors")
    return spec


def test_verdicts(run, files, tmp_path):
    ran = run("same", "a.safetensors", "b.safetensors", "--model", files, "--out", "g.safetensors")
    assert ran.code == 0 and ran.out.startswith("the same network up to symmetry"), ran.out + ran.err
    assert ran.out.count("residual") == 1
    assert transformation.load(tmp_path / "g.safetensors").spaces
    ran = run("same", "a.safetensors", "c.safetensors", "--model", files, "--json")
    assert ran.code == 0 and json.loads(ran.out)["verdict"] == "different"


def test_tensors_that_were_tuned_are_listed(run, files, tmp_path):
    model = networks.build(files)
    model.load_state_dict(load_file(tmp_path / "a.safetensors"))
    last = list(model.state_dict())[-1]
    with torch.no_grad():
        model.state_dict()[last].normal_()
    save_file(model.state_dict(), tmp_path / "tuned.safetensors")
    ran = run("same", "a.safetensors", "tuned.safetensors", "--model", files)
    assert ran.code == 0 and ran.out.startswith("related (merged, fine-tuned)"), ran.out + ran.err
    assert f"\n  {last}  differs by" in ran.out
    ran = run("same", "a.safetensors", "tuned.safetensors", "--model", files, "--json")
    assert list(json.loads(ran.out)["differing"]) == [last]


def test_a_hugging_face_directory_names_its_own_model(run, vits):
    assert run.done("same", "vit_a", "vit_a", "--input-shape", "2,1,8,8").out.startswith("the same network")


def test_a_model_that_was_made_without_a_pooler_is_read(run, tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    for name in "ab":
        model = transformers.BertModel(transformers.BertConfig(**sizes, vocab_size=30), add_pooling_layer=False)
        model.save_pretrained(tmp_path / name)
        save_file({**model.state_dict(), "other.weight": torch.ones(2)}, tmp_path / f"{name}.safetensors")
    for more in ([], ["--sharded"]):
        assert run.done("same", "a", "b", *more).out.startswith("different")
    ran = run("same", "a", "b.safetensors", "--model", "hf:a")
    assert ran.code == 2 and "1 tensors are missing, unexpected or of another shape: other.weight" in ran.error


def test_bad_input(run, files):
    assert run("same", "a.safetensors", "b.safetensors").code == 2
    ran = run("same", "a.safetensors", "b.safetensors", "--model", "myrtle_cnn")
    assert ran.code == 2 and "must be of the architecture myrtle_cnn" in ran.error


def test_each_network_is_what_its_own_card_says(run, tmp_path):
    """The same tensors compute another function where the activation is another one."""
    torch.manual_seed(0)
    weights = networks.build("mlp:widths=8-8")
    for name, spec in (("a", "mlp:widths=8-8"), ("b", "mlp:widths=8-8"), ("leaky", "mlp:leaky_slope=0.5,widths=8-8")):
        card = training.Card(architecture=spec, data="digits", seed=0)
        training.save_checkpoint(tmp_path / f"{name}.safetensors", weights, card)
    assert run("same", "a.safetensors", "b.safetensors").out.startswith("the same network")
    assert "must be of one architecture" in run.refused("same", "a.safetensors", "leaky.safetensors")


def test_one_file_and_two_architectures_are_told_at_once(run, files, tmp_path, monkeypatch):
    def never(*_):
        raise AssertionError("nothing must be built")

    monkeypatch.setattr("intertwine.cli.inputs.open_alone", never)
    ran = run("same", "a.safetensors", "a.safetensors", "--model", files)
    assert ran.code == 0 and ran.out.startswith("the same network") and "are one file" in ran.out
    save_file({"x": torch.zeros(3), "y": torch.zeros(5)}, tmp_path / "other.safetensors")
    assert "must be of one architecture" in run.refused("same", "a.safetensors", "other.safetensors", "--model", files)


@pytest.mark.parametrize("name", ["0.qweight", "0.weight_packed", "0.weight"])
def test_packed_weights_are_not_called_another_architecture(run, tmp_path, name):
    torch.manual_seed(0)
    state = nn.Sequential(nn.Linear(8, 16)).state_dict()
    save_file(state, tmp_path / "a.safetensors")
    rest = {"0.scales": torch.ones(2, 16), "0.zeros": torch.ones(2, 16), "0.bias": state["0.bias"]}
    save_file({**rest, name: torch.ones(1, 64, dtype=torch.int32)}, tmp_path / "b.safetensors")
    found = run("same", tmp_path / "a.safetensors", tmp_path / "b.safetensors", "--model", "torch.nn:Linear")
    assert found.code == 2
    assert f"must hold plain weights. Got {name} int32: dequantise them first." in found.error
