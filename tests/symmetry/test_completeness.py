"""The meter reads zero where everything was found, and sees what is left out."""

from dataclasses import replace

import pytest
import torch
from completeness import completeness
from handmade import Heads
from noise import shaken
from torch import nn

import intertwine as iw


def read(model, *shape):
    torch.manual_seed(0)
    x = torch.randn(*shape, dtype=torch.float64)
    return completeness(iw.symmetries(model.double(), x), model, x), x


CASES = {
    "relu": (lambda: nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), (300, 6)),
    "identity": (lambda: nn.Sequential(nn.Linear(6, 4), nn.Identity(), nn.Linear(4, 6)), (200, 6)),
    "conv": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 4)
        ),
        (200, 2, 5, 5),
    ),
    "layer norm": (
        lambda: nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.GELU(), nn.Linear(5, 4), nn.GELU(), nn.Linear(4, 3)),
        (200, 6),
    ),
    "attention": (lambda: Heads(6, 2, 2), (20, 5, 6)),
}


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_missing(name):
    maker, shape = CASES[name]
    torch.manual_seed(4)  # no unit is dead on the examples: dead units inflate the null space
    model = maker()
    shaken(model, 0.3)
    reading, _ = read(model, *shape)
    assert reading.gap == 0, reading
    assert reading.leak < 1e-8
    assert reading.nullity > 0


def test_tanh_has_no_continuous_symmetry():
    torch.manual_seed(0)
    reading, _ = read(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)), 300, 4)
    assert (reading.nullity, reading.detected) == (0, 0)


def test_the_pushed_bias_is_a_family_of_its_own():
    """Identity network 6-4-6: GL(4) has 16 directions, the bias pushed through the second layer 4 more."""
    torch.manual_seed(0)
    reading, _ = read(nn.Sequential(nn.Linear(6, 4), nn.Identity(), nn.Linear(4, 6)), 200, 6)
    assert (reading.nullity, reading.detected, reading.shifted) == (20, 16, 4)
    assert reading.families == (("pushed bias", ("0.bias", "2.bias", "2.weight"), 4),)


def test_a_symmetry_with_a_part_left_out_shows_a_gap():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    x = torch.randn(200, 6).double()
    sym = iw.symmetries(model, x)
    less = replace(sym, spaces=tuple(replace(s, group=s.group.reduced(scales=0)) for s in sym.spaces))
    reading = completeness(less, model, x)
    assert reading.gap == 6


def test_bad_input():
    model = nn.Linear(100, 50)
    sym = iw.symmetries(model, torch.zeros(2, 100))
    with pytest.raises(ValueError, match="at most 4000 parameters"):
        completeness(sym, model, torch.zeros(2, 100))
    small = nn.Linear(3, 2)
    with pytest.raises(ValueError, match="give more inputs"):
        completeness(iw.symmetries(small, torch.zeros(2, 3)), small, torch.zeros(2, 3))
