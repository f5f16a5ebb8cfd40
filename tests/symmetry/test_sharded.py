"""Checkpoints in shards: moved and fingerprinted without holding the model."""

import json
import weakref

import pytest
import torch
from handmade import MAKERS, make
from safetensors import safe_open
from safetensors.torch import save_file, save_model
from torch import nn
from upstream import stores_complex_numbers

import intertwine as iw
from intertwine._io import read_tensors
from intertwine._io.lazy import headers_of
from intertwine.errors import CheckpointError
from intertwine.symmetry import StoredState, write_shards
from intertwine.symmetry.action import act_
from intertwine.symmetry.gauge.fingerprint import fingerprint
from intertwine.testing import function_error


def act_on_disk(sym, g, source, target, **options):
    return write_shards(target, sym.act(g, StoredState(source)), **options)


def shard(model, folder, pieces=3):
    """Write a model as three shards and an index, as large models are."""
    state = model.state_dict()
    table = {name: f"part-{i % pieces}.safetensors" for i, name in enumerate(state)}
    folder.mkdir()
    for file in set(table.values()):
        save_file({n: state[n].contiguous() for n in state if table[n] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))
    return folder


@pytest.mark.parametrize("name", MAKERS)
def test_moving_on_disk_is_moving_in_memory(name, tmp_path):
    model, sym, x = make(name)
    source = shard(model, tmp_path / "a")
    g = sym.random(seed=1)
    index = act_on_disk(sym, g, source, tmp_path / "b", shard_bytes=200)
    moved, twin = StoredState(index), sym.act(g, model)
    assert len(set(moved.files.values())) > 1
    for key, tensor in twin.state_dict().items():
        assert torch.equal(moved[key], tensor)
    model.load_state_dict(dict(moved))
    assert function_error(twin, model, x) == 0.0


@pytest.mark.parametrize("name", MAKERS)
def test_fingerprints_on_disk(name, tmp_path):
    model, sym, x = make(name)
    source = shard(model, tmp_path / "a")
    assert fingerprint(StoredState(source), None, sym) == fingerprint(model, x, sym)
    moved = act_on_disk(sym, sym.random(seed=1), source, tmp_path / "b")
    assert fingerprint(StoredState(moved), None, sym) == fingerprint(model, x, sym)


def decoder(width, blocks=12):
    layers = [nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)) for _ in range(blocks)]
    return nn.Sequential(*(m for layer in layers for m in (layer, nn.LayerNorm(width))))


class Counting(StoredState):
    """Counts the bytes of the tensors that are alive at the same time."""

    def __init__(self, path):
        super().__init__(path)
        self.alive, self.peak = 0, 0

    def __getitem__(self, name):
        tensor = super().__getitem__(name)
        size = tensor.numel() * tensor.element_size()
        self.alive += size
        self.peak = max(self.peak, self.alive)
        weakref.finalize(tensor, self._freed, size)
        return tensor

    def _freed(self, size):
        self.alive -= size


def test_memory_stays_near_the_largest_coupled_group(tmp_path):
    """Detection on the meta device, then one block of twelve in memory at a time."""
    width = 48
    with torch.device("meta"):
        sym = iw.symmetries(decoder(width), torch.zeros(2, width))
    source = shard(decoder(width), tmp_path / "a")
    total = sum(t.numel() * 4 for t in decoder(width).parameters())
    read, moved = Counting(source), Counting(source)
    fingerprint(read, None, sym)
    assert 0 < read.peak < total / 6
    write_shards(tmp_path / "b", sym.act(sym.random(seed=0), moved), shard_bytes=width * width * 16)
    assert 0 < moved.peak < total / 6


def test_bad_input(tmp_path):
    model, sym, _ = make("mlp")
    source = shard(model, tmp_path / "a")
    with pytest.raises(ValueError, match="another folder"):
        act_on_disk(sym, sym.random(), source, source)
    with pytest.raises(ValueError, match="must be positive"):
        act_on_disk(sym, sym.random(), source, tmp_path / "b", shard_bytes=0)
    with pytest.raises(ValueError, match="must have shape"):
        act_on_disk(make("grouped")[1], make("grouped")[1].random(), source, tmp_path / "b")
    with pytest.raises(CheckpointError, match="existing"):
        StoredState(tmp_path / "nothing.safetensors")
    (source / "part-1.safetensors").write_bytes(b"half")
    with pytest.raises(CheckpointError, match="complete safetensors"):
        StoredState(source)
    (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": "../part-0.safetensors"}}))
    with pytest.raises(CheckpointError, match="beside the index"):
        StoredState(source)
    (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": "part-0.safetensors"}}))
    with pytest.raises(CheckpointError, match="agree with its shards"):
        StoredState(source)
    (source / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(CheckpointError, match="weight_map"):
        StoredState(source)
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="must hold safetensors weights"):
        StoredState(tmp_path / "empty")
    (source / "model.safetensors.index.json").unlink()
    with pytest.raises(CheckpointError, match=r"which of its files.*Got 'part-0.safetensors' and . more"):
        StoredState(source)
    save_file({"w": torch.ones(2)}, source / "model.safetensors")
    assert [*StoredState(source)] == ["w"]
    index = json.dumps({"weight_map": {"w": "model.safetensors"}})
    for name in ("consolidated", "another"):  # the same weights under names of other code, as some models come
        (source / f"{name}.safetensors.index.json").write_text(index)
    with pytest.raises(CheckpointError, match=r"which of its files.*Got 'another.safetensors.index.json' and 1 more"):
        StoredState(source)
    (source / "model.safetensors.index.json").write_text(index)
    (source / "another.safetensors.index.json").write_text("{}")
    assert [*StoredState(source)] == ["w"]


@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.bool, pytest.param(torch.complex64, marks=stores_complex_numbers)], ids=str
)
def test_numbers_that_moving_would_cast_are_refused_before_anything_is_written(dtype, tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    sym = iw.symmetries(model, torch.zeros(2, 4))
    state = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
    state["2.weight"] = (10 * state["2.weight"]).to(dtype)
    save_file(state, tmp_path / "a.safetensors")
    said = f"2.weight must hold real numbers to be moved. Got {str(dtype).removeprefix('torch.')}"
    for work in (
        lambda: act_on_disk(sym, sym.random(seed=1), tmp_path / "a.safetensors", tmp_path / "b", shard_bytes=1),
        lambda: fingerprint(StoredState(tmp_path / "a.safetensors"), None, sym),
        lambda: iw.align(*2 * [StoredState(tmp_path / "a.safetensors")], None, sym=sym),
        lambda: act_(sym, sym.random(seed=1), state),
    ):
        with pytest.raises(ValueError, match=said):
            work()
    assert [file.name for file in tmp_path.iterdir()] == ["a.safetensors"]
    assert torch.equal(state["0.weight"], model.state_dict()["0.weight"])


def test_whole_numbers_that_nothing_moves_are_kept(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3)).eval()
    sym = iw.symmetries(model, torch.zeros(2, 4))
    model[1].num_batches_tracked += 7
    source = shard(model, tmp_path / "a")
    index = act_on_disk(sym, sym.random(seed=1), source, tmp_path / "b")
    assert StoredState(index)["1.num_batches_tracked"] == 7


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.block, self.head = nn.Embedding(9, 6), nn.Linear(6, 6), nn.Linear(6, 9, bias=False)
        self.embed.weight = self.head.weight

    def forward(self, tokens):
        return self.head(self.block(self.embed(tokens)).relu())


def test_a_file_that_keeps_one_name_of_tied_tensors_holds_all_of_them(tmp_path):
    model, tokens, path = Tied(), torch.arange(9)[None], tmp_path / "model.safetensors"
    save_model(model, path)
    with safe_open(path, framework="pt") as file:
        assert len(list(file.keys())) == 3  # of 4
    sym = iw.symmetries(model, tokens)
    for state in (read_tensors(path), StoredState(path)):
        assert state.keys() == model.state_dict().keys()
        assert all(torch.equal(state[name], x) for name, x in model.state_dict().items())
        assert iw.same(state, model.state_dict(), None, sym).verdict == "the same network up to symmetry"
    assert StoredState(path).headers() == headers_of(model.state_dict())
    index = write_shards(tmp_path / "shards", {n: x for n, x in model.state_dict().items() if n != "embed.weight"})
    said = json.loads(index.read_text())
    index.write_text(json.dumps({**said, "metadata": {**said["metadata"], "embed.weight": "head.weight"}}))
    assert torch.equal(StoredState(index)["embed.weight"], model.embed.weight)
    (tmp_path / "shards" / "model.safetensors").write_bytes(path.read_bytes())
    with pytest.raises(ValueError, match="target must hold no other weights"):  # readers would take these
        write_shards(tmp_path / "shards", model.state_dict())
