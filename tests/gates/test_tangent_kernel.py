import warnings

import gate_models
import pytest
import torch
from made import Made
from numeric import equal
from theorem_kernels import tangent_kernel
from torch import nn

import intertwine as iw
from intertwine.gates.kernels import tangent_kernel as module
from intertwine.gates.kernels.tangent_kernel import covered_names, layerwise_kernel


def odd_network():
    """A layer used twice, a parameter of its own, tokens, groups, dilation and activations in place."""

    def run(m, x):
        x = m.twice(m.norm(m.twice(m.conv(x).relu_())).relu_())
        x = m.token(x.flatten(2).transpose(1, 2)) * m.scale
        return m.conv1(x.transpose(1, 2)).mean(-1)

    return Made(
        run, conv=nn.Conv2d(2, 4, 3, padding="same", dilation=2, groups=2),
        twice=nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"), norm=nn.BatchNorm2d(4), token=nn.Linear(4, 3),
        scale=nn.Parameter(torch.tensor([0.5, 2.0, -1.0])), conv1=nn.Conv1d(3, 2, 2, stride=2),
    )  # fmt: skip


def odd():
    torch.manual_seed(0)
    model = odd_network().double().eval()
    nn.init.uniform_(model.norm.running_var, 0.5, 2)
    return model, torch.randn(5, 2, 4, 4, dtype=torch.float64)


@pytest.mark.parametrize(
    "name", ["mlp, biases", "conv 2d GAP", "strided, no pooling", "residual conv, batch norm", "max pooling"]
)
def test_layers_give_the_definition(name):
    model, x = gate_models.make(name), gate_models.inputs(name)
    equal(iw.gates.neural_tangent_kernel(model, x, x[:4]), tangent_kernel(model, x, x[:4]))
    equal(iw.gates.neural_tangent_kernel(model, x), tangent_kernel(model, x, x))


def kinds(full):
    """A kernel of all pairs of outputs in every form."""
    diagonal = full.diagonal(dim1=2, dim2=3)
    return {"full": full, "per_output": diagonal, "trace": diagonal.sum(-1)}


@pytest.fixture
def no_layers(monkeypatch):
    """All kernels are made of Jacobians."""
    monkeypatch.setattr("intertwine.gates.kernels.tangent_kernel.covered_names", lambda *_: frozenset())


@pytest.mark.parametrize("kind", ["full", "per_output", "trace"])
def test_kinds_by_jacobians_whatever_the_memory(kind, no_layers):
    model, x = odd()
    expected = kinds(tangent_kernel(model, x, x))[kind]
    for memory in (1.0, 2**30):
        equal(iw.gates.neural_tangent_kernel(model, x, kind=kind, memory=memory), expected)


@pytest.mark.parametrize("ghost", [True, False])
def test_both_ways_to_do_a_convolution(ghost, monkeypatch):
    pairs = lambda s, *_: ghost and s.weight and not s.elementwise and s.groups == 1
    monkeypatch.setattr("intertwine.gates.kernels.layer_kernel.Layer.pairs_are_cheaper", pairs)
    model, x = odd()
    for kind, expected in kinds(tangent_kernel(model, x, x[:2])).items():
        equal(iw.gates.neural_tangent_kernel(model, x, x[:2], kind=kind), expected)


@pytest.mark.parametrize("kept", [1.0, 2**30])
@pytest.mark.parametrize("ghost", [True, False])
@pytest.mark.parametrize("part", ["bias", "weight", ""])
def test_a_convolution_adds_its_bias_at_every_position(part, ghost, kept, monkeypatch):
    """By layers alone: where these did not add up to the gradient, Jacobians would take their place."""
    pairs = lambda s, *_: ghost and s.weight
    monkeypatch.setattr("intertwine.gates.kernels.layer_kernel.Layer.pairs_are_cheaper", pairs)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 2)).double()
    x = torch.randn(3, 2, 4, 4, dtype=torch.float64)
    names = [n for n, _ in model.named_parameters() if n.startswith("0.") and n.endswith(part)]
    for kind, expected in kinds(tangent_kernel(model, x, x, names)).items():
        equal(layerwise_kernel(model, x, None, names, kind, kept).result(), expected)


@pytest.mark.parametrize("kind", ["full", "per_output", "trace"])
@pytest.mark.parametrize("memory", [1.0, 3e3, 2e4, 2**30])
def test_memory_and_batches_change_nothing(memory, kind, monkeypatch):
    """From tile by tile through some channels at a time to everything at once, for one side and for two."""
    monkeypatch.setattr("intertwine.gates.kernels.tangent_kernel._FEW", 2)
    monkeypatch.setattr("intertwine.gates.kernels.layer_kernel._MANY", 2)
    model, x = odd()
    expected = kinds(tangent_kernel(model, x, x))[kind]
    for y in ((), (x[:3],)):
        right = expected[:, :3] if y else expected
        equal(iw.gates.neural_tangent_kernel(model, x, *y, kind=kind, memory=memory), right)


def test_less_memory_takes_more_runs_and_only_a_channel_that_does_not_fit_makes_tiles(monkeypatch):
    model, x = odd()
    keep, tiles, runs = module._keep, module._add_tiles, []
    monkeypatch.setattr(module, "_keep", lambda *a: runs.append(a[3]) or keep(*a))
    monkeypatch.setattr(module, "_add_tiles", lambda *a: runs.append("tiles") or tiles(*a))
    monkeypatch.setattr(module, "_certified", lambda *a: True)  # layers are checked against a gradient first
    layers = covered_names(model, x, dict(model.named_parameters()))

    def parts_for(memory):
        runs.clear()
        iw.gates.neural_tangent_kernel(model, x, memory=memory, parameters=layers)
        return list(runs)

    everything, blocks, nothing = parts_for(2**30), parts_for(8e3), parts_for(1.0)
    assert len(everything) == 1 < len(blocks) and "tiles" not in blocks
    assert any(part.start > 0 for group in blocks for part in group)
    assert set(nothing) == {"tiles"}


def test_blocks_of_channels_never_skip_one_where_they_end_within_a_group():
    """Groups of three channels, done four at a time."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 6, 3, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(24, 2)).double()
    x = torch.randn(4, 2, 4, 4, dtype=torch.float64)
    channel = 4 * 2 * (9 + 1) * 8
    equal(iw.gates.neural_tangent_kernel(model, x, memory=2 * 4 * channel), tangent_kernel(model, x, x))


def test_activations_in_place_are_followed():
    """Writing over a layer's output, a view of it too, must not hide its gradient."""

    def run(m, x):
        x = m.norm(m.first(x).relu_()).relu_()
        return m.second(x).mul_(2).relu_().flatten(1)

    torch.manual_seed(0)
    in_place = Made(run, first=nn.Linear(3, 4), norm=nn.BatchNorm1d(5), second=nn.Linear(4, 2))
    model, x = in_place.double().eval(), torch.randn(4, 5, 3, dtype=torch.float64)
    equal(iw.gates.neural_tangent_kernel(model, x), tangent_kernel(model, x, x))


def test_some_of_the_parameters():
    model, x = odd()
    names = ["twice.weight", "norm.bias", "scale"]
    for chosen in (names, "scale"):
        expected = tangent_kernel(model, x, x, names if chosen is names else [chosen])
        equal(iw.gates.neural_tangent_kernel(model, x, parameters=chosen), expected)


def test_tied_parameters():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3)).double()
    model[2].weight = model[0].weight
    x = torch.randn(4, 3, dtype=torch.float64)
    equal(iw.gates.neural_tangent_kernel(model, x), tangent_kernel(model, x, x))


def test_training_mode_and_gradients_are_left_alone():
    model, x = odd()
    model.train()
    iw.gates.neural_tangent_kernel(model, x)
    assert model.training and model.norm.training and all(p.grad is None for p in model.parameters())
    assert model.norm.num_batches_tracked == 0


def test_bad_arguments():
    model, x = odd()
    with pytest.raises(TypeError, match="model must be"):
        iw.gates.neural_tangent_kernel(len, x)
    with pytest.raises(ValueError, match='kind must be "full"'):
        iw.gates.neural_tangent_kernel(model, x, kind="sum")
    with pytest.raises(ValueError, match="parameters must be names"):
        iw.gates.neural_tangent_kernel(model, x, parameters=["weight"])
    with pytest.raises(ValueError, match=r"x must be inputs of the model\. Got .* of shape \(9,\)"):
        iw.gates.neural_tangent_kernel(nn.Linear(3, 2), torch.zeros(4, 9))
    with pytest.raises(ValueError, match=r"model must return one tensor \(N, outputs\). Got \(1, 1, 4, 4\)"):
        iw.gates.neural_tangent_kernel(nn.Conv2d(2, 1, 1).double(), x)
    with pytest.raises(ValueError, match=r"Got dict\. Wrap it in a module that returns its logits"):
        iw.gates.neural_tangent_kernel(Made(lambda m, x: {"logits": m.out(x)}, out=nn.Linear(9, 2)), torch.ones(4, 9))


def tied():
    """A weight that its layer shares with a product outside it."""
    return Made(
        lambda m, x: torch.nn.functional.linear(torch.relu(m.layer(x)), m.layer.weight.T), layer=nn.Linear(3, 4)
    )


def test_weights_that_a_layer_does_not_account_for_are_seen():
    torch.manual_seed(0)
    x = torch.randn(4, 3, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the old form of weight norm, which hooks compute
        hooked = nn.Sequential(nn.utils.weight_norm(nn.Linear(3, 4)), nn.ReLU(), nn.Linear(4, 2)).double()
    for model in (hooked, tied().double()):
        equal(iw.gates.neural_tangent_kernel(model, x), tangent_kernel(model, x, x))


def recurrent():
    return Made(
        lambda m, x: m.last(m.cell(x.view(len(x), 2, 2))[0][:, -1]), cell=nn.GRU(2, 3, batch_first=True),
        last=nn.Linear(3, 2),
    )  # fmt: skip


def two_names():
    """One module under two names."""
    layer = nn.Linear(4, 4)
    return Made(lambda m, x: m.second(torch.relu(m.first(x))), first=layer, second=layer)


def gradients(model, x):
    """The definition, one output of one example at a time."""
    rows = []
    for example in x:
        out = model(example[None])[0]
        grads = [torch.autograd.grad(o, list(model.parameters()), retain_graph=True) for o in out]
        rows.append(torch.stack([torch.cat([g.flatten() for g in parts]) for parts in grads]))
    j = torch.stack(rows)
    return torch.einsum("nop,mkp->nmok", j, j)


@pytest.mark.parametrize(
    "make", [lambda: nn.Sequential(nn.Linear(4, 3), nn.PReLU(3), nn.Linear(3, 2)), recurrent, two_names]
)
@pytest.mark.parametrize("n", [2, 3])
def test_what_cannot_be_mapped_over_examples(make, n):
    torch.manual_seed(0)
    model, x = make().double(), torch.randn(n, 4, dtype=torch.float64)
    equal(iw.gates.neural_tangent_kernel(model, x), gradients(model, x))


def test_parameters_stay_where_they_are():
    model = two_names()
    before = list(model.parameters())
    iw.gates.neural_tangent_kernel(model, torch.randn(3, 4))
    assert all(p is q for p, q in zip(model.parameters(), before)) and model.second is model.first


def test_inputs_that_are_not_finite():
    x = torch.tensor([[0.0, 1.0], [float("nan"), 0.0]])
    with pytest.raises(ValueError, match="x must be finite"):
        iw.gates.neural_tangent_kernel(nn.Linear(2, 1), x)
    with pytest.raises(ValueError, match="y must be finite"):
        iw.gates.neural_tangent_kernel(nn.Linear(2, 1), x[:1], x)


def folded():
    """A layer that sees the examples' parts as examples."""
    return Made(
        lambda m, x: m.last(torch.relu(m.part(x.reshape(-1, 2)).reshape(len(x), -1))), part=nn.Linear(2, 3),
        last=nn.Linear(6, 2),
    )  # fmt: skip


def siamese():
    """Two views of each example in one batch."""
    difference = lambda views: views[0] - views[1]
    return Made(
        lambda m, x: m.last(torch.relu(difference(m.view(torch.cat([x, 2 * x.flip(1)])).chunk(2)))),
        view=nn.Linear(4, 3), last=nn.Linear(3, 2),
    )  # fmt: skip


@pytest.mark.parametrize("make", [folded, siamese])
@pytest.mark.parametrize("n", [2, 5])
def test_layers_that_see_other_batches(make, n):
    torch.manual_seed(0)
    model, x = make().double(), torch.randn(n, 4, dtype=torch.float64)
    equal(iw.gates.neural_tangent_kernel(model, x), gradients(model, x))


def test_gradients_are_taken_where_they_are_switched_off():
    model, x = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).double(), torch.randn(3, 4).double()
    expected = gradients(model, x)
    with torch.no_grad():
        found = iw.gates.neural_tangent_kernel(model, x)
    equal(found, expected)
    assert not found.requires_grad


def test_what_has_no_gradients_or_examples_is_refused():
    model, x = nn.Linear(4, 2), torch.randn(3, 4)
    with pytest.raises(ValueError, match="at least one example"):
        iw.gates.neural_tangent_kernel(model, x[:0])
    with pytest.raises(TypeError, match="x must be a tensor of examples"):
        iw.gates.neural_tangent_kernel(model, {"x": x})
    with pytest.raises(ValueError, match="model must have parameters"):
        iw.gates.neural_tangent_kernel(nn.Identity(), x)
    with pytest.raises(ValueError, match="y must have examples of x's shape"):
        iw.gates.neural_tangent_kernel(model, x, x[:, :3])
    with pytest.raises(ValueError, match=r"Got entries that torch\.float16 does not hold"):
        iw.gates.neural_tangent_kernel(model.half(), 1000 * torch.ones(3, 4).half())


def test_a_parameter_of_a_single_number_counts():
    torch.manual_seed(0)
    model = Made(lambda m, x: m.fc(x) * m.scale, fc=nn.Linear(3, 2), scale=nn.Parameter(torch.tensor(1.5))).double()
    x = torch.randn(4, 3, dtype=torch.float64)
    found = iw.gates.neural_tangent_kernel(model, x)
    model.scale = nn.Parameter(model.scale.detach()[None])
    equal(found, tangent_kernel(model, x, x))


def test_layers_may_be_called_by_keyword():
    torch.manual_seed(0)
    model, x = Made(lambda m, x: m.fc(input=x), fc=nn.Linear(3, 2)).double(), torch.randn(4, 3, dtype=torch.float64)
    equal(iw.gates.neural_tangent_kernel(model, x), tangent_kernel(model, x, x))
