"""Layers that were dropped or repeated, units that were cut out, heads that were tied."""

import copy

import pytest
import torch
from edits import decoder, kinds, said, tokens
from torch import nn

import intertwine as iw


def stacked(model, order):
    other = copy.deepcopy(model)
    other.blocks = nn.ModuleList(copy.deepcopy(model.blocks[k]) for k in order)
    return other


@pytest.mark.parametrize(
    ("order", "kind", "words"),
    [
        ([0, 1, 3], "layers dropped", "layer 2 of 4 dropped; 3 are left"),
        ([0, 1, 1, 2, 3], "layers repeated", "layer 1 now stands at 1, 2"),
        ([0, 2, 1, 3], "layers reordered", "0, 2, 1, 3"),
    ],
)
def test_layers(order, kind, words):
    a = decoder(layers=4)
    found = iw.diff(a, stacked(a, order), tokens())
    assert not found.same_function and words in said(found, kind) and kinds(found) <= {kind, "missing"}
    assert all(t.settled for t in found.tensors if t.kind != "missing")


def test_layers_of_a_state_dict_and_inserted_ones():
    a = decoder(layers=4)
    short = stacked(a, [0, 3])
    found = iw.diff(a, short.state_dict(), tokens())
    assert "layers 1, 2 of 4 dropped" in said(found, "layers dropped")
    found = iw.diff(stacked(a, [0, 1, 3]), a, tokens())
    assert "layer 2 inserted" in said(found, "layers inserted") and kinds(found) == {"layers inserted", "new"}


def test_layers_of_equal_shape_that_were_trained_apart_are_not_moved():
    torch.manual_seed(0)
    a, b = (nn.Sequential(*[m for _ in range(3) for m in (nn.Linear(64, 64), nn.ReLU())]) for _ in range(2))
    found = iw.diff(a, b, torch.randn(2, 64))
    assert not found.same_function and not any("layers" in kind for kind in kinds(found))


def test_units_that_were_cut_out_and_put_in():
    wide, narrow = decoder(), decoder(hidden=28)
    kept = torch.tensor([k for k in range(32) if k not in (1, 5, 8, 30)])
    with torch.no_grad():
        for name, x in wide.state_dict().items():
            x = x[kept] if ".up." in name else x[:, kept] if "down.weight" in name else x
            narrow.state_dict()[name].copy_(x)
    found = iw.diff(wide, narrow, tokens())
    assert not found.same_function and {"narrowed", "units removed"} <= kinds(found) and "permuted" not in kinds(found)
    assert "4 of 32 units of blocks.0.up removed: their weights are zero (1, 5, 8, 30)" in said(found, "units removed")
    assert "widened" in kinds(iw.diff(narrow, wide, tokens()))


def test_heads_that_were_tied_or_untied():
    tied, untied = decoder(tied=True), decoder(tied=True)
    untied.head.weight = nn.Parameter(untied.embed.weight.detach().clone())
    found = iw.diff(tied, untied, tokens())
    assert found.same_function and kinds(found) == {"untied"}
    assert iw.diff(untied, tied, tokens()).same_function
    assert kinds(iw.diff(untied, tied, tokens())) == {"tied"}
    from_file = {n: x for n, x in tied.state_dict().items() if n != "head.weight"}
    found = iw.diff(from_file, untied, tokens())
    assert found.same_function and "untied" in kinds(found)
    with torch.no_grad():
        untied.head.weight.add_(0.1)
    found = iw.diff(untied, tied, tokens())
    assert not found.same_function and [t.name for t in found.tensors if t.kind == "missing"] == ["head.weight"]
