"""Every known activation: equivariance under its group, failure outside it, agreement with measurement."""

import functools
import math
import re
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from intertwine.groups import (
    GatedIntertwiner,
    GeneralLinear,
    Monomial,
    Orthogonal,
    Permutation,
    PositiveMonomial,
    SignedPermutation,
    UnitRowSum,
    activation_names,
    classify,
    intertwiner,
    table,
)
from intertwine.groups.activations import RULE_NAMES, known_activation, named_activation
from intertwine.groups.intertwiner_laws import equivariance_gap, phi_by_definition
from intertwine.groups.measured_activations import measure


def label(value):
    """A test's name without memory addresses, which differ between workers."""
    return re.sub(r" at 0x[0-9a-f]+| of type object", "", str(value))


PARAMETERS = """leaky_relu:0.999999 leaky_relu:1 leaky_relu:-1 leaky_relu:0 prelu:1 power:3 power:-1 x^4 power:1
hardtanh:-2,1 hardtanh:-10000,10000 elu:0 elu:0.5 celu:2 hardshrink:0 softshrink:0 threshold:0.1,0 threshold:0,1
softplus:5"""
NAMES = [*RULE_NAMES, *PARAMETERS.split()]
every_name = pytest.mark.parametrize("name", NAMES)


@every_name
def test_activation_lets_its_group_through(name):
    found, n = intertwiner(name, 4), 4
    for seed in range(3):
        a = found.group.random(seed)
        assert equivariance_gap(named_activation(name).function, a.matrix(), found.phi(a).matrix()) < 1e-10
    assert found.group == found.group_for(n) and found.how == "known" and found.residual == 0


@every_name
def test_activation_stops_the_next_larger_groups(name):
    sigma = named_activation(name).function
    for larger in intertwiner(name, 3).group.above:
        outside = [
            a for a in (larger.random(s).matrix() for s in range(8)) if not intertwiner(name, 3).group.contains(a)
        ]
        assert outside
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(400, 3, dtype=torch.float64, generator=generator) * (3 if "10000" not in name else 3e4)
        for a in outside:  # no B at all: the best one by least squares leaves a residual
            before, after = sigma(x), sigma(x @ a.T)
            b = torch.linalg.lstsq(before, after, driver="gelsd").solution.T
            assert (after - before @ b.T).abs().max() > 1e-9 * after.abs().max(), (name, larger)


@every_name
def test_known_and_measured_agree(name):
    if name.startswith("hardtanh:-10000"):
        assert measure(named_activation(name).function).homogeneity.parity == "odd"
        return
    known = named_activation(name)
    measured = measure(known.function)
    assert measured.homogeneity == known.homogeneity
    assert measured.residual < 1e-9 < measured.margin


MEASURED_ONLY = {
    "3x": (lambda x: 3 * x, GeneralLinear),
    "x + 1": (lambda x: x + 1, UnitRowSum),
    "3x - 2": (lambda x: 3 * x - 2, UnitRowSum),
    "|x|^1.5": (lambda x: x.abs() ** 1.5, Monomial),
    "x|x|": (lambda x: x * x.abs(), Monomial),
    "x^2 + x^4": (lambda x: x**2 + x**4, SignedPermutation),
    "relu(x) - relu(-x)": (lambda x: F.relu(x) - F.relu(-x), GeneralLinear),
    "relu + 1e-4 tanh": (lambda x: F.relu(x) + 1e-4 * torch.tanh(x), Permutation),
    "relu + 1e-8 tanh": (lambda x: F.relu(x) + 1e-8 * torch.tanh(x), Permutation),
    "relu + 1e-12 tanh": (lambda x: F.relu(x) + 1e-12 * torch.tanh(x), Permutation),
    "relu (1 + 1e-8 sin)": (lambda x: F.relu(x) * (1 + 1e-8 * torch.sin(x)), Permutation),
    "relu (1 + 1e-10 sin), below the limit": (lambda x: F.relu(x) * (1 + 1e-10 * torch.sin(x)), PositiveMonomial),
    "x sin(2 pi log|x|), discrete scales unseen": (
        lambda x: x * torch.sin(2 * math.pi * x.abs().log()),
        SignedPermutation,
    ),
    "x^100": (lambda x: x**100, Monomial),
    "floor": (torch.floor, Permutation),
    "math.tanh": (math.tanh, SignedPermutation),
    "math.exp": (math.exp, Permutation),
    "nn.Sequential of ReLU": (nn.Sequential(nn.ReLU()), PositiveMonomial),
}


@pytest.mark.parametrize("key", MEASURED_ONLY)
def test_any_scalar_function_is_measured(key):
    fn, kind = MEASURED_ONLY[key]
    found = intertwiner(fn, 3)
    assert found.group == kind(3) and found.how == "measured" and found.residual < 1e-9 < found.margin


def test_an_irrational_degree_stays_a_number():
    degree = classify(lambda x: x.abs() ** math.pi).degree
    assert isinstance(degree, float) and degree == pytest.approx(math.pi)
    assert classify(lambda x: x.abs() ** 1.5).degree == Fraction(3, 2)


def test_affine_activations_pass_full_matrices_that_theorem_e14_forbids():
    sigma = lambda x: x + 1
    found = intertwiner(sigma, 3)
    a = found.group.random(0)
    assert found.group == UnitRowSum(3) and (a.matrix().abs() > 1e-3).sum() > 3
    assert equivariance_gap(sigma, a.matrix(), found.phi(a).matrix()) < 1e-13
    assert equivariance_gap(sigma, 2 * a.matrix(), 2 * a.matrix()) > 1e-3
    # sigma(I) commutes with sigma(A) for every monomial A: here alone it matters that its inverse stands on the right
    assert torch.allclose(phi_by_definition(sigma, a.matrix()), found.phi(a).matrix())


@every_name
def test_phi_is_the_papers_formula(name):
    found = intertwiner(name, 4)
    zero, one = named_activation(name).function(torch.tensor([0.0, 1.0], dtype=torch.float64)).tolist()
    at = 1.0 if zero != one else 3.0  # sigma(I) is singular where sigma(1) = sigma(0)
    if found.homogeneity.degree is not None and found.homogeneity.degree < 0:
        return  # sigma(0) is infinite
    a = found.group.random(0)
    assert torch.allclose(phi_by_definition(named_activation(name).function, a.matrix(), at), found.phi(a).matrix())


@every_name
def test_phi_is_a_homomorphism(name):
    found = intertwiner(name, 4)
    a, b = found.group.random(0), found.group.random(1)
    assert found.phi(a @ b).allclose(found.phi(a) @ found.phi(b))
    assert found.phi(~a).allclose(~found.phi(a))


def test_phi_refuses_what_does_not_pass():
    with pytest.raises(ValueError, match=r"element must belong to Permutation\(3\), the group of gelu"):
        intertwiner("gelu").phi(PositiveMonomial(3).random(0))
    assert intertwiner("relu").phi(Permutation(3).random(0)) == Permutation(3).random(0)
    as_signs = GeneralLinear(2).element(torch.tensor([[0.0, -1.0], [1.0, 0.0]]))
    assert intertwiner("rbf").phi(as_signs).matrix().tolist() == [[0.0, 1.0], [1.0, 0.0]]


MODULES = {
    GeneralLinear: (nn.Identity(), nn.LeakyReLU(1.0), nn.RReLU(1, 1), nn.PReLU(init=1.0)),
    Monomial: (nn.LeakyReLU(-1.0), nn.PReLU(init=-1.0)),
    PositiveMonomial: (
        nn.ReLU(inplace=True), nn.LeakyReLU(0.1), nn.RReLU(), nn.PReLU(), nn.Threshold(0.0, 0.0),
    ),
    SignedPermutation: (
        nn.Tanh(), nn.Hardtanh(), nn.Softsign(), nn.Tanhshrink(), nn.Hardshrink(), nn.Softshrink(),
    ),
    Permutation: (
        nn.Sigmoid(), nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Softplus(), nn.ELU(), nn.SELU(), nn.CELU(), nn.Mish(),
        nn.ReLU6(), nn.Hardsigmoid(), nn.Hardswish(), nn.LogSigmoid(), nn.Threshold(0.1, 20.0),
    ),
}  # fmt: skip
FUNCTIONS = {
    GeneralLinear: (functools.partial(F.leaky_relu, negative_slope=1.0),),
    Monomial: (torch.abs, torch.square),
    PositiveMonomial: (F.relu, torch.relu, functools.partial(F.leaky_relu, negative_slope=0.2, inplace=True)),
    SignedPermutation: (torch.tanh, torch.sin, torch.cos),
    Permutation: (F.silu, functools.partial(F.gelu, approximate="tanh")),
}
READ = [(kind, given) for table in (MODULES, FUNCTIONS) for kind, some in table.items() for given in some]


@pytest.mark.parametrize(("kind", "given"), READ, ids=label)
def test_modules_and_functions_are_read_exactly_and_agree_with_measurement(kind, given):
    found = intertwiner(given, 3)
    assert found.group == kind(found.n) and found.how == "known"
    assert measure(given).homogeneity == found.homogeneity
    assert not isinstance(given, nn.Module) or given.training  # the caller's module is left as it is


def test_a_subclass_with_its_own_forward_is_measured():
    class Renamed(nn.ReLU):
        pass

    class Squared(nn.ReLU):
        def forward(self, x):
            return super().forward(x) ** 2

    assert intertwiner(Renamed(), 2).how == "known"
    assert intertwiner(Squared(), 2).how == "measured" and intertwiner(Squared(), 2).homogeneity.degree == 2


def test_prelu_with_a_slope_per_channel_moves_its_slopes():
    module = nn.PReLU(4).double()
    module.weight.data = torch.tensor([0.1, 0.5, -0.3, 1.0], dtype=torch.float64)
    found = intertwiner(module, 4)
    assert found.group == PositiveMonomial(4) and "slopes move" in found.note
    a, x = found.group.random(0), torch.randn(20, 4, dtype=torch.float64)
    moved = F.prelu(a.apply(x), module.weight[a.index])
    assert torch.allclose(moved, found.phi(a).apply(module(x)))
    assert not torch.allclose(module(a.apply(x)), found.phi(a).apply(module(x)))


GATES = {"swiglu": F.silu, "geglu": F.gelu, "reglu": F.relu, "glu": torch.sigmoid, "bilinear": lambda u: u}


@pytest.mark.parametrize("name", GATES)
def test_gated_units_permute_both_branches_and_scale_the_value(name):
    unit, sigma = intertwiner(name, 4), GATES[name]
    assert isinstance(unit, GatedIntertwiner) and unit.group == Monomial(4)
    value = unit.group.random(0)
    scales = unit.gate_group_for(4).random(1).scale
    gate = unit.gate_group_for(4).element(value.index, scales)
    v, u = (torch.randn(30, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(s)) for s in (2, 3))
    out = value.apply(v) * sigma(gate.apply(u))
    assert torch.allclose(out, unit.phi(value, gate).apply(v * sigma(u)))
    plain = Permutation(4).element(value.index)
    assert torch.allclose(value.apply(v) * sigma(plain.apply(u)), unit.phi(value).apply(v * sigma(u)))
    if name != "bilinear":  # a sign or scale on the gate does not pass
        wrong = Monomial(4).element(value.index, [-2.0, 1.0, 1.0, 1.0])
        with pytest.raises(ValueError, match=r"gate must belong to"):
            unit.phi(value, wrong)
    with pytest.raises(ValueError, match=r"same permutation"):
        unit.phi(value, Permutation(4).element(value.index.roll(1)))


def test_linear_activations_say_that_a_network_may_let_less_through():
    for linear in (nn.LeakyReLU(1.0), "identity", nn.PReLU(init=1.0)):
        assert "symmetries(model)" in intertwiner(linear, 3).note
    assert intertwiner(nn.LeakyReLU(0.999999), 3).note == ""


ROWS = {  # Table 1 of version 2: group, phi in words, phi entry by entry
    "identity": ("all invertible matrices", "A", lambda a: a),
    "sigmoid": ("permutation matrices", "A", lambda a: a),
    "relu": ("matrices P D, D with positive entries", "A", lambda a: a),
    "leaky_relu:0.01": ("matrices P D, D with positive entries", "A", lambda a: a),
    "rbf": ("matrices P D, D with entries -1 and 1", "abs(A)", torch.abs),
    "power:2": ("matrices P D, D with nonzero entries", "abs(A)^2 (every entry)", lambda a: a**2),
    "power:3": ("matrices P D, D with nonzero entries", "A^3 (every entry)", lambda a: a**3),
    "gelu": ("permutation matrices", "A", lambda a: a),
}


@pytest.mark.parametrize("name", ROWS)
def test_the_papers_table_row_by_row(name):
    """Group and phi, of elements that are not all alike under the rows' formulas."""
    group, words, formula = ROWS[name]
    (row,) = table((name,))
    assert (row.group, row.phi) == (group, words) and row in table()
    found = intertwiner(name, 4)
    for seed in range(4):
        a = found.group.random(seed)
        torch.testing.assert_close(found.phi(a).matrix(), formula(a.matrix()))


def test_the_table_has_a_row_for_every_activation():
    assert len({row.activation for row in table()}) >= 40


@pytest.mark.parametrize(
    ("activation", "message"),
    [
        ("relux", "activation must be one of identity, relu"),
        ("leakyrelu", "Did you mean 'leaky_relu'"),
        ("leaky_relu:a", "parameters of leaky_relu must be numbers. Got 'a'"),
        ("leaky_relu:0.1,0.2", r"parameters of leaky_relu must be at most 1 \(slope\). Got '0.1,0.2'"),
        ("leaky_relu:alpha=1", "parameters of leaky_relu must be among: slope"),
        ("leaky_relu:nan", "Got NaN"),
        ("relu:3", "parameters of relu must be none. Got '3' in 'relu:3'"),
        ("power:0.5", "whole number"),
        ("power:0", "must not be constant"),
        (lambda x: x * 0 + 2, "must not be constant"),
        (torch.sqrt, "finite on most of the real line"),
        (lambda x: torch.softmax(x, 0), "act on every entry alone"),
        (nn.Softmax(dim=0), "act on every entry alone"),
        (lambda x: x.float(), "compute in float64"),
        (F.dropout, "deterministic"),
        (lambda x: x[:1], "return the shape it gets"),
    ],
    ids=label,
)
def test_what_is_no_activation_is_refused(activation, message):
    with pytest.raises(ValueError, match=message):
        intertwiner(activation, 3)


def test_wrong_kinds_and_missing_sizes_are_refused():
    with pytest.raises(TypeError, match=r"activation must be a name, a module or a function. Got int"):
        intertwiner(3)
    with pytest.raises(ValueError, match=r"n must be given for a group"):
        _ = intertwiner("relu").group
    with pytest.raises(ValueError, match=r"n must be given for a group"):
        _ = intertwiner("swiglu").group
    with pytest.raises(ValueError, match=r"n must be a positive integer. Got 0"):
        intertwiner("relu", 0)
    assert "relu" in activation_names() and known_activation(object()) is None
    assert Orthogonal(2) != intertwiner("identity", 2).group
