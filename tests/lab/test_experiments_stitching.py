"""Similarity and stitching as the papers do it: jobs on pairs, arms, plans, alpha by cross-validation."""

from dataclasses import replace
from itertools import combinations

import pytest
import torch

from intertwine.lab.data import load
from intertwine.lab.experiments import Design, Setting, experiment
from intertwine.lab.experiments.experiment import CEILING
from intertwine.lab.experiments.paper1 import alpha_choice
from intertwine.lab.experiments.paper1.dissimilarity import MEASURES, LayerSimilarity
from intertwine.lab.experiments.paper1.stitched import OURS, PRINTED, PRINTED_V1, StitchedLayers, pairs_of
from intertwine.lab.runs import job_key
from intertwine.lab.training import load_checkpoint
from intertwine.lab.training.augmentation import augment, draw_crops, resized
from intertwine.similarity import compare
from intertwine.stitching import RECIPES, choose_alpha, family_of
from intertwine.stitching.choose_alpha import ALPHAS

SMALL = Setting("small", data="cifar10")


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    plan = Design(Setting(folder=tmp_path_factory.mktemp("zoo")))
    made = plan.zoo("cnn", "digits_cnn:width=4", 2, plan.setting.recipe().but(epochs=2))
    made.job("cpu").run(plan.setting.folder)
    return made


def paths(zoo):
    a, b = (str(member.path) for member in zoo.members)
    return {"a": a, "b": b, "data": "digits", "device": "cpu"}


def table(rows):
    """Values by statistic, layer, partner's layer and epoch."""
    return {(r["statistic"], r["layer"], r.get("partner_layer", ""), r.get("draws", 0)): r["value"] for r in rows}


# --- jobs -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def job(zoo):
    return StitchedLayers(
        **paths(zoo), examples=64, layers=("relu3",), families=("g_relu", "lasso-0.01"),
        recipe={"epochs": 2, "head_start": 1}, seed=0,
    )  # fmt: skip


def test_a_pair_at_some_layers(job, tmp_path):
    rows = job.run(tmp_path)
    found = table(rows)
    assert found["sparsity, g_relu", "relu3", "", 0] == pytest.approx(1 - 1 / 16)
    assert found["sparsity, lasso-0.01", "relu3", "", 0] < 0.5
    assert {row["images"] for row in rows if row["statistic"].startswith("penalty")} == {359}
    assert [e for s, _, _, e in found if s == "training loss, g_relu"] == [1, 2]
    assert {row["layer"] for row in rows} == {"relu3"}
    assert table(job.run(tmp_path)) == found


@pytest.mark.parametrize(
    "change",
    [{"seed": 1}, {"examples": 63}, {"options": dict(PRINTED.options)}, {"recipe": {"epochs": 2, "head_start": 0}},
     {"recipe": {"epochs": 2, "head_start": 1, "learning_rate": 1.1e-3}}, {"translate": 1}, {"flip": True},
     {"crop": 0.5},
     {"recipe": {"epochs": 2, "head_start": 1, "momentum": 0.0}}, {"layers": ("relu2",)}, {"families": ("full",)}],
    ids=lambda change: "-".join(change),
)  # fmt: skip
def test_whatever_changes_how_maps_are_trained_changes_the_values(job, change, tmp_path):
    """So that the fingerprint of an experiment tells."""
    (tmp_path / "as it was").mkdir()
    (tmp_path / "changed").mkdir()
    before, after = (table(one.run(tmp_path / name)) for one, name in
                     ((job, "as it was"), (job.model_copy(update=change), "changed")))  # fmt: skip
    losses = lambda found: {k: v for k, v in found.items() if k[0].startswith("training loss")}
    assert losses(before) != losses(after)


def test_alphas_of_a_pair(zoo, tmp_path, monkeypatch):
    offered = []
    choose = choose_alpha.choose_alpha
    spied = lambda *args, alphas, **how: offered.append(alphas) or choose(*args, alphas=alphas, **how)
    monkeypatch.setattr(choose_alpha, "choose_alpha", spied)
    one = alpha_choice.ChosenAlphas(**paths(zoo), examples=64, layers=("relu3",), start="random", epochs=1, seed=0)
    found = {statistic: value for (statistic, *_), value in table(one.run(tmp_path)).items()}
    held_out = {float(k.rpartition(" ")[2]): v for k, v in found.items() if k.startswith("held-out")}
    assert set(held_out) == {*ALPHAS, alpha_choice.PLANTED}
    assert found["alpha"] in ALPHAS
    assert offered == [ALPHAS, (alpha_choice.PLANTED,)]  # the planted one is no choice
    assert held_out[found["alpha"]] == max(held_out[alpha] for alpha in ALPHAS)
    assert found["norm of the chosen map"] > 0
    assert "training loss, g_relu" in found
    other = table(one.model_copy(update={"start": "direct"}).run(tmp_path))
    assert other["norm of the chosen map", "relu3", "", 0] != found["norm of the chosen map"]


def test_layers_of_two_networks(zoo, tmp_path):
    """Every layer against every layer by each measure, exactly, and equal ones with chance taken out."""
    one = LayerSimilarity(**paths(zoo), layers=("relu1", "relu3"), examples=100)
    found = table(one.run(tmp_path))
    assert len(found) == len(MEASURES) * (4 + 2)
    a, b = (load_checkpoint(member.path) for member in zoo.members)
    loader = load("digits").loader("test", examples=100)
    alone = compare(a, b, loader, ["relu1", "relu3"], list(MEASURES), resampling=None)
    for m in MEASURES:
        assert found[m, "relu1", "relu3", 0] == pytest.approx(float(alone.scores[m][0, 1]), rel=1e-5)
        assert found[f"{m}, chance taken out", "relu1", "", 20] < found[m, "relu1", "relu1", 0]


# --- arms and plans -------------------------------------------------------------------------------


def jobs_of(name, setting=SMALL):
    """Jobs by arm."""
    found = {}
    for task in experiment(name).planned(setting).tasks:
        found.setdefault(task.columns["arm"], []).append(task.job)
    return found


def steps(job):
    recipe = replace(RECIPES["v1"], **job.recipe)
    return recipe.epochs * -(-(job.examples or 45_000) // recipe.batch_size)


@pytest.mark.parametrize(
    "name", ["fig1-stitching-myrtle", "fig6-stitching-resnet20", "fig7-stitching-resnet18", "fig12-cct", "fig15-lasso"]
)
def test_maps_as_printed_are_trained_for_3000_steps_or_more_on_as_many_pairs_as_networks(name):
    sixteen = ("fig1-stitching-myrtle", "fig6-stitching-resnet20", "fig15-lasso")
    usual = {**dict.fromkeys(sixteen, 16), "fig7-stitching-resnet18": 8}.get(name, 6)
    for arm, jobs in jobs_of(name).items():
        if arm.startswith("as printed"):
            networks = 64 if (name, arm) == ("fig1-stitching-myrtle", "as printed in v2") else usual
            longer = arm.endswith("v2") and name != "fig15-lasso"
            assert min(map(steps, jobs)) >= (5250 if longer else 3000)
            assert len(jobs) == networks
            assert all(job.options["start"] == "random" for job in jobs)
            assert len({path for job in jobs for path in (job.a, job.b)}) == networks


def test_an_arm_that_could_not_tell_is_run_again_on_networks_of_its_own():
    arms = {
        arm: {path for job in jobs for path in (job.a, job.b)}
        for arm, jobs in jobs_of("fig1-stitching-myrtle").items()
        if arm == "ours" or arm.startswith("as printed")
    }
    assert len(arms) == 3
    assert not any(one & other for one, other in combinations(arms.values(), 2))


def test_slopes_that_could_not_tell_are_run_again_on_other_networks():
    first, now = (experiment(name).planned(SMALL).zoos for name in ("table3-leaky-slopes", "fig8-leaky-slopes"))
    before = {zoo.arm: {*zoo.seeds} for zoo in first}
    shared = {zoo.arm: len(before[zoo.arm] & {*zoo.seeds}) for zoo in now}
    assert shared == {"slope 0.01": 0, "slope 0.1": 0, "slope 0.5": 6, "slope 0.9": 6, "slope 1": 0}
    pairs = {arm: len(jobs) for arm, jobs in jobs_of("fig8-leaky-slopes").items() if arm.startswith("slope")}
    wanted = {"slope 0.01": 14, "slope 0.1": 14, "slope 0.5": 6, "slope 0.9": 6, "slope 1": 24}
    printed = {"slope 0.01": 14, "slope 0.9": 6, "slope 1": 14}
    both = {"ours": wanted, "as printed in v2": printed}
    assert pairs == {f"{slope}, {arm}": count for arm, counts in both.items() for slope, count in counts.items()}


def test_the_run_to_the_end_takes_the_papers_steps_and_stands_beside_the_same_pair_in_fewer():
    arms = jobs_of("fig1-to-the-end")
    (end,), (short,) = arms["as printed in v2, to the end"], arms["as printed in v2"]
    assert steps(end) == pytest.approx(20 * 50_000 / 32, rel=0.02)
    assert (end.a, end.b, end.seed, end.options) == (short.a, short.b, short.seed, short.options)
    figure = {arm: jobs[0] for arm, jobs in jobs_of("fig1-stitching-myrtle").items()}
    assert (short.a, short.b) == (figure["as printed in v1"].a, figure["as printed in v1"].b)
    assert (short.recipe, short.options) == (figure["as printed in v2"].recipe, figure["as printed in v2"].options)


@pytest.mark.parametrize("setting", [Setting(), SMALL], ids=lambda s: s.scale)
def test_figure_7_below_figure_6_runs_nothing_twice(setting):
    both = jobs_of("fig7-below-fig6", setting)
    for figure, arm in (("fig6-stitching-resnet20", "ResNet20, ours"), ("fig7-stitching-resnet18", "ResNet18, ours")):
        assert [*map(job_key, both[arm])] == [*map(job_key, jobs_of(figure, setting)["ours"])]


def test_networks_of_the_ceiling_are_trained_three_times_as_long():
    zoos = {z.arm: z for z in experiment("table3-leaky-slopes").planned(SMALL).zoos}
    assert zoos[CEILING].recipe.epochs == 3 * zoos["slope 0.01"].recipe.epochs
    assert zoos[CEILING].network == zoos["slope 0.01"].network
    assert {len(z.seeds) for arm, z in zoos.items() if arm != CEILING} == {6}


def test_pairs_of_each_scale(tmp_path):
    zoo = Design(Setting("small", tmp_path, data="cifar10")).zoo("n", "myrtle_cnn:base=16", 8)
    names = lambda setting, arm: [(a.name, b.name) for a, b in pairs_of(setting, zoo, arm)]
    ring = lambda n: [(f"{k}", f"{(k + 1) % n}") for k in range(n)]
    assert names(SMALL, OURS) == ring(8)
    assert names(SMALL, PRINTED) == names(SMALL, PRINTED_V1) == ring(6)
    drawn = names(Setting("paper"), OURS)
    assert len(drawn) == len(set(drawn))  # at random, as the paper does
    assert all(a != b for a, b in drawn)
    assert names(Setting("paper"), PRINTED_V1) == [("0", "1"), ("2", "3"), ("4", "5"), ("6", "7")]


def test_the_papers_arms_are_what_the_papers_print():
    """Random start, last epoch, batch norm in training mode, norm and penalty as printed; momentum by version."""
    for arm, momentum in ((PRINTED, 0.0), (PRINTED_V1, 0.9)):
        assert arm.recipe == {"keep": "last", "momentum": momentum}
        assert arm.options["start"] == "random"
        assert arm.options["tail_norm"] == "train"
        assert arm.options["settings"] == {"norm": "printed", "proximal": False}
    assert (OURS.recipe, OURS.options, OURS.crop) == ({}, {}, 0.0)
    assert PRINTED_V1.crop > PRINTED.crop == 0


def test_relaxed_permutations_have_the_papers_settings():
    layer = family_of("g_relu", 4, 4)
    assert (layer.sinkhorn_steps, layer.alpha, layer.norm) == (16, 0.1, "polytope")


def test_the_norm_and_the_lasso_as_printed():
    """-alpha |P|_F; lambda |A|_1 as a term of the loss, without a proximal step."""
    layer = family_of("g_relu", 5, 5, alpha=0.3, norm="printed")
    assert float(layer.regulariser()) == pytest.approx(-0.3 * float(layer.permutation.norm()))
    (along,) = torch.autograd.grad(layer.regulariser(), layer.permutation)  # of the same value on the polytope
    p = layer.permutation.detach()
    torch.testing.assert_close(along, -0.3 * p / p.norm())
    ours = family_of("g_relu", 5, 5, alpha=0.3)
    (within,) = torch.autograd.grad(ours.regulariser(), ours.permutation)
    assert abs(float(within.sum())) < 1e-5 < abs(float(along.sum()))
    with pytest.raises(ValueError, match='norm must be "polytope" or "printed"'):
        family_of("g_relu", 5, 5, norm="operator")
    lasso, proximal = (family_of("lasso-0.01", 5, 5, proximal=p) for p in (False, True))
    before = lasso.weight.detach().clone()
    assert float(lasso.regulariser()) == pytest.approx(0.01 * float(before.abs().sum()))
    lasso.after_step(1.0)
    assert lasso.weight.equal(before)
    assert float(proximal.regulariser()) == 0
    proximal.after_step(1.0)
    assert not proximal.weight.equal(before)


def test_random_resized_crops():
    """Boxes lie inside; the whole image stays as it is; a corner is brought to the full size."""
    torch.manual_seed(0)
    boxes = draw_crops(500, 0.08)
    height, width, top, left = boxes.T
    assert min(top.min(), left.min()) >= 0
    assert max((top + height).max(), (left + width).max()) <= 1 + 1e-6
    assert 0.05 < (height * width).min() < 0.2 < 0.9 < (height * width).max() <= 1
    x = torch.rand(2, 3, 8, 8)
    whole = torch.tensor([[1.0, 1, 0, 0]]).expand(2, 4)
    torch.testing.assert_close(resized(x, whole), x)
    quarter = resized(torch.arange(64.0).view(1, 1, 8, 8), torch.tensor([[0.5, 0.5, 0.5, 0.0]]))  # the lower left
    assert quarter[0, 0, 0, 0] == pytest.approx(3.75 * 8)
    assert quarter[0, 0, -1, -1] == pytest.approx(7 * 8 + 3.25)
    torch.manual_seed(0)
    assert not augment(x, 0, False, crop=0.5).equal(x)


def test_notes_say_what_the_recipe_does():
    said = OURS.words(epochs=4, head_start=2)
    assert "closed-form" in said
    assert "the best of start and epochs" in said
    assert "4 epochs at learning rate 0.001 and momentum 0.9, with scales fixed for the first 2" in said
    printed = PRINTED.words(epochs=20)
    assert "random maps" in printed
    assert "the last epoch counts" in printed
    assert "momentum 0" in printed
    assert "training mode" in printed
