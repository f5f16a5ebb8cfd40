"""Tangents: the loss is constant along them, gradients are orthogonal to them, and what is left has no gauge."""

import pytest
import torch
from made import Made
from torch import nn
from torch.func import functional_call, grad
from zoo import build

import intertwine as iw
from intertwine.symmetry import gradient_norm, sharpness
from intertwine.symmetry.action import tensors_of
from intertwine.symmetry.gauge.canonical import _balanced

NAMES = ("mlp", "gpt_rms", "llama", "mlp_identity", "encoder_layer")


def made(name: str):
    model, args = build(name)
    sym = iw.symmetries(model, args)
    state = {n: t.clone() for n, t in tensors_of(model).items() if t.is_floating_point() and n not in sym.aliases}

    def loss(weights):
        out = functional_call(model, weights, args)
        return (out if isinstance(out, torch.Tensor) else next(iter(out.values()))).square().mean()

    return sym, state, loss


def size(direction) -> float:
    return float(sum(t.square().sum() for t in direction.values())) ** 0.5


def inner(a, b) -> float:
    return float(sum((a[n] * b[n]).sum() for n in a))


@pytest.mark.parametrize("name", NAMES)
def test_the_loss_is_constant_along_the_tangent_and_its_gradient_orthogonal_to_it(name):
    sym, state, loss = made(name)
    tangent = sym.tangent(state)
    gradient = grad(loss)(state)
    assert len(tangent) >= sym.dim > 0
    g = torch.Generator().manual_seed(0)
    direction = tangent.direction(torch.randn(len(tangent), generator=g, dtype=torch.float64))
    assert abs(inner(direction, gradient)) < 1e-9 * size(direction) * size(gradient)
    wrong = {n: t[torch.randperm(len(t), generator=g)] if t.ndim else t for n, t in direction.items()}
    assert abs(inner(wrong, gradient)) > 1e-5 * size(wrong) * size(gradient)
    kept = sym.project(gradient, state)
    assert size({n: kept[n] - gradient[n] for n in kept}) < 1e-7 * size(gradient)


@pytest.mark.parametrize("name", [*NAMES, "mlp_bn"])
def test_directions_are_derivatives_of_the_action(name):
    """Central differences of moving by scales and matrices, coefficient by coefficient, are the reference."""
    from completeness import tangents_of

    sym, state, _ = made(name)
    names = list(sym.tangent(state).weights)
    reference = tangents_of(sym, state, names, sum(state[n].numel() for n in names))
    rows = torch.stack([torch.cat([d[n].flatten() for n in names]) for d in sym.tangent(state)], 1)
    rank = int(torch.linalg.matrix_rank(reference, rtol=1e-7))
    both = torch.cat([reference, rows], 1)
    assert int(torch.linalg.matrix_rank(rows, rtol=1e-7)) == rank == int(torch.linalg.matrix_rank(both, rtol=1e-7))
    assert rank == sym.dim


@pytest.mark.parametrize("name", ["mlp", "gpt_rms", "llama"])
def test_projection_is_the_least_squares_one(name):
    sym, state, _ = made(name)
    tangent = sym.tangent(state)
    g = torch.Generator().manual_seed(1)
    update = {n: torch.randn(t.shape, generator=g, dtype=torch.float64) for n, t in state.items()}
    kept = sym.project(update, state)
    names = list(tangent.weights)
    flat = lambda d: torch.cat([d[n].flatten() for n in names])
    j = torch.stack([flat(d) for d in tangent], 1) if len(tangent) else torch.zeros(len(flat(update)), 1).double()
    wanted = flat(update) - j @ torch.linalg.pinv(j, rtol=1e-9) @ flat(update)
    assert float((flat(kept) - wanted).abs().max()) < 1e-7
    assert size({n: update[n] - kept[n] for n in names}) > 0.05 * size(update) or not sym.dim
    again = sym.project(kept, state)
    assert size({n: again[n] - kept[n] for n in names}) < 1e-7 * size(update)


def smooth():
    """Two layers of quadratic units: scales that the papers' networks have, and a loss with second derivatives."""

    torch.manual_seed(0)
    net = Made(lambda m, x: m.b(m.a(x) ** 2), a=nn.Linear(3, 5), b=nn.Linear(5, 2))
    model, x, y = net.double(), torch.randn(40, 3).double(), torch.randn(40, 2).double()
    loss = lambda w: (functional_call(model, w, x) - y).square().mean()
    return iw.symmetries(model, x), tensors_of(model), loss, model


def test_gradient_norm_and_sharpness_are_those_of_the_network_not_of_its_copy():
    sym, state, loss, model = smooth()
    twin = tensors_of(sym.act(sym.random(seed=2, scale_std=1.0), model))
    plain = [size(grad(loss)(s)) for s in (state, twin)]
    assert abs(plain[0] - plain[1]) > 0.1 * plain[0]
    for measure in (gradient_norm, sharpness):
        ours, theirs = (measure(sym, loss, s) for s in (state, twin))
        assert abs(ours - theirs) < 1e-6 * abs(ours)


def test_sharpness_is_the_top_eigenvalue_of_the_projected_hessian():
    sym, state, loss, _ = smooth()
    weights = _balanced(sym, state)
    names = list(weights)
    sizes = [weights[n].numel() for n in names]

    def flat_loss(flat):
        return loss({n: p.reshape(weights[n].shape) for n, p in zip(names, flat.split(sizes))})

    hessian = torch.func.hessian(flat_loss)(torch.cat([weights[n].flatten() for n in names]))
    whole = ({n: d.get(n, torch.zeros_like(weights[n])) for n in names} for d in sym.tangent(weights))
    j = torch.stack([torch.cat([d[n].flatten() for n in names]) for d in whole], 1)
    outside = torch.eye(len(hessian)).double() - j @ torch.linalg.pinv(j)
    wanted = float(torch.linalg.eigvalsh(outside @ hessian @ outside)[-1])
    assert abs(sharpness(sym, loss, state) - wanted) < 1e-6 * wanted


def test_gradients_of_batch_norms_in_training_are_orthogonal_without_their_statistics():
    model, (x,) = build("mlp_bn")
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.eps = 1e-12
    sym, state = iw.symmetries(model, x), tensors_of(model)
    model.train()
    model(x).square().mean().backward()
    gradient = {n: p.grad for n, p in model.named_parameters()}
    kept = sym.project(gradient, state)
    assert size({n: kept[n] - gradient[n] for n in kept}) < 1e-7 * size(gradient)
    decay = {n: p.detach() for n, p in model.named_parameters()}
    kept = sym.project(decay, state)
    assert size({n: kept[n] - decay[n] for n in decay}) > 0.1 * size(decay)


def test_gradients_that_are_missing_are_named():
    sym, state, _ = made("mlp_bn")
    with pytest.raises(ValueError, match=r"gradient must hold every parameter that the symmetry moves.*'0.weight'"):
        sym.project({n: t for n, t in state.items() if n != "0.weight"}, state)
    with pytest.raises(ValueError, match=r"coefficients must have shape"):
        sym.tangent(state).direction(torch.zeros(3))
    with pytest.raises(ValueError, match="state must hold every tensor"):
        sym.tangent({})
