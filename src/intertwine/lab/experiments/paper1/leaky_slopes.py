"""Table 3: what the negative slope of LeakyReLU costs a ResNet20."""

from __future__ import annotations

from ...zoo import Zoo
from ..experiment import Experiment, Setting
from ..reproduction import Claim, Reproduction, Row
from ..zoos import recipe_at, zoo_for

__all__ = ["EXPERIMENTS", "TABLE_3", "zoo_of_slope"]

# Accuracy in percent; printed in v1 Table 1, and the same experiment in v2 Table 3.
TABLE_3 = {1e-4: 89.3, 1e-3: 89.4, 1e-2: 89.2, 0.1: 89.4, 0.5: 86.6, 0.9: 73.0, 1.0: 41.8}
_COUNT = 2  # networks for each slope


def zoo_of_slope(setting: Setting, slope: float) -> Zoo:
    """The networks of one slope, trained unless they are there.

    Args:
        setting: Scale and folder.
        slope: Negative slope of all rectifiers.
    """
    base = _base(setting)
    spec = f"{base}{',' if ':' in base else ':'}leaky_slope={slope:g}"
    return zoo_for(setting, spec, _COUNT, recipe_at(setting, epochs=2))


def _base(setting: Setting) -> str:
    return setting.by_scale("digits_cnn:width=4", "resnet20:width=8", "resnet20")


def _slopes(setting: Setting) -> Reproduction:

    rows, mean = [], {}
    for slope, printed in TABLE_3.items():
        found = [100 * a for a in zoo_of_slope(setting, slope).accuracies]
        mean[slope] = sum(found) / len(found)
        rows.append(
            Row(f"slope {slope:g}", mean[slope], printed, min(found), max(found), group="test accuracy, percent")
        )
    small = [mean[s] for s in TABLE_3 if s <= 0.1]
    claims = [
        Claim(
            "slopes up to 0.1 are equally good",
            max(small) - min(small) < 3,
            f"from {min(small):.1f} to {max(small):.1f} percent",
        ),
        Claim(
            "a linear network (slope 1) is far worse",
            mean[1.0] < min(small) - setting.by_scale(2, 10, 10),
            f"{mean[1.0]:.1f} against {min(small):.1f} percent",
        ),
        Claim("0.9 lies between 0.5 and 1", mean[1.0] <= mean[0.9] <= mean[0.5]),
    ]
    return Reproduction(
        "table3-leaky-slopes",
        "Accuracy against the negative slope",
        "v2 Table 3 (v1 Table 1)",
        setting.scale,
        rows,
        claims,
        setting.scale == "paper",
        [
            f"{_COUNT} networks {_base(setting)} for each slope, {recipe_at(setting, epochs=2).epochs} epochs; from "
            "the lowest to the highest of them in place of an interval.",
            *(
                ["A linear network does well on digits: what slope 1 costs shows on CIFAR-10."]
                * (setting.scale == "smoke")
            ),
        ],
    )


EXPERIMENTS = (
    Experiment("table3-leaky-slopes", "Accuracy against the negative slope", "v2 Table 3 (v1 Table 1)", _slopes),
)
