"""Circular padding hides nothing: networks with it have the symmetries of those with zeros."""

import pytest
import torch
from torch import nn

import intertwine as iw
from intertwine.programs import capture
from intertwine.programs.recording.decompositions import Plainly


def network(mode, dims=2):
    conv, pool = (nn.Conv1d, nn.AdaptiveAvgPool1d) if dims == 1 else (nn.Conv2d, nn.AdaptiveAvgPool2d)
    make = lambda a, b: conv(a, b, 3, padding=1, padding_mode=mode)
    return nn.Sequential(make(1, 4), nn.ReLU(), make(4, 5), nn.ReLU(), pool(1), nn.Flatten(), nn.Linear(5, 2)).eval()


@pytest.mark.parametrize("dims", [1, 2])
def test_circular_padding_is_one_choice_of_positions_for_each_axis(dims):
    model, x = network("circular", dims), torch.randn(1, 1, *[6] * dims)
    program = capture(model, (x,))
    assert [c.op for c in program.calls].count("aten::index_select") == 2 * dims
    assert not any(c.op.startswith("intertwine::") for c in program.calls)


def test_symmetries_are_those_of_zero_padding():
    x = torch.randn(2, 1, 6, 6)
    circular, zeros = (iw.symmetries(network(mode), (x,)) for mode in ("circular", "zeros"))
    assert [(s.name, s.size, s.group.scales) for s in circular.spaces] == [
        (s.name, s.size, s.group.scales) for s in zeros.spaces
    ]
    assert not circular.unknown_ops and len(circular.spaces) == 2


def test_a_run_by_choice_of_positions_equals_padding():
    for x, pad in ((torch.randn(2, 3, 5), (1, 2)), (torch.randn(2, 3, 5, 4), (2, 0, 1, 3))):
        expected = nn.functional.pad(x, pad, mode="circular")
        with Plainly():
            assert torch.equal(nn.functional.pad(x, pad, mode="circular"), expected)
            assert torch.equal(nn.functional.pad(input=x, pad=pad, mode="circular"), expected)
            assert torch.equal(nn.functional.pad(x, pad), torch.constant_pad_nd(x, pad))
