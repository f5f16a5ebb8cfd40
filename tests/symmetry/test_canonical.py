"""Canonical forms: the same for symmetric copies, the same function, idempotent."""

import copy

import pytest
import torch
from handmade import MAKERS, make
from made import Made
from torch import nn
from zoo import build

from intertwine.symmetry import symmetries
from intertwine.symmetry.action import act
from intertwine.symmetry.gauge.canonical import canonical, fold
from intertwine.symmetry.gauge.scales import LogScales, balancing_scales
from intertwine.symmetry.transformation import random
from intertwine.testing import function_error


def difference(a: nn.Module, b: nn.Module) -> float:
    pairs = zip(a.state_dict().values(), b.state_dict().values())
    return max((p - q).abs().max().item() for p, q in pairs if p.is_floating_point())


@pytest.fixture(params=MAKERS)
def case(request):
    return make(request.param)


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("name", ["resnet6_b", "resnext", "shufflenet_3", "llama", "rnn_relu"])
def test_curvatures_are_second_derivatives_of_the_sum_over_weights(name, scaled):
    """Oracle: derivatives of ``Σ c f s(t)² / 2`` weight by weight, with the factors ``f`` of all sites or without."""
    model, x = build(name)
    sym = symmetries(model, x)
    system, state = LogScales(sym, sym.layouts), model.state_dict()
    weights = {
        piece.key: piece.summed(x, x) for piece in system.pieces for x in [piece.block.read(state[piece.tensor])]
    }
    factors = system.factors(torch.randn_like(system.zero())) if scaled else None

    def total(flat):
        found = torch.zeros((), dtype=torch.float64)
        for key, x in weights.items():
            letters, logs = "abcdefgh"[: x.ndim], system.split(flat)
            spread = lambda some, dims: torch.einsum(f"{dims},{letters}->{letters}", some, torch.ones_like(x))  # noqa: B023
            moved = sum(spread(system._term(site, logs), site.dims) for site in system._sites[key])
            for site, factor in zip(system._sites[key], factors[key] if factors else ()):
                x = x * spread(factor, site.dims)
            found = found + (x * moved.square()).sum() / 2
        return found

    direction = torch.randn_like(system.zero())
    image = system._curvature(weights, system.totals(weights, factors), factors)
    torch.testing.assert_close(image(direction), torch.func.grad(total)(direction))


def test_function_is_kept(case):
    model, sym, x = case
    assert function_error(model, canonical(model, x, sym), x) < 1e-12


def test_symmetric_copies_have_one_form(case):
    model, sym, x = case
    form = canonical(model, x, sym)
    for seed in range(5):
        twin = act(sym, random(sym, seed), model)
        assert difference(model, twin) > 0.1
        assert difference(form, canonical(twin, x, sym)) < 1e-9


def test_idempotent_and_deterministic(case):
    model, sym, x = case
    form = canonical(model, x, sym)
    assert difference(form, canonical(form, x, sym)) < 1e-12
    assert difference(form, canonical(model, x, sym)) == 0.0


def test_other_networks_have_other_forms(case):
    model, sym, x = case
    other = copy.deepcopy(model)
    with torch.no_grad():
        next(other.parameters()).view(-1)[0] += 0.1
    assert difference(canonical(model, x, sym), canonical(other, x, sym)) > 1e-4


def test_variances_that_were_kept_make_no_difference():
    model, sym, x = make("conv_bn")
    model[1].running_var[:2] = 1e-9
    scales = random(sym, 0)
    twin = act(sym, scales @ scales @ scales, model)
    assert difference(canonical(model, x, sym), canonical(twin, x, sym)) < 1e-9


def test_gains_that_balance_makes_equal_keep_their_signs():
    """Two gains in one product, one set for all heads: both get one size, and only their product has a sign."""
    run = lambda m, x: m.o((nn.functional.rms_norm(m.i(x).view(6, 2, 4), (4,)) * (m.g * m.h)).tanh().flatten(1))
    torch.manual_seed(0)
    gains = {name: nn.Parameter(torch.randn(4)) for name in "gh"}
    model, x = Made(run, i=nn.Linear(3, 8), o=nn.Linear(8, 2), **gains).double(), torch.randn(6, 3).double()
    sym = symmetries(model, x)
    one = canonical(model, x, sym)
    for seed in range(6):
        assert difference(one, canonical(act(sym, random(sym, seed), model), x, sym)) < 1e-9


def test_balanced_slices():
    model, sym, _ = make("mlp")
    folded = fold(sym, model.state_dict())
    logs = balancing_scales(sym, folded.state)
    t = logs["a"][0]
    w, b, r = model[0].weight, model[0].bias, model[2].weight
    written = torch.exp(2 * t) * (w.square().sum(1) + b.square())
    read = torch.exp(2 * logs["b"][0]) @ r.square() * torch.exp(-2 * t)
    votes = 0.01 * (2 - max(r.shape) / len(t))  # of slices that the scale enlarges, less the others'
    torch.testing.assert_close(written - read, torch.full_like(read, votes), atol=1e-12, rtol=0)


@pytest.mark.parametrize("where", ["incoming", "outgoing", "both"])
def test_dead_and_duplicate_units(where):
    model, sym, x = make("mlp")
    with torch.no_grad():
        if where != "outgoing":
            model[0].weight[1], model[0].bias[1] = 0, 0
        if where != "incoming":
            model[2].weight[:, 1] = 0
        model[0].weight[3], model[0].bias[3] = model[0].weight[2], model[0].bias[2]
        model[2].weight[:, 3] = model[2].weight[:, 2]
    form = canonical(model, x, sym)
    assert function_error(model, form, x) < 1e-12
    for seed in range(3):
        assert difference(form, canonical(act(sym, random(sym, seed), model), x, sym)) < 1e-9


def test_bad_input():
    model, sym, x = make("mlp")
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"must be finite\. Got NaN or infinity in"):
        canonical(model, x, sym)
    with pytest.raises(ValueError, match=r"none named '0.weight'"):
        canonical(model[2:], x, sym)
    with pytest.raises(ValueError, match="on the meta device"):
        canonical(model.to("meta"), x, sym)


@pytest.mark.parametrize("width", [2, 6, 10])
def test_bases_and_scales_settle_in_few_rounds(width, monkeypatch):
    """Where scales meet bases, each is found anew for the other; half of the error was left by every round."""
    monkeypatch.setattr("intertwine.symmetry.gauge.canonical._ROUNDS", 25)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, width), nn.Linear(width, 12), nn.ReLU(), nn.Linear(12, 3)
    ).double()
    with torch.no_grad():
        for layer in (model[2], model[3]):
            layer.weight.mul_((2 * torch.randn_like(layer.weight)).exp())
    x = torch.zeros(2, 5).double()
    sym = symmetries(model, x)
    form = canonical(model, x, sym)
    for seed in range(3):
        assert difference(form, canonical(act(sym, random(sym, seed), model), x, sym)) < 1e-10
    monkeypatch.setattr("intertwine.symmetry.gauge.canonical._ROUNDS", 100)
    assert difference(form, canonical(model, x, sym)) < 1e-10
