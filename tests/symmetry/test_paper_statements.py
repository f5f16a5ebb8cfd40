"""Statements of the first paper about weight space, on small networks: E.6 and E.9 (v1 E.8)."""

import copy

import pytest
import torch
import torch.nn.functional as F
from made import Made
from stitching_models import ResidualMlp
from torch import nn

import intertwine as iw
from intertwine.groups import PositiveMonomial

N = 6


@pytest.fixture
def residual():
    torch.manual_seed(1)
    return ResidualMlp(N).double()


@pytest.fixture
def x():
    return torch.randn(32, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def transform(layer, left=None, right=None):
    """W, b -> A W B^-1, A b."""
    with torch.no_grad():
        if right is not None:
            layer.weight.copy_(layer.weight @ (~right).matrix())
        if left is not None:
            layer.weight.copy_(left.matrix() @ layer.weight)
            layer.bias.copy_(left.matrix() @ layer.bias)


def elements(count):
    g = torch.Generator().manual_seed(3)
    return [PositiveMonomial(N).random(generator=g) for _ in range(count)]


def act(model, stream, inner):
    """Act on a copy with one element for each place of the residual stream and one inside each block."""
    twin = copy.deepcopy(model)
    transform(twin.stem, left=stream[0])
    for i in range(2):
        transform(twin.inner[i], left=inner[i], right=stream[i])
        transform(twin.outer[i], left=stream[i + 1], right=inner[i])
    transform(twin.head, right=stream[2])
    return twin


def test_the_loss_is_invariant_although_its_gradient_is_not(residual, x):
    """Corollary E.28 (v1 E.24), and that the copy is another point of the landscape."""
    labels = torch.arange(32) % 3
    sym = iw.symmetries(residual, x)
    twin = sym.act(sym.random(seed=0), residual)
    losses, gradients = [], []
    for model in (residual, twin):
        loss = F.cross_entropy(model(x), labels)
        losses.append(loss.item())
        gradients.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, model.parameters())]).norm().item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-12)
    assert gradients[1] != pytest.approx(gradients[0], rel=1e-2)


def test_one_element_along_the_residual_stream_keeps_the_function(residual, x):
    """E.48-E.53 (v1 E.27-E.32): A_{r_i} = A_{r_j} suffices."""
    a, b, c = elements(3)
    iw.testing.assert_same_function(residual, act(residual, [a, a, a], [b, c]), x)


def test_different_elements_along_the_residual_stream_do_not(residual, x):
    """E.51 (v1 E.30): otherwise the sum is mapped by no matrix; so the search must tie the stream into one space."""
    a, b, c = elements(3)
    twin = act(residual, [a, b, a], [c, c])
    assert iw.testing.function_error(residual, twin, x) > 0.1
    layouts = iw.symmetries(residual, x).layouts
    stream = [
        ("stem.weight", 0), ("outer.0.weight", 0), ("outer.1.weight", 0), ("inner.1.weight", 1), ("head.weight", 1),
    ]  # fmt: skip
    spaces = {layouts[name].axes[axis].space for name, axis in stream}
    assert len(spaces) == 1


def test_stitching_inside_a_block_needs_the_skip_to_be_mapped_too(residual, x):
    """E.54-E.56 (v1 E.33-E.35): the ideal stitch inside a block leaves a factor A_r^-1 on the skip."""
    a, b, c = elements(3)
    twin = act(residual, [a, a, a], [b, c])
    with torch.no_grad():
        skip = F.relu(residual.stem(x))
        branch = b.apply(F.relu(residual.inner[0](skip)), dim=1)  # the stitch phi(A) at the hidden layer of block 0

        def tail(skip):
            y = skip + F.relu(twin.outer[0](branch))
            return twin.head(y + F.relu(twin.outer[1](F.relu(twin.inner[1](y)))))

        truth = residual(x)
        assert (tail(skip) - truth).abs().max() > 0.1 * truth.abs().max()
        torch.testing.assert_close(tail(a.apply(skip, dim=1)), truth, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(tail(F.relu(twin.stem(x))), truth, rtol=1e-12, atol=1e-12)


def test_a_linear_activation_frees_less_than_its_group_where_other_layers_stand():
    """LeakyReLU with slope 1 is the identity, whose group is GL(n); batch norm and skip leave monomial maps."""

    def run(m, x):
        x = m.stem(x)
        return m.head(x + m.activation(m.bn(m.conv(x))))

    block = Made(
        run, stem=nn.Linear(4, N), conv=nn.Linear(N, N), bn=nn.BatchNorm1d(N), head=nn.Linear(N, 3),
        activation=nn.LeakyReLU(1.0),
    )  # fmt: skip
    sym = iw.symmetries(block.double().eval(), torch.randn(5, 4, dtype=torch.float64))
    assert repr(iw.intertwiner(nn.LeakyReLU(1.0), n=N).group) == f"GeneralLinear({N})"
    assert all(not space.group.mixes and space.group.permutes for space in sym.spaces)
    assert any("norm" in reason for space in sym.spaces for reason in space.reasons)
