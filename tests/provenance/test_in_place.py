"""The exact test in place: laws over all permutations of the second network, and what it may not look at."""

import copy
import math
from itertools import pairwise, permutations

import pytest
import torch
from made import Made
from torch import nn

import intertwine as iw
from intertwine.provenance.in_place import in_place
from intertwine.provenance.units import ordered_spaces, views
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


def decays(seed, width=64):
    """Channels that forget at their own rates, which start as a function of the number of the channel (as in RWKV)."""
    torch.manual_seed(seed)
    return Made(
        lambda m, x: m.write(torch.exp(-m.decay) * m.read(x).relu()), read=nn.Linear(8, width),
        write=nn.Linear(width, 8),
        decay=nn.Parameter(8 * torch.linspace(0, 1, width) ** 0.7 - 5 + 0.05 * torch.randn(width)),
    )  # fmt: skip


def by_class(seed, width=128):
    """Units side by side that like the same of eight inputs most."""
    model = mlp(seed, (8, width, 8))
    first = model[0].weight.data
    first += 2 * nn.functional.one_hot(torch.arange(width) * 8 // width, 8)
    return model


@pytest.mark.parametrize("make", [decays, by_class])
def test_neighbours_that_are_alike_show_an_order(make):
    a, b = make(0), make(1)
    found = iw.lineage(a, b, torch.zeros(2, 8))
    assert found.verdict == "cannot be told"
    assert all("neighbours are alike" in s.note for s in found.by_space)


def test_units_without_an_order_are_rarely_taken_for_ordered():
    """4.5 standard deviations leave one space in many thousands."""
    x = torch.zeros(2, 8)
    sym = iw.symmetries(mlp(0, (8, 64, 64, 8)), x)
    for seed in range(50):
        state = tensors_of(mlp(seed, (8, 64, 64, 8)))
        assert not any(s.note for s in in_place(sym, state, state).spaces)


def test_an_architecture_in_which_no_unit_moves_cannot_be_told():
    class Masked(nn.Linear):
        def __init__(self, n, m):
            super().__init__(n, m)
            self.register_buffer("mask", (torch.rand(m, n, generator=torch.Generator().manual_seed(0)) < 0.5).float())

        def forward(self, x):
            return nn.functional.linear(x, self.weight * self.mask, self.bias)

    a, b = (nn.Sequential(Masked(8, 16), nn.ReLU(), Masked(16, 3)) for _ in range(2))
    found = iw.lineage(a, b, torch.zeros(2, 8))
    assert found.verdict == "cannot be told"
    assert "no unit" in found.reason


def test_a_stranger_that_was_aligned_gets_a_note():
    a, b = (mlp(seed, (8, 64, 64, 8)) for seed in (0, 1))
    aligned = iw.align(a, b, torch.randn(2, 8)).apply(b)
    found = iw.lineage(a, aligned, torch.zeros(2, 8))
    assert found.verdict == "derived"
    assert any("aligned" in note for note in found.notes)
    tuned = mlp(0, (8, 64, 64, 8))
    tuned[0].weight.data += 0.02 * torch.randn(64, 8)
    assert not any("aligned" in note for note in iw.lineage(a, tuned, torch.zeros(2, 8)).notes)


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


def test_units_that_stand_there_several_times_over_are_not_tested():
    """Where one unit agrees by chance, its copies do: widened networks agreed so in one pair of forty at 1e-6."""
    torch.manual_seed(0)
    a, b = (torch.nn.Sequential(torch.nn.Linear(8, 48), torch.nn.ReLU(), torch.nn.Linear(48, 3)) for _ in range(2))
    x = torch.zeros(2, 8)
    assert iw.lineage(a, b, x).p_value is not None
    with torch.no_grad():
        for net in (a, b):
            net[0].weight.copy_(torch.randn(12, 8).repeat(4, 1) + 0.01 * torch.randn(48, 8))
    notes = " ".join(iw.lineage(a, b, x).notes)
    assert "most units of a stand there several times over in 0.weight" in notes


def convolutions(seed):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 9, 10)
    )  # fmt: skip


def test_channels_are_no_copies_since_lengths_of_weights_are_positive():
    """A later axis leaves lengths by position of a kernel: nine numbers above zero, alike in all channels."""
    a, b, x = convolutions(0), convolutions(1), torch.randn(2, 3, 16, 16)
    found = iw.lineage(a, b, x)
    assert not any("not tested" in note for note in found.notes) and found.p_value > 1e-3
    b[0].load_state_dict(a[0].state_dict())
    assert iw.lineage(a, b, x).verdict == "derived"


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_channels_in_copies_are_seen_by_the_lengths_of_their_readers(scale):
    a, b, x = convolutions(0), convolutions(1), torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        for net in (a, b):
            net[2].weight[:, 8:] = scale * net[2].weight[:, :8] * (1 + 0.01 * torch.randn(32, 8, 3, 3))
            net[2].weight.copy_(net[2].weight[:, torch.randperm(16)])  # copies at one distance are an order
    notes = iw.lineage(a, b, x).notes
    assert any("several times over in 2.weight" in note for note in notes), notes


class Experts(nn.Module):
    """Experts that all start as one MLP, as upcycling of a dense network leaves them."""

    def __init__(self, seed, noise=0.1, experts=8):
        super().__init__()
        torch.manual_seed(seed)
        self.gate, self.up, self.down = (nn.Parameter(torch.randn(s)) for s in ((6, experts), (1, 6, 24), (1, 24, 3)))
        for p in (self.up, self.down):
            p.data = p.data.expand(experts, -1, -1) + noise * torch.randn(experts, *p.shape[1:])

    def forward(self, x):
        hidden = torch.einsum("nd,edf->nef", x, self.up).relu()
        return torch.einsum("nef,efo,ne->no", hidden, self.down, (x @ self.gate).softmax(-1))


def test_experts_made_from_one_mlp_count_once():
    sym = iw.symmetries(Experts(0), torch.randn(2, 6))
    assert sorted(s.size for s in sym.spaces) == [8, 24]
    nets = [tensors_of(Experts(seed)) for seed in range(16)]
    found = [in_place(sym, a, b) for k, a in enumerate(nets) for b in nets[:k]]
    p = torch.tensor([s.log_p for f in found for s in f.spaces if s.units == 24]).exp()
    assert len(p) == len(found) == 120 and (p < 0.1).sum() < 24 and (p < 0.01).sum() < 6 and p.min() > 1e-4
    related = in_place(sym, nets[0], {n: t + 0.1 * torch.randn_like(t) for n, t in nets[0].items()})
    assert related.log_p < -50


class Deepened(nn.Module):
    """Residual layers of which most started as copies of one, as depth upscaling leaves them."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        layer = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 8))
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 8))])
        self.layers += [copy.deepcopy(layer) for _ in range(8)]
        with torch.no_grad():
            for p in self.parameters():
                p.add_(0.02 * torch.randn_like(p))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


def test_layers_made_from_one_layer_count_once():
    sym = iw.symmetries(Deepened(0), torch.randn(2, 8))
    nets = [tensors_of(Deepened(seed)) for seed in range(16)]
    p = torch.tensor([in_place(sym, a, b).log_p for k, a in enumerate(nets) for b in nets[:k]]).exp()
    assert (p < 0.1).sum() < 24 and (p < 0.01).sum() < 6 and p.min() > 1e-4  # of 120
    related = in_place(sym, nets[0], {n: t + 0.1 * torch.randn_like(t) for n, t in nets[0].items()})
    assert related.log_p < -20
