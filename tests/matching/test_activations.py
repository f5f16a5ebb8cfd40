"""Aligning by activations: where spaces are seen, planted copies, and what is refused."""

import pytest
import torch
import zoo
from made import Made
from noise import shaken
from torch import nn

import intertwine as iw
from intertwine.lab import networks
from intertwine.matching import Activations
from intertwine.matching.solvers.responses import carriers
from intertwine.symmetry.action import tensors_of


def furthest(a, b):
    left, right = tensors_of(a), tensors_of(b)
    return max(float((left[n] - right[n]).abs().max()) for n in left if left[n].is_floating_point())


def batches(x, count=6):
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(x.shape, generator=generator, dtype=x.dtype) for _ in range(count)]


def attention():
    """One attention layer between linear layers: heads, and general bases inside them."""
    return Made(
        lambda m, x: m.out((h := m.embed(x)) + m.attention(m.norm(h))), embed=nn.Linear(5, 12), norm=nn.LayerNorm(12),
        attention=zoo.Attention(12, 3, packed=True), out=nn.Linear(12, 3),
    )  # fmt: skip


MODELS = {
    "mlp": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 7), nn.Tanh(), nn.Linear(7, 2)
    ),
    "cnn with batch norm": lambda: networks.build("digits_cnn:width=4"),
    "attention": attention,
}  # fmt: skip
INPUTS = {"mlp": (32, 1, 2, 3), "cnn with batch norm": (16, 1, 8, 8), "attention": (16, 5, 5)}


@pytest.mark.parametrize("kinds", [{"permutation"}, None], ids=["permutations", "all kinds"])
@pytest.mark.parametrize("name", MODELS)
def test_a_planted_copy_is_recovered(name, kinds):
    model = MODELS[name]().double().eval()
    x = torch.randn(INPUTS[name], dtype=torch.float64)
    sym = iw.symmetries(model, x)
    twin = sym.act(sym.random(seed=3, kinds=kinds), model)
    found = iw.align(model, twin, x, method="activations", loader=batches(x), kinds=kinds)
    error = furthest(found.a, found.apply(twin))
    assert error == 0.0 if kinds else error < 1e-10
    assert found.objective == pytest.approx(1.0, abs=1e-6)


def test_noise_is_survived_and_no_alignment_is_noticed(trained, digits):
    a, b = trained["mlp"][:2]
    sym = iw.symmetries(a, torch.zeros(2, 1, 8, 8))
    g = sym.random(seed=1, kinds={"permutation"})
    noisy = sym.act(g, a)
    shaken(noisy, 0.02)
    loader = digits.loader("train", examples=500)
    found = iw.align(a, noisy, torch.zeros(2, 1, 8, 8), method="activations", loader=loader)
    undone = ~g
    for space in sym.spaces:
        right = found.transformation[space.name].permutation == undone[space.name].permutation
        assert right.float().mean() > 0.9
    strangers = iw.align(a, b, torch.zeros(2, 1, 8, 8), method="activations", loader=loader)
    assert strangers.objective < 0.9 < found.objective


def test_the_objective_never_falls(trained, digits):
    a, b = trained["cnn"][:2]
    for method in ("activations", "mixed"):
        found = iw.align(a, b, torch.zeros(2, 1, 8, 8), method=method, loader=digits.loader("train", examples=300))
        assert all(y >= x - 1e-12 for x, y in zip(found.history, found.history[1:]))
        assert found.history[-1] > found.history[0]


def test_places_are_where_features_move():
    model = MODELS["cnn with batch norm"]().eval()
    x = torch.randn(4, 1, 8, 8)
    found = {place.point.name: place.spaces for place in carriers(model, iw.symmetries(model, x), x)}
    assert found["conv1"] == found["bn1"] == found["relu1"] == {"conv1.weight[0]"}
    assert found["pool3"] == {"conv3.weight[0]"}
    assert "linear" not in found and "" not in found  # outputs do not move


def test_places_of_heads_and_of_the_stream():
    model = attention().eval()
    x = torch.randn(4, 5, 5)
    sym = iw.symmetries(model, x)
    found = {place.point.name: place.spaces for place in carriers(model, sym, x)}
    assert found["embed"] == found["norm"] == found["attention.o"] == {"embed.weight[0]"}
    assert len(found["attention.qkv"]) == 3


def test_scales_follow_the_responses():
    model = MODELS["mlp"]().double().eval()
    x = torch.randn(64, 1, 2, 3, dtype=torch.float64)
    sym = iw.symmetries(model, x)
    twin = sym.act(sym.random(seed=0, kinds={"scale"}, scale_std=1.0), model)
    found = iw.align(model, twin, x, method="activations", loader=[x])
    assert furthest(model, found.apply(twin)) < 1e-10
    without = iw.align(model, twin, x, method="activations", loader=[x], kinds={"permutation"})
    assert furthest(model, without.apply(twin)) > 0.1


def test_models_stay_as_they_are(trained, digits):
    a, b = trained["cnn"][:2]
    before = [t.clone() for m in (a, b) for t in tensors_of(m).values()]
    iw.align(a, b, torch.zeros(2, 1, 8, 8), method="mixed", loader=digits.loader("train", examples=100))
    assert all(torch.equal(x, y) for x, y in zip(before, [t for m in (a, b) for t in tensors_of(m).values()]))
    assert not any(m._forward_hooks for m in a.modules())


def test_bad_input(trained):
    a, b = trained["mlp"][:2]
    x = torch.zeros(2, 1, 8, 8)
    with pytest.raises(ValueError, match="loader must be given to align by activations"):
        iw.align(a, b, x, method="activations")
    with pytest.raises(ValueError, match="loader must yield at least one batch"):
        iw.align(a, b, x, method="activations", loader=[])
    with pytest.raises(ValueError, match="features must be finite"):
        iw.align(a, b, x, method="activations", loader=[torch.randn(4, 1, 8, 8), x + float("inf")])
    with pytest.raises(ValueError, match=r"share must lie between 0 and 1\. Got 2"):
        iw.align(a, b, x, method=Activations(share=2), loader=[x])
    with pytest.raises(TypeError, match="restart"):
        iw.align(a, b, x, method=Activations(restart=2), loader=[x])


@pytest.mark.parametrize("method", ["activations", "mixed"])
def test_scales_are_not_fitted_to_few_examples(method):
    make = lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    torch.manual_seed(0)
    a, b, x = make(), make(), torch.randn(64, 6)
    few, many = (iw.align(a, b, x, method=method, loader=[x[:n]]) for n in (2, 64))
    assert few.after < 1.1 * few.before and any("2 examples and positions are fewer than 32" in n for n in few.notes)
    assert not any("fewer than" in note for note in many.notes)
