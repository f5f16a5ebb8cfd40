"""``intertwine diff`` says what changed; its exit code says whether anything did."""

import json

import pytest
import torch
from safetensors.torch import save_file

import intertwine as iw
from intertwine.lab import networks

SPEC = "mlp:widths=8-8"


@pytest.fixture
def files(tmp_path):
    torch.manual_seed(0)
    model = networks.build(SPEC).eval()
    sym = iw.symmetries(model, torch.randn(2, *networks.input_shape(SPEC)))
    twin = sym.act(sym.random(seed=1), model).bfloat16().float()
    tuned = networks.build(SPEC)
    tuned.load_state_dict(model.state_dict())
    last = list(tuned.state_dict())[-1]
    with torch.no_grad():
        tuned.state_dict()[last].normal_()
    for name, network in {"a": model, "b": twin, "tuned": tuned}.items():
        save_file(network.state_dict(), tmp_path / f"{name}.safetensors")
    return last


def test_exit_codes_and_words(run, files, tmp_path):
    ran = run("diff", "a.safetensors", "b.safetensors", "--model", SPEC)
    assert ran.code == 0 and ran.out.startswith("the same function"), ran.out + ran.err
    assert "permuted" in ran.out and "cast to bfloat16" in ran.out
    ran = run("diff", "a.safetensors", "tuned.safetensors", "--model", SPEC, "--out", "page.html")
    assert ran.code == 1 and f"only tensors of the head changed: 1 of 2 ({files})" in ran.out
    assert "Relative change of each block" in (tmp_path / "page.html").read_text()
    ran = run("diff", "a.safetensors", "a.safetensors", "--model", SPEC)
    assert ran.code == 0 and "equal, bit by bit" in ran.out and "the same file" in ran.err


def test_json(run, files):
    ran = run("diff", "a.safetensors", "tuned.safetensors", "--model", SPEC, "--json")
    said = json.loads(ran.out)
    assert ran.code == 1 and said["verdict"] == "changed" and len(said["blocks"]) == 3
    assert [t["name"] for t in said["tensors"] if t["kind"] != "equal"] == [files]


def test_sharded_reading(run, files):
    ran = run("diff", "a.safetensors", "tuned.safetensors", "--model", SPEC, "--sharded")
    assert ran.code == 1 and "only tensors of the head" in ran.out and "outputs" not in ran.out


def test_bad_input(run, files, tmp_path):
    assert run("diff", "a.safetensors", "b.safetensors").code == 2
    whole = (tmp_path / "a.safetensors").read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(whole[: len(whole) // 2])
    for options in ((), ("--sharded",)):
        ran = run("diff", "a.safetensors", "cut.safetensors", "--model", SPEC, *options)
        assert ran.code == 2 and "complete safetensors file" in ran.error
    ran = run("diff", "a.safetensors", "b.safetensors", "--model", "mlp:widths=9-9")
    assert ran.code == 2 and "must be of the architecture" in ran.error


def test_hugging_face_directories_and_checkpoints_of_other_code(run, tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.ViTConfig(**sizes, image_size=8, patch_size=4, num_channels=1, num_labels=3)
    torch.manual_seed(0)
    model = transformers.ViTForImageClassification(config)
    model.save_pretrained(tmp_path / "base")
    assert "equal, bit by bit" in run.done("diff", "hf:base", "hf:base", "--input-shape", "2,1,8,8").out
    with torch.no_grad():
        model.classifier.weight.normal_()
    model.save_pretrained(tmp_path / "tuned")
    for options in (("--input-shape", "2,1,8,8"), ("--input-shape", "2,1,8,8", "--sharded")):
        ran = run("diff", "hf:base", "hf:tuned", *options)
        assert ran.code == 1 and "only tensors of the head changed" in ran.out, ran.out + ran.err
    model.config.layer_norm_eps, model.config.hidden_dropout_prob = 1e-3, 0.1
    model.save_pretrained(tmp_path / "rebuilt")
    for options in (("--input-shape", "2,1,8,8"), ("--input-shape", "2,1,8,8", "--sharded")):
        ran = run("diff", "hf:tuned", "hf:rebuilt", *options)
        assert ran.code == 1 and "configuration changed: layer_norm_eps 1e-12 to 0.001\n" in ran.out, ran.out + ran.err
        assert "no change by themselves: hidden_dropout_prob 0.0 to 0.1\n" in ran.out
    other = {f"backbone.{n}": x.T.contiguous() if x.ndim == 2 else x for n, x in model.state_dict().items()}
    save_file(other, tmp_path / "other.safetensors")
    ran = run("diff", "hf:tuned", "other.safetensors", "--model", "hf:tuned", "--input-shape", "2,1,8,8")
    assert ran.code == 0 and "under other names" in ran.out and "transposed" in ran.out, ran.out + ran.err
