"""Acting keeps the function, for every kind of element separately, and is a group action."""

import copy

import pytest
import torch
from handmade import MAKERS, make
from torch import nn

import intertwine as iw
from intertwine import symmetries
from intertwine.symmetry.action import act, act_, act_on_features, kept_variances, tensors_of
from intertwine.symmetry.transformation import KINDS, identity, random, with_parts
from intertwine.testing import function_error


@pytest.fixture(params=MAKERS)
def case(request):
    return make(request.param)


@pytest.mark.parametrize("kind", KINDS)
def test_function_is_kept(case, kind):
    model, sym, x = case
    for seed in range(5):
        g = random(sym, seed, kinds={kind})
        assert function_error(model, act(sym, g, model), x) < 1e-12


def test_full_elements_change_weights_but_not_the_function(case):
    model, sym, x = case
    twin = act(sym, random(sym, 0), model)
    assert function_error(model, twin, x) < 1e-12
    assert any(not torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters()))


def test_action_is_a_homomorphism(case):
    model, sym, _ = case
    g, h = random(sym, 0), random(sym, 1)
    together = tensors_of(act(sym, g @ h, model))
    in_turn = tensors_of(act(sym, g, act(sym, h, model)))
    for name in together:
        torch.testing.assert_close(together[name], in_turn[name], rtol=1e-9, atol=1e-10)


def test_inverse_undoes(case):
    model, sym, _ = case
    g = random(sym, 2)
    back = tensors_of(act(sym, ~g, act(sym, g, model)))
    for name, tensor in tensors_of(model).items():
        torch.testing.assert_close(back[name], tensor, rtol=1e-9, atol=1e-10)


def test_permutations_move_bits_exactly(case):
    model, sym, _ = case
    model = model.to(torch.bfloat16)
    twin = act(sym, random(sym, 0, kinds={"permutation"}), model)
    for name, tensor in tensors_of(model).items():
        moved = tensors_of(twin)[name]
        assert moved.dtype == tensor.dtype
        assert torch.equal(moved.flatten().sort().values, tensor.flatten().sort().values)
    again = act(sym, ~random(sym, 0, kinds={"permutation"}), twin)
    assert all(torch.equal(t, tensors_of(again)[n]) for n, t in tensors_of(model).items())


def test_identity_changes_no_bit_and_the_model_is_left_alone(case):
    model, sym, _ = case
    before = copy.deepcopy(model.state_dict())
    act(sym, random(sym, 0), model)
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert all(torch.equal(t, before[n]) for n, t in act(sym, identity(sym), model).state_dict().items())


def test_acting_on_a_state_dict_is_in_place():
    model, sym, x = make("mlp")
    twin = copy.deepcopy(model)
    state = twin.state_dict()
    assert act_(sym, random(sym, 0), state) is state
    assert function_error(model, twin, x) < 1e-12
    assert not torch.equal(twin[0].weight, model[0].weight)


def test_tied_parameters_stay_tied():
    model, sym, x = make("residual")
    model.again = model.embed
    sym = type(sym)(sym.spaces, sym.layouts, aliases={"again.weight": "embed.weight"})
    twin = act(sym, random(sym, 0), model)
    assert twin.again.weight is twin.embed.weight
    assert function_error(model, twin, x) < 1e-12
    separate = {n: t.clone() for n, t in model.state_dict().items()}
    act_(sym, random(sym, 0), separate)
    assert torch.equal(separate["again.weight"], separate["embed.weight"])
    torch.testing.assert_close(separate["embed.weight"], twin.embed.weight.data, rtol=0, atol=0)


def test_variance_that_cannot_follow_is_kept_and_listed():
    model, sym, x = make("conv_bn")
    norm = model[1]
    norm.running_var[:3] = torch.tensor([0.0, 1e-7, 1e-6])
    g = random(sym, 0, kinds={"permutation", "sign"})
    scales = torch.zeros(2, 6, dtype=torch.float64)
    scales[0] = -1.0
    g = with_parts(g, "c", scales=scales)
    kept = kept_variances(sym, g, tensors_of(model))
    assert list(kept) == ["1.running_var"]
    assert {int(g["c"].permutation[c]) for c in kept["1.running_var"]} == {0, 1, 2}
    twin = act(sym, g, model)
    assert function_error(model, twin, x) < 1e-12
    assert bool((twin[1].running_var >= 0).all())
    assert kept_variances(sym, identity(sym), tensors_of(model)) == {}


def test_ties_that_are_not_the_models_are_refused():
    def network(seed, tied):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        model[2].weight = model[0].weight if tied else model[2].weight
        return model

    x, both, apart = torch.randn(5, 4), network(0, tied=True), network(1, tied=False)
    for sym, model, said in (
        (symmetries(both, x), apart, "must be equal, since they are one tensor"),
        (symmetries(apart, x), both, "must be two tensors, as in the model of the symmetry"),
    ):
        for move in (act, lambda sym, g, model: act_(sym, g, model.state_dict())):
            with pytest.raises(ValueError, match=said):
                move(sym, random(sym, 0), model)
        with pytest.raises(ValueError, match=said):
            iw.canonical(model, x, sym)
        with pytest.raises(ValueError, match=said):
            iw.align(apart, both, x, sym=sym)
    state = apart.state_dict()
    for call in (
        lambda sym: sym.act(sym.random(), state),
        lambda sym: iw.fingerprint(state, None, sym),
        lambda sym: iw.same(both.state_dict(), state, None, sym),
    ):
        with pytest.raises(ValueError, match="must be equal, since they are one tensor"):
            call(symmetries(both, x))
    with pytest.raises(ValueError, match="must be two tensors"):
        iw.matching.gather([apart, both], x)
    untied = iw.diff(both.state_dict(), {**both.state_dict(), "2.weight": torch.eye(4)}, None, symmetries(both, x))
    assert [c.name for c in untied.tensors if not c.settled] == ["2.weight"]


def test_bad_input():
    model, sym, _ = make("mlp")
    other = make("grouped")[1]
    with pytest.raises(ValueError, match="g must be an element of this symmetry"):
        act(sym, random(other), model)
    state = model.state_dict()
    del state["2.bias"]
    with pytest.raises(ValueError, match=r"none named '2.bias'"):
        act_(sym, random(sym), state)
    wide = nn.Sequential(nn.Linear(3, 7), nn.ReLU(), nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 2)).double()
    before = copy.deepcopy(wide.state_dict())
    with pytest.raises(ValueError, match=r"must have shape \(6, 3\). Got \(7, 3\)"):
        act_(sym, random(sym), wide.state_dict())
    assert all(torch.equal(t, before[n]) for n, t in wide.state_dict().items())
    with pytest.raises(ValueError, match="like must name"):
        act_on_features(sym, random(sym), torch.zeros(2, 6), ("nothing", 0))
    with pytest.raises(ValueError, match="6 channels"):
        act_on_features(sym, random(sym), torch.zeros(2, 5), ("0.bias", 0))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_device_stays(case):
    model, sym, x = case
    model, x = model.cuda(), x.cuda()
    twin = act(sym, random(sym, 0), model)
    assert all(p.is_cuda for p in twin.parameters())
    assert function_error(model, twin, x) < 1e-12


def test_a_batch_norm_of_one_channel_stays():
    """Its axis cannot be told from a broadcast one: nothing moves there, and acting must not ask for it."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 1, 3), nn.BatchNorm2d(1), nn.ReLU(), nn.Flatten(), nn.Linear(36, 5), nn.ReLU(), nn.Linear(5, 2)
    ).double().eval()  # fmt: skip
    x = torch.randn(2, 1, 8, 8, dtype=torch.float64)
    sym = symmetries(model, x)
    twin = act(sym, random(sym, 0), model)
    assert function_error(model, twin, x) < 1e-12
    assert not torch.equal(model[4].weight, twin[4].weight)
