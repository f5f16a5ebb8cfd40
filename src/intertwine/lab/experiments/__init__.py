"""The papers' tables and figures as experiments: each is a plan, a table of raw values and an analysis.

To add one, write a file in ``paper1`` or ``paper2`` that ends with a tuple ``EXPERIMENTS``, and name it in
``registry._MODULES``:

    def _plan(plan: Design) -> None:
        zoo = plan.zoo("myrtle_cnn", "myrtle_cnn:base=16", count=plan.setting.by_scale(3, 6, 100))
        for pair in cyclic_pairs(zoo):
            plan.pair(StitchedLayers, pair, arm="ours", families=("g_relu",))

    def _analyse(found: Findings) -> None:
        penalties = found.values.by_layer("penalty, g_relu", "ours")
        found.show("penalties", penalties)
        found.state("penalties are below 10 points", penalties, below=0.1, guard=found.guard("myrtle_cnn"))

    EXPERIMENTS = (Experiment("my-figure", "Stitching penalties", "v2 Fig. 9", _plan, _analyse),)

A job's ``run`` returns rows of the table of values. Importing such a file must be cheap: import heavy modules inside
the functions that use them.
"""

from ..statistics import Claim, Guard, Statement, judge
from .experiment import Experiment, Findings, measure
from .plan import SCALES, Design, PairJob, PlannedZoo, Scale, Setting, activations_of, cyclic_pairs, unordered_pairs
from .registry import (
    check_against,
    compare,
    experiment,
    experiments,
    fingerprints,
    reproduce,
    run_experiments,
    validity,
    values_path,
)
from .reproduction import Map, Reproduction, Row
from .values import COLUMNS, Values

__all__ = [
    "experiments", "experiment", "reproduce", "run_experiments", "measure", "values_path", "validity",
    "Experiment", "Findings", "Design", "PlannedZoo", "Setting", "Scale", "SCALES",
    "PairJob", "activations_of", "cyclic_pairs", "unordered_pairs",
    "Values", "COLUMNS", "compare", "check_against", "fingerprints",
    "Statement", "Guard", "Claim", "judge",
    "Reproduction", "Row", "Map",
]  # fmt: skip
