"""One rule for all verdicts: p-values among all statements of a page, and guards that stop what a task cannot tell."""

import math
import re
from functools import cache
from pathlib import Path

import pytest
from planted import floor_of, rows_of, values_of

from intertwine.lab.experiments import Reproduction, Row, Values, experiment, experiments
from intertwine.lab.experiments.experiment import CEILING, Findings
from intertwine.lab.statistics import Estimate, Guard, Statement, holm, independent, judge

INF = math.inf


def one(effects, above=-INF, below=INF, **how):
    """The verdict on one statement, alone on its page."""
    named = effects if isinstance(effects, dict) else {f"k{i}": e for i, e in enumerate(effects)}
    (claim,) = judge([Statement("x", named, above, below, **how)])
    return claim


def made(value, error=0.01, freedom=5):
    return Estimate(value, error, freedom, 6)


@pytest.mark.parametrize(
    ("value", "error", "above", "below", "wanted"),
    [
        (0.15, 0.02, 0, INF, True), (0.05, 0.1, 0, INF, None), (-0.15, 0.02, 0, INF, False),
        (0.0, 0.2, -1, 1, True), (0.5, 0.5, -1, 1, None), (1.3, 0.05, -1, 1, False), (-1.3, 0.05, -1, 1, False),
        (0.1, None, 0, INF, None), (0.0, 0.1, 0, INF, None), (math.nan, 0.1, 0, INF, None),
    ],
)  # fmt: skip
def test_a_p_value_decides_or_cannot_tell(value, error, above, below, wanted):
    assert one([made(value, error)], above, below).held is wanted


def test_one_limit_is_a_one_sided_test_and_two_are_two():
    """At Student's quantile of 5 degrees of freedom, 2.015: just above it is told, just below not."""
    for distance, wanted in ((2.02, True), (2.01, None)):
        assert one([made(distance, 1.0)], above=0).held is wanted
        assert one([made(1 - distance, 1.0)], above=-10 + 1, below=1).held is wanted  # both sides must be told
    assert one([made(-2.02, 1.0)], above=0).held is False
    outside = lambda distance: one([made(1 + distance, 1.0)], above=-1, below=1).held
    assert outside(2.3) is None and outside(2.6) is False  # either side would do: 2.5 % each, 2.571


def test_all_must_hold_all_but_some_and_many_do_not_fail_by_chance():
    good, bad, unsure = made(1.0, 0.1), made(-1.0, 0.1), made(0.0, 0.5)
    told = lambda *effects, but=0: one(effects, above=0, but=but).held
    assert told(good, good) is True
    assert told(good, bad) is False
    assert told(good, unsure) is None
    assert told(good, bad, but=1) is True
    assert told(good, bad, bad, but=1) is False
    assert told(good, unsure, bad, but=1) is None
    assert told() is None
    near = made(-1.0, 0.4)  # below 0 by itself, and not as one of twenty
    assert told(near) is False
    assert told(near, *[good] * 19) is None


def test_statements_of_one_page_are_judged_together_and_checks_and_guarded_ones_do_not_count():
    near = Statement("near", {"a": made(2.5, 1.0)}, above=0)  # p = 0.027
    assert near.p_holds == pytest.approx(0.0272, abs=1e-4)
    held = lambda *others: judge([near, *others])[0]
    assert held().held is True
    two = held(near)
    assert two.held is None and two.adjusted == pytest.approx(2 * near.p_holds)
    said = "significant by itself, but not after correction for all statements of this page"
    assert two.why == f"{said}; as measured it would hold"
    sure = Statement("sure", {"a": made(9.0, 0.1)}, above=0)
    assert held(sure).held is True  # Holm, not Bonferroni: the surest is taken away first
    stopped = Statement("stopped", {"a": made(0.1, 1.0)}, above=0, guard=Guard({}))
    assert held(stopped).held is True
    assert held(Statement("check", {"a": made(0.1, 1.0)}, above=0, check=True)).held is True
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


def test_a_statement_says_what_it_was_judged_by():
    said = one({"relu1": made(0.5), "relu2": Estimate(0.25)}, above=0)
    assert (said.held, said.verdict) == (None, "cannot be told")
    assert said.detail == "relu1: 0.5 [0.474, 0.526], relu2: 0.25; each above 0"
    assert one({}, above=0).why == "no such numbers in this result"
    many = one([made(1.0 if i else -1.0) for i in range(20)], above=0)
    assert many.held is False
    assert many.detail.startswith("19 of 20 as wanted, not k0: -1")


def test_a_statement_that_cannot_be_told_says_why_which_way_it_points_and_what_would_tell_it():
    why = lambda *effects, **limits: one(effects, **limits).why
    assert why(Estimate(0.25), above=0) == "too few independent networks; as measured it would hold"
    assert why(Estimate(-0.25), above=0) == "too few independent networks; as measured it would not hold"
    varies = "the numbers vary too much among networks; as measured "
    wide = lambda value: made(value, 3.0)
    assert why(wide(0.3), above=0) == f"{varies}it would hold"
    assert why(wide(0.3), above=0, below=0.2) == f"{varies}it would not hold"
    assert why(wide(0.3), wide(-0.3), above=0) == f"{varies}1 of 2 would hold"
    assert why(made(0.5), wide(0.3), wide(-0.3), above=0, but=1) == f"{varies}2 of 3 would hold, which is enough"
    assert why(made(0.5), above=0) == why(made(-0.5), above=0) == ""  # it is told
    assert one([made(1.0, 0.6)], above=0).needed > 6
    assert one([made(1.0, 0.1)], above=0).needed is None


def test_a_required_statement_fails_a_page_where_it_is_broken_and_where_it_cannot_be_told():
    of = lambda *statements: Reproduction("n", "t", "p", "smoke", claims=judge(statements)).passed
    exact = lambda value, **how: Statement("x", {"": Estimate(value, 0.0)}, above=0.5, **how)
    assert of(exact(1.0, required=True)) and not of(exact(0.0, required=True))
    assert of(exact(1.0, check=True)) and not of(exact(0.0, check=True))
    assert not of(Statement("x", {"": Estimate(1.0)}, above=0, required=True))
    assert of(Statement("x", {"": made(-1.0)}, above=0))  # a trend that need not hold
    differs = Row("dim", 3.0, 4.0, tolerance=0.0)
    assert not Reproduction("n", "t", "p", "smoke", rows=[differs]).passed


def test_how_well_networks_must_have_trained_follows_from_the_data():
    of = lambda data: Findings(values_of(data=data)).guard("networks").least
    assert (of("digits"), of("cifar10"), of("cifar100")) == (0.85, 0.75, 0.45)


# --- the guard, planted in an experiment's findings ----------------------------------------------------


def guarded(arms, floor=0.4, ceiling=None, least=None, networks=6, ended=()):
    parts = [rows_of("accuracy", arms, networks, own=True), floor_of(floor)]
    if ceiling is not None:
        parts.append(rows_of("accuracy", {CEILING: (ceiling, 0.001)}, 2, own=True))
    found = Findings(values_of(*parts))
    first, last = (found.values.sample("accuracy", arm) for arm in (next(iter(arms)), list(arms)[-1]))
    guard = found.guard(compared=True, least=least, ended=ended)
    found.state("one is better", {"gap": independent((1, first), (-1, last))}, above=0, guard=guard)
    (claim,) = judge(found.statements)
    return claim


def test_the_guard_asks_for_more_than_the_trivial_baseline():
    clear = {"a": (0.9, 0.01), "b": (0.8, 0.01)}
    assert guarded(clear).held is True
    told_nothing = guarded(clear | {"b": (0.41, 0.02)}, least=0.0)  # its interval holds the baseline's 40 %
    assert told_nothing.held is None and told_nothing.p is None and told_nothing.needed is None
    assert told_nothing.why == ("no better than the trivial baseline (40.0 %): b 41.0 %; as measured it would hold")
    assert guarded(clear | {"b": (0.41, 0.002)}, least=0.0).held is True  # surely better, if by little
    assert "not trained: b 60.0 %, 75 % needed" in guarded(clear | {"b": (0.6, 0.01)}).why


def test_the_guard_asks_for_arms_that_are_not_all_at_the_ceiling():
    perfect = {"a": (0.996, 0.0002), "b": (0.995, 0.0002)}
    at_the_top = guarded(perfect, ceiling=0.998)
    assert at_the_top.held is None and at_the_top.why.startswith("all arms are at the ceiling (99.8 %): a 99.6 %, b")
    assert guarded(perfect).held is True  # where no ceiling is known, nothing stops it
    assert guarded({"a": (0.996, 0.0002), "b": (0.9, 0.0002)}, ceiling=0.998).held is True  # one of them is not there


def test_the_guard_asks_for_networks_that_went_most_of_the_way_to_what_more_training_gives():
    """From a baseline of 40 % to 90 % eight tenths are at 80 %; only of arms that the longer training is of."""
    why = lambda reached, end=0.9, ended=("a",): guarded(
        {"a": (reached, 0.001), "b": (0.6, 0.001)}, ceiling=end, least=0.5, ended=ended
    ).why  # fmt: skip
    said = "not trained to the end: a 79.0 %, which is 78 % of the way to 90.0 %, 80 % needed; as measured it would"
    assert why(0.79).startswith(said)
    assert why(0.81) == why(0.79, ended=()) == why(0.79, end=None) == ""
    assert why(0.9, end=0.85) == ""  # better than what was trained longer
    assert "b 60.0 %" in why(0.81, ended=("a", "b"))
    assert "not trained to the end" not in why(0.81, end=0.3)  # a ceiling below the baseline tells nothing


def test_nobody_knows_what_networks_reach_that_have_no_accuracy():
    assert "is not known" in Findings(values_of(floor_of(0.4))).guard("network").why


KEPT = [f for f in sorted((Path(__file__).parents[2] / "results").glob("*/*.parquet")) if f.stem in experiments()]


@cache
def page_of(file):
    return experiment(file.stem).page(Values.load(file))


@pytest.mark.parametrize("file", KEPT, ids=lambda f: f"{f.parent.name} {f.stem}")
def test_kept_statements_say_what_their_numbers_are_and_why_they_are_not_told(file):
    for c in page_of(file).claims:
        assert (c.held is None) == bool(c.why), c.text
        assert c.held is not None or not c.detail or "; as measured " in c.why, c.text
        assert c.check or not re.match(r"-?[\d.]+(e[-+]\d+)?( \[|,)", c.detail), (c.text, c.detail)  # a bare number


@pytest.mark.parametrize("file", KEPT, ids=lambda f: f"{f.parent.name} {f.stem}")
def test_of_one_network_or_pair_nothing_but_mathematics_is_told(file):
    values = Values.load(file)
    frame = values.frame.assign(pair=values.frame["network"] + " " + values.frame["partner"])
    first = frame.groupby(["arm", "statistic", "layer", "partner_layer"], sort=False)["pair"].transform("first")
    one = Values(values.frame[frame["pair"] == first], values.facts)
    sure = {c.text for c in page_of(file).claims if c.required}
    assert {c.text for c in experiment(file.stem).page(one).claims if c.held is not None} <= sure
