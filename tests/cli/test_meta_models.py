"""Commands whose code builds a model on the meta device: it takes a checkpoint's tensors, or one line says why not."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

NETS = """import torch
from torch import nn

def empty():
    with torch.device("meta"):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.RMSNorm(8), nn.ReLU(), nn.Linear(8, 10))
"""
PAIR = ("a.safetensors", "b.safetensors")
SHAPE = ("--input-shape", "1,8,8")
DIGITS = ("--data", "digits", "--examples", 200)
COMMANDS = {
    "compare": (*PAIR, *DIGITS, "--null", 2, "--bootstrap", 2),
    "same": (*PAIR, *SHAPE),
    "correspond": (*PAIR, *SHAPE),
    "lineage": (*PAIR, *SHAPE),
    "diff": (*PAIR, *SHAPE),
    "align": (*PAIR, *SHAPE),
    "merge": (*PAIR, *SHAPE, "--out", "m.safetensors"),
    "transport": (*PAIR, *SHAPE, "--out", "t.safetensors"),
    "barrier": (*PAIR, *DIGITS),
    "stitch": (*PAIR, *DIGITS, "--layers", "3", "--families", "full", "--epochs", 1),
    "fold": (PAIR[0], *SHAPE, "--out", "f.safetensors"),
    "canonical": (PAIR[0], *SHAPE, "--out", "c.safetensors"),
    "fingerprint": (PAIR[0], *SHAPE),
    "prune": (PAIR[0], *SHAPE, "--space", "1.weight[0]", "--units", "0", "--out", "p.safetensors"),
}


@pytest.fixture
def checkpoints(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets.py").write_text(NETS)
    for seed, name in enumerate(PAIR):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.RMSNorm(8), nn.ReLU(), nn.Linear(8, 10))
        save_file(model.state_dict(), name)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_model_on_the_meta_device_takes_the_tensors_of_its_checkpoint(run, checkpoints, name):
    ran = run(name, *map(str, COMMANDS[name]), "--model", "nets.py:empty")
    assert ran.code in (0, 1), ran.err
    assert "error" not in ran.err


@pytest.mark.parametrize("name", ["symmetries", "mappings"])
def test_without_a_checkpoint_one_line_asks_for_it(run, checkpoints, name):
    ran = run(name, *SHAPE, "--model", "nets.py:empty")
    assert ran.code == 2
    assert ran.error == (
        "error: model must hold weights. Got a model on the meta device: load a checkpoint into it first."
    )
