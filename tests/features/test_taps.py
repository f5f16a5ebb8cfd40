"""Features are exactly what the model computed, and the model is exactly as it was."""

import random
from collections import OrderedDict

import numpy as np
import pytest
import torch
from made import Function, Made
from tap_models import fails, functional, hooks, in_place, nested, shared_relu, words
from torch import nn

import intertwine as iw
from intertwine._nested import tensors_in
from intertwine._random import host_state
from intertwine.features import collect, layers, tap
from intertwine.features.activations import watching
from intertwine.features.batches import head, join, length, regroup, repeatable, size
from intertwine.programs import capture


def images(n=6):
    return torch.randn(n, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def names(points):
    return [p.name for p in points]


# what is read


def test_a_shared_module_has_one_point_per_call():
    model, x = shared_relu(), images()
    features = collect(model, x.split(2))
    assert list(features) == ["relu#0", "relu#1", "relu#2"]
    first = model.stem(x).relu()
    second = model.down(first).relu()
    torch.testing.assert_close(features["relu#0"], first)
    torch.testing.assert_close(features["relu#1"], second)
    torch.testing.assert_close(features["relu#2"], model.head(second.mean((2, 3))).relu())


def test_a_module_under_two_names_goes_by_the_first():
    lin = nn.Linear(3, 3)
    model = nn.Sequential(OrderedDict(a=lin, b=nn.Tanh(), c=lin))
    assert names(layers(model, torch.ones(2, 3))) == ["a#0", "b", "a#1", ""]
    with pytest.raises(ValueError, match=r"which call.*'a', which runs 2 times.*'a#0', 'a#1'"):
        collect(model, [torch.ones(2, 3)], ["a"])


def test_in_place_changes_come_too_late():
    model, x = in_place().eval(), images()
    features = collect(model, [x], ["conv", "norm", "relu"])
    conv = model.conv(x)
    torch.testing.assert_close(features["conv"], conv)
    torch.testing.assert_close(features["norm"], model.norm(conv))
    torch.testing.assert_close(features["relu"], model.norm(conv).relu())


def test_outputs_of_tuples_and_mappings():
    model, x = nested(), torch.randn(4, 5, 8)
    with tap(model, ["attention", "pair"]) as tapped:
        features = tapped(x)
        assert features["attention"].shape == (4, 5, 8)
        torch.testing.assert_close(features["pair"], features["attention"])
    with tap(model, ["attention", "pair"], outputs={"attention": 1, "pair": "logits"}) as tapped:
        features = tapped(x)
        assert features["attention"].shape == (4, 5, 5)
        assert features["pair"].shape == (4, 8)
    zeroth = collect(model, [x], ["attention"], outputs={"attention": 0})
    assert zeroth["attention"].shape == (4, 5, 8)
    doubled = collect(model, [x], ["pair"], outputs=lambda out: 2 * out["logits"] if isinstance(out, dict) else None)
    torch.testing.assert_close(doubled["pair"], 2 * features["pair"])


def test_outputs_by_call():
    swap = {"lstm#1": lambda out: out[1][0].transpose(0, 1)}
    twice = Made(lambda m, x: m.lstm(m.lstm(x)[0])[0], lstm=nn.LSTM(3, 3, batch_first=True))
    features = collect(twice, [torch.randn(2, 4, 3)], "lstm*", outputs=swap)
    assert {k: tuple(v.shape) for k, v in features.items()} == {"lstm#0": (2, 4, 3), "lstm#1": (2, 1, 3)}


def test_only_points_with_the_batch_first_are_listed():
    listed = names(layers(nested(), torch.randn(4, 5, 8)))
    assert listed == ["attention", "pair", ""]  # no table (no batch), sort (integers), unused (never runs)


def test_default_layers_are_activations_or_else_leaves():
    assert list(collect(in_place(), [images()])) == ["relu"]
    assert list(collect(functional(), [torch.randn(4, 3)])) == ["relu"]
    linear = nn.Sequential(nn.Linear(3, 4), nn.Dropout(), nn.Identity(), nn.Flatten(), nn.Linear(4, 2))
    assert list(collect(linear, [torch.randn(4, 3)])) == ["0", "4"]  # the others hand on what they were given


def test_patterns_choose_what_matches_in_run_order():
    model = shared_relu()
    assert list(collect(model, [images()], ["head", "relu#*"])) == ["head", "relu#0", "relu#1", "relu#2"]
    assert list(collect(model, [images()], "relu#[02]")) == ["relu#0", "relu#2"]


def test_batches_of_every_kind_give_the_same_features():
    model, ids = words(), torch.arange(10).view(2, 5)
    plain = collect(model, [ids])["act"]
    named = {"input_ids": ids, "labels": ids}
    for batch in [(ids, torch.zeros(2)), [ids, 1], named, ({"input_ids": ids}, ids), ((ids,), 0)]:
        assert torch.equal(collect(model, [batch])["act"], plain)


def test_max_examples_stops_reading():
    def batches():
        yield images(4)
        yield images(4)
        raise AssertionError("read too far")

    assert collect(shared_relu(), batches(), ["stem"], max_examples=7)["stem"].shape[0] == 7


def test_the_batch_goes_where_it_is_told():
    with tap(functional().to("meta"), ["one"], device="meta") as tapped:
        assert tapped(torch.ones(2, 3))["one"].device.type == "meta"


def test_a_batch_that_cannot_be_cut_is_used_whole():
    class Whole(nn.Linear):
        def forward(self, x):
            if x.shape[0] != 6:
                raise IndexError("needs six")
            return super().forward(x)

    assert names(layers(nn.Sequential(Whole(3, 2)), torch.ones(6, 3))) == ["0", ""]


# the channel axis


@pytest.mark.parametrize(
    ("model", "x", "axis"),
    [
        (nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()), torch.zeros(2, 3, 5, 5), 1),
        (nn.Sequential(nn.Conv1d(3, 4, 1), nn.ReLU()), torch.zeros(2, 3, 5), 1),
        (nn.Sequential(nn.Linear(5, 4), nn.GELU()), torch.zeros(2, 3, 5), -1),
        (nn.Sequential(nn.Linear(5, 4), nn.GELU()), torch.zeros(2, 3, 3, 5), -1),  # channels-last images
        (nn.Sequential(nn.LayerNorm(5), nn.GELU()), torch.zeros(2, 3, 5), -1),
        (nn.Sequential(nn.LayerNorm([3, 5]), nn.GELU()), torch.zeros(2, 3, 5), -1),  # rank decides
        (nn.Sequential(nn.Linear(5, 4), nn.ReLU()), torch.zeros(2, 5), 1),
        (nn.Sequential(nn.Conv3d(1, 4, 1), nn.ReLU()), torch.zeros(2, 1, 3, 3, 3), 1),
    ],
)
def test_channel_axis(model, x, axis):
    assert [p.channel_dim for p in layers(model, x)] == [axis] * (len(model) + 1)


# the model is as it was


def frozen_in_eval(model):
    model.train()
    model.norm.eval()
    return {name: module.training for name, module in model.named_modules()}


def test_flags_buffers_and_hooks_are_as_before():
    model = in_place()
    flags = frozen_in_eval(model)
    state = {k: v.clone() for k, v in model.state_dict().items()}
    mine = model.conv.register_forward_hook(lambda *_: None)
    collect(model, images().split(2), ["conv", "relu"])
    assert {name: module.training for name, module in model.named_modules()} == flags
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert hooks(model) == 1
    mine.remove()


def test_an_exception_leaves_nothing_behind():
    model = fails().train()
    batches = [torch.ones(4, 3), torch.ones(4, 3), torch.full((4, 3), 13.0)]
    with pytest.raises(ArithmeticError, match="thirteen"):
        collect(model, batches)
    assert hooks(model) == 0
    assert all(m.training for m in model.modules())
    assert torch.is_grad_enabled()


class Centred(nn.Module):
    """Takes off the mean of the first batch that it is given."""

    def __init__(self):
        super().__init__()
        self.linear, self.mean = nn.Linear(3, 4), None

    def forward(self, x):
        self.mean = x.mean(0) if self.mean is None else self.mean
        return self.linear(x - self.mean)


def test_the_run_that_lists_layers_leaves_no_state_for_those_that_count():
    model, x = Centred(), torch.randn(8, 3)
    layers(model, x)
    assert model.mean is None
    assert torch.equal(collect(model, [x], "linear")["linear"], model.linear(x - x.mean(0)).detach())
    assert model.mean is None  # nor does the pass that counts


def test_a_pass_over_the_data_goes_on_from_batch_to_batch_and_leaves_attributes_as_they_were():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.calls, self.seen = nn.Linear(3, 4), 0, []

        def forward(self, x):
            self.calls += 1
            self.seen.append(x)
            return self.linear(x) + self.calls

    model, batches = Counting(), torch.randn(12, 3).split(6)
    found = collect(model, batches, "")[""]
    assert torch.allclose(found - model.linear(torch.cat(batches)), torch.tensor([[1.0]] * 6 + [[2.0]] * 6))
    iw.compare(model, Counting(), batches, ["linear"], resampling=None)
    assert model.calls == 0 and not model.seen


def test_weights_that_the_first_run_makes_stay():
    x, y = torch.randn(8, 3), torch.randint(0, 2, (8,))
    for run in (lambda model: collect(model, [x]), lambda model: iw.features.evaluate(model, [(x, y)])):
        model = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2))
        run(model)
        assert model(x).shape == (8, 2)


def test_hooks_exist_only_while_a_batch_runs():
    model = functional()
    with tap(model, ["one"]) as tapped:
        features = tapped(torch.ones(2, 3))
        assert hooks(model) == 0
        assert not features["one"].requires_grad
        assert torch.is_grad_enabled()  # what the caller does between batches is the caller's
        assert not model.one.training
    assert model.one.training


def test_inputs_are_not_changed():
    x = images()
    before = x.clone()
    collect(in_place(), [x])
    assert torch.equal(x, before)


def test_tapped_can_be_entered_again_but_not_twice_at_once():
    tapped = tap(functional(), ["one"])
    for _ in range(2):
        with tapped:
            tapped(torch.ones(2, 3))
    with tapped, pytest.raises(RuntimeError, match="entered once at a time"):
        tapped.__enter__()


def test_compiled_models_are_read_through(monkeypatch):
    model = functional()
    compiled = torch.compile(model, backend="eager")
    assert torch.equal(collect(compiled, [torch.ones(2, 3)], ["two"])["two"], model(torch.ones(2, 3)).detach())


# errors


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (["rellu#1"], r"must be names of modules that run\. Got 'rellu#1'\. Close names: 'relu#"),
        (["relu"], r"which call of a module is meant\. Got 'relu', which runs 3 times"),
        (["relu#3"], r"Got 'relu#3'\. Close names"),
        (["nothing.*"], r"Got 'nothing\.\*'"),
        ([], r"at least one layer"),
    ],
)
def test_wrong_layers(layers, message):
    with pytest.raises(ValueError, match=message):
        collect(shared_relu(), [images()], layers)


@pytest.mark.parametrize("name", ["unused", "table", "sort"])
def test_layers_without_features(name):
    with pytest.raises(ValueError, match=rf"first axis is the batch\. Got '{name}'"):
        collect(nested(), [torch.randn(4, 5, 8)], [name])


def test_wrong_layers_are_refused_after_two_examples():
    seen = []
    model = functional()
    model.one.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[0]))
    with pytest.raises(ValueError, match="Close names"):
        collect(model, [torch.ones(100, 3)] * 5, ["three"])
    assert seen == [2]


def test_a_layer_that_stops_running():
    sometimes = Made(lambda m, x: m.lin(x) if x.sum() > 0 else x, lin=nn.Linear(3, 3))
    with pytest.raises(RuntimeError, match=r"must run on every batch\. Got a batch on which \['lin'\]"):
        collect(sometimes, [torch.ones(4, 3), -torch.ones(4, 3)], ["lin"])


def test_shapes_that_change_between_batches():
    with pytest.raises(ValueError, match=r"'0' must have one shape in all batches\. Got .*Pad or resize"):
        collect(nn.Sequential(nn.Conv2d(3, 2, 1)), [torch.ones(4, 3, 5, 5), torch.ones(4, 3, 6, 6)])


def test_no_batches_and_no_loader():
    with pytest.raises(ValueError, match=r"at least one batch\. Got none"):
        collect(functional(), [])
    used_up = iter([torch.ones(2, 3)])
    collect(functional(), used_up)
    with pytest.raises(ValueError, match="read only once"):
        collect(functional(), used_up)
    with pytest.raises(TypeError, match=r"iterable of batches\. Got Tensor\. For one batch, pass \[batch\]"):
        collect(functional(), torch.ones(2, 3))
    with pytest.raises(TypeError, match="a batch must be a tensor"):
        collect(functional(), ["text"])
    with pytest.raises(ValueError, match=r"max_examples must be at least 1\. Got 0"):
        collect(functional(), [torch.ones(2, 3)], max_examples=0)


def test_a_call_outside_the_block():
    with pytest.raises(RuntimeError, match="inside 'with tap"):
        tap(functional())(torch.ones(2, 3))


def test_a_model_without_features():
    with pytest.raises(ValueError, match="must have a module with features to read"):
        collect(nn.Sequential(nn.Sequential()), [torch.ones(2)])


# batches


def test_a_model_that_overwrites_its_input_sees_a_copy():
    x = -torch.ones(4, 3)
    collect(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 2)), [x])
    assert (x == -1).all()


@pytest.mark.parametrize("sizes", [[1] * 11, [5, 5, 1], [9, 2], [3], [4, 4, 4], [2, 9, 1, 1, 1]])
def test_regroup_keeps_every_example_in_order_and_leaves_no_small_rest(sizes):
    x = torch.arange(sum(sizes)).view(-1, 1)
    wraps = [lambda t: t, lambda t: (t, 0), lambda t: {"x": t}, lambda t: ((t, t), 0), lambda t: {"x": [t, {"y": t}]}]
    for wrap in wraps:
        groups = list(regroup([wrap(part) for part in x.split(sizes)], at_least=4))
        assert sum(size(g) for g in groups) == len(x)
        assert all(torch.equal(torch.cat(part), x) for part in zip(*map(tensors_in, groups)))
        assert len(groups) == 1 or min(size(g) for g in groups) >= 4
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:-1]
        assert all(torch.equal(one, x[order]) for one in tensors_in(join([wrap(p) for p in x.split(sizes)], order)))
    plain = list(regroup(x.split(sizes), at_least=4))
    assert torch.equal(torch.cat(plain), x)


def test_batches_share_arrays_that_are_equal():
    batch = lambda array: {"x": torch.ones(2, 3), "sizes": array}
    assert (join([batch(np.arange(3)), batch(np.arange(3))])["sizes"] == np.arange(3)).all()
    with pytest.raises(ValueError, match="must agree in what is not one value per example"):
        join([batch(np.arange(3)), batch(np.arange(4)[1:])])
    with pytest.raises(ValueError, match="must agree in what is not one value per example"):
        join([batch(np.arange(3)), batch(np.arange(4))])


def test_arrays_of_examples_go_with_their_examples():
    batch = lambda *rows: {"x": torch.tensor(rows)[:, None], "rows": np.array(rows)}
    for index in (None, torch.tensor([4, 0, 2])):
        found = join([batch(0, 1), batch(2, 3), batch(4)], index)
        assert found["rows"].tolist() == found["x"][:, 0].tolist() and len(found["rows"]) == (5 if index is None else 3)
    assert head(batch(0, 1, 2), 2)["rows"].tolist() == [0, 1]
    assert join([batch(0, 1), batch(0, 1)])["rows"].tolist() == [0, 1, 0, 1]  # equal, but of other examples


def test_batches_of_other_shapes_are_not_joined():
    with pytest.raises(ValueError, match="inputs of one shape to be joined"):
        list(regroup([torch.ones(2, 3), torch.ones(2, 4)], at_least=4))
    with pytest.raises(ValueError, match="agree in what is not one value per example"):
        list(regroup([{"x": torch.ones(2, 3), "scale": k} for k in (1, 2)], at_least=4))


def test_lists_of_examples_go_with_their_examples():
    class Shortened(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 4)

        def forward(self, x, lengths):
            kept = torch.arange(x.shape[1]) < torch.as_tensor(lengths)[:, None]
            return self.linear((x * kept[:, :, None]).sum(1))

    a, b, x, n = Shortened(), Shortened(), torch.randn(40, 5, 3), torch.randint(1, 6, (40,))
    scores = [
        iw.compare(a, b, [{"x": u, "lengths": of(v)} for u, v in zip(x.split(8), n.split(8))], "linear", "linear_cka",
                   resampling=None, exact=False).scores["linear_cka"]
        for of in (lambda v: v, lambda v: v.tolist(), lambda v: v.numpy())
    ]  # fmt: skip
    assert all(torch.equal(scores[0], other) for other in scores[1:])


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(torch.randn(20, 5))


def test_loaders_of_streams_have_no_length():
    model, loader = nn.Sequential(nn.Linear(5, 3), nn.ReLU()), torch.utils.data.DataLoader(Stream(), batch_size=6)
    assert collect(model, loader)["1"].shape == (20, 3)
    result = iw.compare(model, model, loader, resampling=None)
    assert result.examples == 20
    assert length(loader) is None
    assert length([1, 2]) == 2


def test_what_a_model_does_to_its_own_operations_is_not_done_to_those_of_whoever_watches():
    model = iw.gates.dlgn(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))  # it refuses tanh, takes ReLUs
    seen = []
    with watching({"value.0": model.value[0]}, lambda _n, _k, _m, _in, out: seen.append(out.relu().tanh())):
        out = model(torch.ones(2, 3))
    assert out.shape == (2, 2) and len(seen) == 1 and bool((seen[0] >= 0).all())


# loaders that shuffle


def shuffled():
    return torch.utils.data.DataLoader(torch.arange(40.0)[:, None], batch_size=8, shuffle=True)


def passes(loader, times=2):
    return [torch.cat(list(loader)).flatten().tolist() for _ in range(times)]


def test_a_repeatable_loader_follows_its_seed_alone_and_leaves_no_trace():
    torch.manual_seed(0)
    one, two = passes(repeatable(shuffled(), 5))
    after = torch.rand(3)
    torch.manual_seed(1)
    torch.rand(7)
    assert passes(repeatable(shuffled(), 5), 1) == [one] == [two]
    assert passes(repeatable(shuffled(), 6), 1) != [one]
    assert sorted(one) == list(range(40))
    torch.manual_seed(0)
    assert torch.equal(torch.rand(3), after)  # reading drew nothing from the caller's random numbers


def test_the_last_seed_counts_and_the_work_between_batches_draws_on_its_own():
    loader = repeatable(shuffled(), 5)
    assert repeatable(loader) is loader
    assert passes(repeatable(loader, 6)) == passes(repeatable(shuffled(), 6))
    disturbed = []
    for batch in loader:
        torch.rand(3)
        disturbed += batch.flatten().tolist()
    assert [disturbed] == passes(loader, 1)


def test_augmentation_by_numpy_and_python_is_the_same_in_every_pass_and_leaves_no_trace():
    class Augmented(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, k):
            if k >= 8:
                raise IndexError(k)
            return torch.tensor([np.random.rand(), random.random()])  # noqa: NPY002 - as people do

    loader = torch.utils.data.DataLoader(Augmented(), batch_size=4)
    before = host_state()
    one, two = passes(repeatable(loader, 5))
    assert one == two and len(set(one)) == 16
    assert host_state() == before
    assert passes(repeatable(loader, 6), 1) != [one]


def test_features_of_two_models_collected_from_a_shuffled_loader_belong_together():
    model, loader = functional(), torch.utils.data.DataLoader(torch.randn(32, 3), batch_size=8, shuffle=True)
    one, two = (collect(model, loader, "two")["two"] for _ in range(2))
    assert torch.equal(one, two)


def written():
    """Nonlinearities in every spelling."""

    def run(m, x):
        x = nn.functional.relu(m.one(x))
        x = m.relu(m.two(x)).add(1)
        x = m.act(torch.relu(x) - 0.1)
        return nn.functional.gelu(m.two(x).clamp(min=0).mul_(0.9).relu_())

    return Made(
        run, one=nn.Linear(3, 4), two=nn.Linear(4, 4), relu=nn.ReLU(), act=Function(lambda x: x * torch.sigmoid(x))
    )


def test_nonlinearities_called_as_functions_are_points_with_the_values_that_they_return():
    model, x = written(), torch.randn(5, 3)
    names = ["F.relu#0", "relu", "F.relu#1", "act", "F.relu#2", "F.relu#3", "gelu"]
    assert [p.name for p in layers(model, x) if p.activation] == names
    with tap(model) as tapped:
        features = tapped(x)
        again = tapped(x[:2])
    one = model.one(x).relu()
    assert torch.equal(features["F.relu#0"], one) and torch.equal(features["gelu"], model(x))
    assert torch.equal(features["F.relu#2"] * 0.9, features["F.relu#3"])  # copied before it was changed in place
    assert all(torch.allclose(again[name], features[name][:2], atol=1e-6) for name in names)
    assert not model._forward_hooks and not model.two._forward_pre_hooks


def test_functions_have_one_name_in_features_and_in_programs():
    model, x = written(), torch.randn(5, 3)
    program = capture(model, (x,))
    names = [p.name for p in layers(model, x)]
    assert {name for name in names if name} <= set(program.taps)
    with tap(model, [name for name in names if name]) as tapped:
        features = tapped(x)
    values = program.run(x, [program.taps[name] for name in features], states=dict(model.named_parameters()))
    for found, name in zip(values, features):
        assert torch.allclose(found, features[name], atol=1e-6), name


def test_state_dicts_are_refused_in_words():
    state = in_place().state_dict()
    for read in (lambda: collect(state, [images()]), lambda: layers(state, images()), lambda: tap(state)):
        with pytest.raises(TypeError, match=r"must be a torch\.nn\.Module.*load_state_dict"):
            read()


def test_what_torch_computes_inside_a_module_is_no_point():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    assert [p.name for p in layers(model, torch.randn(3, 5, 8)) if p.activation] == ["layers.0.relu", "layers.1.relu"]
    assert [p.name for p in layers(nn.LSTM(4, 5, batch_first=True), torch.randn(3, 6, 4))] == [""]


def test_encoders_with_padded_positions_are_read_layer_by_layer():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = Made(lambda m, x, mask: m.inner(x, src_key_padding_mask=mask), inner=nn.TransformerEncoder(layer, 2)).eval()
    x, padded = torch.randn(6, 5, 8), torch.arange(5) >= torch.tensor([[5], [3], [2], [5], [4], [1]])
    fast, at = torch.backends.mha.get_fastpath_enabled(), ["inner.layers.0.relu", "inner.layers.1", "inner"]
    features = collect(model, [{"x": x, "mask": padded}], at)
    assert features[at[0]].shape == (6, 5, 16) and torch.backends.mha.get_fastpath_enabled() == fast
    assert torch.equal(features[at[1]], features["inner"])
    torch.testing.assert_close(features["inner"][~padded], model(x, padded)[~padded].detach())


def test_logits_with_nan_name_no_class():
    logits = torch.tensor([[float("nan")] * 3, [2.0, 1.0, float("nan")], [3.0, 1.0, 2.0]])
    found = iw.features.evaluate(nn.Identity(), [(logits, torch.tensor([0, 2, 0]))])
    assert found.accuracy == pytest.approx(1 / 3)
