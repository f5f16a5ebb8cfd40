"""``intertwine lineage`` prints a verdict with its p-value, and refuses what it cannot compare."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from intertwine.lab import networks

MODEL = "mlp:widths=32-32"


@pytest.fixture
def files(tmp_path):
    for name, seed, noise in (("a", 0, 0.0), ("b", 0, 0.01), ("c", 1, 0.0)):
        torch.manual_seed(seed)
        state = networks.build(MODEL).state_dict()
        save_file({n: t + noise * torch.randn_like(t) for n, t in state.items()}, tmp_path / f"{name}.safetensors")


def test_verdicts(run, files):
    ran = run("lineage", "a.safetensors", "b.safetensors", "--model", MODEL, "--out", "page.html")
    assert ran.code == 0 and ran.out.startswith("derived (exact, p < 1e-"), ran.out + ran.err
    assert "both from the same start, such as one initialisation" in ran.out.splitlines()[0]
    ran = run("lineage", "a.safetensors", "c.safetensors", "--model", MODEL, "--json")
    found = json.loads(ran.out)
    assert len(found["networks"]) == 2 and all(said.startswith("a state dict of") for said in found["networks"])
    assert ran.code == 0 and found["verdict"] == "no sign of descent" and found["p_value"] > 1e-4


def test_a_rotated_stream_is_found_once_norms_are_folded(run, tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, vocab_size=32, tie_word_embeddings=False))
    model.save_pretrained(tmp_path / "a")
    assert run("rotate", "a", "--out", "b").code == 0
    ran = run("lineage", "a", "b")
    assert ran.code == 0 and ran.out.startswith("derived (identical)"), ran.out + ran.err
    assert "note: gains of norms were folded first" in ran.out


def test_experts_count_although_their_names_on_disk_are_others(run, tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "head_dim": 8,
    }
    config = transformers.MixtralConfig(**sizes, num_key_value_heads=2, vocab_size=32, num_local_experts=4)
    for seed, folder in enumerate(("a", "b", "stranger")):
        torch.manual_seed(seed)
        model = transformers.MixtralForCausalLM(config)
        if folder == "a":
            first = model
        if folder == "b":  # another network with the experts of the first
            model.model.layers[0].mlp = first.model.layers[0].mlp
        model.save_pretrained(tmp_path / folder)
    ran = run("lineage", "a", "b")
    assert ran.out.startswith("derived (exact, p < 1e-") and "was not tested" not in ran.out, ran.out + ran.err
    assert run("lineage", "a", "stranger").out.startswith("no sign of descent")


def test_bad_input(run, files, tmp_path):
    ran = run("lineage", "a.safetensors", "a.safetensors", "--model", MODEL)
    assert ran.code == 2 and "B must be another checkpoint than A" in ran.error
    assert "--model must be given" in run.refused("lineage", "a.safetensors", "b.safetensors")
    ran = run("lineage", "a.safetensors", "b.safetensors", "--model", "resnet20")
    assert ran.code == 2 and "checkpoint must be of the model" in ran.error
    whole = (tmp_path / "b.safetensors").read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(whole[: len(whole) // 2])
    assert "complete safetensors file" in run.refused("lineage", "a.safetensors", "cut.safetensors", "--model", MODEL)
    assert (tmp_path / "cut.safetensors").stat().st_size == len(whole) // 2


def test_tree_of_a_folder(run, files, tmp_path):
    folder = tmp_path / "many"
    folder.mkdir()
    for name in "abc":
        (tmp_path / f"{name}.safetensors").rename(folder / f"{name}.safetensors")
    ran = run("lineage", "tree", "many", "--model", MODEL, "--out", "tree.html")
    assert ran.code == 0 and "3 networks in 2 families: 1 of 3 pairs related" in ran.out, ran.out + ran.err
    assert "a.safetensors -- b.safetensors" in ran.out and "c.safetensors: no relative" in ran.out
    wrapped = {f"module._orig_mod.{n}": t for n, t in load_file(folder / "a.safetensors").items()}
    torch.save({"state_dict": wrapped}, folder / "e.ckpt")
    ran = run("lineage", "tree", "many", "--model", MODEL)
    assert "4 networks in 2 families" in ran.out and "e.ckpt" in ran.out, ran.out + ran.err
    (folder / "e.ckpt").unlink()
    save_file({"x": torch.zeros(2)}, folder / "result.safetensors", {"kind": "intertwine.tensors of Match"})
    (folder / "result.json").write_text("{}")
    ran = run("lineage", "tree", "many", "--model", MODEL)
    assert ran.code == 0 and "3 networks" in ran.out and "left out, results" in ran.err
    (folder / "d").mkdir()
    (folder / "d" / "config.json").write_text("{")
    (folder / "cut.safetensors").write_bytes((folder / "a.safetensors").read_bytes()[:900])
    ran = run("lineage", "tree", "many", "--model", MODEL)
    assert ran.code == 0 and "3 networks" in ran.out, ran.out + ran.err
    assert "left out, cut.safetensors: shard must be a complete safetensors file" in ran.err
    assert "left out, d: folder must hold safetensors weights" in ran.err
    for name in "ab":
        (folder / f"{name}.safetensors").unlink()
    assert "shard must be a complete safetensors file" in run.refused("lineage", "tree", "many", "--model", MODEL)
    assert "DIR must be a folder of checkpoints" in run.refused("lineage", "tree", "nowhere", "--model", MODEL)
