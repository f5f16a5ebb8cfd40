"""Each table and figure of the papers: jobs, a reduction, the paper's numbers beside ours.

An experiment is one file in ``paper1``, ``paper2`` or ``beyond`` (what the papers left open) that ends with a tuple
``EXPERIMENTS`` and is named in ``registry._MODULES``:

    def _measure(setting: Setting) -> Measured:
        pairs = setting.by_scale(4, 16, 32)
        values = setting.run([MyJob(seed=setting.seed + k, data=setting.data_spec) for k in range(pairs)])
        found = of_pairs([v["pair"] for v in values], [v["penalty"] for v in values])
        return Measured([Row.of("relu1", found, paper=(0.02, 0.01), group="penalties")])

    def _judge(found: Reproduction) -> list[Claim]:
        return [claim("penalties are below 10 points", found.table["penalties"], below=0.1)]

    EXPERIMENTS = (Experiment("my-figure", "Stitching penalties", "v2 Fig. 9", _measure, _judge),)

Importing such a file must be cheap: whatever is heavy is imported inside the function. Long work goes through
``setting.run(jobs)`` (see ``intertwine.lab.runs``), which keeps every finished job; networks come from a zoo
(``intertwine.lab.zoo``), which keeps every trained member.
"""

from .estimates import Estimate, of_pairs, of_runs
from .experiment import SCALES, Experiment, Measured, Planned, Setting
from .registry import OLDER, age, experiment, experiments, is_older, rejudged, reproduce
from .reproduction import Map, Panel, Reproduction, Row, Scale, provenance
from .verdicts import Claim, Trained, claim, fact

__all__ = [
    "experiments", "experiment", "reproduce", "rejudged", "is_older", "age", "OLDER",
    "Experiment", "Measured", "Planned", "Setting", "SCALES",
    "Reproduction", "Row", "Panel", "Map", "Scale", "provenance",
    "Estimate", "of_pairs", "of_runs", "Claim", "Trained", "claim", "fact",
]  # fmt: skip
