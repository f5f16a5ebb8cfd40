"""Statistical tests of a paper's statements: samples of networks, estimates with errors, power, and verdicts."""

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
    # measurements, and estimates from them
    "Sample", "Estimate", "independent", "mean_of", "of_runs", "jackknife", "spearman", "student_quantile",
    # p-values of several statements together
    "all_but", "holm",
    # planning a run
    "detectable", "networks_needed",
    # statements and verdicts
    "Statement", "Guard", "Claim", "judge", "estimates", "LEVEL",
]  # fmt: skip
