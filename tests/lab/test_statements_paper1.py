"""Statements of paper 1 but figures 3 and 4: its own numbers hold, altered ones do not, some cannot be told."""

import itertools

import pytest
from planted import floor_of, rows_of, spread_over, told, values_of

from intertwine.lab.experiments import experiment
from intertwine.lab.experiments import reproduction as p
from intertwine.lab.experiments.experiment import CEILING
from intertwine.lab.experiments.paper1 import alpha_choice
from intertwine.lab.experiments.paper1.dissimilarity import MEASURES

FLOOR = floor_of(0.38)
RELUS = ("relu1", "relu2", "relu3", "relu4")
ARMS = ("ours", "as printed in v2", "as printed in v1")


def trained(*arms, accuracy=0.9):
    return rows_of("accuracy", dict.fromkeys(arms, (accuracy, 0.002)), images=10_000)


def cyclic(statistic, by_layer, arm="ours", sd=0.001, networks=8, **columns):
    """Each network with the next, at every layer; whatever the spread, means are as given."""
    return [
        {"statistic": statistic, "arm": arm, "layer": layer, "network": f"{k}", "partner": f"{(k + 1) % networks}",
         "value": value + sd * z, **columns}
        for layer, value in by_layer.items()
        for k, z in enumerate(spread_over(networks, f"{statistic} {arm} {layer}"))
    ]  # fmt: skip


def stitched(table, arm="ours", change=0.0, **how):
    """Penalties by family and layer, and two epochs of training losses, the last with a change."""
    losses = [
        row
        for family, by in table.items()
        for epoch, loss in ((1, 0.5), (2, 0.5 + change))
        for row in cyclic(f"training loss, {family}", dict.fromkeys(by, loss), arm, draws=epoch)
    ]
    return [row for f, by in table.items() for row in cyclic(f"penalty, {f}", by, arm, **how)] + losses


def verdicts(name, *parts, arm="", data="cifar10"):
    """In order, those of one arm, without its name."""
    found = told(experiment(name).page(values_of(*parts, data=data)))
    return [held for text, held in found.items() if text.startswith(f"{arm}: " if arm else "")]


def negative(table):
    """Every number mirrored: what rose falls, what was larger is smaller."""
    return {family: {k: 1 - v for k, v in by.items()} for family, by in table.items()}


def by_layer(*values):
    return dict(zip(RELUS, values, strict=True))


FIG_1 = {
    "full": by_layer(0.005, 0.01, 0.02, 0.008), "g_relu": by_layer(0.02, 0.05, 0.12, 0.03),
    "rank-4": by_layer(0.2, 0.3, 0.4, 0.3), "rank-2": by_layer(0.3, 0.4, 0.5, 0.4),
    "rank-1": by_layer(0.6, 0.6, 0.6, 0.7),
}  # fmt: skip
MYRTLE = trained("myrtle_cnn")


def figure_1(*parts, arm="ours", networks=MYRTLE):
    return verdicts("fig1-stitching-myrtle", *parts, networks, FLOOR, arm=arm)


def test_figure_1():
    """What its caption and text say, the opposite, and networks that vary."""
    assert figure_1(stitched(FIG_1)) == [True] * 7
    assert figure_1(stitched(negative(FIG_1))) == [False] * 7
    assert figure_1(stitched(FIG_1, sd=0.9)) == [None] * 7
    flat = FIG_1 | {"full": by_layer(0.005, 0.004, 0.003, 0.008)}  # the trend is of every family but rank 1
    assert figure_1(stitched(flat, sd=1e-5))[5:] == [False, False]
    early = FIG_1 | {"full": by_layer(0.003, 0.009, 0.006, 0.001)}  # it rises to the second one alone
    assert figure_1(stitched(early, sd=1e-5))[5:] == [False, True]
    none = FIG_1 | {"rank-1": by_layer(0.6, 0.5, 0.4, 0.7)}  # of which nothing is said
    assert figure_1(stitched(none)) == [True] * 7
    far = FIG_1 | {"full": by_layer(0.005, 0.01, 0.04, 0.008)}  # nearly is within 3 points
    assert figure_1(stitched(far))[2] is False
    one_out = FIG_1 | {"g_relu": by_layer(0.02, 0.11, 0.12, 0.03)}
    assert [figure_1(stitched(t))[3] for t in (FIG_1, one_out)] == [True, False]  # in all layers but one


def test_networks_that_are_no_better_than_pixels_or_did_not_train_tell_nothing():
    for accuracy in (0.38, 0.7):
        assert figure_1(stitched(FIG_1), networks=trained("myrtle_cnn", accuracy=accuracy)) == [None] * 7


def test_every_arm_is_judged_by_itself_and_by_the_same_statements():
    both = [*stitched(FIG_1), *stitched(negative(FIG_1), ARMS[2])]
    assert figure_1(both) == [True] * 7
    assert len(figure_1(both, arm=ARMS[2])) == 7


@pytest.mark.parametrize("change", [-0.021, 0.021])
def test_an_arm_whose_loss_still_changes_tells_nothing(change):
    parts = [*stitched(FIG_1), *stitched(FIG_1, ARMS[1], change)]
    assert figure_1(parts, arm=ARMS[1]) == [None] * 7
    assert figure_1(parts) == [True] * 7
    page = experiment("fig1-stitching-myrtle").page(values_of(parts, MYRTLE, FLOOR))
    why = next(c.why for c in page.claims if c.text.startswith(ARMS[1]))
    assert f"their loss still changes in the last epoch, full {change:+.3f}" in why
    assert figure_1([*stitched(FIG_1), *stitched(FIG_1, ARMS[1], 0.9 * change)], arm=ARMS[1]) == [True] * 7


def test_the_change_of_a_loss_is_of_the_last_two_epochs_of_the_same_arm():
    """Neither an earlier epoch nor another arm counts."""
    early = cyclic("training loss, full", dict.fromkeys(RELUS, 9.0), ARMS[1], draws=0)
    parts = [*stitched(FIG_1, change=-0.3), *early, *stitched(FIG_1, ARMS[1], -0.01)]
    assert figure_1(parts, arm=ARMS[1]) == [True] * 7
    assert figure_1(parts) == [True] * 7  # ours starts at the closed form, and keeps its best epoch


@pytest.mark.parametrize(("more", "held"), [(0.09, [True, True]), (0.11, [None, None])])
def test_an_arm_whose_full_maps_lose_10_points_more_than_ours_tells_nothing(more, held):
    lost = {f: {k: v + more for k, v in by.items()} for f, by in FIG_1.items()}
    assert figure_1([*stitched(FIG_1), *stitched(lost, ARMS[2])], arm=ARMS[2])[:2] == held


@pytest.mark.parametrize(("ours", "held"), [(0.02, True), (0.3, False)])
def test_what_our_start_changes(ours, held):
    table = FIG_1 | {"g_relu": dict.fromkeys(RELUS, ours)}
    theirs = stitched(FIG_1 | {"g_relu": dict.fromkeys(RELUS, 0.1)}, ARMS[1], networks=6)  # six of the eight
    assert verdicts("fig1-stitching-myrtle", stitched(table), theirs, MYRTLE, FLOOR)[-1] is held


def test_the_run_to_the_end_concludes_nothing_and_checks_that_its_curve_is_flat():
    end = "as printed in v2, to the end"
    table = {f: FIG_1[f] for f in ("g_relu", "full")}
    pair = lambda change: [
        row for arm in (ARMS[1], end) for row in stitched(table, arm, change) if row["network"] == "0"
    ]
    page = lambda change: experiment("fig1-to-the-end").page(values_of(pair(change), MYRTLE, FLOOR))
    assert page(0.001).statements == []
    assert page(0.001).passed
    assert not page(0.03).passed
    shown = {(row.group, row.what): row.ours for row in page(0.0).rows}
    assert shown["full, the end - fewer steps", "relu1"] == pytest.approx(0.0, abs=0.01)


# --- residual networks --------------------------------------------------------------------------------


def at(outside, inside):
    return {"relu": outside, "layer1.0.relu1*": inside}


FIG_6 = {"full": at(0.02, 0.2), "g_relu": at(0.1, 0.7), "rank-4": at(0.05, 0.3), "rank-2": at(0.1, 0.4),
         "rank-1": at(0.3, 0.6)}  # fmt: skip


def test_figures_6_and_7():
    six = lambda table, **how: verdicts(
        "fig6-stitching-resnet20", stitched(table, **how), trained("resnet20"), FLOOR, arm="ours"
    )
    assert six(FIG_6) == [True] * 4
    assert six(negative(FIG_6)) == [False] * 4
    assert six(FIG_6, sd=0.9) == [None] * 4
    assert six(FIG_6 | {"rank-1": at(0.3, 0.8)})[2] is False
    seven = lambda table: verdicts(
        "fig7-stitching-resnet18", stitched(table), trained("resnet18"), FLOOR, arm="ours"
    )  # the text ranks the families of ResNet20s alone
    assert seven(FIG_6) == [True]
    assert seven(negative(FIG_6)) == [False]


def below(resnet20, resnet18, at_70=0.75, accuracy=0.9, sd=0.001):
    table = lambda level: {f: {"relu": level, "layer4.1.relu1*": at_70} for f in FIG_6}
    parts = [stitched(table(v), f"{n}, ours", sd=sd) for n, v in (("ResNet20", resnet20), ("ResNet18", resnet18))]
    both = [*trained("ResNet20"), *trained("ResNet18", accuracy=accuracy)]
    return verdicts("fig7-below-fig6", *parts, both, FLOOR)


def test_figure_7_below_figure_6():
    assert below(0.3, 0.1) == [True, True]
    assert below(0.1, 0.3, at_70=0.5) == [False, False]
    assert below(0.3, 0.1, accuracy=0.5) == [None, None]
    assert below(0.3, 0.1, sd=0.9) == [None, None]


# --- slopes -------------------------------------------------------------------------------------------


def slopes(changes=(), sd=None, ceiling=()):
    numbers = {n: (v / 100, (s or 0) / 100 if sd is None else sd) for n, (v, s) in (p.TABLE_3 | dict(changes)).items()}
    return verdicts("table3-leaky-slopes", rows_of("accuracy", numbers, 5, own=True), ceiling, FLOOR)


def test_table_3():
    assert slopes() == [True] * 3
    assert slopes({"slope 0.1": (80.0, 0.1), "slope 0.9": (30.0, 0.2), "slope 1": (89.0, 0.1)}) == [False] * 3
    assert slopes(sd=0.3) == [None] * 3
    small = [name for name in p.TABLE_3 if float(name.split()[1]) <= 0.1]
    assert slopes(dict.fromkeys(small, (70.0, 0.1))) == [None] * 3  # not trained
    assert slopes(dict.fromkeys(small, (36.0, 0.1))) == [None] * 3  # pixels alone reach 38 %


def test_slopes_that_are_all_at_the_ceiling_tell_nothing():
    reached = lambda share: rows_of("accuracy", {CEILING: (share, 0.001)}, 2, own=True)
    assert slopes(ceiling=reached(0.93)) == [True] * 3
    assert slopes(ceiling=reached(0.893)) == [None] * 3


def leaky(table, arm="ours", **how):
    parts = [stitched({"g_relu": by}, f"{slope}, {arm}", **how) for slope, by in table.items()]
    return verdicts("fig8-leaky-slopes", *parts, trained(*table), FLOOR, arm=arm)


def test_figure_8():
    of = lambda *values: dict(zip(("relu", "layer1.0.relu2", "layer3.2.relu1*", "layer3.2.relu2"), values))
    words = {"slope 0.01": of(0.3, 0.4, 0.1, 0.1), "slope 0.9": of(0.2, 0.3, 0.15, 0.15),
             "slope 1": of(0.2, 0.2, 0.2, 0.2)}  # fmt: skip
    other = {"slope 0.01": of(0.1, 0.1, 0.3, 0.3), "slope 0.9": of(0.9, 0.1, 0.9, 0.9),
             "slope 1": of(0.9, 0.1, 0.2, 0.2)}  # fmt: skip
    assert leaky(words) == [True] * 5
    assert leaky(other) == [False] * 5
    one = words | {"slope 0.01": of(0.1, 0.1, 0.3, 0.02)}  # the last one alone costs little
    assert leaky(one)[2:4] == [False, False]
    assert leaky(words, sd=0.9) == [None] * 5
    assert leaky(words, ARMS[1]) == [True] * 5
    assert leaky(words, ARMS[1], change=0.1) == [None] * 5


# --- transformers, alphas, sparse maps ----------------------------------------------------------------


def test_figure_12():
    one, full = {"blocks.0": 0.3, "blocks.1": 0.4}, {"blocks.0": 0.02, "blocks.1": 0.05}
    twelve = lambda table, accuracy=0.9, **how: verdicts(
        "fig12-cct", stitched(table, **how), trained("cct_6_3x1", accuracy=accuracy), FLOOR, arm="ours"
    )
    assert twelve({"g_relu": one, "full": full}) == [True, True]
    assert twelve({"g_relu": full, "full": one}) == [False, False]
    assert twelve({"g_relu": one, "full": full}, sd=0.9) == [None, None]
    assert twelve({"g_relu": one, "full": full}, accuracy=0.7) == [None, None]


def thirteen(chosen, reached, alphas, planted=0.3, start="from random starts", sd=0.001):
    rows = [cyclic("penalty, alpha chosen", {"relu1": chosen}, start, sd),
            cyclic("penalty, alpha = 0.1", {"relu1": 0.1}, start, sd)]  # fmt: skip
    for alpha, share in {**reached, f"{alpha_choice.PLANTED:g}": planted}.items():
        rows.append(cyclic(f"held-out accuracy, alpha {alpha}", {"relu1": share}, start, sd))
    picked = cyclic("alpha", {"relu1": 0.0}, start, 0)
    rows.append([row | {"value": alpha} for row, alpha in zip(picked, itertools.cycle(alphas))])
    return verdicts("fig13-alpha", *rows, MYRTLE, FLOOR, arm=start)


def test_figures_13_and_14():
    near = {"0.1": 0.8, "1": 0.81}
    assert thirteen(0.11, near, (0.1, 1.0)) == [True] * 3
    assert thirteen(0.31, {"0.1": 0.4, "1": 0.81}, (0.1, 1.0)) == [False, True, False]
    assert thirteen(0.11, near, (0.1,)) == [True, None, True]  # none varied here: others may
    assert thirteen(0.11, near, (0.1, 1.0), sd=0.5) == [None, True, None]
    for start in alpha_choice.STARTS.values():  # where a wrong alpha is as good, that none matters says nothing
        assert thirteen(0.11, near, (0.1, 1.0), planted=0.78, start=start) == [True, True, None]


def test_figure_15():
    strengths = ("0.0001", "0.001", "0.01", "0.1")
    sparsity = {"g_relu": 0.9, **{f"lasso-{s}": v for s, v in zip(strengths, (0.1, 0.3, 0.5, 0.88))}}
    lost = {"g_relu": 0.1, **{f"lasso-{s}": v for s, v in zip(strengths, (0.01, 0.02, 0.05, 0.2))}}

    def fifteen(lost=lost, sparsity=sparsity, **how):
        table = {f: {"relu1": v} for f, v in lost.items()}
        sparse = [row for f, v in sparsity.items() for row in cyclic(f"sparsity, {f}", {"relu1": v}, **how)]
        return verdicts("fig15-lasso", stitched(table, **how), sparse, MYRTLE, FLOOR, arm="ours")

    assert fifteen() == [True, True]
    assert fifteen(lost | {"lasso-0.1": 0.05}) == [False, True]
    assert fifteen(sparsity=sparsity | {"lasso-0.1": 0.4}) == [None, False]  # no rival, and the order is broken
    assert fifteen(sd=0.9) == [None, None]


# --- similarity ---------------------------------------------------------------------------------------


def compared(table, maps=None, sd=0.0005, networks=8):
    """All pairs of networks, layer by layer; the off-diagonal where it matters is ``maps`` times the smaller one."""
    own = spread_over(networks, "networks")
    rows = []
    for a, b in itertools.combinations(range(networks), 2):
        for m, by in table.items():
            for one, two in itertools.product(by, by):
                value = by[one] if one == two else (0.5 if maps is None else maps) * min(by[one], by[two])
                wobble = (
                    (1 if one == two else -1)
                    * sd
                    * (own[a] + own[b])
                    * (1 + list(by).index(one))
                    * (1 + MEASURES.index(m))
                )
                rows.append({"statistic": m, "arm": "", "network": f"{a}", "partner": f"{b}", "layer": one,
                             "partner_layer": two, "value": value + wobble})  # fmt: skip
    return rows


def similarity(name, table, network="myrtle_cnn", accuracy=0.9, **how):
    page = experiment(name).page(values_of(compared(table, **how), trained(network, accuracy=accuracy), FLOOR))
    return {c.text: c.held for c in page.claims}


def numbers(table):
    """Printed means, and CKAs that fall with depth, most under G_ReLU."""
    cka = {"g_relu_cka": (0.9, 0.6, 0.3, 0.4), "linear_cka": (0.9, 0.8, 0.7, 0.6),
           "channel_normalized_cka": (0.9, 0.8, 0.6, 0.5)}  # fmt: skip
    return {m: {k: v for k, (v, _) in by.items()} for m, by in table.items()} | {
        m: by_layer(*values) for m, values in cka.items()
    }


@pytest.mark.parametrize("table", [p.TABLE_2, p.V1_FIG_5], ids=["v2 Table 2", "v1 Fig. 5"])
def test_table_2(table):
    assert list(similarity("table2-dissimilarity", numbers(table)).values()) == [True] * 7
    worse = {m: {k: 1 - v for k, v in by.items()} for m, by in numbers(table).items()}
    assert list(similarity("table2-dissimilarity", worse, maps=2.0).values())[:6] == [False] * 6
    assert set(similarity("table2-dissimilarity", numbers(table), accuracy=0.4).values()) == {None}
    wide = similarity("table2-dissimilarity", numbers(table), sd=0.9)
    assert set(list(wide.values())[:6]) == {None}


def test_measures_that_rank_layers_otherwise():
    text = "the two Procrustes measures rank the layers alike"
    opposite = numbers(p.TABLE_2)
    opposite["orthogonal_procrustes"] = {k: 1 - v for k, v in opposite["g_relu_procrustes"].items()}
    found = similarity("table2-dissimilarity", opposite)
    assert found[text] is False
    assert (
        found["both Procrustes similarities fall with depth, up to the last layer but one"] is False
    )  # one alone does
    assert found["and rise again in the last layer"] is False


def test_table_4_is_held_to_what_d8_says_and_not_to_what_its_own_row_contradicts():
    found = similarity("table4-constant-width", numbers(p.TABLE_4), "myrtle_cnn:width=512")
    assert [v for k, v in found.items() if "CKA" not in k][:2] == [True, True]
    cka = lambda found: [v for k, v in found.items() if "CKA" in k]
    assert cka(found) == [True] * 3
    mirrored = {m: {k: 1 - v for k, v in by.items()} for m, by in numbers(p.TABLE_4).items()}
    assert cka(similarity("table4-constant-width", mirrored, "myrtle_cnn:width=512", maps=2.0)) == [False] * 3
    *_, last = p.TABLE_4["g_relu_procrustes"].values()
    assert last[0] == min(v for v, _ in p.TABLE_4["g_relu_procrustes"].values())  # no rise by G_ReLU
    assert similarity("table2-dissimilarity", numbers(p.TABLE_4))["and rise again in the last layer"] is False


def test_layer_70_of_figures_10_and_11():
    """More alike than the others by G_ReLU-Procrustes, less by CKA."""
    layers = ("relu", "layer1.0.relu1", "layer1.0.relu2", "layer4.1.relu1", "layer4.1.relu2")
    of = lambda *values: dict(zip(layers, values, strict=True))
    table = {"g_relu_procrustes": of(0.6, 0.5, 0.5, 0.7, 0.5), "orthogonal_procrustes": of(0.7, 0.6, 0.6, 0.5, 0.6),
             "g_relu_cka": of(0.9, 0.7, 0.8, 0.3, 0.7), "linear_cka": of(0.9, 0.7, 0.8, 0.3, 0.7),
             "channel_normalized_cka": of(0.9, 0.7, 0.8, 0.4, 0.7)}  # fmt: skip
    about = lambda table: [
        held for text, held in similarity("fig10-resnet18", table, "resnet18").items()
        if "layer 70" in text or "conflict" in text or "inside residual" in text
    ]  # fmt: skip
    assert about(table) == [True, True, True]
    swapped = {m: by | {layers[3]: 0.3 if "procrustes" in m else 0.95} for m, by in table.items()}
    assert about(swapped) == [False, False, False]


BLOCKS = ("relu", *(f"layer{s}.{b}.relu{k}" for s in (1, 2) for b in (0, 1) for k in (1, 2)))


def test_figures_2_and_9():
    """Of a ResNet20: thirds fall, for insides of blocks lie below what stands behind them."""
    down = {k: 0.9 - 0.06 * i - 0.2 * k.endswith("relu1") for i, k in enumerate(BLOCKS)}
    procrustes = {k: 0.7 - 0.05 * i + 0.02 * k.endswith("relu2") for i, k in enumerate(BLOCKS)}
    procrustes[BLOCKS[-1]] = 0.5
    table = {"g_relu_procrustes": procrustes, "orthogonal_procrustes": {k: v + 0.1 for k, v in procrustes.items()},
             "g_relu_cka": {k: v - 0.04 * i for i, (k, v) in enumerate(down.items())}, "linear_cka": down,
             "channel_normalized_cka": {k: v - 0.01 for k, v in down.items()}}  # fmt: skip
    found = similarity("fig9-resnet20", table, "resnet20")
    assert list(found.values()) == [True] * 8, found
    mirrored = {m: {k: 1 - v for k, v in by.items()} for m, by in table.items()}
    worse = similarity("fig9-resnet20", mirrored, "resnet20", maps=2.0)
    assert list(worse.values())[:7] == [False] * 7, worse
