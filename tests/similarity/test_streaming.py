"""Rows come back as they went in, from memory and from files."""

import pytest
import torch

from intertwine._memory import parse_memory
from intertwine.features import Point
from intertwine.similarity.comparison.spool import Spool, readable


def point(name="x", shape=(3, 4), channel_dim=1, dtype=torch.float32):
    return Point(name, "ReLU", shape, channel_dim, calls=1, activation=True, leaf=True, dtype=dtype)


def rows(n=20, dtype=torch.float32, shape=(3, 4)):
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("budget", [1, 500, 1500, 10**9])
@pytest.mark.parametrize("expected", [None, 20, 7, 100])
def test_rows_come_back(dtype, budget, expected, tmp_path):
    x, y = rows(dtype=dtype), rows(dtype=dtype, shape=(5,))
    with Spool(budget, expected, folder=tmp_path) as spool:
        spool.open([point(dtype=dtype), point("y", (5,), dtype=dtype)])
        stored = torch.float64 if dtype == torch.float64 else torch.float32
        assert spool.dtype("x") == stored
        assert spool.on_disk == ((expected or 0) * (12 + 5) * stored.itemsize > budget)
        for part_x, part_y in zip(x.split(6), y.split(6)):
            spool.append("x", part_x)
            spool.append("y", part_y)
        assert spool.examples == 20
        assert torch.equal(spool.read("x"), x.to(stored))
        assert torch.equal(spool.read("y"), y.to(stored))
        assert spool.dtype("x") == stored
        assert spool.on_disk == (max(20, expected or 0) * (12 + 5) * stored.itemsize > budget)
        low, high = spool.extremes("x")
        assert torch.equal(low, x.amin((0, 2)))
        assert torch.equal(high, x.amax((0, 2)))
    assert list(tmp_path.iterdir()) == []


def test_files_are_removed_after_an_error(tmp_path):
    spool = Spool(1, folder=tmp_path)
    spool.open([point()])

    def fail():
        with spool:
            spool.append("x", rows())
            assert any(tmp_path.iterdir())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_strided_rows_and_channels_last():
    x = rows(shape=(4, 3)).transpose(1, 2)
    with Spool(1) as spool:
        spool.open([point(channel_dim=-1)])
        spool.append("x", x)
        assert torch.equal(spool.read("x"), x)
        assert torch.equal(spool.extremes("x")[0], x.amin((0, 1)))


def test_rows_beyond_the_most_are_ignored():
    with Spool(10**6, most=8) as spool:
        spool.open([point()])
        for part in rows().split(6):
            spool.append("x", part)
            if spool.examples == 8:
                break
        assert torch.equal(spool.read("x"), rows()[:8])


def test_other_shapes_and_numbers_that_are_none():
    with Spool(10**6) as spool:
        spool.open([point()])
        spool.append("x", rows())
        with pytest.raises(
            ValueError, match=r"layer 'x' must have one shape in all batches\. Got \(4, 4\) after \(3, 4\)"
        ):
            spool.append("x", rows(shape=(4, 4)))
        for bad in (torch.nan, torch.inf, -torch.inf):
            x = rows()
            x[3, 1, 2] = bad
            spool.append("x", x)
            assert spool.broken == {"x"}
            spool.broken.clear()


def test_a_full_disk_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 100}))
    with (
        Spool(10, examples=10**6, folder=tmp_path) as spool,
        pytest.raises(ValueError, match=r"Got 10 bytes of memory and 100 bytes free"),
    ):
        spool.open([point()])  # before any features come
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
