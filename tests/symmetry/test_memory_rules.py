"""Views by strides and writes into parts of a tensor, each between two linear maps: what moves, and that it may."""

import pytest
import torch
import torch.nn.functional as F
from completeness import completeness
from made import Made
from sandwich import prove
from torch import nn

from intertwine.symmetry import symmetries
from intertwine.testing import function_error


def around(function, out=8):
    """A function of ``(N, 5, 8)`` features between two linear layers."""
    return Made(lambda m, x: m.b(function(m.a(x))), a=nn.Linear(3, 8), b=nn.Linear(out, 2))


def filled(make, *writes):
    """A function that makes a tensor from features and writes into parts of it."""

    def function(h):
        out = make(h)
        for write in writes:
            write(out, h)
        return out

    return function


def put(where, what):
    def write(out, h):
        out[where] = what(h)

    return write


LEFT, RIGHT = (..., slice(0, 4)), (..., slice(4, 8))
TWO = (put(LEFT, lambda h: h[..., :4].relu()), put(RIGHT, lambda h: h[..., 4:].tanh()))
EVEN, ODD = (..., slice(0, None, 2)), (..., slice(1, None, 2))


def running(h):
    """A loop over time that writes into one tensor and reads what it wrote."""
    out = torch.zeros_like(h)
    for t in range(5):
        out[:, t] = h[:, t].relu() + (out[:, t - 1] if t else 0)
    return out


def seen_later(h):
    left = h[..., :4]
    h.relu_()
    return torch.cat([left, h], -1)


def crossing(h):
    """A write and a view that overlap in part: both are seen through the tensor around them."""
    left, right = h[..., :5], h[..., 3:]
    right.mul_(2.0)
    return torch.cat([left.relu(), h[..., 5:]], -1)


# name -> (function, features out, sizes of the spaces that are permuted, dimension of the group)
CASES = {
    "halves of zeros": (filled(torch.zeros_like, *TWO), 8, [4, 4], 4),
    "halves of a constant": (filled(lambda h: torch.zeros(h.shape).double(), *TWO), 8, [4, 4], 4),
    "halves of empty memory": (filled(lambda h: torch.empty(h.shape).double(), *TWO), 8, [4, 4], 4),
    "halves of memory like it": (filled(torch.empty_like, *TWO), 8, [4, 4], 4),
    "part of what is written": (lambda h: filled(torch.zeros_like, *TWO)(h)[..., 2:], 6, [2, 4], 2),
    "beside ones": (
        filled(lambda h: torch.ones(*h.shape[:-1], 12).double(), put((..., slice(2, 10)), torch.relu)), 12, [8], 8,
    ),
    "interleaved": (
        filled(torch.empty_like, put(EVEN, lambda h: h[..., :4].relu()), put(ODD, lambda h: h[..., 4:].relu())),
        8, [4], 4,
    ),
    "interleaved parts read": (lambda h: h[..., ::2].relu() * h[..., 1::2], 4, [4], 8),
    "set to zero": (lambda h: h + filled(torch.clone, put((..., slice(0, 3)), lambda h: 0.0))(h).relu(), 8, [3, 5], 14),
    "added in place": (lambda h: h[..., :3].add_(h[..., 3:6]) is None or h.relu(), 8, [3, 2], 5),
    "one unit copied": (lambda h: h[..., 0].copy_(h[..., 1]) is None or h.relu(), 8, [6], 6),
    "a rectangle": (lambda h: h[:, 1:3, 2:5].zero_() is None or h.relu(), 8, [5, 3], 8),
    "through a flat view": (lambda h: h.view(-1).relu_() is None or h, 8, [8], 8),
    "tokens in turn": (running, 8, [8], 8),
    "tokens shifted": (filled(torch.zeros_like, put((slice(None), slice(1, None)), lambda h: h[:, :-1])), 8, [8], 64),
    "views made before": (seen_later, 12, [4, 4], 8),
    "views that cross": (crossing, 8, [3, 2, 3], 14),
    "transposed by strides": (lambda h: h.as_strided((2, 8, 5), (40, 1, 8)).relu().mT, 8, [8], 8),
    "sliced by strides": (lambda h: torch.cat([h.as_strided((2, 5, 4), (40, 8, 1), 2), h], -1).relu(), 12, [4, 4], 8),
    "split by strides": (lambda h: h.as_strided((2, 5, 2, 4), (40, 8, 4, 1)).amax(2), 4, [2, 4], 4),
    "windows by strides": (lambda h: h.as_strided((2, 5, 7, 2), (40, 8, 1, 1)).amax(-1), 7, [], 0),
    "every second row of a result": (
        lambda h: torch.slice_scatter(torch.zeros_like(h), h[..., 4:].relu(), -1, 0, None, 2), 8, [4], 4,
    ),
    "one row of a result": (lambda h: torch.select_scatter(h, h[..., 0], -1, 3).relu(), 8, [6], 6),
    "expanded by strides": (lambda h: h.as_strided((2, 5, 8, 3), (40, 8, 1, 0)).sum(-1), 8, [8], 64),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_views_and_writes(name):
    function, out, sizes, dimension = CASES[name]
    torch.manual_seed(0)
    model, x = around(function, out).double(), torch.randn(2, 5, 3).double()
    sym = prove(model, x)
    moving = [s.size for s in sym.spaces if s.group.permutes and s.name.startswith("a.weight")]
    assert (moving, sym.dim) == (sizes, dimension)
    assert not sym.unknown_ops


@pytest.mark.parametrize("name", ["halves of zeros", "tokens in turn"])
def test_nothing_is_missing_around_writes(name):
    function, out, *_ = CASES[name]
    torch.manual_seed(0)
    model, x = around(function, out).double(), torch.randn(60, 5, 3).double()
    reading = completeness(symmetries(model, x), model, x)
    assert reading.gap == 0, reading


def test_writes_are_followed_on_the_meta_device():
    with torch.device("meta"):
        model = around(filled(lambda h: torch.zeros(h.shape, device=h.device), *TWO))
    assert symmetries(model, torch.empty(2, 5, 3, device="meta")).dim == 4


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_pooled_channels_move_in_every_memory_format(layout):
    """Pooling to one place gives a channels-last result by ``as_strided``."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    model = model.double().to(memory_format=layout)
    x = torch.randn(2, 3, 8, 8).double().to(memory_format=layout)
    sym = symmetries(model, x)
    assert sym.dim == 8 and not sym.unknown_ops
    assert function_error(model, sym.act(sym.random(0), model), x) < 1e-12


def test_a_pooled_residual_stream_in_channels_last_moves():
    def run(m, x):
        h = m.stem(x).permute(0, 2, 3, 1)
        h = (h + F.gelu(m.mix(h))).permute(0, 3, 1, 2)
        return m.head(F.adaptive_avg_pool2d(h, 1).flatten(1))

    stage = Made(run, stem=nn.Conv2d(3, 6, 2), mix=nn.Linear(6, 6), head=nn.Linear(6, 2))
    sym = symmetries(stage, torch.randn(2, 3, 5, 5))
    assert sorted(s.size for s in sym.spaces) == [6] and not sym.unknown_ops


OVERWRITTEN = {
    "by a part of itself": lambda h: filled(torch.clone, put(LEFT, lambda h: h[..., 4:]))(h),
    "by zeros": lambda h: filled(torch.clone, put(LEFT, lambda h: 0.0))(h),
    "by a function": lambda h: filled(torch.clone, put(LEFT, lambda h: h[..., 4:].sin()))(h),
    "unit by unit": lambda h: filled(torch.clone, *(put((..., i), lambda h: h[..., 5]) for i in range(4)))(h),
    "whole": lambda h: filled(torch.zeros_like, put(RIGHT, lambda h: h[..., 4:]))(h),
}


@pytest.mark.parametrize("name", OVERWRITTEN)
def test_rows_overwritten_before_anyone_reads_them_stay(name):
    torch.manual_seed(0)
    model, x = around(OVERWRITTEN[name]).double(), torch.randn(2, 5, 3).double()
    sym = symmetries(model, x)
    for kind in ("permutation", "scale", "sign", "linear"):
        moved = sym.act(sym.random(3, kinds={kind}), model).a.weight
        assert torch.equal(moved[:4], model.a.weight[:4]), kind
