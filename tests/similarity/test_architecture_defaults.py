"""The architecture chooses: layers, their counterparts, measures; and networks with fresh weights stand beside."""

import copy
import functools
import itertools
import os
import subprocess
import sys
import weakref

import pytest
import torch
from made import Function, Made
from made_comparison import made_comparison
from torch import nn
from torch.nn import functional as F

import intertwine as iw
from intertwine.features import layers
from intertwine.similarity import Resampling
from intertwine.similarity.comparison.untrained import Redrawn, architecture
from intertwine.similarity.comparison.verdict import headline, judges, lead, paired, summarise

X = torch.randn(120, 8, generator=torch.Generator().manual_seed(0))


def net(act=nn.ReLU, seed=0, width=16):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, width), act(), nn.Linear(width, width), act(), nn.Linear(width, 3))


def functional(seed=0):
    torch.manual_seed(seed)
    return Made(
        lambda m, x: m.out(m.two(m.drop(F.relu(m.one(x)))).relu()), one=nn.Linear(8, 16), drop=nn.Dropout(),
        two=nn.Linear(16, 16), out=nn.Linear(16, 3),
    )  # fmt: skip


def test_layers_are_what_nonlinearities_return_however_they_are_called():
    found = iw.compare(functional(), functional(1), X.split(60), resampling=None)
    assert found.layers_a == ("relu#0", "relu#1")  # no dropout, which hands on what it is given
    model = functional()
    outputs = iw.collect(model, [X])
    assert torch.equal(outputs["relu#0"], model.one(X).relu())


class Block(nn.Module):
    def __init__(self, after):
        super().__init__()
        self.one, self.act, self.two, self.after = nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8), after

    def forward(self, x):
        return self.after(x + self.two(self.act(self.one(x))))


@pytest.mark.parametrize(
    ("after", "streams"), [(nn.Identity(), ["0", "1"]), (nn.LayerNorm(8), ["0", "1"]), (nn.ReLU(), [])]
)
def test_the_residual_stream_is_compared_behind_every_block_where_no_nonlinearity_made_it(after, streams):
    model = nn.Sequential(nn.Sequential(Block(after), Block(after)), nn.Linear(8, 3))
    assert [p.name for p in layers(model, X) if p.stream] == [f"0.{name}" for name in streams]
    found = iw.compare(model, model, [X], resampling=None)
    assert {f"0.{name}" for name in streams} < set(found.layers_a)
    assert not any(p.stream for p in layers(nn.Sequential(Block(after), nn.Linear(8, 3)), X))  # one block is no list


def test_measures_of_the_defaults_do_not_see_translations():
    model, moved = net(), net()
    with torch.no_grad():
        model[1], moved[1] = nn.ReLU(), Shift()
    found = iw.compare(model, moved, [X], "1", resampling=None)
    assert all(float(score) == pytest.approx(1, abs=1e-5) for score in found.scores.values()) and len(found.scores) == 4
    uncentred = iw.compare(model, moved, [X], "1", "g_relu_procrustes", resampling=None)
    assert float(uncentred.scores["g_relu_procrustes"]) < 0.9


class Shift(nn.ReLU):
    def forward(self, x):
        return super().forward(x) + torch.linspace(0, 5, x.shape[1])


def test_layers_with_other_names_are_paired_by_their_order_where_shapes_agree():
    found = iw.compare(net(), functional(1), X.split(60), resampling=None)
    assert paired(found) == "order" and "paired by their order" in headline(found)
    assert summarise(found, "linear_cka").matched is not None
    wider = iw.compare(net(width=20), functional(), X.split(60), resampling=None)
    assert not paired(wider) and "best matches" in headline(wider)
    assert paired(iw.compare(net(width=20), net(), X.split(60), resampling=None)) == "name"


@pytest.mark.parametrize(
    ("act", "kind", "first"),
    [
        (nn.ReLU, "positive_monomial", "g_relu_cka"),
        (nn.GELU, "permutation", "permutation_procrustes_centered"),
        (nn.Tanh, "signed_permutation", "signed_permutation_procrustes_centered"),
        (nn.Identity, "general_linear", "r2_cca"),
    ],
)
def test_the_verdict_speaks_of_a_measure_whose_group_is_the_networks_own(act, kind, first):
    found = iw.compare(net(act), net(act, 1), X.split(60), ["1", "3"], resampling=None)
    assert found.acting_a == found.acting_b == (kind, kind)
    assert lead(found) == first and first in found.measures
    assert ("g_relu_cka" in found.measures) == (act is nn.ReLU)


class ComposedGELU(nn.Module):
    """GELU as transformers writes it for GPT-2: a product of two functions of the same units."""

    def forward(self, x):
        return 0.5 * x * (1 + torch.tanh(0.797885 * (x + 0.044715 * x**3)))


def test_a_nonlinearity_written_out_as_a_product_has_the_group_of_the_units_that_read_it():
    found = iw.compare(net(ComposedGELU), net(ComposedGELU), [X], resampling=None)
    assert set(found.acting_a) == {"permutation"} and lead(found) == "permutation_procrustes_centered"


def test_layers_are_judged_each_by_its_own_kind_and_what_nothing_moves_goes_with_most():
    torch.manual_seed(0)
    mixed = nn.Sequential(
        nn.Linear(8, 9), nn.ReLU(), nn.Linear(9, 9), nn.ReLU(), nn.Linear(9, 7), nn.GELU(), nn.Linear(7, 3)
    )
    found = iw.compare(mixed, mixed, [X], ["1", "3", "5", "6"], resampling=None)
    assert found.acting_a == ("positive_monomial", "positive_monomial", "permutation", "")
    assert judges(found) == {"g_relu_cka": [0, 1, 3], "permutation_procrustes_centered": [2]}
    assert "Permutation Procrustes (centred) is" in headline(found)


ACTS = (nn.ReLU, nn.GELU, nn.Tanh, nn.Identity)


GIVEN = ("g_relu_procrustes_centered", "monomial_procrustes_centered", "r2_cca")
NAMED = [("linear_cka", "laplace_cka"), ("soft_matching", "linear_cka"), ("pwcca", "gates_cka")]


@pytest.mark.parametrize(
    ("acts", "given"),
    [
        *itertools.product(itertools.combinations_with_replacement(ACTS, 2), (None, GIVEN)),
        *(((nn.ReLU, nn.ReLU), given) for given in NAMED),
    ],
)
def test_copies_moved_by_the_groups_of_their_layers_never_change_the_headline(acts, given):
    a, b = (net(act, seed, width=5).double() for seed, act in enumerate(acts))
    x = X.double()
    twins = [(s := iw.symmetries(model, x)).act(s.random(seed=3), model) for model in (a, b)]
    before, *after = (
        iw.compare(*pair, [x], ["1", "3"], given, resampling=None) for pair in ((a, b), (a, twins[1]), twins)
    )
    score = summarise(before, lead(before)).score
    assert score < 0.999  # else a copy could not change it
    assert [summarise(found, lead(found)).score for found in after] == pytest.approx([score, score], abs=1e-9)


def test_without_counterparts_a_layer_is_judged_by_what_holds_all_groups_of_the_other_network():
    mixed = nn.Sequential(nn.Linear(8, 9), nn.ReLU(), nn.Linear(9, 7), nn.Tanh(), nn.Linear(7, 3))
    found = iw.compare(net(nn.GELU), mixed, [X], ["1"], layers_b=["1", "3"], resampling=None)
    assert judges(found) == {"monomial_procrustes_centered": [0]}


def test_a_model_that_cannot_be_captured_is_compared_all_the_same():
    model = Function(lambda x: F.relu(torch.from_numpy(x.numpy() * 2.0)))
    found = iw.compare(model, model, [X], resampling=None)
    assert set(found.acting_a) <= {"", "trivial"} and found.scores["linear_cka"].numel() == 1


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
    fresh = iw.compare(net(seed=5, width=32), net(seed=6, width=32), X.split(60), resampling=Resampling(bootstrap=0))
    summary = summarise(fresh, "linear_cka")
    assert summary.calibrated > 0.35 > 0.2 > min(summary.left)  # shuffles alone would call them partly similar
    only = iw.compare(
        net(seed=5, width=32), net(seed=6, width=32), X.split(60), measures="linear_cka",
        resampling=Resampling(bootstrap=0),
    )  # fmt: skip
    assert "more similar than untrained networks" in headline(only) and "untrained" in only.headline
    learned = summarise(
        iw.compare(trained(5), trained(6), X.split(60), resampling=Resampling(bootstrap=0, untrained=6)), "linear_cka"
    )
    assert min(learned.left) > 0 and learned.score > max(learned.untrained)


def test_untrained_networks_come_from_the_seed_or_are_given():
    a, b = net(), net(seed=1)
    first, again, other = (iw.compare(a, b, [X], resampling=Resampling(null=2, bootstrap=0, seed=s)) for s in (0, 0, 1))
    key = "g_relu_cka"
    assert torch.equal(first.untrained[key], again.untrained[key])
    assert not torch.equal(first.untrained[key], other.untrained[key])
    assert first.untrained_pairs[key].shape == (3, 2, 2)  # of three networks of one architecture
    assert torch.allclose(first.untrained[key], first.untrained_pairs[key].mean(0))
    assert not iw.compare(a, b, [X], resampling=Resampling(null=2, bootstrap=0, untrained=0)).untrained
    given = iw.compare(a, b, [X], resampling=Resampling(null=2, bootstrap=0, untrained=(a, b)))
    assert torch.allclose(given.untrained[key], given.scores[key])
    assert given.to_frame()["untrained"].notna().all()
    assert "One pair of untrained networks was measured" in headline(given)
    fresh = [net(seed=k) for k in range(5)]
    several = iw.compare(
        a, b, [X], resampling=Resampling(null=2, bootstrap=0, untrained=(fresh[:2], fresh[2:4]))
    ).untrained_pairs[key]
    alone = iw.compare(
        a, b, [X], resampling=Resampling(null=2, bootstrap=0, untrained=(fresh[1], fresh[3]))
    ).untrained_pairs[key]
    assert several.shape == (2, 2, 2) and torch.allclose(several[1], alone[0])  # each of A with one of B, in order
    with pytest.raises(ValueError, match=r"equally many networks built as A and as B\. Got 2 and 3"):
        Resampling(untrained=(fresh[:2], fresh[2:]))
    assert first.untrained_networks == 3 and given.untrained_networks == 2


def of_function(act):
    return Made(lambda m, x: m.b(m.act(m.a(x))), a=nn.Linear(8, 16), b=nn.Linear(16, 3), act=act)


def of_code(kind):
    class Rectified(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 3)

        def forward(self, x):
            return self.b(F.relu(self.a(x)))

    class Smooth(Rectified):
        def forward(self, x):
            return self.b(F.gelu(self.a(x)))

    Rectified.__qualname__ = Smooth.__qualname__ = "Net"  # as in a notebook whose cell was changed and run again
    return Rectified() if kind == "relu" else Smooth()


@pytest.mark.parametrize("make", [of_function, of_code])
def test_what_is_known_of_an_architecture_is_not_taken_for_another_one_of_the_same_shapes(make):
    of = {"relu": F.relu, "gelu": F.gelu} if make is of_function else {"relu": "relu", "gelu": "gelu"}
    assert architecture(make(of["relu"])) == architecture(make(of["relu"])) != architecture(make(of["gelu"]))
    found = [iw.compare(make(kind), make(kind), [X], layers="a", resampling=None) for kind in of.values()]
    assert [one.acting_a for one in found] == [("positive_monomial",), ("permutation",)]


class Helper:
    """An attribute whose repr is its address."""


def test_an_architecture_does_not_hang_on_addresses():
    one, two = of_function(Helper()), of_function(Helper())
    assert architecture(one) == architecture(two) != architecture(of_function(None))
    slopes = [of_function(functools.partial(F.leaky_relu, negative_slope=slope)) for slope in (0.1, 0.1, 0.2)]
    assert architecture(slopes[0]) == architecture(slopes[1]) != architecture(slopes[2])


def helper(k):
    made = Helper()
    made.k = k
    return made


@pytest.mark.parametrize("held", [helper, lambda k: (torch.arange(9999) == k).numpy()])
def test_what_objects_and_long_arrays_hold_is_part_of_an_architecture(held):
    assert architecture(of_function(held(4000))) == architecture(of_function(held(4000)))
    assert architecture(of_function(held(4000))) != architecture(of_function(held(4001)))


def test_what_a_function_closes_over_is_part_of_an_architecture():
    def power(p):
        run = lambda x: x.abs() ** p if p else run(x)  # which closes over itself too
        return of_function(run)

    assert architecture(power(2)) == architecture(power(2)) != architecture(power(3))


@pytest.mark.parametrize("held", [lambda f: {"acts": [f]}, lambda f: functools.partial(map, f)])
def test_functions_in_containers_and_keywords_are_told_apart(held):
    def power(p):
        return of_function(held((lambda x: x**2) if p == 2 else (lambda x: x**3)))

    def keyword(p):
        def run(x, *, to=p):
            return x**to

        return of_function(run)

    for make in (power, keyword):
        assert architecture(make(2)) == architecture(make(2)) != architecture(make(3))


IN_A_PROCESS = """
import torch.nn.functional as F
from torch import nn
from intertwine.similarity.comparison.untrained import architecture
class Net(nn.Linear):
    def forward(self, x, act=F.gelu):
        return act(x) if self.in_features in {"a", "b", "c", "d"} else x
print(architecture(Net(2, 3)))
"""


def test_an_architecture_is_the_same_in_every_process():
    """Or statistics that ``compare_many`` keeps in a folder would never be found again."""
    said = {
        subprocess.run([sys.executable, "-c", IN_A_PROCESS], env={**os.environ, "PYTHONHASHSEED": seed},
                       capture_output=True, text=True, check=True).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(said) == 1 and "forward" in said.pop()


def test_models_from_two_directories_are_of_one_architecture(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    found = []
    for name in "ab":
        transformers.BertModel(config).save_pretrained(tmp_path / name)
        found.append(architecture(transformers.BertModel.from_pretrained(tmp_path / name)))
    config.hidden_act = "relu"
    assert found[0] == found[1] != architecture(transformers.BertModel(config))


def test_untrained_networks_live_one_at_a_time(monkeypatch):
    draw, alive, most = Redrawn.__call__, weakref.WeakSet(), []

    def counted(self, seed):
        alive.add(model := draw(self, seed))
        most.append(len(alive))
        return model

    monkeypatch.setattr(Redrawn, "__call__", counted)
    found = iw.compare(net(), net(), [X[:8]], resampling=Resampling(null=2, bootstrap=0, untrained=3, seed=91))
    assert len(found.untrained_pairs["g_relu_cka"]) == 3 and most == [1] * 3


def test_no_word_depends_on_which_untrained_networks_are_drawn():
    """Near a threshold two words are said: other seeds then agree with one of them."""
    a, b = net(seed=5, width=12), net(seed=6, width=12)
    with torch.no_grad():
        b[0].weight.copy_(0.8 * a[0].weight + 0.2 * b[0].weight)
    words = {
        iw.compare(a, b, [X], "1", "linear_cka", resampling=Resampling(bootstrap=0, seed=s)).headline.partition(":")[0]
        for s in range(6)
    }
    assert len({word for word in words if not word.startswith("between")}) <= 1


@pytest.mark.parametrize(
    ("levels", "word"),
    [
        ((0.50, 0.51, 0.50, 0.51), "similar"),  # 0.67 to 0.69 of the way is left: 0.6 is far
        ((0.50, 0.58, 0.55, 0.56), "between partly similar and similar"),  # down to 0.62, and half the range below it
        ((0.85, 0.80, 0.80, 0.80), "no more similar than untrained networks"),
        ((0.50,), "similar"),
    ],
)
def test_a_word_is_said_where_the_spread_of_untrained_networks_does_not_change_it(levels, word):
    pairs = {"linear_cka": torch.tensor(levels, dtype=torch.float64).view(-1, 1, 1)}
    scores = {"linear_cka": torch.tensor([[0.84]], dtype=torch.float64)}
    nothing = {"linear_cka": torch.zeros(1, 1, dtype=torch.float64)}
    found = made_comparison(
        ["1"], measures=("linear_cka",), scores=scores, untrained_pairs=pairs, chance=nothing, null_p=nothing,
        calibrated=scores, low=nothing, high=nothing, floor={"linear_cka": None},
    )  # fmt: skip
    assert found.headline.partition(":")[0] == word and word in headline(found)


class Owner(nn.Module):
    """Parameters of its own that no function draws."""

    def __init__(self, width):
        super().__init__()
        self.token, self.layer = nn.Parameter(torch.randn(width)), nn.Linear(8, width)

    def forward(self, x):
        return F.relu(self.layer(x) + self.token)


def test_a_model_that_cannot_be_drawn_anew_says_so_and_how_to_help():
    found = iw.compare(Owner(5), Owner(5), [X], resampling=Resampling(null=2, bootstrap=0))
    assert not found.untrained
    assert any("does not say how to draw token" in note and "untrained=([a0, a1]" in note for note in found.notes)
    assert iw.compare(
        Owner(5), Owner(5), [X], resampling=Resampling(null=2, bootstrap=0, untrained=(Owner(5), Owner(5)))
    ).untrained


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
    one, other = map(Redrawn(model), (0, 1))
    assert not torch.equal(one.token, other.token)
    assert all(torch.equal(before[name], x) for name, x in model.state_dict().items())
    assert isinstance(Redrawn(Loads())(0), str)  # the class gives the same weights each time: they are not fresh


def test_a_function_that_builds_the_model_is_asked_first():
    def built():
        model = Owner(5)
        nn.init.constant_(model.layer.bias, 7.0)
        return model

    fresh = Redrawn(Owner(5), [lambda: Owner(6), built])(0)  # the first one builds another network
    assert (fresh.layer.bias == 7).all() and not torch.equal(fresh.token, Redrawn(Owner(5), [built])(1).token)
    assert isinstance(Redrawn(Owner(5), [Loads])(0), str)


@pytest.mark.parametrize("held", [1 << 30, 0])
def test_what_is_built_to_tell_that_weights_are_drawn_is_the_next_network(held, monkeypatch):
    """Large networks are built once more, for no two are there at a time; either way a seed gives one network."""
    monkeypatch.setattr("intertwine.similarity.comparison.untrained._HELD", held)
    built = []
    draw = Redrawn(Owner(5), [lambda: built.append(1) or Owner(5)])
    networks = [draw(seed) for seed in range(3)]
    assert len(built) == (3 if held else 4)
    for seed, network in enumerate(networks):
        assert torch.equal(network.token, Redrawn(Owner(5), [lambda: Owner(5)])(seed).token)


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
    fresh = Redrawn(model)(0)
    assert 0 < float(fresh.layer.weight.detach().std()) < 2e-3 and not fresh.layer.bias.any()
    assert torch.equal(state, torch.get_rng_state())


def test_state_dicts_are_refused_in_words():
    with pytest.raises(TypeError, match=r"b must be a torch\.nn\.Module.*load_state_dict"):
        iw.compare(net(), net().state_dict(), [X])


class Flat(nn.Module):
    """A transformer without attention, its blocks not modules of their own."""

    def __init__(self, after: bool):
        super().__init__()
        self.maps, self.after = nn.ModuleList(nn.Linear(6, 6) for _ in range(4)), after

    def forward(self, x):
        for up, down in zip(self.maps[::2], self.maps[1::2]):
            x = x + down(nn.functional.gelu(up(x)))
            x = nn.functional.relu(x) if self.after else x
        return x


def test_a_residual_stream_that_no_module_returns_is_named_as_missing():
    torch.manual_seed(0)
    loader = torch.randn(20, 6).split(10)
    said = iw.compare(Flat(after=False), Flat(after=True), loader, resampling=None).notes
    assert any("residual stream of A is not among the layers" in note for note in said)
    wanted = iw.compare(Flat(after=False), Flat(after=False), loader, ["maps.0"], resampling=None).notes
    assert not any("residual stream" in note for note in wanted)
