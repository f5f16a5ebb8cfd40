"""Complex numbers and Fourier transforms: real maps pass, pairs and transformed axes are fixed."""

import copy

import pytest
import torch
from sandwich import NZ, G, M, O, P, S, group, prove
from torch import nn

from intertwine.matching import same
from intertwine.symmetry import symmetries
from intertwine.testing import function_error

TURNS = torch.polar(torch.ones(5, 1).double(), torch.linspace(0, 1, 5).double()[:, None])
pairs = lambda h, k: torch.view_as_complex(torch.stack([h, k], -1))

# function of two tensors (N, 5, 6) and a vector of six parameters; the group
CASES = {
    "there and back": (lambda h, k, w: torch.view_as_real(pairs(h, k)).sum(-1), G),
    "turned": (lambda h, k, w: torch.view_as_real(pairs(h, k) * TURNS)[..., 0], G),
    "parts": (lambda h, k, w: torch.complex(h, k).real + torch.complex(h, k).conj().imag, G),
    "length": (lambda h, k, w: torch.complex(h, k).abs(), NZ),
    "angle": (lambda h, k, w: torch.complex(h, k).angle(), M),
    "square": (lambda h, k, w: torch.complex(h, k).square().imag, NZ),
    "polar": (lambda h, k, w: torch.polar(h.abs(), k).real, NZ),
    "polar angle": (lambda h, k, w: torch.polar(torch.ones_like(h), h).imag, P),
    "over tokens": (lambda h, k, w: torch.fft.fft(h, dim=1).real, G),
    "and back": (lambda h, k, w: torch.fft.irfft(torch.fft.rfft(h, dim=1)[:, :2], n=5, dim=1), G),
    "two axes": (lambda h, k, w: torch.fft.fft2(h, dim=(0, 1)).imag, G),
    "over units": (lambda h, k, w: torch.fft.fft(h, dim=2).real, "held"),
    "filtered": (lambda h, k, w: torch.fft.irfft(torch.fft.rfft(h, dim=1) * w, n=5, dim=1), NZ),
    "product": (lambda h, k, w: (torch.complex(h, k) @ torch.complex(k, h).mT).real @ h, O),
    "energy": (lambda h, k, w: h * torch.fft.fft(k, dim=1).abs().square().mean(1, keepdim=True), NZ),
    "tanh": (lambda h, k, w: torch.complex(h, k).tanh().real, S),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_complex(name):
    function, expected = CASES[name]
    assert group(function) == expected


class Rotary(nn.Module):
    """Attention whose queries and keys are turned pair by pair, as complex numbers."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        angles = torch.outer(torch.arange(x.shape[1]).to(x), torch.tensor([1.0, 0.1]).to(x))
        turns = torch.polar(torch.ones_like(angles), angles)
        split = lambda layer: layer(x).unflatten(-1, (2, 4)).transpose(1, 2)
        turn = lambda h: torch.view_as_real(torch.view_as_complex(h.unflatten(-1, (2, 2))) * turns).flatten(-2)
        q, k, v = turn(split(self.q)), turn(split(self.k)), split(self.v)
        return self.o(((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2))


def test_turned_pairs_leave_heads_and_values_free():
    torch.manual_seed(0)
    model = Rotary().double()
    made = lambda seed: torch.randn(3, 6, 8, generator=torch.Generator().manual_seed(seed)).double()
    sym = prove(model, made(0), range(3), 1e-11, made)
    assert not sym.unknown_ops
    heads = next(s for s in sym.spaces if s.size == 2 and s.group.permutes)
    assert any(s.group.is_general and s.parents == (heads.name,) for s in sym.spaces)


def test_turned_pairs_have_scales_of_their_own_in_every_head():
    torch.manual_seed(0)
    model, x = Rotary().double(), torch.randn(3, 6, 8).double()
    by_hand = copy.deepcopy(model)
    factors = (0.5 * torch.randn(2, 2).double()).exp().repeat_interleave(2)  # of every pair in every head
    with torch.no_grad():
        for layer, s in ((by_hand.q, factors), (by_hand.k, 1 / factors)):
            layer.weight *= s[:, None]
            layer.bias *= s
    assert function_error(model, by_hand, (x,)) < 1e-12
    assert same(model, by_hand, x).verdict.startswith("the same network")
    sym = symmetries(model, x)
    heads, pairs, turns, values = sym.spaces
    assert pairs.parents == values.parents == (heads.name,) and not pairs.group.permutes
    assert turns.parents == (heads.name, pairs.name) and turns.group.turns
    assert sym.dim == 2 * 2 * 2 + 2 * 16  # a scale and a turn of each pair, and a basis of values, in each head
