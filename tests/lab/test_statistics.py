"""Statistics of statements against SciPy, statsmodels, slow direct formulas, enumeration and simulation."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats
from scipy.stats import binomtest
from statement_designs import Design, designs, level_of, named, verdicts, welch
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.weightstats import ttost_ind, ttost_paired

from intertwine._zoo_intervals import left_out, pair_interval
from intertwine.lab.statistics import (
    Estimate,
    Sample,
    Statement,
    all_but,
    detectable,
    holm,
    independent,
    jackknife,
    judge,
    mean_of,
    networks_needed,
    of_runs,
    spearman,
)

RNG = np.random.default_rng(0)


def near(value):
    return pytest.approx(value, rel=1e-9, abs=1e-12)


# --- one sample, paired, Welch -------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.parametrize("limit", [-0.3, 0.0, 1.0])
def test_one_number_for_each_network_is_a_t_test(count, limit):
    x = RNG.normal(size=count)
    found = named(x).estimate()
    wanted = stats.ttest_1samp(x, limit, alternative="greater")
    assert found.p_above(limit) == near(wanted.pvalue)
    assert found.p_below(limit) == near(stats.ttest_1samp(x, limit, alternative="less").pvalue)
    for confidence in (0.9, 0.95):
        interval = stats.ttest_1samp(x, limit).confidence_interval(confidence)
        assert found.interval(confidence) == near((interval.low, interval.high))


def test_differences_of_samples_are_paired_by_name_whatever_their_order():
    a, b = RNG.normal(size=(2, 6))
    one = Sample.of({f"{k}": v for k, v in enumerate(a)})
    two = Sample.of({f"{k}": b[k] for k in reversed(range(6))})
    assert (one - two).estimate().p_above(0) == near(stats.ttest_rel(a, b, alternative="greater").pvalue)
    assert (one + two).mean == near(a.mean() + b.mean())
    assert len((one - Sample.of({"0": 1.0, "9": 2.0})).numbers) == 1  # what only one has goes out


@pytest.mark.parametrize(("first", "second"), [(6, 6), (4, 8), (2, 3)])
def test_arms_of_other_networks_are_a_welch_test(first, second):
    a, b = RNG.normal(size=first), 5 * RNG.normal(size=second) + 1
    found = independent((1, named(a, "a")), (-1, named(b, "b")))
    wanted = stats.ttest_ind(a, b, equal_var=False, alternative="greater")
    assert found.value / found.error == near(wanted.statistic)
    assert found.p_above(0) == near(stats.t.sf(wanted.statistic, found.freedom))
    low, high = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert found.interval()[0] <= low < high <= found.interval()[1]
    # never more degrees of freedom than Welch, never fewer than the arm with the fewest networks
    assert min(first, second) - 1 <= found.freedom <= wanted.df
    if min(first, second) > 2:
        va, vb = a.var(ddof=1) / first, b.var(ddof=1) / second
        fewer = (va + vb) ** 2 / (va**2 / (first - 2) + vb**2 / (second - 2))
        assert found.freedom == near(max(fewer, min(first, second) - 1))
    assert found.networks == min(first, second)


def test_a_ratio_against_a_limit_is_welch_of_a_multiple():
    a, b = RNG.normal(0.7, 0.01, 6), RNG.normal(0.8, 0.02, 6)
    found = independent((1, named(a, "a")), (-0.835, named(b, "b")))
    wanted = stats.ttest_ind(a, 0.835 * b, equal_var=False)
    assert found.value / found.error == near(wanted.statistic)
    assert 5 <= found.freedom <= wanted.df


def test_equivalence_is_two_one_sided_tests():
    a, b = RNG.normal(size=(2, 8))
    paired = Statement("", {"": (named(a) - named(b)).estimate()}, above=-1.0, below=1.2)
    assert paired.p_holds == near(ttost_paired(a, b, -1.0, 1.2)[0])
    found = independent((1, named(a, "a")), (-1, named(b, "b")))
    _, (lower, *_), (upper, *_) = ttost_ind(a, b, -1.0, 1.2, usevar="unequal")
    apart = Statement("", {"": found}, above=-1.0, below=1.2)
    assert apart.p_holds == near(stats.t.sf(min(lower, -upper), found.freedom))


def test_multiples_and_means_over_layers():
    x = RNG.normal(size=5)
    one = named(x)
    assert one.times(-2).estimate().interval() == near(one.estimate().times(-2).interval())
    layers = RNG.normal(size=(4, 5))
    assert mean_of(map(named, layers)).estimate().error == near(stats.sem(layers.mean(0)))
    assert of_runs([1.0, None, 3.0]).value == 2
    assert math.isnan(Sample({}).mean)


# --- pairs of networks ---------------------------------------------------------------------------


def slow_jackknife(pairs, values):
    """Delete one network at a time, word by word."""
    networks = sorted({n for pair in pairs for n in pair})
    rest = [np.mean([v for p, v in zip(pairs, values) if n not in p]) for n in networks]
    count = len(networks)
    return (count - 1) / count * sum((m - np.mean(rest)) ** 2 for m in rest)


PAIRS = {
    "all": lambda n: list(itertools.combinations(range(n), 2)),
    "ordered": lambda n: list(itertools.permutations(range(n), 2)),
    "ring": lambda n: [(k, (k + 1) % n) for k in range(n)],
}


@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize("count", [3, 4, 8])
def test_pairs_are_a_jackknife_over_networks(kind, count):
    pairs = PAIRS[kind](count)
    values = RNG.normal(size=len(pairs))
    found = Sample.of({(f"{a}", f"{b}"): v for (a, b), v in zip(pairs, values)}).estimate()
    assert found.error**2 == near(slow_jackknife(pairs, values))
    assert (found.value, found.networks) == (near(values.mean()), count)
    outside = pair_interval(pairs, values.tolist())
    assert found.interval() == near((outside.low, outside.high))  # the same formula, for users of zoos


@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize("count", [4, 7])
def test_degrees_of_freedom_of_pairs_are_those_of_the_quadratic_form(kind, count):
    """By the matrix of the form itself, and as many as its variance among planted pairs says."""
    pairs = PAIRS[kind](count)
    columns = np.eye(len(pairs))
    # v(x) = x' A x, so A follows from v at unit vectors and their sums
    v = lambda x: left_out(pairs, x.tolist())[0]
    form = np.array([[(v(a + b) - v(a) - v(b)) / 2 for b in columns] for a in columns])
    freedom = left_out(pairs, columns[0].tolist())[1]
    assert freedom == pytest.approx(np.trace(form) ** 2 / np.trace(form @ form), rel=1e-9)
    drawn = np.array([v(x) for x in np.random.default_rng(1).normal(size=(1500, len(pairs)))])
    assert 2 * drawn.mean() ** 2 / drawn.var() == pytest.approx(freedom, rel=0.15)
    assert freedom <= count - 1 + 1e-9
    if kind != "ring":
        assert freedom == near(count - 1)


def test_pairs_that_come_twice_count_once():
    pairs = PAIRS["ring"](5)
    values = RNG.normal(size=5).tolist()
    assert left_out(pairs * 3, values * 3) == near(left_out(pairs, values))


def test_networks_count_and_not_pairs():
    """Pairs that are sums of what their networks add: 28 pairs say as much as 8 networks do."""
    u = RNG.normal(size=8)
    pairs = Sample.of({(f"{a}", f"{b}"): u[a] + u[b] for a, b in PAIRS["all"](8)}).estimate()
    assert pairs.error == near(2 * stats.sem(u))
    assert pairs.freedom == near(7)


@pytest.mark.parametrize(
    "sample",
    [
        Sample({}), named(np.ones(1)), named(np.ones(4)), Sample.of({("a", "b"): 1.0, ("b", "a"): 2.0}),
        Sample.of({("a", "b"): 1.0, ("a", "c"): 2.0, ("a", "d"): 5.0}),
    ],
    ids=["none", "one", "few that are equal", "two networks", "one in all pairs"],
)  # fmt: skip
def test_too_few_networks_have_no_error_and_tell_nothing(sample):
    found = sample.estimate()
    assert found.error is None
    assert found.interval() is None
    assert found.p_above(-100) == found.p_below(100) == 1.0


def test_equal_numbers_are_equal_whatever_their_rounding():
    """Differences 0.1 of three networks, of which none is 0.1 to the last bit."""
    one, two = (Sample.of(dict(zip("abc", numbers))) for numbers in ((0.9, 0.2, 0.4), (0.8, 0.1, 0.3)))
    assert len({*(one - two).means.values()}) == 3
    assert (one - two).estimate().error is None


@pytest.mark.parametrize("count", [5, 8])
def test_networks_that_are_all_equal_say_what_as_many_signs_do(count):
    found = named(np.full(count, 0.3)).estimate()
    assert (found.p_above(0.2), found.p_below(0.2), found.p_above(-math.inf)) == (2.0**-count, 1.0, 0.0)
    page = [Statement(f"{k}", {"": found}, above=0.2) for k in range(2)]
    assert [c.held for c in judge(page)] == [True if count == 8 else None] * 2  # two at 1 / 32 each are not sure
    assert judge(page)[0].p == 2.0**-count
    assert judge([Statement("mathematics", {"": Estimate(0.3, 0.0)}, above=0.2)])[0].p is None


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_number_that_is_not_finite_tells_nothing(value):
    found = named(np.array([0.1, 0.2, 0.3, 0.4, value])).estimate()
    one = Statement("", {"": found}, above=0.0)
    assert (judge([one])[0].held, judge([one])[0].why[:6]) == (None, "no fin")
    assert found.p_above(0.0) == found.p_below(0.0) == 1.0


# --- test images ---------------------------------------------------------------------------------


def test_blocks_are_the_second_way_of_a_table():
    x = RNG.normal(size=(6, 20)) + RNG.normal(size=20)
    found = named(x).estimate()
    networks, images = stats.sem(x.mean(1)) ** 2, stats.sem(x.mean(0)) ** 2
    assert found.error**2 == near(networks + images)
    assert found.fixed**2 == near(images)
    assert found.freedom == near(max((networks + images) ** 2 / (networks**2 / 4 + images**2 / 18), 5))


def test_arms_on_the_same_images_do_not_count_them_twice():
    images = 5 * RNG.normal(size=20)
    a, b = RNG.normal(size=(2, 6, 20)) + images
    apart = independent((1, named(a, "a")), (-1, named(b, "b")))
    assert apart.fixed == near(stats.sem(a.mean(0) - b.mean(0)))
    assert apart.fixed < 0.5 < named(a).estimate().fixed
    assert (named(a) - named(b)).estimate().fixed == near(apart.fixed)


def test_arms_with_and_without_blocks_keep_the_images_of_both():
    blocks, whole = named(RNG.normal(size=(6, 20))), Sample.of({"a": 0.5, "b": 0.6, "c": 0.55}, images=100)
    found = independent((1, blocks), (-2, whole))
    assert found.fixed**2 == near(blocks.estimate().fixed ** 2 + 4 * whole.estimate().fixed ** 2)


def test_accuracies_have_the_binomial_error_of_their_images():
    shares = {"a": 0.7, "b": 0.8, "c": 0.75}
    found = Sample.of(shares, images=200).estimate()
    assert found.fixed**2 == near(0.75 * 0.25 / 200)
    assert found.error**2 == near(np.var(list(shares.values()), ddof=1) / 3 + found.fixed**2)
    assert Sample.of(shares).estimate().fixed == 0
    # a mean over layers is on the same images: their errors may go together and are not averaged away
    assert mean_of([Sample.of(shares, 200)] * 4).variance == near(found.fixed**2)


# --- other statistics ----------------------------------------------------------------------------


@pytest.mark.parametrize("count", [3, 4, 6, 8])
def test_leaving_out_halves_of_a_mean_is_the_usual_error(count):
    x = RNG.normal(size=count)
    found = jackknife(range(count), lambda kept: float(np.mean([x[k] for k in kept])))
    assert (found.value, found.error, found.freedom) == (near(x.mean()), near(stats.sem(x)), count - 1)


def test_halves_of_large_zoos_are_drawn_always_the_same():
    x = RNG.normal(size=40)
    seen = []
    statistic = lambda kept: seen.append(len(kept)) or float(np.mean([x[k] for k in sorted(kept)]))
    once, again = (jackknife(range(40), statistic) for _ in range(2))
    assert once == again
    assert seen[:257] == [40] + [20] * 256
    assert once.error == pytest.approx(stats.sem(x), rel=0.15)


def test_statistics_that_are_not_known_have_no_error():
    assert jackknife("ab", lambda kept: 1.0).error is None
    assert jackknife("abcd", lambda kept: math.nan if "a" not in kept else 1.0).error is None
    assert jackknife("abcd", lambda kept: 1.0).error is None  # equal, and few
    assert jackknife("abcdefgh", lambda kept: 1.0).error == 0


def test_spearman_is_that_of_scipy():
    a, b = RNG.integers(0, 6, (2, 12)).astype(float)
    assert spearman(a, b) == pytest.approx(stats.spearmanr(a, b).statistic, abs=1e-9)
    assert math.isnan(spearman([1.0, 1.0], [1.0, 2.0]))


# --- many statements -----------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 7, 20])
def test_holm_is_that_of_statsmodels(count):
    for p in RNG.uniform(size=(3, count)) ** 3:
        assert holm(p.tolist()) == near(multipletests(p, method="holm")[1].tolist())
    assert holm([]) == []


@pytest.mark.parametrize(("count", "but"), [(4, 0), (4, 1), (5, 3)])
def test_all_but_some_is_the_worst_of_what_may_be_left_out(count, but):
    """Partial conjunction by enumeration: at least ``count - but`` are so unless some ``but + 1`` are none of it, all
    of which would have to be refuted; Bonferroni over each such set."""
    for p in RNG.uniform(size=(50, count)):
        sets = itertools.combinations(p, but + 1)
        assert all_but(p.tolist(), but) == near(min(1.0, max((but + 1) * min(s) for s in sets)))
    assert all_but([0.01], but=1) == 1.0


def test_that_a_statement_fails_is_that_too_many_lie_outside():
    values = {k: Estimate(v, 1.0, 5, 6) for k, v in zip("abcd", (-9.0, -7.0, 3.0, 8.0))}
    for but in range(4):
        outside = sorted(e.p_below(0) for e in values.values())
        one = Statement("", values, above=0, but=but)
        assert one.p_fails == near(min(1.0, (4 - but) * outside[but]))
    assert Statement("", values, above=0, but=4).p_fails == 1.0
    band = Statement("", {"": Estimate(3.0, 1.0, 5, 6)}, above=-1, below=1)
    assert band.p_fails == near(2 * stats.t.sf(2.0, 5))


# --- power ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("networks", [4, 8])
def test_the_smallest_effect_is_told_four_times_in_five(networks):
    rng = np.random.default_rng(5)
    effect = detectable(Estimate(0.0, 1 / networks**0.5, networks - 1, networks))
    p = [named(effect + rng.normal(size=networks)).estimate().p_above(0) for _ in range(3000)]
    assert binomtest(sum(q <= 0.05 for q in p), 3000, 0.8).pvalue > 1e-3


def test_the_networks_needed_tell_and_one_fewer_do_not():
    earlier = Estimate(0.5, 1 / 6**0.5, 5, 6)
    count = networks_needed(earlier, 0.0, 0.01)
    assert detectable(earlier, count, 0.01) <= 0.5 < detectable(earlier, count - 1, 0.01)
    rng = np.random.default_rng(6)
    told = sum(named(0.5 + rng.normal(size=count)).estimate().p_above(0) <= 0.01 for _ in range(1500))
    assert told / 1500 > 0.77


def test_between_two_limits_both_tests_must_tell():
    """With the networks that are said to be needed, equivalence is told four times in five."""
    earlier = Estimate(0.0, 1 / 6**0.5, 5, 6)
    count = Statement("", {"": earlier}, above=-0.5, below=0.5).needed(1)
    assert count == networks_needed(earlier, 0.5, power=0.9) > networks_needed(earlier, 0.5)
    rng = np.random.default_rng(7)
    pages = [Statement("", {"": named(rng.normal(size=count)).estimate()}, above=-0.5, below=0.5) for _ in range(1500)]
    assert sum(one.p_holds <= 0.05 for one in pages) / 1500 > 0.77


def test_images_bound_what_more_networks_tell():
    found = Estimate(1.0, 0.5, 9.0, 6, fixed=0.4)
    assert detectable(found, 10_000) > 0.4 * (1.64 + 0.84)
    assert networks_needed(found, 0.1) is None
    assert networks_needed(Estimate(1.0, 0.5, 9.0, 6), 0.1) is not None


def test_effects_without_spread():
    assert detectable(Estimate(1.0)) == math.inf
    assert detectable(Estimate(1.0, 0.0)) == 0.0
    assert networks_needed(Estimate(1.0), 0.0) is None


def test_fewer_degrees_of_freedom_of_a_ring_count_in_its_power():
    assert detectable(Estimate(0.0, 1.0, 4.5, 8)) > detectable(Estimate(0.0, 1.0, 7, 8))
    assert detectable(Estimate(0.0, 1.0, 4.5, 8), 16) > detectable(Estimate(0.0, 1.0, 7, 8), 16)


# --- levels of designs ---------------------------------------------------------------------------

SOME = [d for d in designs() if d.networks == 8 and d.name.startswith((
    "one number", "networks by", "two arms of other networks, one", "a ring of pairs: networks differ",
    "all pairs: networks differ", "two arms on the same ring", "each of 4", "a page of 10 statements, all",
))]  # fmt: skip


@pytest.mark.parametrize("design", SOME, ids=lambda d: d.name)
def test_a_design_holds_its_level(design):
    """``benchmarks/statement_levels.py`` runs all designs; 1 in 1,000 true levels would fail here."""
    found = level_of(design, 600)
    for count, level in ((found.held, 0.05), (found.failed, 0.05), (found.strict, 0.005)):
        assert binomtest(count, 600, level, alternative="greater").pvalue > 1e-3
    assert found.told > 150


def test_designs_that_do_not_hold_are_seen():
    """Pairs taken as if they were independent."""
    ring = next(d for d in designs() if d.name == "all pairs: networks differ" and d.networks == 8)

    def naive(rng, by):
        u = rng.normal(size=8)
        flat = named(np.array([by + u[a] + u[b] for a, b in PAIRS["all"](8)]))
        return [Statement("false", {"": flat.estimate()}, above=0.0)]

    assert binomtest(level_of(Design("naive", 8, naive), 600).held, 600, 0.05).pvalue < 1e-6
    assert binomtest(level_of(ring, 600).held, 600, 0.05).pvalue > 1e-3


def test_verdicts_here_are_those_of_the_engine():
    rng = np.random.default_rng(3)
    for by in (0.0, 2.0, -2.0):
        page = [s for _ in range(5) for s in welch(6, 1.0)(rng, by)]
        holds, fails = verdicts(page)
        assert [c.held for c in judge(page)] == [True if h else False if f else None for h, f in zip(holds, fails)]
