"""Untrained networks are drawn as their classes draw weights, or not at all; what another pair of them would reach."""

import sys
import types
from dataclasses import replace
from itertools import combinations

import pytest
import torch
from torch import nn

import intertwine as iw
from intertwine.lab.networks import build
from intertwine.similarity import CKA, RBFKernel, Resampling
from intertwine.similarity.comparison.untrained import Redrawn
from intertwine.similarity.comparison.verdict import agreeing, spread


class Small(nn.Module):
    """Draws its weights where it is built, from arguments that it does not keep."""

    def __init__(self, width, std, num_classes=3):
        super().__init__()
        self.first, self.relu, self.last = nn.Linear(5, width), nn.ReLU(), nn.Linear(width, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=std)

    def forward(self, x):
        return self.last(self.relu(self.first(x)))


class Applied(Small):
    def __init__(self, width, std):
        nn.Module.__init__(self)
        self.first, self.relu, self.last = nn.Linear(5, width), nn.ReLU(), nn.Linear(width, 3)
        self.apply(lambda module: None)


class Defaulted(Small):
    """Takes no arguments, as torchvision's MobileNetV2, and has other classes here."""

    def __init__(self, num_classes=1000):
        super().__init__(8, 3.0, num_classes)


def loader(n=60):
    return torch.randn(n, 5, generator=torch.Generator().manual_seed(0)).split(20)


@pytest.mark.parametrize("kind", [Small, Applied])
def test_weights_that_a_class_draws_by_rules_of_its_own_are_not_replaced_by_other_ones(kind):
    found = iw.compare(kind(8, 3.0), kind(8, 3.0), loader(), measures="linear_cka")
    assert not found.untrained_pairs and "\nBeyond chance: " in found.summary()
    assert any(f"the __init__ of {kind.__name__} draws weights by rules of its own" in note for note in found.notes)
    given = [[kind(8, 3.0)], [kind(8, 3.0)]]
    found = iw.compare(
        kind(8, 3.0), kind(8, 3.0), loader(), measures="linear_cka", resampling=Resampling(untrained=given)
    )
    assert len(found.untrained_pairs["linear_cka"]) == 1


def test_models_of_torchvision_are_built_again_by_its_functions(monkeypatch):
    module = types.ModuleType("torchvision.models.small")

    def small_net(*, weights=None, num_classes=1000):
        return Small(8, 3.0, num_classes)

    def wide_net(*, weights=None, num_classes=1000):
        return Small(16, 30.0, num_classes)

    def defaulted(*, weights=None, num_classes=1000):
        return Defaulted(num_classes)

    for function in (small_net, wide_net, defaulted):
        function.__module__ = module.__name__
        setattr(module, function.__name__, function)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for kind in (Small, Defaulted):
        monkeypatch.setattr(kind, "__module__", module.__name__)
    for model in (Small(8, 3.0, num_classes=7), Defaulted(7)):
        copy = Redrawn(model)(0)
        assert isinstance(copy, type(model)) and 2 < copy.first.weight.std() < 4
    assert isinstance(Redrawn(Small(12, 3.0))(0), str)  # built by none of its functions


@pytest.mark.parametrize("name", ["resnet20", "resnet50:width=8,blocks=2-2,stem=small", "cct_6_3x1:width=32,blocks=2"])
def test_built_in_networks_are_drawn_anew_as_they_were_built(name):
    torch.manual_seed(0)
    model = build(name)
    copy = Redrawn(model)(0)
    assert isinstance(copy, nn.Module)
    for (place, x), y in zip(model.named_parameters(), copy.parameters(), strict=True):
        if x.ndim > 1 and x.numel() > 500:
            assert y.detach().std().item() == pytest.approx(x.detach().std().item(), rel=0.15), place


@pytest.mark.parametrize("layers", [1, 2, 8])  # that are independent of one another, of 8
@pytest.mark.parametrize("share", [1.0, 0.0])  # of the variance of a pair that its networks make
@pytest.mark.parametrize("design", ["all pairs of 3", "all pairs of 4", "3 apart"])
def test_another_pair_of_untrained_networks_stays_below_the_bound_in_19_of_20_cases(design, share, layers):
    """Every network shifts the scores of its pairs, and every pair differs by itself."""
    pairs = [(0, 1), (2, 3), (4, 5)] if "apart" in design else [*combinations(range(int(design[-1])), 2)]
    networks, cases = len({k for pair in pairs for k in pair}), 4000
    generator = torch.Generator().manual_seed(0)
    draw = lambda count: torch.randn(cases, count, layers, generator=generator, dtype=torch.float64)
    of, own = draw(networks + 2) * (share / 2) ** 0.5, draw(len(pairs) + 1) * (1 - share) ** 0.5
    levels = torch.stack([of[:, i] + of[:, j] for i, j in [*pairs, (networks, networks + 1)]], 1) + own
    below, together = 0, 0
    for known, new in zip(*levels.repeat_interleave(8 // layers, 2).split([len(pairs), 1], 1)):
        below += int((new[0] <= known.mean(0) + spread(known, networks)).sum())
        together += bool(new.mean() <= known.mean() + spread(known, networks, together=True))
    assert below / (8 * cases) > 0.942 and together / cases > 0.942
    if share or "apart" in design:
        assert below / (8 * cases) < 0.96  # and no more often than was asked


def test_pairs_of_unknown_networks_count_as_sharing_them():
    levels = torch.tensor([[0.1, 0.3], [0.2, 0.3], [0.4, 0.5]], dtype=torch.float64)
    assert spread(levels) == spread(levels, 3) > spread(levels, 6) > 0


def test_one_pair_of_untrained_networks_has_no_spread():
    assert spread(torch.tensor([[0.3, 0.5]])) == spread(torch.empty(0, 2)) == 0.0


def test_a_lucky_draw_of_untrained_networks_does_not_make_the_headline_firm():
    """Three pairs with one mean by chance, whose layers tell how much another pair may differ."""
    torch.manual_seed(0)
    net = lambda: nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU())
    found = iw.compare(net(), net(), loader(400), measures="linear_cka")
    score = found.scores["linear_cka"].diagonal().mean()
    pairs = torch.zeros(3, 3, 3, dtype=torch.float64)
    off = torch.tensor([[0.2, -0.2, 0.0], [0.0, 0.2, -0.2], [-0.2, 0.0, 0.2]], dtype=torch.float64)
    pairs.diagonal(dim1=1, dim2=2)[:] = score - 0.1 + off
    told = replace(found, untrained_pairs={"linear_cka": pairs})
    assert "between hardly more similar than untrained networks and" in told.headline


def test_a_layer_whose_untrained_level_is_not_known_neither_agrees_nor_not():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU())
    found = iw.compare(net, net, loader(400), measures="linear_cka")
    assert agreeing(found) == (["1", "3", "5"], [])
    pairs = found.untrained_pairs["linear_cka"].clone()
    pairs[:, 1, 1] = torch.nan
    assert agreeing(replace(found, untrained_pairs={"linear_cka": pairs})) == (["1", "5"], [])


def test_a_layer_that_is_dead_before_training_takes_no_other_layers_level_away():
    torch.manual_seed(0)
    deep = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 9), nn.ReLU())
    flat = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 6), nn.Tanh())
    found = iw.compare(deep, flat, loader(400), measures="linear_cka")
    pairs = found.untrained_pairs["linear_cka"].clone()
    pairs[:, 1] = torch.nan
    without = replace(found, untrained_pairs={"linear_cka": pairs})
    assert "inf" not in without.summary() and without.headline.partition(":")[0] == found.headline.partition(":")[0]


def test_drawing_untrained_networks_leaves_random_numbers_of_accelerators_alone(monkeypatch):
    seeds = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    for model in (Defaulted(), nn.Sequential(nn.Linear(5, 8), nn.ReLU())):  # built again, and reset by its modules
        assert isinstance(Redrawn(model)(0), nn.Module)
    assert not seeds


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(5, 8), nn.Linear(5, 8)

    def forward(self, x):
        return self.one(x), self.two(x).relu() ** 3


def test_untrained_scores_are_known_by_bandwidths_and_chosen_outputs():
    a, b = Two(), Two()
    levels = lambda measure, output: (
        iw.compare(
            a, b, loader(), "", measure, resampling=Resampling(5, 0, 2), reading=iw.features.Reading(outputs=output)
        ).untrained
    )
    assert levels("linear_cka", 0) == levels("linear_cka", 0) != levels("linear_cka", 1)
    narrow, wide = CKA(RBFKernel(0.3)), CKA(RBFKernel(30.0))
    (one,), (two,) = levels(narrow, 0).values(), levels(wide, 0).values()
    assert float(one) != float(two)
    found = iw.compare(a, b, loader(), "", [narrow, wide, "rbf_cka"], resampling=None)
    assert found.measures == ("rbf_cka_0.3", "rbf_cka_30", "rbf_cka")
    assert found.scores["rbf_cka_30"].item() == pytest.approx(wide(*(m(torch.cat(loader()))[0] for m in (a, b))))


def test_p_values_end_where_the_tail_is_known_and_the_settings_name_the_estimator():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 8), nn.ReLU())
    found = iw.compare(net, net, torch.randn(2000, 5).split(500), measures=["linear_cka", "g_relu_procrustes"])
    for measure in found.measures:
        assert float(found.null_p[measure].min()) == pytest.approx(1e-6)
    assert "<0.001" in str(found)
    assert found.settings["estimator"] == "unbiased HSIC over all pairs within blocks of 125 examples"
    exact = iw.compare(net, net, loader(), measures="linear_cka_biased", exact=True)
    assert exact.settings["estimator"] == "biased HSIC over all pairs of examples"
