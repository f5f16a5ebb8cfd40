"""Proposition 3.4 for truncated networks: f_<=m transforms by phi(A_m), f_>m absorbs it (binding correction 2).

With |x|, x^2 and exp(-x^2) the matrices A and phi(A) differ, so a mix-up cannot pass.
"""

from fractions import Fraction

import pytest
import torch
from handmade import fixed, leaf, make, tensor
from made import Function
from torch import nn

from intertwine.groups import Monomial, PositiveMonomial
from intertwine.symmetry.action import act, act_on_features
from intertwine.symmetry.spaces import Space
from intertwine.symmetry.symmetry import Symmetry
from intertwine.symmetry.transformation import random

# name -> activation, degree of phi (phi(a) = a^degree; None: no scales), odd part: whether a sign passes to phi
ACTIVATIONS = {
    "relu": (torch.relu, 1, None), "abs": (torch.abs, 1, 0), "square": (torch.square, 2, 0),
    "cube": (lambda x: x**3, 3, 1), "rbf": (lambda x: torch.exp(-x.square()), None, 0), "tanh": (torch.tanh, None, 1),
}  # fmt: skip


def network(name: str):
    f, degree, odd = ACTIVATIONS[name]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), Function(f), nn.Linear(5, 4), Function(f), nn.Linear(4, 2)).double()
    signs = 0 if odd is None else 1

    def write(space, n):
        return leaf(space, n, *([1] if degree else []), sign=(1,) * signs)

    def read(space, n):
        return leaf(space, n, *([-degree] if degree else []), sign=(odd,) * signs)

    layouts = {
        "0.weight": tensor(write("a", 5), fixed(3)),
        "0.bias": tensor(write("a", 5)),
        "2.weight": tensor(write("b", 4), read("a", 5)),
        "2.bias": tensor(write("b", 4)),
        "4.weight": tensor(fixed(2), read("b", 4)),
        "4.bias": tensor(fixed(2)),
    }
    scales = 1 if degree else 0
    spaces = (Space("a", Monomial(5, scales, signs)), Space("b", Monomial(4, scales, signs)))
    return model, Symmetry(spaces, layouts), torch.randn(6, 3, dtype=torch.float64)


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("seed", range(3))
def test_taps_and_tails(name, seed):
    model, sym, x = network(name)
    g = random(sym, seed)
    twin = act(sym, g, model)
    with torch.no_grad():
        for m, (writes, reads) in {0: ("0.bias", "2.weight"), 2: ("2.bias", "4.weight")}.items():
            close(twin[: m + 1](x), act_on_features(sym, g, model[: m + 1](x), (writes, 0)))  # pre-activation: A_m
            post = act_on_features(sym, g, model[: m + 2](x), (reads, 1), dual=True)  # post-activation: phi(A_m)
            close(twin[: m + 2](x), post)
            close(twin[m + 2 :](post), model(x))  # f_>m absorbs it
            if name != "relu":
                wrong = act_on_features(sym, g, model[: m + 2](x), (writes, 0))
                same = name == "tanh"  # odd and of no degree: phi(A) = A
                assert torch.allclose(wrong, post) == same


def test_batch_norm_taps():
    model, sym, x = make("conv_bn")
    g = random(sym, 0)
    twin = act(sym, g, model)
    with torch.no_grad():
        close(twin[:1](x), act_on_features(sym, g, model[:1](x), ("0.weight", 0)))  # A_m
        close(twin[:2](x), act_on_features(sym, g, model[:2](x), ("1.bias", 0)))  # pi(A_m) diag(c_m)
        close(twin[:3](x), act_on_features(sym, g, model[:3](x), ("1.bias", 0)))
        assert not torch.allclose(twin[:2](x), act_on_features(sym, g, model[:2](x), ("0.weight", 0)))


def test_linear_and_orthogonal_features():
    model, sym, x = make("residual")
    g = random(sym, 0)
    twin = act(sym, g, model)
    with torch.no_grad():
        stream = model.embed(x)
        close(twin.embed(x), act_on_features(sym, g, stream, ("embed.weight", 0), dim=-1))
        close(twin.embed(x), act_on_features(sym, g, stream, ("up.weight", 1), dim=-1, dual=True))


def test_exponents_may_be_fractions():
    sym = Symmetry((Space("a", PositiveMonomial(3)),), {"w": tensor(leaf("a", 3))})
    layout = type(sym.layouts["w"])((leaf("a", 3, Fraction(1, 2)),))
    sym = Symmetry(sym.spaces, {"w": layout})
    g = random(sym, 0, kinds={"scale"})
    close(act_on_features(sym, g, torch.ones(1, 3).double(), ("w", 0))[0], torch.exp(g["a"].scales[0] / 2))
