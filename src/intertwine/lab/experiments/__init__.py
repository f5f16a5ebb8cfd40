"""Each table and figure of the papers: jobs, a reduction, the paper's numbers beside ours.

An experiment is one file in ``paper1``, ``paper2`` or ``beyond`` (what the papers left open) that ends with a tuple
``EXPERIMENTS`` and is named in ``registry._MODULES``:

    def _run(setting: Setting) -> Reproduction:
        pairs = setting.by_scale(4, 16, 32)
        values = setting.run([MyJob(seed=setting.seed + k, data=setting.data_spec) for k in range(pairs)])
        found = pair_interval([v["pair"] for v in values], [v["penalty"] for v in values])
        rows = [Row.of("relu1", found, paper=0.02)]
        claims = [Claim("penalties are below 10 points", found.high < 0.1, f"{found}")]
        return Reproduction("my-figure", "Stitching penalties", "v2 Fig. 9", setting.scale, rows, claims)

    EXPERIMENTS = (Experiment("my-figure", "Stitching penalties", "v2 Fig. 9", _run),)

Importing such a file must be cheap: whatever is heavy is imported inside the function. Long work goes through
``setting.run(jobs)`` (see ``intertwine.lab.runs``), which keeps every finished job; networks come from a zoo
(``intertwine.lab.zoo``), which keeps every trained member.
"""

from .experiment import SCALES, Experiment, Setting
from .registry import experiment, experiments, reproduce
from .reproduction import Claim, Panel, Reproduction, Row, Scale, provenance

__all__ = [
    "experiments", "experiment", "reproduce",
    "Experiment", "Setting", "SCALES",
    "Reproduction", "Row", "Panel", "Claim", "Scale", "provenance",
]  # fmt: skip
