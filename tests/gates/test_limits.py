"""Where tangent kernels go as networks become wide."""

import itertools
import math
from functools import partial

import gate_models
import pytest
import torch
from made import Made
from torch import nn
from torch.nn import functional as F

import intertwine as iw


def fully_connected(width, depth=3):
    sizes = [4] + [width] * (depth - 1)
    layers = [m for a, b in itertools.pairwise(sizes) for m in (nn.Linear(a, b, bias=False), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(width, 1, bias=False)).double()


def relative_error(width, seed, x, build=fully_connected, depth=3):
    """Distance of the value network's NTK from ``d sigma^(2 (d - 1)) NPK`` with fixed random gates."""
    torch.manual_seed(seed)
    sigma = 1 / math.sqrt(width)
    network = iw.gates.dgn(build(width), regime="fixed_random", seed=seed).eval()
    iw.gates.kernels.wide_limits.bernoulli_(network.value, sigma, seed)
    names = [f"value.{n}" for n, _ in network.value.named_parameters()]
    tangent = iw.gates.neural_tangent_kernel(network, x, kind="trace", parameters=names)
    limit = depth * sigma ** (2 * (depth - 1)) * iw.gates.neural_path_kernel(network, x)
    return float((tangent - limit).norm() / limit.norm())


def test_tangent_kernel_tends_to_the_path_kernel_like_one_over_root_width():
    """Theorems 2.1 and 3.1."""
    x = torch.randn(8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    widths = [16, 64, 256]
    errors = [[relative_error(w, seed, x) for seed in range(12)] for w in widths]
    logs = torch.tensor(errors).log().mean(1)
    at = torch.tensor(widths).log()
    slope = float(((at - at.mean()) * (logs - logs.mean())).sum() / ((at - at.mean()) ** 2).sum())
    assert -0.65 < slope < -0.35


def test_weights_are_independent_signs_of_one_size():
    """Assumption 2.1: +sigma and -sigma with probability 1/2 each, whatever the gates."""
    model = nn.Sequential(nn.Linear(60, 60), nn.Linear(60, 60)).double()
    iw.gates.kernels.wide_limits.bernoulli_(model, 0.25, seed=1)
    first, second = (layer.weight.detach() / 0.25 for layer in model)
    assert all((p.abs() == 0.25).all() for p in model.parameters())
    assert abs(float(first.mean())) < 5 / 60  # five standard errors
    assert abs(float((first * second).mean())) < 5 / 60
    assert abs(float((first @ first.T / 60 - torch.eye(60)).mean())) < 5 / 60


@pytest.mark.parametrize("gates", ["fixed_random", "fixed_learnt"])
def test_expectation_is_exact_at_every_width(gates):
    width, x = 4, torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(1)
    network = iw.gates.dgn(fully_connected(width), regime=gates).eval()
    limit = 3 * 0.5**4 * iw.gates.neural_path_kernel(network, x)
    mean = mean_tangent_kernel(network, x, 0.5, 100)
    assert (mean - limit).norm() < 0.16 * limit.norm()  # another depth errs by a quarter or more


def mean_tangent_kernel(network, x, sigma, draws):
    """The NTK of the value network's first output, averaged over random signs, with its gates held fixed."""
    names = [f"value.{n}" for n, _ in network.value.named_parameters()]
    total = torch.zeros(4, 4).double()
    for seed in range(draws):
        iw.gates.kernels.wide_limits.bernoulli_(network.value, sigma, seed)
        total += iw.gates.neural_tangent_kernel(network, x, kind="per_output", parameters=names)[..., 0] / draws
    return total


def with_its_gates(name):
    """A value network with the gates of ``name``, and inputs."""
    return iw.gates.dgn(gate_models.make(name), regime="fixed_learnt").eval(), gate_models.inputs(name, 4)


def test_constant_of_convolutions_with_global_pooling():
    """Theorems 3.2 and A.1: beta_cv / d_in^2, which at one sigma for all layers is d sigma^(2 (d - 1)) / d_in^2."""
    network, x = with_its_gates("conv 2d GAP")
    layers, positions, sigma = 4, 9, 0.6
    mean = mean_tangent_kernel(network, x, sigma, 100)
    limit = layers * sigma ** (2 * (layers - 1)) / positions**2 * iw.gates.neural_path_kernel(network, x)
    assert (mean - limit).norm() < 0.12 * limit.norm()


def test_constants_of_residual_sub_networks():
    """Theorems 3.3 and B.1, with the corrected exponent."""
    network, x = with_its_gates("residual, ReLU inside")
    mean = mean_tangent_kernel(network, x, sigma := 0.6, 200)
    a, b, c, d, last = network.gates(x)
    limit = iw.gates.kernels.ensemble_tangent_kernel(x, [last], [[a, b], [c, d]], sigma=sigma, depth=2, outer_depth=2)
    assert (mean - limit).norm() < 0.2 * limit.norm()


def scaled(function, scale, *shape):
    """A layer of standard normal weights with a factor in front."""
    return Made(lambda m, x: function(x, m.weight) * scale, weight=shape).double()


def linear(fan_in, fan_out, gain):
    return scaled(F.linear, gain / math.sqrt(fan_in), fan_out, fan_in)


def test_arc_cosine_kernel_is_the_tangent_kernel_of_a_wide_network():
    torch.manual_seed(0)
    x = torch.randn(5, 3, dtype=torch.float64)
    width, gain = 1024, math.sqrt(2)
    model = nn.Sequential(
        linear(3, width, math.sqrt(3)), nn.ReLU(), linear(width, width, gain), nn.ReLU(), linear(width, 1, gain)
    )
    empirical = iw.gates.neural_tangent_kernel(model, x, kind="trace")
    pixels = x[:, :, None, None]
    limit = iw.gates.kernels.convolutional_tangent_kernel(pixels, 2, window=1)
    assert (empirical - limit).norm() < 0.1 * limit.norm()
    few = iw.gates.kernels.convolutional_tangent_kernel(pixels, 2, window=1, y=pixels[:2])
    assert torch.allclose(few, limit[:, :2])


def test_convolutional_kernel_is_the_tangent_kernel_of_a_wide_network():
    torch.manual_seed(0)
    x = torch.randn(4, 2, 3, 3, dtype=torch.float64)
    width = 512
    same = partial(F.conv2d, padding=1)
    first, second = scaled(same, 1 / 3, width, 2, 3, 3), scaled(same, math.sqrt(2 / (9 * width)), width, width, 3, 3)
    convolutions = [first, nn.ReLU(), second, nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), linear(width, 1, math.sqrt(2))]
    empirical = iw.gates.neural_tangent_kernel(nn.Sequential(*convolutions, *head), x, kind="trace")
    limit = iw.gates.kernels.convolutional_tangent_kernel(x, 2)
    assert (empirical - limit).norm() < 0.12 * limit.norm()


def test_bad_arguments():
    with pytest.raises(ValueError, match="sigma must be positive"):
        iw.gates.kernels.wide_limits.bernoulli_(nn.Linear(1, 1), 0.0)
    with pytest.raises(ValueError, match="depth must be at least 1"):
        iw.gates.kernels.convolutional_tangent_kernel(torch.ones(1, 1, 2, 2), 0)
    with pytest.raises(ValueError, match=r"x must be images .* Got shape \(1, 1, 4\)"):
        iw.gates.kernels.convolutional_tangent_kernel(torch.ones(1, 1, 4), 1)
    with pytest.raises(ValueError, match="window odd"):
        iw.gates.kernels.convolutional_tangent_kernel(torch.ones(1, 1, 2, 2), 1, 2)


def test_convolutional_kernel_of_two_sides_and_in_blocks():
    x = torch.randn(5, 2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    whole = iw.gates.kernels.convolutional_tangent_kernel(x, 3)
    assert torch.equal(whole, whole.T)
    blocks = iw.gates.kernels.convolutional_tangent_kernel(x, 3, memory=1)
    torch.testing.assert_close(blocks, whole, rtol=1e-12, atol=0)
    two = iw.gates.kernels.convolutional_tangent_kernel(x, 3, y=x[1:4])
    torch.testing.assert_close(two, whole[:, 1:4], rtol=1e-12, atol=0)
    with pytest.raises(ValueError, match="y must have examples of x's shape"):
        iw.gates.kernels.convolutional_tangent_kernel(x, 3, y=x[:, :1])
