"""The testers must be able to fail."""

import copy
from dataclasses import dataclass

import pytest
import torch
from made import Function
from torch import Tensor, nn

from intertwine.testing import assert_same_function, function_error, outputs, tolerance


def model():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2)).double()


def test_equal_models_pass():
    net = model()
    assert function_error(net, copy.deepcopy(net), torch.randn(5, 3).double()) == 0.0
    assert_same_function(net, copy.deepcopy(net), torch.randn(5, 3).double())


@pytest.mark.parametrize("size", [1e-3, 1e-9])
def test_a_change_of_one_weight_fails(size):
    net = model()
    twin = copy.deepcopy(net)
    with torch.no_grad():
        twin[0].weight[0, 0] += size
    with pytest.raises(AssertionError, match=r"must agree to 1\.8e-11"):
        assert_same_function(net, twin, torch.randn(5, 3).double())
    assert_same_function(net, twin, torch.randn(5, 3).double(), rtol=1.0)


def test_modes_statistics_and_random_state_are_left_alone():
    net = model().train()
    net[2].eval()
    before, state = copy.deepcopy(net.state_dict()), torch.get_rng_state()
    function_error(net, net, torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).double())
    assert net.training and not net[2].training
    assert all(torch.equal(t, before[n]) for n, t in net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


def masked(fill: float):
    return Function(lambda x: x.masked_fill(x > 0, fill))


def test_entries_that_are_not_finite_must_agree():
    x = torch.tensor([[1.0, -1.0]])
    assert function_error(masked(float("-inf")), masked(float("-inf")), x) == 0.0
    assert function_error(masked(float("nan")), masked(float("nan")), x) == 0.0
    assert function_error(masked(float("inf")), masked(float("-inf")), x) == float("inf")
    assert function_error(masked(0.0), masked(float("nan")), x) == float("inf")
    with pytest.raises(AssertionError):
        assert_same_function(masked(0.0), masked(float("nan")), x)


@dataclass
class Out:
    logits: Tensor
    rest: tuple


def test_nested_outputs_and_kinds_of_inputs():
    x = torch.ones(2)
    nested = Function(lambda x, scale=1.0: {"a": x, "b": [Out(x * scale, (x, None))], "c": "text"})
    assert len(outputs(nested, x)) == 3
    assert outputs(nested, (x, 2.0))[1].sum() == 4
    assert outputs(nested, {"x": x, "scale": 3.0})[1].sum() == 6


def test_bad_input():
    with pytest.raises(ValueError, match="at least one tensor"):
        function_error(*[Function(lambda x: "nothing")] * 2, torch.ones(1))
    with pytest.raises(ValueError, match="same shapes"):
        function_error(nn.Linear(2, 3), nn.Linear(2, 4), torch.ones(1, 2))


def test_tolerance_follows_precision():
    assert tolerance(torch.float64) < 1e-10 < tolerance(torch.float32) < 1e-3 < tolerance(torch.bfloat16) < 0.3
