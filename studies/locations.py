"""Location-wise CKA (paper 1, v2 remark D.3), beyond the paper's "computational limits": run once for real, on digits.

Features of different examples are compared at every position instead of summed over positions. Gram matrices have
``N P`` rows for ``P`` positions: all of them on images of digits.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

import intertwine as iw
from intertwine.lab.data import load
from intertwine.lab.experiments import Design, Experiment, Findings, PairJob, activations_of, cyclic_pairs
from intertwine.similarity import cka, location_cka

KERNELS = {"G_ReLU-CKA": "max", "linear CKA": "linear"}
WISE = " by location"


class AtLocations(PairJob):
    """Two networks of one architecture, compared layer by layer with and without positions."""

    layers: tuple[str, ...]  # Where
    examples: int  # Test images

    def run(self, files: Path) -> list[dict[str, Any]]:
        """Unbiased scores of equal layers by measure."""
        loader = load(self.data).loader("test", examples=self.examples)
        a, b = (iw.collect(model, loader, list(self.layers), progress=False) for model in self.networks())
        rows = []
        for layer in self.layers:
            for name, kernel in KERNELS.items():
                whole = cka(a[layer], b[layer], kernel)
                single = location_cka(a[layer], b[layer], kernel, samples=None)
                rows += [{"statistic": name, "layer": layer, "value": whole},
                         {"statistic": name + WISE, "layer": layer, "value": single}]  # fmt: skip
        return rows


def _plan(plan: Design) -> None:
    s = plan.setting
    zoo = plan.zoo("networks", "digits_cnn:width=8", s.by_scale(4, 8, 8))
    plan.baseline()
    for pair in cyclic_pairs(zoo):
        plan.pair(AtLocations, pair, layers=activations_of(zoo.network), examples=s.by_scale(40, 150, 359))
    plan.note("All locations of the test images. Unbiased estimators.")


def _analyse(found: Findings) -> None:
    table, guard = {m + w: found.values.by_layer(m + w) for m in KERNELS for w in ("", WISE)}, found.guard()
    for name, by in table.items():
        found.show(name, by)
    relu, linear = (table[name + WISE] for name in KERNELS)
    less = {f"{m}, {layer}": one - table[m + WISE][layer] for m in KERNELS for layer, one in table[m].items()}
    found.state("single locations are less alike than whole examples, in every layer", less, above=0, guard=guard)
    falls = {two: relu[one] - relu[two] for one, two in pairwise(relu)}
    found.state("G_ReLU-CKA by location falls with depth", falls, above=0, guard=guard)
    found.state("it is below linear CKA by location in every layer", {k: linear[k] - relu[k] for k in relu}, above=0,
                guard=guard)  # fmt: skip
    found.accuracies()


STUDIES = (
    Experiment("open-locations", "CKA location by location", "left open by v2 remark D.3", _plan, _analyse,
               digits=("smoke", "small", "paper")),
)  # fmt: skip
