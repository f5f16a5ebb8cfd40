"""Tests that fit a statement: samples of networks, estimates with their error, power, and verdicts on a page."""

from .estimates import (
    Estimate,
    Sample,
    all_but,
    holm,
    independent,
    jackknife,
    mean_of,
    of_runs,
    spearman,
    student_quantile,
)
from .statements import LEVEL, Claim, Guard, Statement, detectable, estimates, judge, networks_needed

__all__ = [
    # numbers as they were measured, and what follows from them
    "Sample", "Estimate", "independent", "mean_of", "of_runs", "jackknife", "spearman", "student_quantile",
    # of several statements
    "all_but", "holm",
    # before a run
    "detectable", "networks_needed",
    # statements and verdicts
    "Statement", "Guard", "Claim", "judge", "estimates", "LEVEL",
]  # fmt: skip
