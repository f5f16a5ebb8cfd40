"""The minibatch estimator of linear CKA: right weights, no NaN at any batch size, close to the exact value."""

import pytest
import torch
from torch import nn

import intertwine as iw
from intertwine.similarity import hsic, minibatch_cka


def net(seed=0, width=8):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, 6), nn.ReLU()).double()


def inputs(n, seed=1):
    return torch.randn(n, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def gram(x):
    return x.flatten(1) @ x.flatten(1).T


def test_one_group_is_the_exact_value():
    x = inputs(50)
    mini = minibatch_cka(net(), net(1), x.split(7), group_size=50)
    exact = iw.compare(net(), net(1), [x], measures="linear_cka", resampling=None)
    torch.testing.assert_close(mini.scores["linear_cka"], exact.scores["linear_cka"], atol=1e-12, rtol=0)


def test_groups_have_the_weights_of_the_unbiased_estimate():
    a, b, x = net(), net(1), inputs(37)
    groups = [x[:16], x[16:]]  # 8 + 8, then 8 + 8 and the rest of 5

    def total(f, g):
        return sum(
            hsic(gram(f(part).detach()), gram(g(part).detach())) * len(part) * (len(part) - 3) for part in groups
        )

    slow = total(a, b) / (total(a, a) * total(b, b)) ** 0.5
    fast = minibatch_cka(a, b, x.split(8), ["3"], group_size=16).scores["linear_cka"]
    assert float(fast) == pytest.approx(float(slow), abs=1e-10)


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 5, 30, 33, 40])
def test_no_nan_at_any_batch_size(batch):
    result = minibatch_cka(net(), net(), inputs(33).split(batch), group_size=4)
    scores = result.scores["linear_cka"]
    assert scores.isfinite().all()
    torch.testing.assert_close(scores.diagonal(), torch.ones(2, dtype=torch.float64))
    assert result.examples == 33


def test_close_to_exact_and_inside_its_interval():
    x = inputs(1200)
    mini = minibatch_cka(net(), net(1), x.split(60), group_size=60)
    exact = iw.compare(net(), net(1), [x], measures="linear_cka", resampling=None).scores["linear_cka"]
    assert (mini.scores["linear_cka"] - exact).abs().max() < 0.05
    assert ((mini.low["linear_cka"] < exact) & (exact < mini.high["linear_cka"])).double().mean() >= 0.75


def test_unrelated_networks_score_zero_at_small_batches():
    a, b = nn.Sequential(nn.ReLU()), nn.Sequential(Noise(), nn.ReLU())
    result = minibatch_cka(a, b, torch.randn(800, 50).split(8), ["0"], layers_b=["1"], group_size=8)
    assert abs(float(result.scores["linear_cka"])) < 0.05


class Noise(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(0)

    def forward(self, x):
        return torch.randn(x.shape, generator=self.generator)


def test_dead_layers_are_nan_and_the_rest_is_not():
    a = net()
    nn.init.zeros_(a[2].weight)
    nn.init.constant_(a[2].bias, -1)
    scores = minibatch_cka(a, net(1), inputs(40).split(10)).scores["linear_cka"]
    assert scores[1].isnan().all()
    assert scores[0].isfinite().all()


def test_few_groups_have_no_interval():
    result = minibatch_cka(net(), net(1), inputs(40).split(10), group_size=10)
    assert result.low["linear_cka"] is None
    assert any("at least 5 groups" in note for note in result.notes)
    assert "most similar" in str(result)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group_size": 3}, r"group_size must be at least 4 examples\. Got 3"),
        ({"confidence": 0}, r"between 0 and 1\. Got 0"),
        ({"loader": [inputs(3)]}, r"at least 4 examples\. Got 3"),
        ({"loader": []}, "at least one batch"),
        ({"layers": ["9"]}, "Got '9'"),
        ({"loader": [inputs(9) / 0]}, r"features of layer '1' must be finite"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        minibatch_cka(**{"a": net(), "b": net(1), "loader": [inputs(30)]} | options)


def test_large_means_keep_their_digits():
    x = inputs(300)
    a, b = net(), net(1)
    exact = minibatch_cka(a, b, x.split(60), group_size=60).scores["linear_cka"]
    for model in (a, b):
        model[1] = nn.Sequential(nn.ReLU(), Moved())  # what the layer behind it makes of this does not matter
    found = minibatch_cka(a.float(), b.float(), x.float().split(60), ["1.1"], group_size=60).scores["linear_cka"]
    assert float(found) == pytest.approx(float(exact[0, 0]), abs=1e-4)


@pytest.mark.parametrize("offset", [0, 1, 3, 5, 30])
def test_means_of_every_size_keep_their_digits(offset):
    features = torch.randn(2, 90, 256, generator=torch.Generator().manual_seed(0)) + offset
    features[1] += features[0]
    index = torch.arange(90.0)[:, None]
    exact, found = (
        minibatch_cka(
            *(nn.Sequential(Lookup(f.to(dtype)), nn.Identity()) for f in features), [index], ["1"], group_size=90
        )
        for dtype in (torch.float64, torch.float32)
    )
    assert float(found.scores["linear_cka"]) == pytest.approx(float(exact.scores["linear_cka"]), abs=2e-6)


class Lookup(nn.Module):
    def __init__(self, values):
        super().__init__()
        self.values = values

    def forward(self, x):
        return self.values[x[:, 0].long()]


def test_a_network_against_itself_runs_once():
    model, runs = net(), []
    model.register_forward_hook(lambda *_: runs.append(1))
    own = minibatch_cka(model, model, inputs(40).split(10), group_size=10)
    alone = len(runs)
    other = minibatch_cka(model, net(), inputs(40).split(10), group_size=10)
    assert torch.equal(own.scores["linear_cka"], other.scores["linear_cka"])
    assert alone == 2 + 4  # two runs list the layers


class Moved(nn.Module):
    def forward(self, x):
        return x + 1000
