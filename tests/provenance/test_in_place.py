"""The exact test in place: laws over all permutations of the second network, and what it may not look at."""

import math
from itertools import pairwise, permutations

import pytest
import torch
from torch import nn

import intertwine as iw
from intertwine.provenance.features import ordered_spaces, views
from intertwine.provenance.in_place import in_place
from intertwine.symmetry.action import tensors_of


def mlp(seed, widths=(6, 4, 3, 2)):
    torch.manual_seed(seed)
    layers = [m for a, b in pairwise(widths) for m in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(*layers[:-1])


def permuted(state, first, second):
    moved = {name: t.clone() for name, t in state.items()}
    moved["0.weight"], moved["0.bias"] = state["0.weight"][first], state["0.bias"][first]
    moved["2.weight"], moved["2.bias"] = state["2.weight"][second][:, first], state["2.bias"][second]
    moved["4.weight"] = state["4.weight"][:, second]
    return moved


def test_over_all_orders_p_values_are_uniform_and_independent():
    a, b = (tensors_of(mlp(seed)) for seed in (0, 1))
    sym = iw.symmetries(mlp(0), torch.zeros(2, 6))
    pairs = []
    for first in permutations(range(4)):
        for second in permutations(range(3)):
            found = in_place(sym, a, permuted(b, list(first), list(second))).spaces
            pairs.append(tuple(round(math.exp(s.log_p), 6) for s in found))
    assert len(pairs) == 144
    for k in (0, 1):
        values = [p[k] for p in pairs]
        assert all(sum(v <= p for v in values) / 144 <= p + 1e-5 for p in set(values))  # P(p <= x) <= x, attained:
        assert all(sum(v <= p for v in values) / 144 >= p - 1e-5 for p in set(values))
    for x in {p[0] for p in pairs}:
        for y in {p[1] for p in pairs}:
            both = sum(p[0] <= x and p[1] <= y for p in pairs) / 144
            assert both == pytest.approx(x * y, abs=1e-5)


def test_a_space_does_not_see_the_order_of_later_ones():
    a, b = (tensors_of(mlp(seed)) for seed in (0, 1))
    sym = iw.symmetries(mlp(0), torch.zeros(2, 6))
    one, other = (in_place(sym, a, permuted(b, [2, 0, 1, 3], list(p))) for p in ((0, 1, 2), (2, 0, 1)))
    assert one.spaces[0] == other.spaces[0] and one.spaces[1] != other.spaces[1]


def test_labels_of_inputs_and_outputs_have_no_views():
    model = mlp(0)
    sym = iw.symmetries(model, torch.zeros(2, 6))
    order = [s.name for s in ordered_spaces(sym)]
    assert [v.space for v in views(sym, "4.weight", order)] == [order[1]]
    assert [v.space for v in views(sym, "0.weight", order)] == [order[0]]
    assert not list(views(sym, "4.bias", order))


def test_positive_scales_of_units_change_little():
    torch.manual_seed(0)
    a = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))
    sym = iw.symmetries(a, torch.zeros(2, 6))
    b = sym.act(sym.random(seed=1, kinds=["scale"]), a)
    assert iw.lineage(a, b, torch.zeros(2, 6)).log_p < -40


@pytest.mark.parametrize("how", ["sorted", "identity"])
def test_units_that_stand_in_an_order_before_training_are_not_evidence(how):
    made = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 2))
        if how == "sorted":
            model = iw.canonical(model, torch.zeros(2, 6))
        else:
            with torch.no_grad():
                model[2].weight.mul_(0.1).add_(torch.eye(40))
        made.append(model)
    found = iw.lineage(*made, torch.zeros(2, 6))
    assert found.verdict != "derived"
    assert (how == "identity") or all("sorted" in s.note and s.log_p is None for s in found.by_space)


def test_heads_inside_attention_are_units_of_their_own():
    def make(seed):
        torch.manual_seed(seed)
        return nn.TransformerEncoderLayer(16, 4, 24, batch_first=True).eval()

    x = torch.randn(2, 5, 16)
    a, c = make(0), make(1)
    b = make(2)
    b.load_state_dict({n: t + 0.05 * t.std().nan_to_num() * torch.randn_like(t) for n, t in a.state_dict().items()})
    assert iw.lineage(a, b, x).verdict == "derived"
    assert iw.lineage(a, c, x).p_value > 1e-4
