"""Checkpoints in shards: the same alignment as in memory, with one tensor of each network loaded at a time."""

import json
import weakref

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from zoo import build

import intertwine as iw
from intertwine.matching import CoordinateDescent, align
from intertwine.symmetry import StoredState, write_shards
from intertwine.symmetry.action import tensors_of

KINDS = ("permutation", "sign")


def aligned_on_disk(a, b, sym, target, shard_bytes=2**31, **options):
    """The alignment of two stored checkpoints, the second written where it was moved."""
    states = StoredState(a), StoredState(b)
    found = align(*states, None, sym=sym, **options)
    write_shards(target, found.apply(states[1]), shard_bytes)
    return found


def shards(folder, model, count=3):
    """Write a model in several files with an index."""
    folder.mkdir()
    state = {name: t.clone() for name, t in tensors_of(model).items()}
    names, table = list(state), {}
    for k in range(count):
        file = f"model-{k + 1:05d}.safetensors"
        save_file({name: state[name] for name in names[k::count]}, folder / file)
        table |= dict.fromkeys(names[k::count], file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": table}))
    return folder


@pytest.mark.parametrize("name", ["vgg_bn", "gpt_tied", "resnext"])
def test_the_same_as_in_memory(name, tmp_path):
    a, args = build(name)
    b, _ = build(name, seed=1)
    sym = iw.symmetries(a, args)
    found = align(a, b, args, sym=sym, kinds=KINDS, method=CoordinateDescent(restarts=1, shakes=0))
    places = (shards(tmp_path / which, model) for which, model in (("a", a), ("b", b)))
    read = aligned_on_disk(*places, sym, tmp_path / "moved", shard_bytes=2000)
    assert read.history == pytest.approx(found.history) and read.transformation.allclose(found.transformation, 0.0)
    assert (read.before, read.after) == pytest.approx((found.before, found.after))
    assert all(torch.allclose(found.quality[s], read.quality[s], equal_nan=True) for s in found.quality)
    files = sorted((tmp_path / "moved").glob("*.safetensors"))
    assert len(files) > 1
    state = {k: v for file in files for k, v in load_file(file).items()}
    assert all(torch.equal(state[n], t) for n, t in tensors_of(found.apply(b)).items())


def test_one_tensor_of_each_network_is_loaded_at_a_time(tmp_path, monkeypatch):
    a, args = build("gpt_tied")
    sym = iw.symmetries(a, args)
    twin = sym.act(sym.random(seed=2, kinds=KINDS), a)
    places = [shards(tmp_path / which, model) for which, model in (("a", a), ("b", twin))]
    held, most, honest = 0, 0, StoredState.__getitem__

    class Counted(np.ndarray):
        """Memory that is told when it is freed: a tensor made of it, and every view, keeps it."""

    def released(size):
        nonlocal held
        held -= size

    def counting(self, name):
        nonlocal held, most
        array = honest(self, name).numpy().copy().view(Counted)
        weakref.finalize(array, released, array.nbytes)
        held += array.nbytes
        most = max(most, held)
        return torch.from_numpy(array)

    monkeypatch.setattr(StoredState, "__getitem__", counting)
    found = aligned_on_disk(*places, sym, tmp_path / "moved", shard_bytes=1)
    sizes = [t.numel() * t.element_size() for t in tensors_of(a).values()]
    assert found.after == 0
    assert 0 < most <= 2 * max(sizes) < sum(sizes) / 3
    assert held <= max(sizes)


def test_bad_input(tmp_path):
    a, args = build("mlp")
    sym = iw.symmetries(a, args)
    place = shards(tmp_path / "a", a, 2)
    with pytest.raises(ValueError, match="kinds must be among"):
        aligned_on_disk(place, place, sym, tmp_path / "out", kinds=["scale"])
    with pytest.raises(ValueError, match="restarts must be positive"):
        aligned_on_disk(place, place, sym, tmp_path / "out", method=CoordinateDescent(restarts=0))
    with pytest.raises(ValueError, match="target must be another folder"):
        aligned_on_disk(place, place, sym, place)
    other, _ = build("mlp_bn")
    with pytest.raises(ValueError, match=r"state must hold every tensor|another architecture"):
        aligned_on_disk(place, shards(tmp_path / "other", other), sym, tmp_path / "out")
    with torch.no_grad():
        a[0].weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match="weights must be finite"):
        aligned_on_disk(place, shards(tmp_path / "nan", a), sym, tmp_path / "out")


def test_units_without_weights_are_said(tmp_path):
    a, args = build("mlp")
    b, _ = build("mlp", seed=1)
    with torch.no_grad():
        for tensor in (b[0].weight, b[0].bias):
            tensor[2] = 0
        b[2].weight[:, 2] = 0
    sym = iw.symmetries(a, args)
    places = (shards(tmp_path / which, model) for which, model in (("a", a), ("b", b)))
    read = aligned_on_disk(*places, sym, tmp_path / "moved")
    notes = align(a, b, args, sym=sym, kinds=KINDS).notes
    assert len(read.notes) == 1 and "1 unit of" in read.notes[0] and read.notes[0] in notes
