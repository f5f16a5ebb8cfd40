"""Streaming top quantiles against sorting everything."""

import pytest
import torch

from intertwine.dissection.overlap import top_thresholds


def direct(values, q):
    """Value number floor(q n) in falling order."""
    n = values.shape[1]
    return values.sort(1, descending=True).values[:, min(int(q * n), n - 1)]


def streams():
    g = torch.Generator().manual_seed(0)
    n = 6000
    normal = torch.randn(3, n, generator=g, dtype=torch.float64)
    return {
        "normal": normal,
        "rising": normal.sort(1).values,
        "falling": normal.sort(1, descending=True).values,
        "relu with few positive": (normal - 2.8).clamp_min(0),
        "constant": torch.full((2, n), 1.5),
        "few levels": torch.randint(0, 7, (3, n), generator=g).float(),
        "heavy tail": normal.pow(9),
        "float32": normal.float(),
        "zigzag": torch.stack([torch.arange(n) * (-1.0) ** torch.arange(n)]),
    }


@pytest.mark.parametrize("memory", [1, 2**20, 2**30])  # every unit by itself, groups, all at once
@pytest.mark.parametrize("q", [0.0001, 0.005, 0.3, 0.9999])
@pytest.mark.parametrize("name", streams())
def test_thresholds_are_exact(name, q, memory):
    values = streams()[name]
    parts = values.split([1, 700, 299, 3000, 2000], dim=1)
    found = top_thresholds(lambda: iter(parts), q, values.shape[1], memory)
    assert torch.equal(found, direct(values, q))


def test_little_is_kept_of_a_long_stream(monkeypatch):
    monkeypatch.setattr("intertwine.dissection.overlap._GATHERED", 100)
    values = torch.randn(2, 100_000, generator=torch.Generator().manual_seed(1))
    held = []
    cat = torch.cat
    monkeypatch.setattr(
        torch, "cat", lambda parts, *dim: held.append(sum(p.shape[-1] for p in parts)) or cat(parts, *dim)
    )
    assert torch.equal(top_thresholds(lambda: iter(values.split(50, dim=1)), 0.005, 100_000), direct(values, 0.005))
    assert max(held) <= 2 * 501 + 100 + 50


def test_input_is_not_changed():
    values = torch.randn(2, 500)
    copy = values.clone()
    top_thresholds(lambda: iter([values]), 0.1, 500)
    assert torch.equal(values, copy)


@pytest.mark.parametrize(
    ("values", "q", "count", "message"),
    [
        (torch.zeros(2, 4), 1.0, 4, r"q must be a share in \(0, 1\)\. Got 1\.0"),
        (torch.tensor([[1.0], [float("nan")]]), 0.1, 1, r"must be finite\. Got NaN or infinity in units \[1\]"),
        (torch.zeros(2, 4), 0.1, 5, r"must give 5 values for each unit in every pass\. Got 4"),
    ],
)
def test_bad_input(values, q, count, message):
    with pytest.raises(ValueError, match=message):
        top_thresholds(lambda: iter([values]), q, count)
