"""Offsets far larger than the spread: float32 scores are those of float64 on the same numbers."""

import pytest
import torch
from made import Made
from torch import nn

from intertwine.similarity import Resampling, compare, measure, measure_names
from intertwine.similarity._features import subtract

CENTRED = [
    name for name in measure_names() if not ("procrustes" in name and "centered" not in name) and name != "gates_cka"
]
CENTRED = [name for name in CENTRED if name not in ("rsa", "gates_cka_biased")]  # sees the offset; sees signs


def pair(offset, shape=(200, 12), seed=0):
    """Correlated features of spread 1, float32, with offsets of both signs."""
    g = torch.Generator().manual_seed(seed)
    x, noise = torch.randn(shape, generator=g), torch.randn(shape, generator=g)
    signs = torch.where(torch.arange(shape[1]) % 2 == 0, 1.0, -0.7).view(-1, *[1] * (len(shape) - 2))
    return x + offset * signs, x + 0.5 * noise - 0.3 * offset * signs


@pytest.mark.parametrize("offset", [1e4, 1e6])
@pytest.mark.parametrize("shape", [(200, 12), (60, 5, 3, 3)], ids=str)
@pytest.mark.parametrize("name", CENTRED)
def test_measures_lose_no_digits(name, shape, offset):
    x, y = pair(offset, shape)
    assert measure(name)(x, y) == pytest.approx(measure(name)(x.double(), y.double()), abs=2e-6)


def side(values):
    return Made(lambda m, x: values[x[:, 0].long()])


@pytest.mark.parametrize("offset", [1e4, 1e6])
@pytest.mark.parametrize("name", ["linear_cka", "g_relu_cka", "g_relu_procrustes_centered", "svcca", "mutual_knn"])
def test_compare_and_estimates_lose_none_either(name, offset):
    x, y = pair(offset)
    index = torch.arange(200.0)[:, None]
    a, b = (nn.Sequential(side(t), nn.Identity()) for t in (x, y))
    result = compare(a, b, [index], ["1"], name, resampling=Resampling(null=3, bootstrap=3, seed=2))
    assert float(result.scores[name]) == pytest.approx(measure(name)(x.double(), y.double()), abs=2e-6)
    double = compare(*(nn.Sequential(side(t.double()), nn.Identity()) for t in (x, y)), [index], ["1"], name,
                     resampling=Resampling(null=3, bootstrap=3, seed=2))  # fmt: skip
    ends = ((result.low, double.low), (result.high, double.high)) if measure(name).has_limit else ()
    for found, exact in ((result.chance, double.chance), *ends):
        assert float(found[name]) == pytest.approx(float(exact[name]), abs=2e-5)
    if name == "linear_cka":
        small = compare(a, b, [index], ["1"], name, resampling=None, exact=False)
        exact = compare(a, b, [index], ["1"], name, resampling=None, exact=True).scores[name]
        assert float(small.scores[name]) == pytest.approx(float(exact), abs=float(small.error[name]))


def test_a_mean_is_subtracted_at_the_precision_of_the_difference():
    x, _ = pair(1e6)
    mean = x.double().mean(0)
    exact = x.double() - mean
    assert float((subtract(x.clone(), mean) - exact).abs().max()) < 1e-6
    assert float(((x - mean.float()) - exact).abs().max()) > 1e-3
