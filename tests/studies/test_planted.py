"""Statements of every study on planted numbers: true ones hold, false ones do not, single networks cannot tell."""

import itertools

import pytest
from studies.run import studies
from studies.superposition import CROWDS, LAYERS

from studies import chance, descent, differentiability, gating, lifting, psd, rank_order, sensitivity, spectral
from studies import locations as at_locations


def held(name, values):
    """Verdicts on statements; checks of the run aside."""
    return [c.held for c in studies()[name].page(values).statements]


def all_of(name, plant, true, false, few=None):
    """The verdicts on a plant that is true, one that is false, and one of single networks."""
    assert held(name, plant(True).values) == true
    assert held(name, plant(False).values) == false
    assert held(name, plant(True).few) == (few or [None] * len(true))


def test_kernels(planted):
    def plant(true):
        made = planted().trained()
        cells = {pair: k / 9 for k, pair in enumerate(itertools.product(("relu1", "relu2", "relu3"), repeat=2))}
        for name in ("max", psd.CUT, *psd.SYMMETRIC, "rbf", "linear"):
            for (a, b), score in cells.items():
                noise = 1e-3 if name in ("max", psd.CUT) or (name in psd.SYMMETRIC) == true else 0.3
                off = 0.1 * (name == psd.CUT and not true)
                made.pairs(f"CKA, {name}", score + off, layer=a, partner_layer=b, noise=noise)
            for layer in ("relu1", "relu2", "relu3"):
                negative = 0.1 if true and name == "max" else 0.0
                made.pairs(f"negative share, {name}", negative, layer=layer, noise=1e-9)
        return made

    all_of("open-psd", plant, [True] * 4, [False] * 4)


def test_centring(planted):
    from studies.centring import PARTS, TWINS

    def plant(true):
        made = planted().trained()
        for (plain, centred), layer in itertools.product(TWINS.items(), ("relu1", "relu2")):
            floor = 0.0 if true else 0.6
            for m, chance_level, raw, calibrated in (
                (plain, 0.4, 0.8 if true else 0.5, 0.5 if true else 0.8), (centred, floor, 0.5, 0.5)
            ):  # fmt: skip
                for part, value in zip(PARTS.values(), (raw, chance_level, calibrated)):
                    made.pairs(f"{m}, {part}", value, layer=layer)
        return made

    all_of("open-centring", plant, [True] * 7, [False] * 7)


def test_single_locations_fall_and_lie_below(planted):
    def plant(true):
        made, names = planted().trained(), list(at_locations.KERNELS)
        for k, layer in enumerate(("relu1", "relu2", "relu3")):
            for name, by in zip(names, (((0.5, 0.3, 0.1), (0.6,) * 3) if true else ((0.1, 0.3, 0.5), (0.05,) * 3))):
                made.pairs(name, by[k] + (0.1 if true else -0.1), layer=layer)
                made.pairs(name + at_locations.WISE, by[k], layer=layer)
        return made

    all_of("open-locations", plant, [True] * 3, [False] * 3)


def test_superposition_must_keep_linear_cka_where_trained_networks_have_it(planted):
    def plant(true):
        kept, made = 0.95 if true else 0.85, planted()
        table = {
            "superposed": (CROWDS, (1, 0.4, 0.3, 0.2), (1, kept, kept, kept)), "rotated": (CROWDS[:1], [kept], [kept]),
            "summed": (LAYERS, (1, 0.7, 0.5, 0.4, 0.3, 0.2), [0.9] * 6), "summed alike": (LAYERS, [1] * 6, [1] * 6),
        }  # fmt: skip
        for kind, (points, relu, linear) in table.items():
            for point, a, b in zip(points, relu, linear):
                made.networks("G_ReLU-CKA", a, kind, point).networks("linear CKA", b, kind, point)
        return made

    all_of("open-superposition", plant, [True] * 8, [True, True, False, False, False] + [True] * 3)


def test_what_passes_without_derivatives(planted):
    def plant(true):
        made = planted()
        for name in differentiability.FUNCTIONS:
            mixed = 0.0 if name == differentiability.AFFINE else 0.02 if true else 0.005
            made.networks(differentiability.MOVED, 0.0, name, noise=1e-13)
            made.networks(differentiability.MIXED, mixed, name, noise=1e-13)
            made.networks(differentiability.EXACT, 1.0, name, noise=0)
        return made

    all_of("open-differentiability", plant, [True] * 4, [True, False, True, True], [True] * 4)


def test_lifting_must_be_better(planted):
    def plant(true):
        made, more = planted().trained("lifted", "members of the ensemble"), 0.1 if true else -0.1
        for source, (use, value) in itertools.product(
            lifting.SOURCES, zip(lifting.USES, (0.4 + more, 0.4, 0.4 - more))
        ):  # fmt: skip
            made.networks(use, value, source)
        return made

    all_of("open-lifting", plant, [True] * 4, [False] * 4)


def test_momentum_and_ten_times_the_rate_are_compared_within_a_point(planted):
    def plant(true):
        made = planted().trained()
        for arm, lost in ((descent.PLAIN, 0.1), (descent.MOMENTUM, 0.1 if true else 0.15), (descent.FAST, 0.1)):
            for start in descent.STARTS.values():
                made.pairs("penalty", lost, f"{arm}, {start}", noise=1e-4)
                made.pairs("agreement", 0.4 + 0.2 * (true and arm == descent.FAST), f"{arm}, {start}")
                made.pairs("loss", 1.0, f"{arm}, {start}")
        return made

    all_of("open-momentum", plant, [True] * 5, [False] * 5)


def test_descents_are_compared_within_3_points_and_ten_times(planted):
    from studies.birkhoff import SWEPT

    def plant(true, alone=""):
        made, words = planted().trained(reached=0.97), descent.STARTS["random"]
        for arm in SWEPT:
            gap = 0.0 if arm == descent.PLAIN else 0.02 if true and arm != alone else -0.05
            made.pairs("penalty", 0.1 + gap, f"{arm}, {words}", noise=1e-4).pairs("loss", 1.0, f"{arm}, {words}")
            slow = arm == descent.SOFT_SORT
            made.pairs("seconds", (11 if true else 9) if slow else 1, f"{arm}, {words}")
        return made

    all_of("open-birkhoff", plant, [True] * 6, [False] * 6)
    of = {descent.SLOW: (0, 4), descent.FAST: (0, 4), "T = 4": (1,), "T = 64": (1,), descent.NO_HEAD_START: (2,),
          descent.SOFT_SORT: (3,)}  # fmt: skip
    for arm, fall in of.items():  # each statement is of its own arms
        assert held("open-birkhoff", plant(True, arm).values) == [k not in fall for k in range(6)], arm


def test_tables_without_chance(planted):
    def plant(true):
        made, sign = planted().trained(*chance.TABLES), 1 if true else -1
        turned = {chance.RELU: -0.1, chance.ROTATED: 0.1, chance.RELU_CKA: -0.2, chance.CKA: 0.0}
        for table, m in itertools.product(chance.TABLES, turned):
            for k, value in enumerate((0.3, 0.1, 0.2)):
                fall = turned[m] * k if "cka" in m else turned[m]
                made.pairs(m + chance.CHANCE, 0.5 + sign * (value + fall), table, f"relu{k}")
                made.pairs(m, 0.5 + value, table, f"relu{k}", f"relu{k}")
        return made

    all_of("open-chance", plant, [True] * 9, [False] * 9)


def test_gates_are_better_by_what_is_left_of_a_gap(planted):
    def gap(true):
        made, widths = planted(), ("32", "128", "512")
        made.trained(*(f"network, width {w}" for w in widths))
        for w, more in zip(widths, (0.05, 0.03, 0.01) if true else (-0.01, -0.01, -0.01)):
            made.networks("accuracy", 0.5 + more, f"DGN(x, 1), width {w}")
            made.networks("accuracy", 0.5, f"DLGN(x, 1), width {w}")
        return made

    all_of("open-dgn-dlgn-gap", gap, [True] * 2, [False] * 2)

    def depth(true):
        made = planted().trained(*(f"deep, {d} layers" for d in gating.DEPTHS))
        return made.trained(*(f"single maps, {d} layers" for d in gating.DEPTHS), reached=0.8 if true else 0.95)

    all_of("open-gating-depth", depth, [True] * 3, [False] * 3)


@pytest.mark.parametrize("name", ["open-spectral", "open-spectral-cnn"])
def test_gates_turn_towards_the_labels(planted, name):
    def plant(true):
        made, sign = planted().trained("network", spectral.BENT, spectral.LINEAR, reached=0.97), 1 if true else -1
        for part in spectral.PARTS:
            ends = {spectral.BENT: (0.5 + sign * 0.3, 0.5 + sign * 0.2), spectral.LINEAR: (0.5, 0.5 + sign * 0.1)}
            for arm, (before, after) in ends.items():
                made.networks(f"{part}, before", before, arm).networks(f"{part}, after", after, arm)
        return made

    all_of(name, plant, [True] * 6, [False] * 6)


def test_measures_rank_penalties(planted):
    def plant(true):
        made, sign, ours = planted().trained(), 1 if true else -1, [a for a, _ in rank_order.RIVALS]
        for layer in ("relu1", "relu2", "relu3"):
            lost = [row["value"] for row in planted().pairs("lost", 0, layer=layer, noise=1).rows]
            for name in (*rank_order.MEASURES, *(f"penalty, {family}" for family in rank_order.FAMILIES)):
                theirs = name in rank_order.MEASURES and name not in ours
                made.pairs(name, 0, layer=layer, noise=1.4 if theirs else 1e-3)
                for row, loss in zip(made.rows[-len(lost) :], lost):
                    row["value"] += loss if name.startswith("penalty") else sign * loss
        return made

    all_of("open-rank-order", plant, [True] * 5, [False] * 5)


def test_measures_order_what_costs_accuracy(planted):
    """Dissimilarity grows with the loss, most surely of our measures; linear CKA shows a seed more than a deletion."""

    def plant(true):
        made, sign, layer = planted().trained(), 1 if true else -1, "relu1"
        arms = {"whole": 0.0, **{f"{kind}, {share:g} left": 0.9 - share for kind in sensitivity.KINDS
                                 for share in (0.8, 0.5, 0.2)}}  # fmt: skip
        for arm, lost in arms.items():
            made.networks(sensitivity.PROBED, 0.9 - lost, arm, layer, noise=0.02)
            for m, j in itertools.product(sensitivity.MEASURES, range(8)):
                ours = m in ("g_relu_procrustes", "g_relu_cka")
                made.networks(m, 2 + sign * lost, arm, layer, noise=0.01 if ours else 0.3, partner=f"{j}")
                own = next(row for row in made.rows[-8:] if row["network"] == f"{j}")
                deaf = (m == "linear_cka") == true  # nothing that is deleted shows more than another seed
                own["value"] = 0.0 if m in ("linear_cka", "orthogonal_procrustes_centered") and deaf else 9.0
        # of seven networks: halves of eight are twice as many
        made.rows = [row for row in made.rows if "7" not in (row.get("network"), row.get("partner"))]
        return made

    found = held("open-sensitivity", plant(True).values)
    assert found == [True] * 7
    assert held("open-sensitivity", plant(False).values) == [False] * 7
