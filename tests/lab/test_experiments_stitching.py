"""Stitching beside the papers' claims: slopes, transformers, sparse maps, alpha chosen by cross-validation."""

import pytest

from intertwine.lab.experiments import Setting, reproduce
from intertwine.lab.experiments.pairs import pairs_at
from intertwine.lab.experiments.paper1 import alpha_choice, cct_stitching, lasso_stitching, leaky_stitching
from intertwine.lab.experiments.paper1.stitched_layers import StitchedLayers, by_family, line
from intertwine.lab.experiments.zoos import recipe_at, zoo_for
from intertwine.lab.zoo import Zoo
from intertwine.stitching.training.alpha import ALPHAS


def held(claims):
    return [claim.held for claim in claims]


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    setting = Setting(folder=tmp_path_factory.mktemp("zoo"))
    return zoo_for(setting, "digits_cnn:width=4", 2, recipe_at(setting).but(epochs=2))


def paths(zoo):
    a, b = (str(member.path) for member in zoo.members)
    return {"a": a, "b": b}


# --- claims that can hold and fail ---------------------------------------------------------------


def test_claims_about_slopes():
    at = lambda *values: dict(zip(("relu", "layer1.0.relu2", "layer3.2.relu1*", "layer3.2.relu2"), values))
    paper = {1e-2: at(0.3, 0.4, 0.1, 0.1), 0.9: at(0.2, 0.3, 0.15, 0.15), 1.0: at(0.2, 0.2, 0.2, 0.2)}
    assert held(leaky_stitching.claims_of(paper)) == [True] * 4
    reverse = {1e-2: at(0.1, 0.1, 0.12, 0.12), 0.9: at(0.5, 0.5, 0.5, 0.5), 1.0: at(0.4, 0.1, 0.2, 0.2)}
    assert held(leaky_stitching.claims_of(reverse)) == [False] * 4
    two = {slope: {"relu1": 0.1, "relu2": 0.2} for slope in (1e-2, 0.9, 1.0)}
    assert held(leaky_stitching.claims_of(two))[2] is None  # no layers but the last two


def test_claims_about_transformers():
    full = {"blocks.0": 0.02, "blocks.1": 0.05}
    assert held(cct_stitching.claims_of({"g_relu": {"blocks.0": 0.3, "blocks.1": 0.4}, "full": full})) == [True, True]
    assert held(cct_stitching.claims_of({"g_relu": {"blocks.0": 0.3, "blocks.1": 0.04}, "full": full})) == [
        False,
        False,
    ]


def test_claims_about_sparse_maps():
    at = lambda value: {"relu1": value}
    sparsities = {"g_relu": at(0.9), "lasso-0.01": at(0.5), "lasso-0.1": at(0.88)}
    penalties = {"g_relu": at(0.1), "lasso-0.01": at(0.05), "lasso-0.1": at(0.2)}
    assert held(lasso_stitching.claims_of(penalties, sparsities)) == [True, True]
    assert held(lasso_stitching.claims_of({**penalties, "lasso-0.1": at(0.05)}, sparsities)) == [False, True]
    dense = {**sparsities, "lasso-0.1": at(0.4)}
    assert held(lasso_stitching.claims_of(penalties, dense)) == [None, False]  # no rival, and the order is broken


def test_claims_about_alpha():
    made = lambda alpha, chosen, held_out: {
        "relu1": {"alpha": alpha, "chosen": chosen, "usual": 0.1, "held_out": {"0.1": held_out, "1": 0.8}}
    }
    paper = [made(0.1, 0.11, 0.79), made(1.0, 0.09, 0.81)]
    assert held(alpha_choice.claims_of(paper)) == [True] * 3
    reverse = [made(0.1, 0.3, None), made(0.1, 0.2, 0.5)]  # one run diverged
    assert held(alpha_choice.claims_of(reverse)) == [False] * 3


# --- jobs and lines ------------------------------------------------------------------------------


def test_a_pair_at_some_layers(zoo, tmp_path):
    job = StitchedLayers(
        **paths(zoo), data="digits", examples=64, tested=50, layers=("relu3",), families=("g_relu", "lasso-0.01"),
        recipe={"epochs": 1, "head_start": 0}, translate=0, flip=False, seed=0,
    )  # fmt: skip
    value = job.run(tmp_path)
    assert value["sparsities"]["relu3"]["g_relu"] == pytest.approx(1 - 1 / 16)
    assert value["sparsities"]["relu3"]["lasso-0.01"] < 0.5
    assert list(by_family([value])) == ["g_relu", "lasso-0.01"]
    assert all(0 <= x <= 1 for x in value["accuracies"])
    assert job.run(tmp_path) == value


def test_alphas_of_a_pair(zoo, tmp_path):
    job = alpha_choice.ChosenAlphas(
        **paths(zoo), data="digits", examples=64, tested=50, layers=("relu3",), start="random", epochs=1, seed=0
    )
    (found,) = job.run(tmp_path).values()
    assert set(found["held_out"]) == {f"{alpha:g}" for alpha in ALPHAS}
    assert found["alpha"] in ALPHAS
    assert found["held_out"][f"{found['alpha']:g}"] == max(found["held_out"].values())


def test_lines_have_intervals_over_models_where_there_are_three():
    (two,) = line("full", {"relu1": [0.1, 0.3]}, [("a", "b"), ("b", "a")])
    assert (two.ours, two.low, two.high) == (pytest.approx(0.2), 0.1, 0.3)
    (three,) = line("full", {"relu1": [0.1, 0.3, 0.2]}, [("a", "b"), ("b", "c"), ("c", "a")])
    assert three.low < 0.1 < 0.3 < three.high
    (star,) = line("full", {"relu1": [0.1, 0.3]}, [("a", "b"), ("a", "c")])  # without a nothing is left
    assert (star.low, star.high) == (0.1, 0.3)


def test_few_pairs_are_a_ring_so_that_no_network_is_in_all(tmp_path):
    zoo = Zoo(tmp_path, [0, 1, 2, 3])
    assert pairs_at(Setting("small"), zoo, 5, 32) == [(0, 1), (1, 2), (2, 3), (3, 0), (0, 1)]
    assert pairs_at(Setting("paper"), zoo, 5, 32) == zoo.pairs(32)


# --- the figures at smoke scale ------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fig8-leaky-slopes", "fig12-cct", "fig13-alpha", "fig15-lasso"])
def test_figures_run_at_smoke_scale_and_go_on_from_what_is_there(name, tmp_path):
    found = reproduce(name, Setting(folder=tmp_path))
    assert found.passed
    assert not found.comparable
    assert len(found.claims) >= 2
    assert all(row.ours is not None for row in found.rows)
    again = reproduce(name, Setting(folder=tmp_path))
    assert [row.ours for row in again.rows] == [row.ours for row in found.rows]
