from itertools import product

import gate_models
import pytest
import torch
import torch.nn.functional as F
from made import Made
from numeric import equal
from torch import nn

import intertwine as iw
from intertwine.gates.gated_network import Features
from intertwine.gates.kernels.moments import Grid, Layout


@pytest.mark.parametrize("input", ["x", "ones"])
@pytest.mark.parametrize("name", gate_models.MODELS)
def test_kernel_equals_brute_force_over_paths(name, input):
    model, x = gate_models.make(name), gate_models.inputs(name)
    expected = iw.gates.paths(model, x, input=input).kernel()
    equal(iw.gates.neural_path_kernel(model, x, input=input), expected)


@pytest.mark.parametrize("name", gate_models.MODELS)
def test_tiles_sides_and_logarithms_agree(name, monkeypatch):
    model, x = gate_models.make(name), gate_models.inputs(name, 5)
    whole = iw.gates.neural_path_kernel(model, x)
    equal(iw.gates.neural_path_kernel(model, x, x[:3]), whole[:, :3])
    monkeypatch.setattr("intertwine.gates.kernels.path_kernel._tile_size", lambda *_: 2)
    equal(iw.gates.neural_path_kernel(model, x), whole)
    log, sign = iw.gates.neural_path_kernel(model, x, log=True)
    equal(log.exp() * sign, whole)


@pytest.mark.parametrize("name", ["mlp, biases", "zero-padded GAP", "residual conv, batch norm", "max pooling"])
def test_kernel_is_the_second_moment_over_random_signs(name):
    """The definition by expectation, tried on the network itself with frozen gates."""
    model, x = gate_models.make(name), gate_models.inputs(name, 3)
    found = iw.gates.paths(model, x)
    signs = torch.randint(0, 2, (20000, found.bundles), generator=torch.Generator().manual_seed(0)) * 2.0 - 1
    outputs = found.features @ signs.T.double()
    estimate = outputs @ outputs.T / len(signs)
    assert (estimate - iw.gates.neural_path_kernel(model, x)).norm() < 0.05 * estimate.norm()


def test_wide_and_deep_networks_do_not_overflow():
    layers = [m for _ in range(64) for m in (nn.Linear(512, 512, bias=False), nn.ReLU())]
    torch.manual_seed(0)
    model = nn.Sequential(*layers, nn.Linear(512, 1, bias=False))
    for p in model.parameters():
        nn.init.normal_(p, std=(2 / 512) ** 0.5)
    log, sign = iw.gates.neural_path_kernel(model, torch.rand(4, 512), log=True)
    assert torch.isfinite(log).all() and (log > 64).all() and (sign == 1).all()


def test_overflow_is_named_and_log_is_offered():
    layers = [m for _ in range(16) for m in (nn.Linear(300, 300, bias=False), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(300, 1)).double()
    with torch.no_grad():
        for layer in model[:-1:2]:
            layer.weight.copy_(torch.eye(300))
    x = 1e140 * torch.rand(1, 300, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"must fit in float64.*Use log=True"):
        iw.gates.neural_path_kernel(model, x)
    assert 710 < iw.gates.neural_path_kernel(model, x, log=True)[0] < 800  # float64 ends at 709


def test_rotations_of_the_input_do_not_matter_with_circular_padding_and_global_pooling():
    model, x = gate_models.make("conv 2d GAP"), gate_models.inputs("conv 2d GAP")
    rotated = iw.gates.neural_path_kernel(model, x, x.roll((1, 2), (2, 3)))
    equal(rotated, iw.gates.neural_path_kernel(model, x))
    flat = nn.Sequential(*model[:4], nn.Flatten(), nn.Linear(18, 2, bias=False)).double()
    kernel = iw.gates.neural_path_kernel(flat, x)
    assert (iw.gates.neural_path_kernel(flat, x, x.roll(1, 2)) - kernel).norm() > 0.1 * kernel.norm()


def test_gates_of_another_network():
    model, gating = gate_models.make("mlp"), gate_models.make("mlp", seed=5)
    x = gate_models.inputs("mlp")
    gated = iw.gates.GatedNetwork(Features(gating), model, gate="hard")
    equal(iw.gates.neural_path_kernel(gated, x), iw.gates.neural_path_kernel(gating, x))


def test_cost_is_stated_and_refused():
    model, x = gate_models.make("conv 2d GAP"), gate_models.inputs("conv 2d GAP")
    n, p = len(x), 9
    assert iw.gates.neural_path_kernel_cost(model, x) == n * n * (p**2 * (1 + 2) + 2 + 3)
    with pytest.raises(ValueError, match=r"at most max_operations = 1\.0e\+03 multiply-adds. Got 8\.9e\+03"):
        iw.gates.neural_path_kernel(model, x, budget=iw.gates.Budget(max_operations=1e3))
    with pytest.raises(ValueError, match="memory must hold one pair of examples"):
        iw.gates.neural_path_kernel(model, x, budget=iw.gates.Budget(memory=100))


def test_bad_arguments():
    model, x = gate_models.make("mlp"), gate_models.inputs("mlp")
    with pytest.raises(ValueError, match="input must be"):
        iw.gates.neural_path_kernel(model, x, input="one")
    with pytest.raises(ValueError, match="y must have examples of x's shape"):
        iw.gates.neural_path_kernel(model, x, torch.randn(2, 3).double())
    with pytest.raises(ValueError, match="output must be one of"):
        iw.gates.neural_path_kernel(model, x, output=7)
    with pytest.raises(ValueError, match=r"batch_size must be at least 1. Got 0"):
        iw.gates.gate_patterns(model, x, batch_size=0)


def test_a_kernel_that_memory_cannot_hold_is_refused_before_anything_runs():
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))
    many = torch.zeros(1, 2).expand(4_000_000, 2)  # takes no memory itself
    for run in (iw.gates.neural_path_kernel, iw.gates.neural_tangent_kernel):
        with pytest.raises(ValueError, match=r"kernel must fit in memory. Got shape \(4000000, 4000000.* GiB are free"):
            run(model, many)
    with pytest.raises(ValueError, match="kernel must fit in memory"):
        iw.gates.product_kernel(many, [many > 0])


def joined(between, channels=2):
    """Two convolutions with something done to the features between them."""
    return Made(
        lambda m, x: m.linear(torch.relu(m.last(between(m, torch.relu(m.first(x))))).mean((2, 3))),
        first=nn.Conv2d(1, 2, 3, padding=1), last=nn.Conv2d(channels, 2, 1), linear=nn.Linear(2, 1),
        blur=torch.rand(2, 1, 1, 2),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("between", "reason"),
    [
        (lambda m, z: z + F.max_pool2d(z, 3, 1, 1), "read in two ways"),
        (lambda m, z: z[..., ::2] + z[..., 1::2], "read in two ways"),
        (lambda m, z: z[..., 1:] - z[..., :-1], "read in two ways"),
        (lambda m, z: F.pad(z, (1, 0))[..., :-1] + z, "read in two ways"),
        (lambda m, z: (lambda p: p + F.relu(p - 0.2))(F.avg_pool2d(z, 3, 1, 1)), "read in two ways"),
        (lambda m, z: F.conv2d(z, m.blur, groups=2), "a constant of the model, not a parameter"),
        (lambda m, z: F.instance_norm(z), "statistics of its own input|no rule"),
    ],
)
def test_what_the_rules_cannot_know_is_refused(between, reason):
    torch.manual_seed(0)
    model, x = joined(between).double().eval(), torch.randn(2, 1, 2, 4, dtype=torch.float64)
    with pytest.raises(ValueError, match=reason):
        iw.gates.neural_path_kernel(model, x)
    if not reason.startswith("statistics"):  # linear between its gates, so that small networks can be enumerated
        equal(iw.gates.paths(model, x).outputs, model(x)[:, 0].detach())


@pytest.mark.parametrize(
    ("between", "channels"),
    [
        (lambda m, z: torch.cat([z, F.max_pool2d(z, 3, 1, 1)], 1), 4),
        (lambda m, z: z + z, 2),
        (lambda m, z: z + F.avg_pool2d(z, 3, 1, 1), 2),
        (lambda m, z: F.max_pool2d(z, 2), 2),
    ],
)
def test_what_looks_like_it_is_exact(between, channels):
    torch.manual_seed(0)
    model, x = joined(between, channels).double().eval(), torch.randn(2, 1, 2, 4, dtype=torch.float64)
    equal(iw.gates.neural_path_kernel(model, x), iw.gates.paths(model, x).kernel())


@pytest.mark.parametrize("pairs", [True, False])
@pytest.mark.parametrize(("size", "stride", "padding", "dilation"), [
    (3, 1, 1, 1), (7, 2, 3, 1), (5, 3, 2, 1), (3, 2, 2, 2), (2, 2, 0, 1), (3, 1, 4, 1), (5, 4, 4, 3),
])  # fmt: skip
def test_windows_are_summed_as_if_zeros_stood_around(pairs, size, stride, padding, dilation):
    length, layout = 11, Layout(2, 3, pairs, torch.device("cpu"))
    shape = (2, length, 3, length) if pairs else (length, 2, 3)
    kernel = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = layout.slide(kernel, (length,), Grid((size,), (stride,), (padding,), (dilation,)))
    around = (padding, padding)
    padded = F.pad(kernel, (*around, 0, 0, *around) if pairs else (0, 0, 0, 0, *around))
    for p, q in product(range(found.shape[1]), repeat=2) if pairs else ((p, p) for p in range(len(found))):
        places = [(p * stride + k * dilation, q * stride + k * dilation) for k in range(size)]
        wanted = sum(padded[:, a, :, b] if pairs else padded[a] for a, b in places)
        assert torch.allclose(found[:, p, :, q] if pairs else found[p], wanted)
    count = (length + 2 * padding - dilation * (size - 1) - 1) // stride + 1
    assert found.shape == ((2, count, 3, count) if pairs else (count, 2, 3))
