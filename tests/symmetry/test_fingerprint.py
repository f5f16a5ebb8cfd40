"""Fingerprints: shared by symmetric copies, different for different networks."""

import copy

import pytest
import torch
import transformers_zoo as hf_zoo
from handmade import MAKERS, make
from torch import nn

import intertwine as iw
from intertwine.cli.commands.symmetries import Fingerprint
from intertwine.symmetry.action import act, tensors_of
from intertwine.symmetry.coupling import coupled
from intertwine.symmetry.gauge.fingerprint import fingerprint, invariants
from intertwine.symmetry.transformation import random


@pytest.fixture(params=MAKERS)
def case(request):
    return make(request.param)


def test_invariants_are_invariant(case):
    model, sym, _ = case
    numbers = invariants(sym, tensors_of(model))
    assert numbers.abs().max() > 0.05
    for seed in range(5):
        twin = act(sym, random(sym, seed), model)
        torch.testing.assert_close(invariants(sym, tensors_of(twin)), numbers, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_copies_share_a_fingerprint(case, dtype):
    model, sym, x = case
    model = model.to(dtype)
    mark = fingerprint(model, x, sym)
    assert len(mark) == 29 and mark.startswith("iw2-")
    assert {fingerprint(act(sym, random(sym, seed), model), x, sym) for seed in range(5)} == {mark}


def test_networks_that_differ_have_other_fingerprints(case):
    model, sym, x = case
    mark = fingerprint(model, x, sym)
    for name in dict(model.named_parameters()):
        other = copy.deepcopy(model)
        with torch.no_grad():
            other.get_parameter(name).view(-1)[0] += 0.7
        assert fingerprint(other, x, sym) != mark


def test_settings_that_no_tensor_shows_are_not_in_it():
    torch.manual_seed(0)
    a = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.SiLU(), nn.Linear(8, 3))
    b, x = copy.deepcopy(a), torch.randn(5, 4)
    b[1].eps = 0.5
    assert fingerprint(a, x) == fingerprint(b, x) and not iw.same(a, b, x)
    assert "different settings" in fingerprint.__doc__ and "settings such as" in Fingerprint.__doc__


@pytest.mark.parametrize("factor", [0.5, 1.2, 2.0])
def test_a_head_of_another_temperature_has_another(factor):
    torch.manual_seed(0)
    a = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    b, x = copy.deepcopy(a), torch.randn(5, 4)
    with torch.no_grad():
        for p in b[4].parameters():
            p.mul_(factor)
    assert fingerprint(a, x) != fingerprint(b, x)


def test_inputs_and_outputs_may_not_change_places():
    model, sym, x = make("mlp")
    mark = fingerprint(model, x, sym)
    swapped = copy.deepcopy(model)
    swapped[0].weight.data = model[0].weight.data[:, [1, 0, 2]]
    assert fingerprint(swapped, x, sym) != mark
    swapped = copy.deepcopy(model)
    for p in (swapped[4].weight, swapped[4].bias):
        p.data = p.data.flip(0)
    assert fingerprint(swapped, x, sym) != mark
    flipped = copy.deepcopy(model)
    flipped[0].bias.data.neg_()
    assert fingerprint(flipped, x, sym) != mark


def test_other_architectures_have_other_fingerprints():
    (a, sym_a, x), (b, sym_b, _) = make("mlp"), make("grouped")
    assert fingerprint(a, x, sym_a)[:12] != fingerprint(b, x, sym_b)[:12]


def test_coupled_tensors_are_read_together():
    _, sym, _ = make("attention")
    assert [sorted(group) for group in coupled(sym)] == [
        ["k.bias", "k.weight", "q.bias", "q.weight"],
        ["o.weight", "v.bias", "v.weight"],
        ["o.bias"],
    ]


def test_copies_that_were_folded_share_one_once_both_are_and_rotated_ones_never_do():
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    a, x = hf_zoo.MAKERS["GPT2LMHeadModel"]()
    with torch.no_grad():
        for name, p in a.named_parameters():
            if ".ln_" in name:
                p.add_(0.3 * torch.randn_like(p))
    folded, turned = iw.fold(a, x).model, iw.rotate(a, x).model
    assert fingerprint(a, x) != fingerprint(folded, x)
    one, two, other = (fingerprint(iw.fold(m, x).model, x) for m in (a, folded, turned))
    assert one == two != other
    assert iw.same(a, turned, x).verdict == "the same network up to symmetry"


def test_bad_input():
    model, sym, x = make("mlp")
    model[2].bias.data[0] = float("inf")
    with pytest.raises(ValueError, match="must be finite"):
        fingerprint(model, x, sym)
