"""Options of a solver in the word of --method."""

import pytest

from intertwine.cli._checks import check_method
from intertwine.cli.commands import solver_of
from intertwine.matching import Sinkhorn


def test_options_follow_a_colon():
    assert solver_of("sinkhorn:steps=300,temperature=0.05") == Sinkhorn(steps=300, temperature=0.05)
    check_method("sinkhorn:steps=300,temperature=0.05,fast=true", ())


def test_numbers_in_any_form():
    found = solver_of("sinkhorn:steps=3e+1,temperature=.5,rate=1e-1")
    assert found == Sinkhorn(steps=30, temperature=0.5, rate=0.1) and type(found.steps) is int
    assert solver_of("sinkhorn:fast=true") == Sinkhorn(fast=True)


def test_an_option_that_the_solver_does_not_have_is_refused():
    with pytest.raises(ValueError, match=r"option of sinkhorn must be one of .*Got 'heat'"):
        check_method("sinkhorn:heat=3", ())
