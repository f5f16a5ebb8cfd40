"""Channels that never vary: never alive, in any type, at any number of examples and offset, and never an agreement."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from made import Made
from numeric import normal
from torch import nn

from intertwine.similarity import Resampling, compare, measure, measure_names, procrustes
from intertwine.similarity._features import is_constant, moments

TYPES = st.sampled_from([torch.float64, torch.float32, torch.float16, torch.bfloat16])
SPACES = st.sampled_from([(), (3,), (7, 7), (2, 3, 5)])
CENTRED = [
    name
    for name in measure_names()
    if ("procrustes" not in name or name.endswith("_centered")) and not name.startswith("trivial")
]


def with_constants(x, at, value):
    """Columns of one value in between the channels of ``x``."""
    columns = list(x.unbind(1))
    for position in at:
        columns.insert(position, torch.full_like(columns[0], value))
    return torch.stack(columns, 1)


@settings(max_examples=80, deadline=None)
@given(
    dtype=TYPES, space=SPACES, n=st.integers(4, 300), value=st.floats(-1e4, 1e4, allow_nan=False),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_constant_columns_are_never_alive_and_others_always(dtype, space, n, value, seed):
    x = normal(n, 2, *space, seed=seed).to(dtype)
    x = with_constants(x, [1], value)
    found = moments(x)
    assert found.constant.tolist() == [False, True, False]
    assert found.spread[1] == 0
    assert found.dead.tolist() == [False, x[0, 1].flatten()[0].item() == 0, False]


@settings(max_examples=60, deadline=None)
@given(
    dtype=st.sampled_from([torch.float64, torch.float32]),
    n=st.integers(4, 500),
    offset=st.sampled_from([0.0, 1.0, 1e2, 1e4]),
    seed=st.integers(0, 99),
)
def test_channels_that_vary_are_alive_at_any_offset(dtype, n, offset, seed):
    """One example of many is enough."""
    x = torch.full((n, 1), offset, dtype=dtype)
    x[seed % n] += 1
    assert not moments(x).constant.any()
    assert not moments(offset + normal(n, 3, seed=seed).to(dtype)).constant.any()


def test_two_last_places_are_rounding():
    for dtype in (torch.float32, torch.float64):
        value = torch.tensor([3.0], dtype=dtype)
        up = torch.nextafter(value, value + 1)
        assert is_constant(value, up)
        assert not is_constant(value, value * (1 + 4 * torch.finfo(dtype).eps))


@pytest.mark.parametrize("name", CENTRED)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_constant_channels_change_no_score_of_a_measure_that_centres(name, dtype):
    """4 of 12 units. Uncentred Procrustes keeps a constant as what it is, a direction."""
    m = measure(name)
    for shape in ((97, 8), (24, 8, 7, 7)):
        x, y = normal(*shape, seed=1), normal(*shape, seed=1) + normal(*shape, seed=2)
        expected = m(x, y)
        u, v = with_constants(x, (0, 3, 3, 9), 0.1), with_constants(y, (2, 8), -7.3)
        a, b = m.prepare(u.to(dtype)), m.prepare(v.to(dtype))
        assert (a.dead, b.dead) == (4, 2)
        assert m.score(a, b) == pytest.approx(expected, abs=1e-12 if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize("name", measure_names())
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("shape", [(1000, 10), (300, 4, 5, 5)], ids=str)
def test_constant_layers_have_no_score(name, dtype, shape):
    """Means of 0.1 are rounded: by spread they would seem to vary, and two of them to agree."""
    values = torch.linspace(0.1, 0.7, shape[1], dtype=dtype).view(-1, *[1] * (len(shape) - 2)).expand(shape)
    with pytest.raises(ValueError, match=r"must vary between examples. Got \d+ channels, all of them constant"):
        measure(name)(values, values)


class Constant(nn.Module):
    def __init__(self, value=0.1):
        super().__init__()
        self.value = value

    def forward(self, x):
        return torch.full((len(x), 6), self.value, dtype=x.dtype) * torch.linspace(1, 2, 6, dtype=x.dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_compare_says_which_layers_are_constant(dtype):
    net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), Constant()).to(dtype)
    names = [m for m in measure_names() if "laplace" not in m and "rbf" not in m]
    result = compare(
        net, net, normal(40, 5, dtype=dtype).split(7), ["1", "2"], names, resampling=Resampling(null=2, bootstrap=2)
    )
    for name in names:
        assert not result.scores[name][0, 0].isnan()
        assert result.scores[name][1].isnan().all() and result.scores[name][:, 1].isnan().all()
    assert "No score for layer '2' of A: all channels are constant." in result.notes
    assert "nan" not in result.summary()


@pytest.mark.parametrize("value", [0.1, 0.7, -1e4 / 3, 0.0])
def test_estimates_of_constant_layers_have_no_score(value):
    net, x = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), Constant(value)), normal(400, 5, dtype=torch.float32).split(100)
    scores = compare(net, net, x, ["1", "2"], "linear_cka", resampling=None, exact=False).scores
    assert scores["linear_cka"].isnan().tolist() == [[False, True], [True, True]]


def steps():
    """The first channel tells batches apart but no examples within one."""
    return Made(lambda m, x: torch.cat([x[:, :1] * 0 + x[:, :1].mean().round(decimals=3), x[:, 1:]], 1))


@pytest.mark.parametrize("name", ["g_relu_cka", "svcca", "orthogonal_procrustes_centered", "mutual_knn"])
def test_a_channel_that_is_constant_in_each_batch_is_alive(name):
    net, x = nn.Sequential(steps(), nn.Identity()).double(), normal(60, 4)
    result = compare(net, net, x.split(15), ["1"], name, resampling=None)
    whole = torch.cat([net(part) for part in x.split(15)])
    assert measure(name).prepare(whole).dead == 0
    assert float(result.scores[name]) == pytest.approx(measure(name)(whole, whole), abs=1e-7)


@pytest.mark.parametrize("name", [m for m in measure_names() if "procrustes" in m])
def test_halves_in_which_a_channel_is_silent_leave_it_out(name):
    """A channel that lives in one example of 40 is constant in half of the halves: rounding must not be normalised."""
    x = normal(40, 5) + 1e3
    x[:, 2] = 0.1
    x[7, 2] = 5
    m, net = measure(name), nn.Sequential(nn.Identity(), nn.Identity())
    result = compare(net, net, [x], ["1"], m, resampling=Resampling(null=0, bootstrap=6, seed=3))
    assert float(result.scores[name]) == pytest.approx(1, abs=1e-6)
    assert (float(result.low[name]), float(result.high[name])) == pytest.approx((1, 1), abs=1e-3)


@pytest.mark.parametrize("center", [False, True])
def test_comparing_by_position_keeps_positions(center):
    """Unit 0 is dead on one side only: dropping it there would compare every unit with its neighbour."""
    x = normal(200, 12).relu()
    y = x + 1e-3 * normal(200, 12, seed=1)
    x[:, 0] = 0
    y[:, 0] *= 1e-3
    z, w = (t - t.mean(0) if center else t for t in (x, y))
    cosine = float((z * w).sum() / (z.norm() * w.norm()))
    expected = 1 - (2 - 2 * cosine) ** 0.5 / 2
    assert expected > 0.999
    assert procrustes(x, y, "trivial", center=center) == pytest.approx(expected, abs=1e-9)
    net = lambda values: nn.Sequential(fixed(values), nn.Identity())
    name = "trivial_procrustes" + ("_centered" if center else "")
    result = compare(net(x), net(y), [torch.zeros(200, 1)], ["1"], name, resampling=None)
    assert float(result.scores[name]) == pytest.approx(expected, abs=1e-9)


def fixed(values):
    return Made(lambda m, x: values[: len(x)])
