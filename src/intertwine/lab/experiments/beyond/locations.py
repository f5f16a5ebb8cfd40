"""Location-wise CKA (paper 1, v2 remark D.3), which was beyond the paper's "computational limits": run once for real.

Features of different examples are compared at every position instead of summed over positions. Gram matrices have
``N P`` rows for ``P`` positions; they are made tile by tile, so that it is time that limits, ``(N P)^2 C``. On digits.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from ....features import collect
from ....similarity import cka, location_cka
from ...data import load
from ...training import RECIPES
from ..estimates import Estimate, decreases, minus, of_pairs
from ..experiment import Experiment, Measured, Setting
from ..pairs import PairJob, checkpoints, names_of, ring
from ..reproduction import Reproduction, Row
from ..verdicts import Claim, claim
from ..zoos import accuracy_rows, trained, zoo_for
from .shared import networks_note, relu_layers

_KERNELS = {"G_ReLU-CKA": "max", "linear CKA": "linear"}
_WISE = " by location"


class AtLocations(PairJob):
    """Two networks of one architecture, compared layer by layer with and without positions."""

    gpus: ClassVar[float] = 0.25

    layers: tuple[str, ...]  # Names of layers
    examples: int  # Test images

    def run(self, files: Path) -> dict[str, Any]:
        """Scores of each layer by measure, and the number of ``locations``."""
        loader = load(self.data).loader("test", examples=self.examples)
        a, b = (collect(model, loader, list(self.layers)) for model in self.networks())
        found: dict[str, Any] = {"locations": [a[k].numel() // a[k].shape[1] for k in self.layers]}
        for name, kernel in _KERNELS.items():
            found[name] = [cka(a[k], b[k], kernel) for k in self.layers]
            found[name + _WISE] = [location_cka(a[k], b[k], kernel, progress=False) for k in self.layers]
        return found


def _measure(setting: Setting) -> Measured:
    setting = replace(setting, data="digits")
    recipe = RECIPES["digits"].but(epochs=10, batch_size=64)
    zoo = zoo_for(setting, "digits_cnn:width=8", setting.by_scale(4, 6, 6), recipe)
    layers, pairs, examples = relu_layers(zoo), ring(zoo), setting.by_scale(40, 150, 359)
    values = setting.run([
        AtLocations(**checkpoints(pair), layers=layers, examples=examples, data=setting.data_spec,
                    device=setting.device)
        for pair in pairs
    ])  # fmt: skip
    rows = accuracy_rows({"networks": zoo})
    for measure in (m + wise for m in _KERNELS for wise in ("", _WISE)):
        rows += [
            Row.of(layer, of_pairs(names_of(pairs), [v[measure][k] for v in values]), group=measure)
            for k, layer in enumerate(layers)
        ]
    sizes = ", ".join(f"{count:,}" for count in values[0]["locations"])
    note = f"All locations of {examples} test images: {sizes} by layer. Unbiased estimators."
    return Measured(rows, [networks_note(zoo, f"{len(pairs)} pairs"), note], {"data": "digits"})


def _judge(found: Reproduction) -> list[Claim]:
    table, networks = found.table, trained(found)
    relu, linear = (table[name + _WISE] for name in _KERNELS)
    less: Mapping[str, Estimate] = {
        f"{name}, {layer}": e
        for name in _KERNELS
        for layer, e in minus(table[name], table[name + _WISE]).items()
    }  # fmt: skip
    return [
        claim("single locations are less alike than whole examples, in every layer", less, above=0, trained=networks),
        claim("G_ReLU-CKA by location falls with depth", decreases(relu), above=0, trained=networks),
        claim("it is below linear CKA by location in every layer", minus(linear, relu), above=0, trained=networks),
    ]


EXPERIMENTS = (
    Experiment("open-locations", "CKA location by location", "left open by v2 remark D.3", _measure, _judge,
               data=False),
)  # fmt: skip
