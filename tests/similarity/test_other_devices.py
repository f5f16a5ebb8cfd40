"""Work on an accelerator, by a double: devices are never mixed, and few numbers go to the host."""

import pytest
import torch
from other_device import There, moved, other_device
from torch import nn

import intertwine as iw
from intertwine.similarity import Resampling
from intertwine.similarity.comparison import all_pairs
from intertwine.similarity.comparison.all_pairs import _ROUNDING

MEASURES = ("linear_cka", "g_relu_cka", "gates_cka", "orthogonal_procrustes_centered", "g_relu_procrustes")
HOW = Resampling(null=4, bootstrap=4, untrained=0)
X = torch.randn(256, 3, 12, 12, generator=torch.Generator().manual_seed(0))


def net(seed):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3, stride=2), nn.ReLU()
    ).eval()


def there(*seeds):
    return [moved(net(seed)) for seed in seeds]


def test_the_double_tells():
    with other_device() as copies:
        x = There(torch.ones(3))
        assert x.device.type == "cuda" and not copies
        with pytest.raises(RuntimeError, match="same device"):
            x + torch.ones(3)
        assert float(x.sum()) == 3 and x.cpu().device.type == "cpu"
        assert copies == {"item": 1, "copy": 1}


def test_features_are_collected_with_one_copy_a_batch_and_layer():
    (model,) = there(0)
    with other_device() as copies:
        found = iw.collect(model, X.split(64), ["2", "4"], progress=False)
    assert copies == {"copy": 4 * 2} and all(type(x) is torch.Tensor for x in found.values())


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("name", MEASURES)
def test_scores_are_those_of_the_host(name, exact):
    here = iw.compare(net(0), net(1), X.split(128), ["2", "4"], name, resampling=HOW, exact=exact)
    a, b = there(0, 1)
    with other_device():
        found = iw.compare(a, b, X.split(128), ["2", "4"], name, resampling=HOW, exact=exact)
    off = 1e-4 if exact else _ROUNDING  # the host multiplies in 16 bits
    torch.testing.assert_close(found.scores[name], here.scores[name], atol=off, rtol=0)
    torch.testing.assert_close(found.chance[name], here.chance[name], atol=1e-4, rtol=0)


def test_shuffles_of_heavy_tails_are_drawn_where_the_kernels_are(monkeypatch):
    monkeypatch.setattr(all_pairs, "_HEAVY", -100.0)  # all tails count as heavy
    here = iw.compare(net(0), net(1), X.split(128), ["2", "4"], "gates_cka", resampling=HOW, exact=False)
    a, b = there(0, 1)
    with other_device():
        found = iw.compare(a, b, X.split(128), ["2", "4"], "gates_cka", resampling=HOW, exact=False)
    for name in ("null_p", "calibrated"):
        torch.testing.assert_close(*(getattr(one, name)["gates_cka"] for one in (found, here)), atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["linear_cka", "g_relu_cka", "orthogonal_procrustes_centered"])
def test_a_pass_copies_nothing_for_each_further_batch_but_a_few_numbers(name):
    counts = []
    for batches in (2, 6):
        a, b = there(0, 1)
        with other_device() as copies:
            iw.compare(a, b, [X[:128]] * batches, ["2", "4"], name, resampling=None, exact=False)
        counts.append(copies.total())
    assert counts[1] - counts[0] <= 4 * 4 * 12  # further batches, layers of both networks, copies each


@pytest.mark.parametrize("method", ["weights", "activations", "straight-through"])
def test_networks_are_aligned_where_they_are(method):
    x, batch = X[:8, :, :8, :8], [(X[:32, :, :8, :8], torch.arange(32) % 5)]

    def ready(seed):
        torch.manual_seed(seed)
        return nn.Sequential(net(seed), nn.Flatten(), nn.Linear(54, 5))

    here = iw.align(ready(0), ready(1), x, method=method, loader=batch)
    a, b = (moved(ready(seed)) for seed in (0, 1))
    with other_device():
        found = iw.align(a, b, There(x), method=method, loader=batch)
    assert found.after == pytest.approx(here.after, abs=1e-4)


def test_a_barrier_takes_batches_of_the_host():
    batches = [(X[:32], torch.arange(32) % 5)]
    ready = lambda: [nn.Sequential(net(seed), nn.Flatten(), nn.Linear(150, 5)) for seed in (0, 1)]
    here = iw.barrier(*ready(), batches, points=3)
    with other_device():
        found = iw.barrier(*map(moved, ready()), batches, points=3)
    assert [found.before, found.after] == pytest.approx([here.before, here.after], abs=1e-4)


def test_networks_are_folded_where_they_are():
    def made():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(12, 8), nn.LayerNorm(8), nn.Linear(8, 3, bias=False))
        nn.init.normal_(net[1].weight, 1.0, 0.1)
        nn.init.normal_(net[1].bias, 0.0, 0.1)
        return net

    x = X[:8, 0, 0]
    here = iw.fold(made(), x).model.state_dict()
    with other_device():
        found = dict(iw.fold(moved(made()), There(x)).model.named_parameters())
    assert all(isinstance(p.data, There) for p in found.values())
    torch.testing.assert_close({name: p.data.value for name, p in found.items()}, dict(here))


def test_what_is_not_the_same_is_told_where_it_is_and_inputs_are_not_moved_in_silence():
    a, b = there(0, 1)
    with other_device():
        assert not iw.same(a, b, There(X[:4]))
        with pytest.raises(RuntimeError, match="same device"):
            iw.same(a, b, X[:4])
