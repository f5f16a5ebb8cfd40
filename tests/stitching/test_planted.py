"""A planted G_ReLU copy of a digits CNN that was trained: what every way to stitch it must and must not do."""

from dataclasses import replace

import pytest
import torch

import intertwine as iw
from intertwine.features import tap
from intertwine.groups import PositiveMonomial
from intertwine.lab import data
from intertwine.lab.training import RECIPES, train
from intertwine.stitching import RECIPES as SCHEDULES
from intertwine.stitching import StitchOptions

RELUS = ["relu1", "relu2", "relu3"]


@pytest.fixture(scope="module")
def planted():
    """The network, its copy, and what carries features of one to those of the other at every ReLU."""
    recipe = replace(RECIPES["digits"], epochs=4)
    model = train("digits_cnn:width=8", recipe=recipe, progress=False).model
    digits = data.load("digits")
    symmetry = iw.symmetries(model, torch.randn(2, 1, 8, 8))
    twin = symmetry.act(symmetry.random(seed=11), model)
    loaders = {
        "loader": digits.loader("train", batch_size=32, shuffle=True, examples=640),
        "eval_loader": digits.loader("test"),
    }
    return model, twin, loaders


def live_units_matched(found, planted):
    """Share of B's live units that the map matches with the unit of A that they are a copy of."""
    model, twin, loaders = planted
    batch = next(iter(loaders["eval_loader"]))
    with tap(model, [found.layer_a]) as one, tap(twin, [found.layer_b]) as two:
        x, y = one(batch)[found.layer_a], two(batch)[found.layer_b]
    live = (y.abs().amax((0, 2, 3)) > 0).nonzero().flatten().tolist()
    cosine = lambda i, j: float(torch.nn.functional.cosine_similarity(y[:, i].flatten(), x[:, j].flatten(), 0))
    return sum(cosine(i, found.pairing["index"][i]) > 0.999 for i in live) / len(live)


def test_closed_form_recovers_every_live_unit_and_costs_nothing(planted):
    model, twin, loaders = planted
    for recalibration in (True, False):
        study = iw.stitch(
            model, twin, RELUS, "g_relu", method="direct", options=StitchOptions(recalibration=recalibration), **loaders
        )
        for found in study.stitchings:
            assert live_units_matched(found, planted) == 1
            assert PositiveMonomial(found.c_in).contains(found.matrix.double())
            assert found.penalty == pytest.approx(0, abs=0 if not recalibration else 0.006), found.layer_a


def test_full_by_least_squares_is_exact(planted):
    model, twin, loaders = planted
    study = iw.stitch(
        model, twin, RELUS, "full", method="direct", options=StitchOptions(recalibration=False), **loaders
    )
    assert [found.penalty for found in study.stitchings] == [0, 0, 0]
    assert max(found.drift.residual for found in study.stitchings) < 1e-9


def test_trained_with_default_settings_it_stays(planted):
    """v1's recipe, 20 epochs, from the closed form, batch norm recalibrated."""
    model, twin, loaders = planted
    found = iw.stitch(model, twin, "relu2", "g_relu", **loaders)
    assert found.penalty <= 0.01
    assert live_units_matched(found, planted) == 1
    assert len(found.history) == 20


def test_the_papers_random_start_does_not_find_it(planted):
    """Notes 12: on little data. What it recovers is reported. Half of its epochs."""
    model, twin, loaders = planted
    half = replace(SCHEDULES["v2"], epochs=10, head_start=5)
    random = iw.stitch(model, twin, "relu2", "g_relu", method=half, options=StitchOptions(start="random"), **loaders)
    assert random.penalty > 0.02
    assert random.agreement < 0.8
    assert live_units_matched(random, planted) == pytest.approx(random.agreement, abs=0.15)


def test_too_small_a_family_pays(planted):
    """The orthogonal group cannot rescale; the identity cannot permute either."""
    model, twin, loaders = planted
    study = iw.stitch(
        model, twin, RELUS, ["identity", "orthogonal"], method="direct", options=StitchOptions(recalibration=False),
        **loaders,
    )  # fmt: skip
    for found in study.select(family="identity").stitchings:
        assert found.penalty > 0.3
    assert max(found.penalty for found in study.select(family="orthogonal").stitchings) > 0.01
