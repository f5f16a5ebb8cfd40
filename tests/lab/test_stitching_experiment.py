"""Stitching penalties beside the paper's claims: networks, pairs, claims that can hold and fail."""

from intertwine.lab.experiments import Setting
from intertwine.lab.experiments.paper1 import stitching
from intertwine.lab.experiments.paper1.stitching import StitchedPair, claims_of, collect
from intertwine.lab.experiments.zoos import recipe_at, zoo_for


def held(claims):
    return {claim.text: claim.held for claim in claims}


def layers(*by_family):
    names = ("g_relu", "full", "rank-4", "rank-2", "rank-1")
    return {f"relu{i}": {n: [v] for n, v in zip(names, values)} for i, values in enumerate(by_family, 1)}


def test_claims_of_plain_networks():
    low = (0.1, 0.3, 0.5)
    paper = layers((0.02, 0, *low), (0.05, 0, *low), (0.12, 0.01, *low), (0.03, 0, *low))
    assert all(held(claims_of(paper, False)).values())
    high = (0.3, 0.2, 0.1)
    reverse = layers((0.6, 0.5, *high), (0.5, 0.6, *high), (0.4, 0.6, *high), (0.7, 0.8, *high))
    assert not any(held(claims_of(reverse, False)).values())


def test_claims_of_residual_networks():
    found = layers((0.1, 0, 0.05, 0.1, 0.3), (0.8, 0.1, 0.2, 0.3, 0.5))
    found["relu2*"] = found.pop("relu2")
    assert all(held(claims_of(found, True)).values())
    del found["relu2*"]
    told = held(claims_of(found, True))
    assert told["inside residual blocks G_ReLU loses more than rank 1"] is None  # there are none


def test_networks_and_pairs(tmp_path):
    """The paper's claims need trained networks; here only that all runs, is kept, and says what it is."""
    setting = Setting(folder=tmp_path)
    zoo = zoo_for(setting, "digits_cnn:width=4", 2, recipe_at(setting).but(epochs=2))
    a, b = (str(member.path) for member in zoo.members)
    assert a != b
    small = {"examples": 64, "tested": 50, "epochs": 1, "translate": 1, "flip": False}
    job = StitchedPair(a=a, b=b, data="digits", layers=("relu2", "relu3"), seed=0, **small)
    value = job.run(tmp_path)
    found = collect([value, value])
    assert list(found) == ["relu2", "relu3"]
    assert list(found["relu2"]) == [*stitching.FAMILIES, stitching.RANDOM]
    assert len(found["relu2"]["full"]) == 2
    assert set(value["recovered"]["relu2"]) == {*stitching.FAMILIES, stitching.RANDOM}
    assert all(0 <= x <= 1 for x in value["accuracies"])


def test_every_figure_has_its_scales():
    names = [experiment.name for experiment in stitching.EXPERIMENTS]
    assert names == ["fig1-stitching-myrtle", "fig6-stitching-resnet20", "fig7-stitching-resnet18"]
    assert all(experiment.scales == ("smoke", "small", "paper") for experiment in stitching.EXPERIMENTS)
