"""Rows come back as they went in, from memory and from files."""

import pytest
import torch

from intertwine._memory import parse_memory, readable
from intertwine.features import Point
from intertwine.similarity.comparison.keepers import Features


def point(name="x", shape=(3, 4), channel_dim=1, dtype=torch.float32):
    return Point(name, "ReLU", shape, channel_dim, calls=1, activation=True, leaf=True, dtype=dtype)


def rows(n=20, dtype=torch.float32, shape=(3, 4)):
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def kept(points, parts, budget=10**9, expected=None, folder=None):
    """Features of the layers, batch by batch, as they come back."""
    features = Features("A", points, budget, expected, folder=folder)
    for batch in parts:
        for p, x in zip(points, batch):
            features.keep(p.name, x)
        features.commit(len(batch[0]))
    on_disk, network = features.on_disk, features.finished()
    assert folder is None or list(folder.iterdir()) == []  # nothing that a killed run would leave
    return [layer.stored for layer in network.layers], network, on_disk


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("budget", [1, 500, 1500, 10**9])
@pytest.mark.parametrize("expected", [None, 20, 7, 100])
def test_rows_come_back(dtype, budget, expected, tmp_path):
    x, y = rows(dtype=dtype), rows(dtype=dtype, shape=(5,))
    points = [point(dtype=dtype), point("y", (5,), dtype=dtype)]
    (one, two), network, on_disk = kept(points, list(zip(x.split(6), y.split(6))), budget, expected, tmp_path)
    stored = torch.float64 if dtype == torch.float64 else torch.float32
    assert torch.equal(one, x.to(stored)) and torch.equal(two, y.to(stored)) and network.examples == 20
    assert on_disk == (max(20, expected or 0) * (12 + 5) * stored.itemsize > budget)
    assert torch.equal(network.layers[0].low, x.amin((0, 2))) and torch.equal(network.layers[0].high, x.amax((0, 2)))
    assert any("temporary files" in note for note in network.notes) == on_disk


def test_strided_rows_and_channels_last():
    x = rows(shape=(4, 3)).transpose(1, 2)
    (one,), network, _ = kept([point(channel_dim=-1)], [(x,)], budget=1)
    assert torch.equal(one, x) and torch.equal(network.layers[0].low, x.amin((0, 1)))


@pytest.mark.parametrize("budget", [1, 10**9])
def test_batches_that_were_not_counted_are_left_out(budget):
    features = Features("A", [point()], budget)
    features.keep("x", rows()), features.commit(20), features.keep("x", rows())
    assert torch.equal(features.finished().layers[0].stored, rows())


def test_other_shapes_and_numbers_that_are_none():
    with pytest.raises(ValueError, match=r"layer 'x' must have one shape in all batches\. Got \(4, 4\) after \(3, 4\)"):
        kept([point()], [(rows(),), (rows(shape=(4, 4)),)])
    for bad in (torch.nan, torch.inf, -torch.inf):
        x = rows()
        x[3, 1, 2] = bad
        assert "NaN" in kept([point()], [(rows(),), (x,), (rows(),)])[1].layers[0].silent


def test_a_full_disk_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 100}))
    with pytest.raises(ValueError, match=r"Got 10 bytes of memory and 100 bytes free"):
        Features("A", [point()], 10, examples=10**6, folder=tmp_path)  # before any features come
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "size"), [("4 GiB", 4 * 2**30), ("1.5GB", 1.5e9), ("512 mib", 2**29), ("7 B", 7), (12, 12), ("2e3", 2000)]
)
def test_memory(text, size):
    assert parse_memory(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "4 elephants", 0, -1, "-3 GB"])
def test_memory_that_is_none(text):
    with pytest.raises(ValueError, match="memory must be a positive number of bytes"):
        parse_memory(text)


def test_memory_by_default_and_in_words():
    assert parse_memory(None) > 0
    assert [readable(n) for n in (5, 2048, 3 * 2**20, 5 * 2**30)] == ["5 bytes", "2 KiB", "3 MiB", "5 GiB"]
