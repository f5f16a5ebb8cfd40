"""Stitching penalties of ResNet18s beside those of ResNet20s (paper 1, v2 D.3: Fig. 7 is lower than Fig. 6, but one).

Nothing is measured anew: the jobs are those of the two figures.
"""

from __future__ import annotations

from dataclasses import replace

from ..estimates import mean_of, minus
from ..experiment import Experiment, Measured, Setting
from ..reproduction import Reproduction, Row
from ..verdicts import Claim, claim
from ..zoos import trained
from . import stitching

__all__ = ["EXPERIMENTS"]

_FIGURES = {"ResNet20": "fig6-stitching-resnet20", "ResNet18": "fig7-stitching-resnet18"}
_CHANCE = "layer4.1.relu1*"  # layer 70, the penultimate inside a residual block
_LOST = 0.6  # of accuracy: what is left of a network that was trained is near 10 %
_AT = "at layer 70 of ResNet18s"


def _measure(setting: Setting) -> Measured:
    rows, notes = list[Row](), list[str]()
    by_name = {one.name: one for one in stitching.EXPERIMENTS}
    for network, figure in _FIGURES.items():
        one = by_name[figure]
        if setting.planned is not None:
            planned = one.plan(setting)
            setting.planned.zoos += planned.zoos
            setting.planned.jobs += planned.jobs
            continue
        found = one.measure(replace(setting, name=figure))  # finished jobs are found
        rows += [replace(row, what=network, paper=None, spread=None) for row in found.rows if "accuracy" in row.group]
        for family in stitching.FAMILIES:
            layers = {row.what: row.estimate for row in found.rows if row.group == family}
            if usual := [e for layer, e in layers.items() if layer != _CHANCE]:
                rows.append(Row.of(network, mean_of(usual), group=f"{family}, mean over layers"))
            if network == "ResNet18" and _CHANCE in layers:
                rows.append(Row.of(family, layers[_CHANCE], group=_AT))
        notes.append(f"{network}: {found.notes[1]}")
    return Measured(rows, [*notes, "Means leave layer 70 of the ResNet18 out, as the text does."])


def _judge(found: Reproduction) -> list[Claim]:
    networks = trained(found)
    of = lambda network: {
        group.partition(",")[0]: by[network] for group, by in found.table.items() if "mean over" in group
    }
    lower = minus(of("ResNet20"), of("ResNet18"))
    return [
        claim("penalties of ResNet18s are lower than those of ResNet20s, for every family", lower, above=0,
              trained=networks),
        claim("at layer 70 stitched ResNet18s are at chance: 60 points are lost with G_ReLU",
              {k: e for k, e in found.table.get(_AT, {}).items() if k == "g_relu"}, above=_LOST, trained=networks),
    ]  # fmt: skip


EXPERIMENTS = (
    Experiment("fig7-below-fig6", "ResNet18s are stitched more cheaply than ResNet20s", "v2 D.3, Figs 6, 7", _measure,
               _judge),
)  # fmt: skip
