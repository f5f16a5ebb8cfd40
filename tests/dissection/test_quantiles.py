"""Streaming top quantiles against sorting everything."""

import pytest
import torch

from intertwine.dissection.quantiles import Thresholds, TopSketch, exact_thresholds, sketch_thresholds


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


@pytest.mark.parametrize("q", [0.005, 0.02, 0.3])
@pytest.mark.parametrize("name", streams())
def test_exact_mode_is_exact(name, q):
    values = streams()[name]
    parts = values.split([1, 700, 299, 3000, 2000], dim=1)
    found = exact_thresholds(lambda: iter(parts), q, capacity=32)
    assert torch.equal(found.value, direct(values, q))
    assert not found.rank_error.any()
    assert found.count == values.shape[1]


@pytest.mark.parametrize("q", [0.005, 0.02, 0.3])
@pytest.mark.parametrize("capacity", [16, 128])
@pytest.mark.parametrize("name", streams())
def test_sketch_keeps_its_stated_error(name, capacity, q):
    values = streams()[name]
    found = sketch_thresholds(values.split(50, dim=1), q, capacity)
    check_error(found, values, q)


def check_error(found, values, q):
    rank = min(int(q * values.shape[1]), values.shape[1] - 1)
    above = (values > found.value[:, None]).sum(1)
    at_least = (values >= found.value[:, None]).sum(1)
    # the value is the exact one for some rank r with |r - rank| <= rank_error
    assert bool((above - found.rank_error <= rank).all())
    assert bool((rank < at_least + found.rank_error).all())


def test_the_error_check_can_fail():
    values = torch.arange(1000.0)[None]
    with pytest.raises(AssertionError):
        check_error(Thresholds(torch.tensor([900.0]), torch.tensor([3]), 1000), values, 0.005)


def test_small_tail_is_exact_in_one_pass():
    values = streams()["normal"]
    found = sketch_thresholds(values.split(100, dim=1), 0.005, capacity=128)  # 30 values in the tail, 64 protected
    assert not found.rank_error.any()
    assert torch.equal(found.value, direct(values, 0.005))


def test_error_is_useful_at_the_top():
    values = torch.randn(2, 100_000, generator=torch.Generator().manual_seed(1))
    found = sketch_thresholds(values.split(2000, dim=1), 0.005, capacity=256)
    assert 0 < found.share_error < 0.005
    assert float((found.value - direct(values, 0.005)).abs().max()) < 0.02


def test_merging_keeps_the_bound():
    values = streams()["heavy tail"]
    parts = values.split([1000, 37, 2963, 2000], dim=1)
    whole = TopSketch(3, 32)
    for part in parts:
        one = TopSketch(3, 32)
        for piece in part.split(60, dim=1):
            one.update(piece)
        before = one.threshold(0.02).value
        whole.merge(one)
        assert torch.equal(one.threshold(0.02).value, before)
    assert whole.count == 6000
    for q in (0.002, 0.02, 0.5):
        check_error(whole.threshold(q), values, q)
        low, high = whole.bracket(q)
        assert bool((low <= direct(values, q)).all() and (direct(values, q) <= high).all())


def test_memory_is_bounded():
    sketch = TopSketch(2, 64)
    for _ in range(500):
        sketch.update(torch.randn(2, 100))
    assert sum(b.shape[1] for b in sketch._buffers) <= 64 * 12


def test_input_is_not_changed_or_kept():
    values = torch.randn(2, 500)
    copy = values.clone()
    sketch = TopSketch(2, 16)
    sketch.update(values)
    assert torch.equal(values, copy)
    before = sketch.threshold(0.1).value
    values.zero_()
    assert torch.equal(sketch.threshold(0.1).value, before)


def test_bad_input():
    with pytest.raises(ValueError, match="capacity must be an even number"):
        TopSketch(3, 5)
    with pytest.raises(ValueError, match="units must be at least 1"):
        TopSketch(0)
    sketch = TopSketch(2, 8)
    with pytest.raises(ValueError, match="must have seen values"):
        sketch.threshold(0.1)
    with pytest.raises(ValueError, match=r"values must be \(2, m\)"):
        sketch.update(torch.zeros(3, 4))
    with pytest.raises(ValueError, match=r"must be finite. Got NaN or infinity in units \[1\]"):
        sketch.update(torch.tensor([[1.0], [float("nan")]]))
    sketch.update(torch.zeros(2, 4))
    with pytest.raises(ValueError, match=r"q must be a share in \(0, 1\)"):
        sketch.threshold(1.0)
    with pytest.raises(ValueError, match="other must have 2 units and capacity 8"):
        sketch.merge(TopSketch(2, 16))
    with pytest.raises(ValueError, match="at least one tensor"):
        sketch_thresholds([], 0.1)


def test_a_stream_that_changes_is_refused():
    rounds = iter([torch.randn(1, 4000), torch.randn(1, 3000)])
    with pytest.raises(RuntimeError, match="same values in both passes"):
        exact_thresholds(lambda: iter(next(rounds).split(100, dim=1)), 0.05, capacity=16)
