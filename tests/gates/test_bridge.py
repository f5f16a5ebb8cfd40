"""Gates under the symmetries of the first paper."""

import gate_models
import pytest
import torch
from torch import nn

import intertwine as iw

NAMES = [
    "mlp", "mlp, biases", "zero-padded GAP", "strided, no pooling", "average pooling", "max pooling",
    "residual, ReLU inside", "residual, ReLU after", "residual conv, batch norm",
]  # fmt: skip


def twins(name, seeds=(1, 2, 3)):
    model, x = gate_models.make(name), gate_models.inputs(name)
    symmetry = iw.symmetries(model, x)
    assert symmetry.spaces  # there is something to move
    return model, x, [symmetry.act(symmetry.random(seed=s), model) for s in seeds]


@pytest.mark.parametrize("name", NAMES)
def test_overlap_and_kernel_are_the_same_for_every_equal_network(name):
    model, x, others = twins(name)
    overlap, kernel = iw.gates.overlap(model, x), iw.gates.neural_path_kernel(model, x)
    for twin in others:
        assert any((p - q).abs().max() > 1e-3 for p, q in zip(model.parameters(), twin.parameters()))
        torch.testing.assert_close(iw.gates.overlap(twin, x), overlap, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(iw.gates.neural_path_kernel(twin, x), kernel, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["mlp, biases", "residual, ReLU after", "residual conv, batch norm"])
def test_contributions_of_paths_are_the_same_up_to_order(name):
    model, x, others = twins(name)
    contributions = iw.gates.paths(model, x).contributions.sort(1).values
    for twin in others:
        again = iw.gates.paths(twin, x).contributions.sort(1).values
        torch.testing.assert_close(again, contributions, rtol=1e-8, atol=1e-8)


def test_what_is_no_symmetry_changes_the_kernel():
    model, x = gate_models.make("mlp"), gate_models.inputs("mlp")
    kernel = iw.gates.neural_path_kernel(model, x)
    with torch.no_grad():
        model[0].weight.copy_(torch.linalg.qr(torch.randn(3, 3).double())[0] @ model[0].weight)
    assert (iw.gates.neural_path_kernel(model, x) - kernel).norm() > 0.01 * kernel.norm()


def test_soft_gates_are_refused_and_would_have_changed():
    model, x, (twin,) = twins("mlp", seeds=(1,))
    soft = iw.gates.dgn(model)
    with pytest.raises(ValueError, match="gates of model must be hard"):
        iw.gates.overlap(soft, x)
    kernels = []
    for network in (model, twin):
        soft.gating.network.load_state_dict(network.state_dict())
        kernels.append(iw.gates.neural_path_kernel(soft, x))
    assert (kernels[0] - kernels[1]).norm() > 1e-3 * kernels[0].norm()
    hard = iw.gates.dgn(model, regime="fixed_learnt", input="ones")
    torch.testing.assert_close(iw.gates.overlap(hard, x), iw.gates.overlap(model, x))


@pytest.mark.parametrize("name", ["mlp", "mlp, leaky"])
def test_overlap_counts_paths(name):
    model, x = gate_models.make(name), gate_models.inputs(name)
    torch.testing.assert_close(iw.gates.overlap(model, x), iw.gates.paths(model, x).overlap().sum(-1))
    torch.testing.assert_close(iw.gates.overlap(model, x, log=True).exp(), iw.gates.overlap(model, x))


def test_overlap_of_a_gated_network_counts_paths_whatever_its_input():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(2))
    x = torch.tensor([[1.0, 1.0], [1.0, -3.0]])
    expected = torch.tensor([[4.0, 2.0], [2.0, 2.0]], dtype=torch.float64)
    for given in ("x", "ones"):
        gated = iw.gates.dgn(model, regime="fixed_learnt", input=given)
        for scale in (1.0, 10.0):
            torch.testing.assert_close(iw.gates.overlap(gated, scale * x), expected)
        torch.testing.assert_close(iw.gates.paths(gated, x, input="ones").kernel(), expected)
