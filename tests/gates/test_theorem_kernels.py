import itertools
import math
import sys
from decimal import Decimal, localcontext

import gate_models
import pytest
import torch
from numeric import equal
from theorem_kernels import ensemble_kernel, rotation_kernel, sum_kernel
from torch import nn

import intertwine as iw
from intertwine.gates.kernels import gate_products
from intertwine.gates.kernels.wide_limits import ensemble_tangent_kernel


@pytest.mark.parametrize("input", ["x", "ones"])
def test_fully_connected_kernel_is_a_product_of_grams(input):
    """Theorem 3.1, against enumeration and against the general kernel."""
    model, x = gate_models.make("mlp"), gate_models.inputs("mlp")
    gates = list(iw.gates.gate_patterns(model, x).values())
    kernel = iw.gates.product_kernel(x, gates, input=input)
    equal(kernel, iw.gates.paths(model, x, input=input).kernel())
    equal(kernel, iw.gates.neural_path_kernel(model, x, input=input))
    equal(kernel, iw.gates.product_kernel(x, gates[::-1], input=input))  # layers may be permuted
    log, sign = iw.gates.product_kernel(x, gates, input=input, log=True)
    equal(sign * log.exp(), kernel)


def test_product_kernel_of_two_sides_and_many_tiles(monkeypatch):
    monkeypatch.setitem(gate_products._TILES, "cpu", 3)
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(n, 4, generator=generator).double() for n in (7, 5))
    gx, gy = ([torch.rand(n, w, generator=generator) > 0.4 for w in (6, 8)] for n in (7, 5))
    expected = (x @ y.T) * (gx[0].double() @ gy[0].double().T) * (gx[1].double() @ gy[1].double().T)
    equal(iw.gates.product_kernel(x, gx, y, gy), expected)
    log, sign = iw.gates.product_kernel(x, gx, y, gy, log=True)
    equal(sign * log.exp(), expected)
    log, sign = iw.gates.product_kernel(x, gx, log=True)
    equal(sign * log.exp(), iw.gates.product_kernel(x, gx))
    soft = [g * 0.3 for g in gx]
    equal(iw.gates.product_kernel(x, soft, log=True)[0], iw.gates.product_kernel(x, soft).abs().log())


@pytest.mark.parametrize("bytes_are_exact", [True, False])
def test_grams_of_gates_are_exact_counts_in_bytes_and_in_float32(monkeypatch, bytes_are_exact):
    if bytes_are_exact and not gate_products._bytes_are_exact():
        pytest.skip("this processor does not multiply bytes")
    monkeypatch.setattr(gate_products, "_bytes_are_exact", lambda: bytes_are_exact)
    generator = torch.Generator().manual_seed(1)
    for n, m, width in ((1, 1, 1), (3, 17, 5), (33, 16, 300), (5, 2, 4099)):
        a, b = (torch.rand(k, width, generator=generator) > 0.3 for k in (n, m))
        for left in (a, a.T.contiguous().T):  # the second is not contiguous
            assert torch.equal(gate_products.gram(left, b).double(), a.double() @ b.double().T)
    full = [(torch.ones(2, 1000, dtype=torch.bool),) * 2] * 7  # 1000^7 fits in no integer that is held
    product = torch.ones(2, 2, dtype=torch.float64)
    for part in gate_products.exact_products(full):
        product *= part
    equal(product, torch.full((2, 2), 1e21, dtype=torch.float64))


def test_log_domain_does_not_overflow_at_depth_64_and_width_512():
    on = torch.ones(3, 512, dtype=torch.bool)
    x = -torch.ones(3, 2)
    log, sign = iw.gates.product_kernel(x, [on] * 64, log=True)
    equal(log, torch.full((3, 3), 64 * math.log(512) + math.log(2), dtype=torch.float64))
    assert (sign == 1).all()
    off = torch.zeros(3, 512, dtype=torch.bool)
    log, sign = iw.gates.product_kernel(x, [on, off], log=True)
    assert (log == -float("inf")).all() and (sign == 0).all()


def test_base_and_sum_kernels():
    gates = [torch.rand(4, w, generator=torch.Generator().manual_seed(w)) > 0.5 for w in (3, 5)]
    base = iw.gates.kernels.base_kernels(gates)
    equal(sum_kernel(gates), base[0] * 3 + base[1] * 5)
    concatenated = torch.cat(gates, 1).double()
    equal(sum_kernel(gates), concatenated @ concatenated.T)


@pytest.mark.parametrize("input", ["x", "ones"])
@pytest.mark.parametrize("name", ["conv 1d GAP", "conv 2d GAP"])
def test_circular_convolution_with_pooling_is_a_sum_over_rotations(name, input):
    """Theorem 3.2 and lemma A.1, against enumeration and against the general kernel."""
    model, x = gate_models.make(name), gate_models.inputs(name)
    kernel = rotations(model, x, input)
    equal(kernel, iw.gates.paths(model, x, input=input).kernel())
    equal(kernel, iw.gates.neural_path_kernel(model, x, input=input))


def rotations(model, x, input="x"):
    windows = [m.kernel_size for m in model if isinstance(m, nn.Conv1d | nn.Conv2d)]
    return rotation_kernel(x, list(iw.gates.gate_patterns(model, x).values()), windows, input)


def test_with_zero_padding_the_sum_over_rotations_is_wrong():
    torch.manual_seed(0)
    pooled = [nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), matrix(2, 1)]
    model = nn.Sequential(gate_models.conv(1, 2, padding_mode="zeros"), *pooled).double()
    x = gate_models.inputs("zero-padded GAP")
    exact = iw.gates.paths(model, x).kernel()
    assert (rotations(model, x) - exact).norm() > 0.1 * exact.norm()
    equal(iw.gates.neural_path_kernel(model, x), exact)


def circular(channels):
    return nn.Conv1d(channels, 2, 3, padding=1, padding_mode="circular", bias=False)


def matrix(a, b):
    return nn.Linear(a, b, bias=False)


def test_rotations_with_hidden_layers_behind_the_pool():
    torch.manual_seed(2)
    layers = [circular(1), nn.ReLU(), circular(2), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten()]
    layers += [matrix(2, 6), nn.ReLU(), matrix(6, 2)]
    model, x = nn.Sequential(*layers).double(), torch.randn(3, 1, 5, dtype=torch.float64)
    kernel = rotations(model, x)
    assert kernel.abs().max() > 0
    equal(kernel, iw.gates.paths(model, x).kernel())


@pytest.mark.parametrize("soft", [False, True])
def test_deep_products_with_biases_keep_every_entry(soft):
    """Where a pair shares no unit of the last layer its kernel is 1, beside entries of e^900."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(4, 3, generator=g, dtype=torch.float64)
    gates = [torch.rand(4, 512, generator=g) < 0.5 for _ in range(150)]
    gates[-1][0] = False
    if soft:
        gates = [t.double() * (1e-4 if k % 2 else 1.0) for k, t in enumerate(gates)]
    log, sign = iw.gates.product_kernel(x, gates, log=True, biases=(True,) * 151)
    with localcontext(prec=60, Emax=10**9, Emin=-(10**9)):
        for i, j in itertools.product(range(4), range(4)):
            expected = Decimal(float(x[i] @ x[j])) + 1
            for t in gates:
                expected = expected * Decimal(float(t[i].double() @ t[j].double())) + 1
            assert float(log[i, j]) == pytest.approx(float(abs(expected).ln()), rel=1e-10, abs=1e-10)
            assert (sign[i, j] > 0) == (expected > 0)


@pytest.mark.parametrize("input", ["x", "ones"])
def test_residual_kernel_is_an_ensemble(input):
    """Theorem 3.3 and lemma B.1, with the ReLU inside the branch."""
    model, x = gate_models.make("residual, ReLU inside"), gate_models.inputs("residual, ReLU inside")
    first0, second0, first1, second1, last = iw.gates.gate_patterns(model, x).values()
    kernel = ensemble_kernel(x, [last], [[first0, second0], [first1, second1]], input)
    equal(kernel, iw.gates.paths(model, x, input=input).kernel())
    equal(kernel, iw.gates.neural_path_kernel(model, x, input=input))
    one_by_one = sum(
        iw.gates.product_kernel(x, [last, *[g for block in chosen for g in block]], input=input)
        for chosen in ([], [(first0, second0)], [(first1, second1)], [(first0, second0), (first1, second1)])
    )
    equal(kernel, one_by_one)


def test_with_the_relu_after_the_addition_the_ensemble_is_wrong():
    model, x = gate_models.make("residual, ReLU after"), gate_models.inputs("residual, ReLU after")
    first, mid0, after0, mid1, after1 = iw.gates.gate_patterns(model, x).values()
    naive = ensemble_kernel(x, [first, after0, after1], [[mid0], [mid1]])
    exact = iw.gates.paths(model, x).kernel()
    assert (naive - exact).norm() > 0.1 * exact.norm()
    equal(iw.gates.neural_path_kernel(model, x), exact)


def test_residual_constant():
    """Binding note 21: the corrected exponent of beta_J, summed one sub-network at a time."""
    x = gate_models.inputs("mlp")
    gates = [torch.rand(6, 5, generator=torch.Generator().manual_seed(s)) > 0.4 for s in range(7)]
    outer, blocks, sigma, d_blk = gates[:3], [gates[3:5], gates[5:7]], 0.7, 2
    expected = torch.zeros(6, 6).double()
    for chosen in ([], [0], [1], [0, 1]):
        depth = (len(chosen) + 2) * d_blk
        kernel = iw.gates.product_kernel(x, [*outer, *[g for j in chosen for g in blocks[j]]])
        expected += depth * sigma ** (2 * (depth - 1)) * kernel
    equal(ensemble_tangent_kernel(x, outer, blocks, sigma=sigma, depth=d_blk, outer_depth=2 * d_blk), expected)


def test_bad_arguments():
    x, on = torch.zeros(2, 3), torch.ones(2, 4, dtype=torch.bool)
    with pytest.raises(ValueError, match="y and gates_y must be given together"):
        iw.gates.product_kernel(x, [on], x)
    with pytest.raises(ValueError, match="x and its gates must be"):
        iw.gates.product_kernel(x, [on[:1]])
    with pytest.raises(ValueError, match="of the same widths"):
        iw.gates.product_kernel(x, [on], x, [on[:, :2]])
    with pytest.raises(ValueError, match="input must be"):
        iw.gates.product_kernel(x, [on], input="zeros")
    with pytest.raises(ValueError, match="input must be"):
        ensemble_tangent_kernel(x, [on], [], sigma=1.0, depth=1, outer_depth=2, input="zeros")


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("name", ["mlp", "mlp, biases", "mlp, leaky", "mlp on images"])
def test_fully_connected_networks_go_to_the_product_kernel(name, log, monkeypatch):
    """The fast way and the general one give the same numbers, for one side and for two."""
    model, x = gate_models.make(name), gate_models.inputs(name)
    value = lambda found: found[1] * found[0].exp() if log else found
    fast = [value(iw.gates.neural_path_kernel(model, x, *y, log=log)) for y in ((), (x[:4],))]
    module = sys.modules["intertwine.gates.kernels.path_kernel"]
    monkeypatch.setattr(module, "propagate", None)
    equal(value(iw.gates.neural_path_kernel(model, x, log=log)), fast[0])  # the general way is not taken
    monkeypatch.undo()
    monkeypatch.setattr(module, "fully_connected", lambda program: None)
    for y, expected in zip(((), (x[:4],)), fast):
        equal(value(iw.gates.neural_path_kernel(model, x, *y, log=log)), expected)


def test_a_linear_layer_over_the_last_of_two_axes_is_not_fully_connected():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)).double()
    x = torch.randn(3, 2, 3, dtype=torch.float64)
    with pytest.raises(ValueError, match="mixes examples"):
        iw.gates.neural_path_kernel(model, x)
    assert iw.gates.paths(model, x).kernel().shape == (3, 3)  # by enumeration


def test_log_domain_with_biases_at_depth_64_and_width_512():
    on = torch.ones(3, 512, dtype=torch.bool)
    log, sign = iw.gates.product_kernel(torch.ones(3, 2), [on] * 64, log=True, biases=[True] * 65)
    expected = 64 * math.log(512) + math.log(3 + 1 / 511)  # 2 w^64 + w^64 + ... + w + 1, to first order
    equal(log, torch.full((3, 3), expected, dtype=torch.float64))
    assert (sign == 1).all()
    with pytest.raises(ValueError, match=r"biases must have one entry for each of 3 layers. Got 2"):
        iw.gates.product_kernel(torch.ones(3, 2), [on] * 2, biases=[True, False])


@pytest.mark.parametrize("width", [1, 2, 3, 5])
def test_narrow_layers_are_counted(width):
    """The product of bytes that large Grams use returns whatever lies in memory where layers are one unit wide."""
    generator = torch.Generator().manual_seed(width)
    gates = [torch.rand(40, width, generator=generator) > 0.5 for _ in range(3)]
    x = torch.randn(40, 4, dtype=torch.float64, generator=generator)
    expected = x @ x.T
    for g in gates:
        expected = expected * (g.double() @ g.double().T)
    torch.testing.assert_close(iw.gates.product_kernel(x, gates), expected)


def test_log_domain_keeps_signs_of_negative_gates():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    gates = [torch.where(torch.rand(6, 9, generator=generator) > 0.5, 1.0, -1.0) for _ in range(3)]
    log, sign = iw.gates.product_kernel(x, gates, log=True)
    equal(sign * log.exp(), iw.gates.product_kernel(x, gates))


def test_kernels_of_gates_that_do_not_match_are_refused():
    on = torch.ones(2, 3, dtype=torch.bool)
    for sides in (([],), ([on], [on[:, :2]]), ([on[0]],)):
        with pytest.raises(ValueError, match="gates must be layers"):
            iw.gates.kernels.base_kernels(*sides)
    with pytest.raises(ValueError, match="must fit in float64"):
        iw.gates.product_kernel(torch.ones(2, 2), [torch.ones(2, 512, dtype=torch.bool)] * 150)
    with pytest.raises(ValueError, match="must be finite"):
        iw.gates.product_kernel(torch.full((2, 2), torch.nan), [on])
