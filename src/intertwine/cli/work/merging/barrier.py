"""Work of ``intertwine barrier``."""

from dataclasses import replace
from typing import cast

from ....merging import PathOptions, barriers
from ....merging.interpolate import Interpolation
from ..._solvers import solver_of
from ...commands.merging.barrier import BarrierOptions
from ...inputs.networks import data_facts
from ...inputs.pairs import open_group
from ...outputs.files import RESULTS, claim_folder
from ...outputs.results import present
from ...outputs.show import say


def run(asked: BarrierOptions) -> None:
    """Measure how much worse the networks between networks are, before and after alignment."""
    solver = solver_of(asked.method)
    claim_folder(asked.out, RESULTS, asked.checkpoints)
    specs = [asked.model] * len(asked.checkpoints)
    group = open_group(asked.checkpoints, specs, asked, "always", asked.device)
    assert group.data is not None
    group.data.need_labels("to measure losses")
    found = barriers(
        group.models,
        group.loader(asked.split, asked.examples, asked.batch_size),
        asked.points,
        alignments=None if asked.method == "none" else solver,
        names=group.names,
        progress=True,
        options=PathOptions(
            recalibrate=asked.recalibrate,
            calibration=group.loader("train", asked.examples, asked.batch_size),
            interpolation=cast(Interpolation, asked.interpolation),
            example_inputs=group.example,
            seed=asked.seed,
        ),
    )
    settings = {
        "networks": [network.facts for network in group.networks],
        "data": data_facts(group.data_spec, asked.split, group.data),
        "command": asked.line,
        "seed": asked.seed,
    }
    found = replace(found, settings=settings, notes=(*group.notes, *found.notes))
    present(found, asked.out, asked.as_json, say)
