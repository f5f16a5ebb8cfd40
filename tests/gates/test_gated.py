import copy
import threading

import gate_models
import pytest
import torch
from made import Function, Made
from numeric import equal
from torch import nn

import intertwine as iw

NAMES = [
    "mlp, biases", "conv 2d GAP", "average pooling", "max pooling", "residual conv, batch norm", "residual, ReLU after",
]  # fmt: skip


def with_statistics(network, x):
    """Batch norms that have seen data, then evaluation mode."""
    network.train()
    with torch.no_grad():
        for _ in range(3):
            network(x + torch.randn_like(x))
    return network.eval()


@pytest.mark.parametrize("name", [*NAMES, "mlp, leaky", "mlp, absolute value"])
def test_gates_of_a_network_on_its_own_weights_give_the_network(name):
    model, x = gate_models.make(name), gate_models.inputs(name)
    network = iw.gates.dgn(model, regime="fixed_learnt").eval()
    assert (network(x) - model(x)).abs().max() > 1e-3  # the value network is fresh
    network.value.load_state_dict(model.state_dict())
    equal(network(x), model(x))


@pytest.mark.parametrize("build", ["dgn", "dlgn", "dlgn_sf"])
@pytest.mark.parametrize("input", ["x", "ones"])
@pytest.mark.parametrize("name", NAMES)
def test_output_is_the_inner_product_of_gated_features_and_values(name, input, build):
    """Dual linearity, with soft gates, and the kernel of gated features."""
    model, x = gate_models.make(name), gate_models.inputs(name)
    extra = (x[:1],) if build == "dlgn_sf" else ()
    network = with_statistics(getattr(iw.gates, build)(model, *extra, input=input), x)
    found = iw.gates.paths(network, x)
    equal(found.outputs, network(x)[:, 0])
    equal(iw.gates.neural_path_kernel(network, x), found.kernel())


@pytest.mark.parametrize("name", NAMES)
def test_linear_gating_networks_are_affine_in_evaluation_mode(name):
    model = gate_models.make(name)
    x = gate_models.inputs(name)
    for network in (iw.gates.dlgn(model), iw.gates.dlgn_sf(model, x[:1])):
        with_statistics(network, x)
        for seed in range(4):
            a, b = gate_models.inputs(name, 3, seed), gate_models.inputs(name, 3, seed + 10)
            f = network.pre_activations
            for both, left, right, zero in zip(f(a + b), f(a), f(b), f(torch.zeros_like(a))):
                equal(both, left + right - zero)


def test_a_gating_network_with_relus_is_not_affine():
    model, x = gate_models.make("mlp, biases"), gate_models.inputs("mlp, biases")
    network = iw.gates.dgn(model)
    f = lambda t: network.pre_activations(t)[1]
    assert (f(x + x.flip(0)) - f(x) - f(x.flip(0)) + f(0 * x)).abs().max() > 1e-3
    with pytest.raises(ValueError, match="the gating network must be linear"):
        iw.gates.effective_maps(network, x[:1])


def test_soft_gates_let_gradients_through_and_frozen_parts_stay():
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))
    x = torch.randn(8, 4)
    soft = iw.gates.dgn(model)
    soft(x).sum().backward()
    assert soft.gating.network[0].weight.grad.abs().sum() > 0
    for regime in ("fixed_random", "fixed_learnt"):
        frozen = iw.gates.dgn(model, regime=regime, seed=7).train()
        before = copy.deepcopy(frozen.gating.state_dict())
        optimiser = torch.optim.SGD(frozen.parameters(), lr=1.0, weight_decay=0.1)
        frozen(x).square().sum().backward()
        optimiser.step()
        assert all(torch.equal(v, before[k]) for k, v in frozen.gating.state_dict().items())
        assert frozen.value[0].weight.grad.abs().sum() > 0 and frozen.value.training
    with torch.no_grad():
        model[0].weight.add_(1.0)  # so that no seed makes these weights anew
    learnt = iw.gates.dgn(model, regime="fixed_learnt")
    assert torch.equal(learnt.gating.network[0].weight, model[0].weight)
    assert not torch.equal(learnt.value[0].weight, model[0].weight)
    random = iw.gates.dgn(model, regime="fixed_random", seed=7)
    assert not torch.equal(random.gating.network[0].weight, model[0].weight)
    assert not torch.equal(random.gating.network[0].weight, random.value[0].weight)


def test_gates():
    model, x = gate_models.make("mlp"), gate_models.inputs("mlp")
    network = iw.gates.dlgn(model)
    for q, g in zip(network.pre_activations(x), network.gates(x)):
        equal(g, torch.sigmoid(10 * q))
    assert iw.gates.dgn(model).beta == iw.gates.dlgn_sf(model, x[:1]).beta == 10
    assert iw.gates.GatedNetwork(network.gating, network.value).beta == 10
    hard = iw.gates.dlgn(model, gate="hard")
    assert all(set(g.unique().tolist()) <= {0.0, 1.0} for g in hard.gates(x))
    assert not any(g.any() for g in hard.gates(0 * x))  # 1{q > 0}: closed where q is zero


def test_layers_may_be_permuted_and_the_kernel_stays():
    model, x = gate_models.make("mlp"), gate_models.inputs("mlp")
    plain, permuted = (iw.gates.dlgn(model, gate="hard", permutation=p) for p in (None, (1, 0)))
    assert torch.equal(plain.gates(x)[0], permuted.gates(x)[1])
    assert (plain(x) - permuted(x)).abs().max() > 1e-6
    equal(iw.gates.neural_path_kernel(plain, x), iw.gates.neural_path_kernel(permuted, x))
    hidden = [m for _ in range(3) for m in (nn.Linear(4, 4), nn.ReLU())]
    model, order = nn.Sequential(*hidden, nn.Linear(4, 2)).double(), (1, 2, 0)
    plain, permuted = (iw.gates.dlgn(model, permutation=p) for p in (None, order))
    assert all(torch.equal(permuted.gates(x)[k], plain.gates(x)[order[k]]) for k in range(3))  # not its inverse


def test_constant_input_leaves_the_image_to_the_gates():
    model, x = gate_models.make("mlp"), gate_models.inputs("mlp")
    network = iw.gates.dgn(model, input="ones", regime="fixed_learnt")
    assert (network(2 * x) - network(x)).abs().max() < 1e-12  # without biases gates do not see the scale


def test_max_pooling_becomes_average_pooling():
    network = iw.gates.dlgn(gate_models.make("max pooling"))
    for part in (network.gating, network.value):
        kinds = [type(m) for m in part.modules()]
        assert nn.AvgPool2d in kinds and nn.MaxPool2d not in kinds


@pytest.mark.parametrize("build", [iw.gates.dgn, iw.gates.dlgn])
def test_permutation_of_unequal_layers_is_refused(build):
    model, x = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2)), torch.randn(3, 4)
    match = r"the shape of the layer that they gate, \(5,\). Got \(6,\).*layers of equal shape.*gate_permutations"
    for made in (lambda: build(model, permutation=(1, 0))(x), lambda: build(model, x, permutation=(1, 0))):
        with pytest.raises(ValueError, match=match):
            made()
    with pytest.raises(ValueError, match="permutation must have one entry for each of 2 ReLUs"):
        build(model, permutation=(1, 0, 2))(x)


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda m: iw.gates.dgn(m, regime="free"), 'regime must be "standalone"'),
        (lambda m: iw.gates.dgn(m, input="zeros"), 'input must be "x"'),
        (lambda m: iw.gates.dlgn(m, gate="firm"), 'gate must be "soft"'),
        (lambda m: iw.gates.dlgn(m, beta=0.0), "beta must be positive"),
        (lambda m: iw.gates.dgn(m, permutation=(0, 0)), "each layer's number once"),
        (lambda m: iw.gates.dgn(Made(None, weight=(3,))), "must have reset_parameters"),
        (
            lambda m: iw.gates.dgn(nn.Sequential(nn.Linear(4, 4), nn.GELU()))(torch.randn(2, 4)),
            "only nonlinearities. Got gelu",
        ),
    ],
)
def test_bad_arguments(build, match):
    with pytest.raises(ValueError, match=match):
        build(gate_models.make("mlp"))
    with pytest.raises(TypeError, match="model must be"):
        iw.gates.dgn(len)


def test_fresh_weights_follow_the_seed_and_leave_the_global_state():
    model = gate_models.make("mlp")
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    a, b, c = (iw.gates.dgn(model, seed=s) for s in (0, 0, 5))
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(a.value[0].weight, b.value[0].weight) and not torch.equal(a.value[0].weight, c.value[0].weight)


NONLINEAR = {
    "where": lambda q: torch.where(q > 0, q, torch.zeros_like(q)),
    "max": lambda q: torch.max(q, torch.zeros_like(q)),
    "amax": lambda q: q - q.amax(1, keepdim=True),
    "mask": lambda q: q * (q > 0),
    "square": lambda q: q * q,
    "sine": torch.sin,
    "exponential": torch.exp,
    "order": lambda q: q.sort(1)[0],
    "length": lambda q: q / q.norm(dim=1, keepdim=True),
}


@pytest.mark.parametrize("place", ["before", "behind"])
@pytest.mark.parametrize("build", [iw.gates.dgn, iw.gates.dlgn])
@pytest.mark.parametrize("name", NONLINEAR)
def test_nonlinearities_in_any_form_are_refused(name, build, place):
    """Before the ReLU they would make gates nonlinear, and behind it outputs that no paths add up to."""
    layers = [nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)]
    layers.insert(1 if place == "before" else 3, Function(NONLINEAR[name]))
    model, x = nn.Sequential(*layers), torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match=r"must be affine|nonlinearities"):
        build(model)(x)
    with pytest.raises(ValueError, match=r"must be affine|nonlinearities"):
        build(model, x)


def test_the_check_leaves_no_traces():
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3))
    network = iw.gates.dlgn(model)
    before = copy.deepcopy(network.state_dict())
    state = torch.get_rng_state()
    network.check(torch.randn(5, 4, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(state, torch.get_rng_state())
    assert all(m.training for m in network.modules())
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_a_new_module_is_not_taken_for_fresh_weights():
    """The copy would have kept the weights of the model."""
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    with pytest.raises(ValueError, match=r"initialise must change .* Got another Sequential"):
        iw.gates.dgn(model, initialise=lambda copy: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)))
    for own in (lambda copy: copy.apply(lambda m: None), lambda copy: copy[0].requires_grad_(True)):
        assert isinstance(iw.gates.dgn(model, initialise=own), nn.Module)


class Scaled(nn.Linear):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.gain = nn.Parameter(torch.full((sizes[1],), 5.0))

    def forward(self, x):
        return super().forward(x) * self.gain


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("layer", "left"),
    [
        (lambda: Scaled(4, 6), "gain"), (lambda: torch.nn.utils.weight_norm(nn.Linear(4, 6)), "weight_g"),
        (lambda: torch.nn.utils.spectral_norm(nn.Linear(4, 6)), "weight_orig"),
    ],
)  # fmt: skip
def test_what_no_module_draws_anew_is_not_called_fresh(layer, left):
    model = nn.Sequential(layer(), nn.ReLU(), nn.Linear(6, 3))
    with pytest.raises(ValueError, match=rf"must draw all parameters\. Got '0\.{left}'"):
        iw.gates.dgn(model, regime="fixed_random")
    drawn = lambda copy: [nn.init.normal_(parameter) for parameter in copy.parameters()]
    assert isinstance(iw.gates.dgn(model, regime="fixed_random", initialise=drawn), nn.Module)


@pytest.mark.parametrize("build", ["dgn", "dlgn", "dlgn_sf"])
def test_building_leaves_random_numbers_of_accelerators_alone(build, monkeypatch):
    seeds = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    getattr(iw.gates, build)(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), torch.zeros(1, 4))
    assert not seeds


def test_gated_networks_can_be_mapped_and_shaped_without_numbers():
    """The check of the first call must not look at numbers that are not there."""
    network = iw.gates.dlgn(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)))
    x = torch.randn(5, 4)
    mapped = torch.func.vmap(lambda one: network(one[None])[0])(x)
    torch.testing.assert_close(mapped, network(x))
    assert copy.deepcopy(network).to("meta")(x.to("meta")).shape == (5, 3)


@pytest.mark.parametrize("build", ["dgn", "dlgn", "dlgn_sf"])
def test_volumes_with_max_pooling(build):
    x = torch.randn(2, 1, 4, 4, 4)
    layers = [nn.Conv3d(1, 2, 3, padding=1), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(2, 2, 1), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveMaxPool3d(1), nn.Flatten(), nn.Linear(2, 2))
    network = getattr(iw.gates, build)(model, x)
    assert network(x).shape == (2, 2)
    kinds = {type(m).__name__ for m in network.value.modules()}
    assert ("MaxPool3d" in kinds) == (build == "dgn") and ("AdaptiveAvgPool3d" in kinds) == (build != "dgn")
    long = [g.shape for g in network.gates(x) if g.dtype == torch.long]
    assert long == ([(2, 2, 2, 2, 2), (2, 2, 1, 1, 1)] if build == "dgn" else [])


def test_one_pooling_in_two_places():
    pool = nn.MaxPool2d(2)
    layers = [nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), pool, nn.Conv2d(2, 2, 1), nn.ReLU(), pool, nn.Flatten()]
    x = torch.randn(2, 1, 4, 4)
    network = iw.gates.dlgn(nn.Sequential(*layers, nn.Linear(2, 2)), x)
    assert [type(network.value[k]) for k in (2, 5)] == [nn.AvgPool2d, nn.AvgPool2d]


def test_an_example_lets_mistakes_be_told_when_they_are_made():
    x = torch.randn(3, 4)
    with pytest.raises(ValueError, match="must have ReLUs"):
        iw.gates.dgn(nn.Linear(4, 2), x)
    norm = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5, track_running_stats=False), nn.ReLU(), nn.Linear(5, 2))
    with pytest.raises(ValueError, match="running statistics"):
        iw.gates.dlgn(norm, x)


def in_place(kind):
    """ReLUs that overwrite what others read."""

    def run(m, x):
        h = m.first(x)
        if kind == "result unused":
            m.relu(h)
        elif kind == "method":
            h.relu_()
        elif kind == "function":
            torch.relu_(h)
        elif kind == "clamp":
            h.clamp_(min=0)
        elif kind == "before the skip":
            h = h + m.second(m.relu(h))
        elif kind == "two slopes":
            nn.functional.leaky_relu_(h, 0.1)
        elif kind == "added to":
            h = m.relu(h)
            h += x.sum(1, keepdim=True)
        return m.last(h)

    return Made(run, first=nn.Linear(4, 6), second=nn.Linear(6, 6), last=nn.Linear(6, 2), relu=nn.ReLU(inplace=True))


KINDS = ["result unused", "method", "function", "clamp", "before the skip", "two slopes", "added to"]


@pytest.mark.parametrize("kind", KINDS)
def test_relus_that_overwrite_their_input_are_gates_too(kind):
    torch.manual_seed(0)
    model, x = in_place(kind).double(), torch.randn(5, 4, dtype=torch.float64)
    learnt = iw.gates.dgn(model, regime="fixed_learnt")
    learnt.value.load_state_dict(model.state_dict())
    equal(learnt(x), model(x))  # gates of its own weights
    for network in (learnt, iw.gates.dgn(model), iw.gates.dlgn(model)):
        equal(iw.gates.paths(network.eval(), x).outputs, network(x)[:, 0])
        network(x).sum().backward()  # nothing that the backward pass needs was overwritten


def test_features_are_not_overwritten_by_what_follows():
    model = in_place("added to")
    network, x = iw.gates.dlgn(model), torch.randn(5, 4)
    equal(network.pre_activations(x)[0], network.gating.network.first(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e3])
@pytest.mark.parametrize(("width", "bias"), [(1, False), (8, False), (8, True)])
def test_deep_linear_gating_networks_are_not_refused_for_their_rounding(dtype, scale, width, bias):
    torch.manual_seed(0)
    hidden = [m for _ in range(40) for m in (nn.Linear(width, width, bias=bias), nn.ReLU())]
    model = nn.Sequential(nn.Linear(5, width, bias=bias), nn.ReLU(), *hidden, nn.Linear(width, 3))
    network = iw.gates.dlgn(model).to(dtype)
    assert network((scale * torch.randn(4, 5)).to(dtype)).shape == (4, 3)


def test_the_first_call_is_counted_once():
    """By a network that counts its runs, and draws numbers that it does not use."""

    def run(m, x):
        m.runs += 1
        torch.randn(1)
        return m.last(torch.relu(m.layer(x)))

    counting = Made(run, layer=nn.Linear(4, 6), last=nn.Linear(6, 2), runs=torch.tensor(0))
    network = iw.gates.dgn(counting, regime="fixed_learnt")
    torch.manual_seed(0)
    expected = torch.randn(3)[2]
    torch.manual_seed(0)
    network(torch.randn(0, 4))  # nothing to check on
    torch.manual_seed(0)
    network.value.runs.zero_()
    network(torch.ones(2, 4))
    assert int(network.value.runs) == 1 and torch.equal(torch.randn(1)[0], expected)


def test_numbers_that_are_none_do_not_count_as_a_check():
    model = nn.Sequential(nn.Linear(4, 6), Function(NONLINEAR["where"]), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2))
    network = iw.gates.dgn(model)
    network(torch.full((2, 4), torch.nan))
    with pytest.raises(ValueError, match="must be affine"):
        network(torch.ones(2, 4))
    with pytest.raises(ValueError, match="must be affine"):
        iw.gates.dgn(model)(nn.Parameter(torch.ones(2, 4)))


def test_shallow_features_say_which_gates_they_cannot_give():
    tokens = nn.Sequential(nn.Flatten(2), nn.Linear(16, 4), nn.ReLU(), nn.Flatten(), nn.Linear(4, 2))
    with pytest.raises(ValueError, match="as many axes as the input"):
        iw.gates.dlgn_sf(tokens, torch.randn(2, 1, 4, 4))


def test_relus_of_parts_of_examples_are_gates():
    """The parts of all examples lie along one axis."""
    parts = {"part": nn.Linear(2, 3), "last": nn.Linear(6, 2)}
    model = Made(lambda m, x: m.last(m.part(x.reshape(-1, 2)).relu().reshape(len(x), -1)), **parts)
    network, x = iw.gates.dgn(model, regime="fixed_learnt"), torch.randn(5, 4)
    network.value.load_state_dict(model.state_dict())
    equal(network(x), model(x))


@pytest.mark.parametrize("width", [1, 4, 5])
@pytest.mark.parametrize("build", [iw.gates.dgn, iw.gates.dlgn])
def test_relus_of_weights_are_refused(build, width):
    """Their signs would be taken for the gates of that many examples."""
    parts = {"weight": nn.Parameter(torch.ones(width, 4)), "last": nn.Linear(width, 2)}
    model = Made(lambda m, x: m.last((x @ m.weight.relu().T).relu()), **parts)
    with pytest.raises(ValueError, match=rf"must act on activations .* Got one on shape \({width}, 4\)"):
        build(model, torch.randn(3, 4), initialise=lambda copy: None)
    with pytest.raises(ValueError, match="must act on activations"):
        iw.gates.effective_maps(iw.gates.dlgn(model, initialise=lambda copy: None), torch.randn(3, 4))


@pytest.mark.parametrize("build", [iw.gates.dgn, iw.gates.dlgn])
def test_outputs_that_hold_logits_among_others_are_refused_in_words(build):
    model = Made(lambda m, x: {"logits": m.last(m.first(x).relu())}, first=nn.Linear(4, 6), last=nn.Linear(6, 3))
    with pytest.raises(ValueError, match=r"must return one tensor .* Got dict\. Wrap it in a module that"):
        build(model, torch.randn(2, 4))


def test_networks_that_cannot_be_copied_are_refused_in_words():
    layer = nn.Linear(4, 3)
    layer.lock = threading.Lock()
    with pytest.raises(ValueError, match=r"copy.deepcopy can copy. Got: .*lock"):
        iw.gates.dgn(nn.Sequential(layer, nn.ReLU(), nn.Linear(3, 2)))


def test_what_a_layer_keeps_of_its_weights_does_not_stop_a_copy():
    layer = nn.Linear(4, 3)
    layer.made = layer.weight * 2  # a tensor with a history, as the old weight norm leaves it
    network = iw.gates.dgn(nn.Sequential(layer, nn.ReLU(), nn.Linear(3, 2)))
    assert network(torch.ones(2, 4)).shape == (2, 2)


def test_whoever_watches_sees_one_run():
    network, seen = iw.gates.dlgn(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))), []
    handle = network.value[0].register_forward_hook(lambda _m, _a, out: seen.append(out))
    network(torch.ones(2, 4))
    network(torch.ones(2, 4))
    assert len(seen) == 2
    handle.remove()
    network(torch.ones(2, 4))
    assert len(seen) == 2


def test_models_made_for_one_size_of_batches_are_let_pass():
    model = nn.Sequential(nn.Linear(4, 6), Function(lambda q: q.view(2, 6)), nn.ReLU(), nn.Linear(6, 2))
    assert iw.gates.dlgn(model)(torch.ones(2, 4)).shape == (2, 2)
