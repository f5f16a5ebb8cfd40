"""P-values beyond the largest of a few numbers: exact for exponential tails, not too small for lighter ones."""

from math import exp

import pytest
import torch
from scipy.stats import binom, kstest

from intertwine.provenance.after_matching import log_chance
from intertwine.provenance.p_values import log_exceedance

DRAWS = 4000


def p_values(law, count):
    torch.manual_seed(count)
    return [exp(log_exceedance(x, others)) for x, *others in law(torch.rand(DRAWS, count + 1)).tolist()]


LAWS = {
    "exponential": lambda u: -u.log(),
    "normal": lambda u: torch.distributions.Normal(0.0, 1.0).icdf(u.clamp(1e-6, 1 - 1e-6)),
    "uniform": lambda u: u,
    "logistic": torch.logit,
    "Gumbel": lambda u: -(-u.log()).log(),
}


@pytest.mark.parametrize("count", [4, 8])
@pytest.mark.parametrize("law", LAWS)
def test_level_is_held_for_laws_whose_hazard_rate_does_not_fall(law, count):
    found = p_values(LAWS[law], count)
    for level in (0.1, 1e-2, 1e-3):
        assert sum(p <= level for p in found) <= binom.ppf(0.9999, DRAWS, level)


def test_tail_is_exact_for_exponential_numbers():
    tail = [9 * p for p in p_values(LAWS["exponential"], 8) if p < 1 / 9 - 1e-12]
    assert kstest(tail, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("entries", [3, 8, 64])
@pytest.mark.parametrize("count", [4, 8])
def test_level_is_held_for_tensors_in_random_directions_and_not_for_squares_of_their_cosines(count, entries):
    torch.manual_seed(count)
    x = torch.randn(DRAWS, count + 1, entries, dtype=torch.float64)
    cosines = (x[..., 0] / x.norm(dim=-1)).tolist()
    found = [exp(log_chance(c, others)) for c, *others in cosines]
    for level in (0.1, 1e-2, 1e-3):
        assert sum(p <= level for p in found) <= binom.ppf(0.9999, DRAWS, level)
    squares = [exp(log_chance(max(c, 0) ** 2, [max(o, 0) ** 2 for o in others])) for c, *others in cosines]
    assert sum(p <= 1e-3 for p in squares) > 10 * 1e-3 * DRAWS


def test_a_heavier_tail_breaks_it():
    found = p_values(lambda u: u**-2.0, 8)
    assert sum(p <= 1e-3 for p in found) > 10 * 1e-3 * DRAWS


def test_others_that_do_not_differ_are_ranked_only():
    assert exp(log_exceedance(5.0, [1.0] * 4)) == pytest.approx(0.2)
