"""Two networks by their gates: kernels aligned, units matched."""

import gate_models
import pytest
import torch
from made import Function, Made
from torch import nn

import intertwine as iw
from intertwine.gates import dgn, match_gates, npk_alignment
from intertwine.gates.kernels.alignment import kernel_alignment
from intertwine.similarity import cka
from intertwine.symmetry.action import transform

NAMES = ["mlp", "mlp, biases", "mlp, leaky", "zero-padded GAP", "average pooling", "max pooling",
         "overlapping pools, groups", "residual, ReLU inside", "residual, ReLU after"]  # fmt: skip


def planted(name, seed=1):
    model, x = gate_models.make(name), gate_models.inputs(name, 400)
    symmetry = iw.symmetries(model, x[:2])
    return model, x, symmetry, symmetry.act(symmetry.random(seed=seed), model)


@pytest.mark.parametrize("name", NAMES)
def test_planted_copies_are_recovered_exactly(name):
    model, x, symmetry, twin = planted(name)
    match = match_gates(model, twin, x, sym=symmetry)
    assert match.agreement == 1 and not match.unmatched and all(s.ambiguous == 0 for s in match.spaces)
    moved = symmetry.act(match.transformation, model)
    iw.testing.assert_same_function(moved, model, x[:5])
    norms = {t for n in symmetry.batch_norms for t in (n.mean, n.variance, n.weight, n.bias)}
    for key, value in moved.state_dict().items():
        if key not in norms:  # a scale may be taken by a norm's variance or by its gain
            torch.testing.assert_close(value, twin.state_dict()[key], rtol=1e-9, atol=1e-9)
    for a, b in zip(*(iw.gates.gate_patterns(m, x).values() for m in (moved, twin))):
        assert torch.equal(a, b)


def test_other_networks_agree_less_and_better_than_before():
    a, x = gate_models.make("mlp, biases"), gate_models.inputs("mlp, biases", 400)
    match = match_gates(a, gate_models.make("mlp, biases", seed=5), x)
    assert match.agreement < 0.99
    assert all(s.agreement >= s.before for s in match.spaces)


def test_one_assignment_for_all_relus_of_a_residual_stream():
    model, x, symmetry, twin = planted("residual, ReLU after")
    match = match_gates(model, twin, x, sym=symmetry)
    assert match.spaces[0].layers == ("relu#0", "relu#1", "relu#2")


def test_units_that_are_never_on_are_said():
    model, x = gate_models.make("mlp, biases"), gate_models.inputs("mlp, biases", 50)
    with torch.no_grad():
        model[0].bias[:2] = -100.0
    assert match_gates(model, model, x).spaces[0].ambiguous == 2


def test_a_match_prints_and_comes_back(tmp_path):
    model, x, symmetry, twin = planted("mlp")
    match = match_gates(model, twin, x, sym=symmetry)
    again = iw.gates.GateMatch.load(match.save(tmp_path / "match.json"))
    assert again.spaces == match.spaces and "of gates agree" in str(match) and len(match.to_frame()) == 2


def test_what_cannot_be_matched_is_refused():
    a, x = gate_models.make("mlp"), gate_models.inputs("mlp")
    with pytest.raises(ValueError, match=r"must be ReLU networks.*Got soft gates, which change"):
        match_gates(dgn(a), dgn(a), x)
    with pytest.raises(ValueError, match=r"one program in other code. Got not comparable: the programs part"):
        match_gates(a, gate_models.make("mlp, biases"), x)
    single = nn.Sequential(nn.Linear(4, 1), nn.ReLU(), nn.Linear(1, 2)).double()
    with pytest.raises(ValueError, match="hidden units that ReLUs switch and a symmetry may permute"):
        match_gates(single, single, x)


def bottleneck():
    """ReLU units on both sides of a linear space, which no gate switches."""
    return Made(
        lambda m, x: m.b(torch.relu(m.up(m.down(torch.relu(m.a(x)))))), a=nn.Linear(4, 6), down=nn.Linear(6, 3),
        up=nn.Linear(3, 5), b=nn.Linear(5, 2),
    )  # fmt: skip


GROUPED = [nn.Conv2d(2, 6, 1), nn.ReLU(), nn.Conv2d(6, 6, 3, groups=3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 2)]


def copied_by_gates(model, x):
    """The match of a network with a random element of its symmetry, after a check that it was found."""
    sym = iw.symmetries(model, x[:2])
    twin = sym.act(sym.random(1), model)
    match = match_gates(model, twin, x, sym=sym)
    assert match.agreement == 1
    for found, expected in zip(sym.act(match.transformation, model).parameters(), twin.parameters()):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    return sym, match


def test_spaces_without_gates_are_matched_by_weights():
    _, match = copied_by_gates(bottleneck().double(), torch.randn(300, 4, dtype=torch.float64))
    assert match.unmatched == ("down.weight[0]",)


def test_grouped_convolutions_are_matched_within_their_groups():
    sym, match = copied_by_gates(nn.Sequential(*GROUPED).double(), torch.randn(60, 2, 4, 4, dtype=torch.float64))
    assert any(s.parents for s in sym.spaces) and not match.unmatched


def test_gates_of_absolute_values_are_not_looked_at():
    model = nn.Sequential(nn.Linear(4, 5), Function(torch.abs), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
    _, match = copied_by_gates(model.double(), torch.randn(300, 4, dtype=torch.float64))
    assert [s.layers for s in match.spaces] == [("3",)]


@pytest.mark.parametrize("name", [*NAMES, "residual conv, batch norm", "shortcut and concatenation"])
def test_gates_move_as_the_symmetry_says(name):
    model, x, symmetry, twin = planted(name)
    before, after = (iw.gates.gate_patterns(m, x) for m in (model, twin))
    g = symmetry.random(seed=1).restrict(kinds={"permutation"})
    assert symmetry.gates and symmetry.gates.keys() <= before.keys()
    for layer, layout in symmetry.gates.items():
        one, other = ((t[layer] if t[layer].dtype == torch.bool else t[layer] == 1).double() for t in (before, after))
        pairs = zip(one.split(2), other.split(2))  # layouts are those of two examples
        assert all(torch.equal(transform(p, layout, g), q) for p, q in pairs)


@pytest.mark.parametrize("input", ["x", "ones"])
@pytest.mark.parametrize("name", ["mlp, biases", "zero-padded GAP", "residual, ReLU after"])
def test_npk_alignment_sees_no_symmetry_but_another_network(name, input):
    model, x, _, twin = planted(name)
    x = x[:30]
    other = gate_models.make(name, seed=5)
    assert npk_alignment(model, twin, x, input=input) == pytest.approx(1, abs=1e-9)
    assert npk_alignment(model, other, x, input=input) < 0.95
    assert npk_alignment(twin, other, x, input=input) == pytest.approx(npk_alignment(model, other, x, input=input))


def test_npk_alignment_is_the_cka_of_the_kernels():
    a, b = gate_models.make("mlp"), gate_models.make("mlp", seed=5)
    x = gate_models.inputs("mlp", 25)
    k, l = (iw.gates.neural_path_kernel(m, x) for m in (a, b))
    roots = []
    for kernel in (k, l):  # a linear CKA of features whose Gram matrix is the kernel
        values, vectors = torch.linalg.eigh(kernel)
        roots.append(vectors * values.clamp(min=0).sqrt())
    assert npk_alignment(a, b, x) == pytest.approx(cka(*roots), rel=1e-9)
    assert kernel_alignment(k, l) == pytest.approx(cka(*roots), rel=1e-9)


def test_npk_alignment_does_not_overflow():
    torch.manual_seed(0)
    make = lambda: nn.Sequential(*[m for _ in range(64) for m in (nn.Linear(200, 200), nn.ReLU())], nn.Linear(200, 2))
    a, x = make(), torch.rand(6, 200)
    assert npk_alignment(a, a, x) == pytest.approx(1)


def test_what_cannot_be_aligned_is_refused():
    a, x = gate_models.make("mlp"), gate_models.inputs("mlp")
    with pytest.raises(ValueError, match="gates of b must be hard"):
        npk_alignment(a, dgn(a), x)
    assert npk_alignment(a, dgn(a, regime="fixed_learnt"), x) == pytest.approx(1)
    with pytest.raises(ValueError, match=r"x must be \(N, C, \*S\) with N at least 4. Got N = 3"):
        npk_alignment(a, a, x[:3])
    with pytest.raises(ValueError, match=r"l must be \(N, N\) with N at least 4. Got shape \(3, 3\)"):
        kernel_alignment(torch.eye(4), torch.eye(3))
    with pytest.raises(ValueError, match="tell examples apart"):
        kernel_alignment(torch.ones(5, 5), torch.ones(5, 5))
    with pytest.raises(ValueError, match=r"the same examples. Got 5 and 6"):
        kernel_alignment(torch.eye(5), torch.eye(6))


def test_weights_tell_units_that_no_gate_tells_apart():
    """Dead units of one space must not spoil the scales of another, nor their own."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    with torch.no_grad():
        model[2].bias[:2] = -50
    _, match = copied_by_gates(model, torch.randn(300, 4, dtype=torch.float64))
    assert match.spaces[0].ambiguous == 0 < match.spaces[1].ambiguous


@pytest.mark.parametrize("scale", [1e200, 1e-200])
def test_alignment_sees_no_scale(scale):
    kernel = torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    kernel = kernel @ kernel.T
    assert iw.gates.kernels.kernel_alignment(scale * kernel, kernel) == pytest.approx(1)


def test_kernels_of_whole_numbers_are_aligned_too():
    kernel = torch.tensor([[3, 1, 0, 0], [1, 2, 0, 1], [0, 0, 4, 2], [0, 1, 2, 5]])
    assert iw.gates.kernels.kernel_alignment(kernel, kernel.double()) == pytest.approx(1)
