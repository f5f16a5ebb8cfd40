"""The architecture chooses: layers, their counterparts, measures; and networks with fresh weights stand beside."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import intertwine as iw
from intertwine.similarity.comparison.untrained import untrained
from intertwine.similarity.comparison.verdict import headline, judges, lead, paired, summarise

X = torch.randn(120, 8, generator=torch.Generator().manual_seed(0))


def net(act=nn.ReLU, seed=0, width=16):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, width), act(), nn.Linear(width, width), act(), nn.Linear(width, 3))


class Functional(nn.Module):
    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.one, self.drop, self.two, self.out = nn.Linear(8, 16), nn.Dropout(), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x):
        return self.out(self.two(self.drop(F.relu(self.one(x)))).relu())


def test_layers_are_what_nonlinearities_return_however_they_are_called():
    found = iw.compare(Functional(), Functional(1), X.split(60), null=0, bootstrap=0)
    assert found.layers_a == ("relu#0", "relu#1")  # no dropout, which hands on what it is given
    model = Functional()
    outputs = iw.collect(model, [X])
    assert torch.equal(outputs["relu#0"], model.one(X).relu())


def test_layers_with_other_names_are_paired_by_their_order_where_shapes_agree():
    found = iw.compare(net(), Functional(1), X.split(60), null=0, bootstrap=0)
    assert paired(found) == "order" and "paired by their order" in headline(found)
    assert summarise(found, "linear_cka").matched is not None
    wider = iw.compare(net(width=20), Functional(), X.split(60), null=0, bootstrap=0)
    assert not paired(wider) and "best matches" in headline(wider)
    assert paired(iw.compare(net(width=20), net(), X.split(60), null=0, bootstrap=0)) == "name"


@pytest.mark.parametrize(
    ("act", "kind", "first"),
    [
        (nn.ReLU, "positive monomial", "g_relu_cka"),
        (nn.GELU, "permutation", "permutation_procrustes"),
        (nn.Tanh, "signed permutation", "signed_permutation_procrustes"),
        (nn.Identity, "linear", "linear_cka"),
    ],
)
def test_the_verdict_speaks_of_a_measure_whose_group_is_the_networks_own(act, kind, first):
    found = iw.compare(net(act), net(act, 1), X.split(60), ["1", "3"], null=0, bootstrap=0)
    assert found.acting_a == found.acting_b == (kind, kind)
    assert lead(found) == first and first in found.measures
    assert ("g_relu_cka" in found.measures) == (act is nn.ReLU)


class ComposedGELU(nn.Module):
    """GELU as transformers writes it for GPT-2: a product of two functions of the same units."""

    def forward(self, x):
        return 0.5 * x * (1 + torch.tanh(0.797885 * (x + 0.044715 * x**3)))


def test_a_nonlinearity_written_out_as_a_product_has_the_group_of_the_units_that_read_it():
    found = iw.compare(net(ComposedGELU), net(ComposedGELU), [X], null=0, bootstrap=0)
    assert set(found.acting_a) == {"permutation"} and lead(found) == "permutation_procrustes"


def test_layers_are_judged_each_by_its_own_kind_and_what_nothing_moves_goes_with_most():
    torch.manual_seed(0)
    mixed = nn.Sequential(
        nn.Linear(8, 9), nn.ReLU(), nn.Linear(9, 9), nn.ReLU(), nn.Linear(9, 7), nn.GELU(), nn.Linear(7, 3)
    )
    found = iw.compare(mixed, mixed, [X], ["1", "3", "5", "6"], null=0, bootstrap=0)
    assert found.acting_a == ("positive monomial", "positive monomial", "permutation", "")
    assert judges(found) == {"g_relu_cka": [0, 1, 3], "permutation_procrustes": [2]}
    assert "by Permutation Procrustes" in headline(found) or "Permutation Procrustes is" in headline(found)


def test_a_layer_is_judged_by_the_larger_one_of_two_groups():
    found = iw.compare(net(nn.GELU), net(nn.ReLU), [X], null=0, bootstrap=0)
    assert lead(found) == "g_relu_cka"


def test_a_model_that_cannot_be_captured_is_compared_all_the_same():
    class Numpy(nn.Module):
        def forward(self, x):
            return F.relu(torch.from_numpy(x.numpy() * 2.0))

    found = iw.compare(Numpy(), Numpy(), [X], null=0, bootstrap=0)
    assert set(found.acting_a) <= {"", "none"} and found.scores["linear_cka"].numel() == 1


# networks with fresh weights


def trained(seed):
    model = net(seed=seed, width=32)
    target = (X[:, :3] > 0).float()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(150):
        optimizer.zero_grad()
        F.mse_loss(model(X), target).backward()
        optimizer.step()
    return model


def test_untrained_networks_are_not_called_similar_and_trained_ones_are_judged_beyond_them():
    fresh = iw.compare(net(seed=5, width=32), net(seed=6, width=32), X.split(60), bootstrap=0)
    summary = summarise(fresh, "linear_cka")
    assert summary.calibrated > 0.35 > 0.1 > summary.left  # shuffles alone would call them partly similar
    only = iw.compare(net(seed=5, width=32), net(seed=6, width=32), X.split(60), measures="linear_cka", bootstrap=0)
    assert "hardly more similar than untrained networks" in headline(only) and "untrained" in only.headline
    learned = summarise(iw.compare(trained(5), trained(6), X.split(60), bootstrap=0), "linear_cka")
    assert learned.left > 0.3 and learned.score > learned.untrained


def test_untrained_networks_come_from_the_seed_or_are_given():
    a, b = net(), net(seed=1)
    first, again, other = (iw.compare(a, b, [X], null=2, bootstrap=0, seed=s) for s in (0, 0, 1))
    key = "g_relu_cka"
    assert torch.equal(first.untrained[key], again.untrained[key])
    assert not torch.equal(first.untrained[key], other.untrained[key])
    assert not iw.compare(a, b, [X], null=2, bootstrap=0, untrained=False).untrained
    given = iw.compare(a, b, [X], null=2, bootstrap=0, untrained=(a, b))
    assert torch.allclose(given.untrained[key], given.scores[key])
    assert given.to_frame()["untrained"].notna().all()


class Owner(nn.Module):
    """Parameters of its own that no function draws."""

    def __init__(self, width):
        super().__init__()
        self.token, self.layer = nn.Parameter(torch.randn(width)), nn.Linear(8, width)

    def forward(self, x):
        return F.relu(self.layer(x) + self.token)


def test_a_model_that_cannot_be_drawn_anew_says_so_and_how_to_help():
    found = iw.compare(Owner(5), Owner(5), [X], null=2, bootstrap=0)
    assert not found.untrained
    assert any("does not say how to draw token" in note and "untrained=(a0, b0)" in note for note in found.notes)
    assert iw.compare(Owner(5), Owner(5), [X], null=2, bootstrap=0, untrained=(Owner(5), Owner(5))).untrained


class Defaults(Owner):
    def __init__(self):
        super().__init__(5)


class Loads(Defaults):
    def __init__(self):
        super().__init__()
        for parameter in self.parameters():
            torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(0))


def test_fresh_weights_are_random_and_those_of_the_model_stay():
    model = Defaults()
    before = copy.deepcopy(model.state_dict())
    one, other = untrained(model, 0), untrained(model, 1)
    assert not torch.equal(one.token, other.token)
    assert all(torch.equal(before[name], x) for name, x in model.state_dict().items())
    assert isinstance(untrained(Loads(), 0), str)  # the class gives the same weights each time: they are not fresh


def test_a_function_that_builds_the_model_is_asked_first():
    def built():
        model = Owner(5)
        nn.init.constant_(model.layer.bias, 7.0)
        return model

    fresh = untrained(Owner(5), 0, [lambda: Owner(6), built])  # the first one builds another network
    assert (fresh.layer.bias == 7).all() and not torch.equal(fresh.token, untrained(Owner(5), 1, [built]).token)
    assert isinstance(untrained(Owner(5), 0, [Loads]), str)


def test_initialisation_by_a_rule_of_the_model_is_used():
    class Small(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.layer = nn.Linear(8, width)

        def _init_weights(self, module):
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=1e-3)
                nn.init.zeros_(module.bias)

    model = Small(40)
    state = torch.get_rng_state()
    fresh = untrained(model, 0)
    assert 0 < float(fresh.layer.weight.detach().std()) < 2e-3 and not fresh.layer.bias.any()
    assert torch.equal(state, torch.get_rng_state())


def test_state_dicts_are_refused_in_words():
    with pytest.raises(TypeError, match=r"b must be a torch\.nn\.Module.*load_state_dict"):
        iw.compare(net(), net().state_dict(), [X])
