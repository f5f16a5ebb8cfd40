"""Checkpoints of others: no more memory than their files have bytes, no number changed, nothing unpickled."""

import os
import time
import zipfile

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from intertwine._io import read_tensors
from intertwine._untrusted.construction import limited_construction
from intertwine.errors import CheckpointError
from intertwine.lab import networks
from intertwine.lab.training import Card, load_checkpoint, load_weights, save_checkpoint
from intertwine.symmetry import transformation


@pytest.mark.parametrize(
    "spec",
    [
        "mlp:widths=200000-200000", "mlp:shape=3-100000-100000", "mlp:classes=4000000000000",
        "mlp:widths=" + "-".join(["2"] * 30_000), "resnet50:blocks=100000-2-2-2", "small_convnext:widths=100000-100000",
    ],
)  # fmt: skip
def test_a_card_that_names_a_network_no_machine_holds_is_refused_at_once(spec, tmp_path):
    model = networks.build("mlp")
    save_checkpoint(tmp_path / "a.safetensors", model, Card(architecture=spec))
    start = time.process_time()
    with pytest.raises(CheckpointError, match=r"network '.* must (fit in memory|have at most)"):
        load_checkpoint(tmp_path / "a.safetensors")
    assert time.process_time() - start < 10


def test_shapes_are_compared_before_the_network_takes_memory(tmp_path, monkeypatch):
    save_checkpoint(tmp_path / "a.safetensors", networks.build("mlp"), Card(architecture="mlp:widths=5000-5000"))
    monkeypatch.setattr("intertwine.lab.training.checkpoint.load_weights", lambda *_: pytest.fail("it was built"))
    with pytest.raises(CheckpointError, match="must be of the architecture mlp:widths=5000-5000"):
        load_checkpoint(tmp_path / "a.safetensors")


def test_transformations_that_were_changed_are_one_clear_error(tmp_path):
    path = tmp_path / "g.safetensors"
    for spaces in ("", "[", "[" * 10**5, "7", '[{"space": {}, "charges": 3}]', '{"a": 1}'):
        save_file({"0.permutation": torch.zeros(3)}, path, {"kind": "intertwine.Transformation", "data": spaces})
        with pytest.raises(CheckpointError, match="complete Transformation"):
            transformation.load(path)
    os.mkfifo(tmp_path / "pipe.safetensors")
    with pytest.raises(CheckpointError, match="a named pipe"):
        transformation.load(tmp_path / "pipe.safetensors")


def test_what_is_built_is_counted_once():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(100, 100, bias=False)
            for k in range(5):
                setattr(self, f"b{k}", nn.Linear(100, 100, bias=False))
                getattr(self, f"b{k}").weight = self.a.weight

    limits = pytest.MonkeyPatch()
    with limits.context() as patch:
        patch.setattr("intertwine._untrusted.construction.free_bytes", lambda: 100_000)
        with limited_construction("it"):
            Tied()
        with pytest.raises(CheckpointError, match="it must fit in memory"), limited_construction("it"):
            nn.Sequential(*(nn.Linear(100, 100) for _ in range(3)))
    nn.Linear(3, 3)  # hooks are gone


def deflate(source, target):
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:
        for record in old.infolist():
            new.writestr(record.filename, old.read(record.filename))


def test_a_small_file_of_a_large_tensor_is_refused(tmp_path):
    torch.save({"w": torch.zeros(2_000_000)}, tmp_path / "plain.pt")
    deflate(tmp_path / "plain.pt", tmp_path / "bomb.pt")
    assert (tmp_path / "bomb.pt").stat().st_size < 20_000
    with pytest.raises(CheckpointError, match=r"uncompressed, as torch.save writes them.*stand for 8,00"):
        read_tensors(tmp_path / "bomb.pt")
    torch.save({"w": torch.zeros(1).expand(10**9)}, tmp_path / "repeated.pt")
    with pytest.raises(CheckpointError, match=r"every number of its tensors. Got 'w'.*4 bytes for 4,000,000,000"):
        read_tensors(tmp_path / "repeated.pt")
    assert read_tensors(tmp_path / "plain.pt")["w"].shape == (2_000_000,)


def test_a_state_dict_inside_of_others_is_opened_if_it_is_the_only_one(tmp_path):
    path, state = tmp_path / "a.pt", {"w": torch.zeros(3)}
    torch.save({"net": state, "epoch": 3, "scores": {"best": 0.5}}, path)
    assert read_tensors(path).keys() == state.keys()
    torch.save({"net": state, "ema": state, "epoch": 3}, path)
    with pytest.raises(CheckpointError, match=r"\(names to tensors\)\. Got dict of 'net', 'ema', 'epoch' in .*a\.pt"):
        read_tensors(path)
    for held, said in (({}, "dict"), ({0: torch.zeros(3)}, "dict of 0")):  # such as the state of an optimiser
        torch.save(held, path)
        with pytest.raises(CheckpointError, match=f"Got {said} in"):
            read_tensors(path)


def test_a_sparse_file_larger_than_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("intertwine._memory.free_bytes", lambda *_: 1000)
    save_file({"w": torch.zeros(1000)}, tmp_path / "a.safetensors")
    with pytest.raises(CheckpointError, match="checkpoint must fit in memory"):
        read_tensors(tmp_path / "a.safetensors")


def test_pipes_and_devices_are_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe.safetensors")
    for path in (tmp_path / "pipe.safetensors", "/dev/zero", tmp_path):
        with pytest.raises(CheckpointError, match=r"checkpoint must be an existing file. Got .*(pipe|device|folder)"):
            read_tensors(path)


@pytest.mark.parametrize("change", ["complex", "int", "bool", "buffer"])
def test_numbers_of_another_kind_are_not_cast(change):
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    state = model.state_dict()
    before = {k: v.clone() for k, v in state.items()}
    changed = {
        "complex": {"0.weight": torch.ones(2, 3) + 5j},
        "int": {"0.bias": torch.ones(2, dtype=torch.int64)},
        "bool": {"1.running_var": torch.ones(2, dtype=torch.bool)},
        "buffer": {"1.num_batches_tracked": torch.tensor(0.5)},
    }[change]
    with pytest.raises(CheckpointError, match=r"must hold (real|whole) numbers in .*casting would change"):
        load_weights(model, {**state, **changed}, "it", "mlp")
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    load_weights(model, {k: v.half() if v.is_floating_point() else v for k, v in state.items()}, "it", "mlp")
