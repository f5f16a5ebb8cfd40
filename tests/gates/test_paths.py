import gate_models
import pytest
import torch
from torch import nn

import intertwine as iw


@pytest.mark.parametrize("name", gate_models.MODELS)
def test_output_is_the_inner_product_of_features_and_values(name):
    model, x = gate_models.make(name), gate_models.inputs(name)
    for output in (0, -1 % model(x).shape[1]):
        found = iw.gates.paths(model, x, output)
        torch.testing.assert_close(found.outputs, model(x)[:, output], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(found.contributions.sum(1), model(x)[:, output], rtol=1e-10, atol=1e-10)
        # a bundle's paths share one value, so its features and values are well defined
        assert torch.equal(found.values[found.bundle], found.value)


@pytest.mark.parametrize("name", ["mlp", "residual, ReLU after"])
def test_kernel_is_the_input_weighted_overlap(name):
    model, x = gate_models.make(name), gate_models.inputs(name)
    found = iw.gates.paths(model, x)
    weighted = (x[:, None] * x[None] * found.overlap()[..., :-1]).sum(-1)
    torch.testing.assert_close(found.kernel(), weighted, rtol=1e-10, atol=1e-10)


def test_fully_connected_overlap_is_equal_for_all_sources_and_a_product_of_grams():
    model, x = gate_models.make("mlp"), gate_models.inputs("mlp")
    overlap = iw.gates.paths(model, x).overlap()
    grams = [g.double() @ g.double().T for g in iw.gates.gate_patterns(model, x).values()]
    for source in range(4):
        torch.testing.assert_close(overlap[..., source], grams[0] * grams[1])
    assert overlap[..., -1].sum() == 0  # no biases, so nothing starts at the constant-1 node


def test_counts_of_paths_and_bundles():
    width, depth = 3, 3
    assert iw.gates.paths(gate_models.make("mlp"), gate_models.inputs("mlp")).count == 4 * width ** (depth - 1)
    conv = iw.gates.paths(gate_models.make("conv 1d GAP"), gate_models.inputs("conv 1d GAP"))
    d_in, window = 5, 3  # proposition A.1 with widths 2, 2, 3 in place of one w; one input channel
    assert conv.count == d_in * (window * 2) * (window * 2) * 3
    assert conv.bundles * d_in == conv.count  # proposition A.2
    blocks, d_block = 2, 2
    model = gate_models.Residual(width, blocks).double()
    layers_per_path = [1 + d_block * i + 1 for i in (0, 1, 1, 2)]  # proposition B.1 with single first and last layers
    expected = sum(4 * width ** (layers - 1) for layers in layers_per_path)
    assert iw.gates.paths(model, gate_models.inputs("residual, ReLU inside")).count == expected


def test_a_bias_is_a_path_from_the_constant_node():
    model = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1)).double()
    with torch.no_grad():
        for p, v in zip(model.parameters(), (2.0, 5.0, 3.0, 7.0)):
            p.fill_(v)
    found = iw.gates.paths(model, torch.ones(1, 1, dtype=torch.float64))
    assert sorted(found.value.tolist()) == [6.0, 7.0, 15.0]
    assert sorted(found.source.tolist()) == [-1, -1, 0]
    assert found.top(1) == [("1 -> 0.bias[0] -> 2.weight[0]", 15.0)]


def test_max_pooling_gates_choose_one_position():
    model, x = gate_models.make("max pooling"), gate_models.inputs("max pooling")
    patterns = iw.gates.gate_patterns(model, x)
    assert patterns["2"].dtype == torch.bool and patterns["3"].dtype == torch.long
    found = iw.gates.paths(model, x)
    assert 0 < found.activity.mean() < 0.25  # of each window of four, one at most


def test_constant_input():
    model, x = gate_models.make("mlp"), gate_models.inputs("mlp")
    ones = iw.gates.paths(model, x, input="ones")
    torch.testing.assert_close(ones.kernel(), ones.overlap().sum(-1), rtol=1e-12, atol=1e-12)


def test_bad_arguments():
    model, x = gate_models.make("mlp"), gate_models.inputs("mlp")
    with pytest.raises(ValueError, match=r'input must be "x" or "ones". Got \'zeros\''):
        iw.gates.paths(model, x, input="zeros")
    with pytest.raises(ValueError, match="output must be one of"):
        iw.gates.paths(model, x, output=2)
    with pytest.raises(ValueError, match="at most max_paths = 10"):
        iw.gates.paths(model, x, max_paths=10)
    with pytest.raises(ValueError, match="x must be finite"):
        iw.gates.paths(model, x * float("nan"))
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module"):
        iw.gates.paths(len, x)
    with pytest.raises(TypeError, match="floating-point"):
        iw.gates.paths(model, x.long())


def test_the_model_is_left_as_it_was():
    model, x = gate_models.make("residual conv, batch norm"), gate_models.inputs("residual conv, batch norm")
    before = {k: v.clone() for k, v in model.state_dict().items()}
    iw.gates.paths(model, x)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
