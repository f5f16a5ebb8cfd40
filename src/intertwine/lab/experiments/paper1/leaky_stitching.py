"""Stitching ResNet20s whose activations are LeakyReLUs (paper 1, v2 Fig. 8, v1 Fig. 10).

The figure is an image: what is checked are its claims in words. The networks are those of Table 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..experiment import Experiment, Setting
from ..pairs import checkpoints, names_of, ring
from ..reproduction import Claim, Reproduction, Row, provenance
from .leaky_slopes import TABLE_3, zoo_of_slope
from .stitched_layers import StitchedLayers, by_family, line, mean

__all__ = ["EXPERIMENTS", "claims_of"]

_SMALL = 0.1  # the slopes up to which a LeakyReLU is nearly a ReLU
_SIMILAR = 0.1  # penalties: 10 points

# slope -> layer -> mean penalty
Means = Mapping[float, Mapping[str, float]]


def claims_of(means: Means) -> list[Claim]:
    """What the paper says in words.

    Args:
        means: Mean penalties by slope and layer; layers in the order of the network.
    """
    spread = {slope: max(by.values()) - min(by.values()) for slope, by in means.items()}
    small = [slope for slope in means if slope <= _SMALL]
    usual = mean([spread[slope] for slope in small])
    shown = ", ".join(f"slope {slope:g}: {100 * value:.1f}" for slope, value in spread.items())
    below = {slope: mean([*by.values()]) for slope, by in means.items() if slope < 1}
    level = ", ".join(f"slope {slope:g}: {100 * value:.1f}" for slope, value in below.items())
    return [
        Claim("at slope 1 penalties hardly depend on the layer: they range over less than half of what they do at "
              "small slopes", spread[1.0] < usual / 2, f"points from lowest to highest: {shown}"),
        Claim("at slope 0.9 too, to a lesser extent", spread[1.0] <= spread[0.9] <= usual,
              f"{100 * spread[0.9]:.1f} between {100 * spread[1.0]:.1f} and {100 * usual:.1f} points"),
        _last_two(means, small),
        Claim("penalties are similar for all slopes below 1 (v1, section 4)",
              max(below.values()) - min(below.values()) < _SIMILAR, f"points, mean over layers: {level}"),
    ]  # fmt: skip


def _last_two(means: Means, small: Sequence[float]) -> Claim:
    text = "at small slopes the last two layers cost least"
    layers = list(next(iter(means.values())))
    early, late = layers[:-2], layers[-2:]
    if not early:
        return Claim(text, None, "too few layers")
    cost = lambda chosen: mean([means[slope][layer] for slope in small for layer in chosen])
    detail = f"{100 * cost(late):.1f} points at {' and '.join(late)}, {100 * cost(early):.1f} at the others"
    return Claim(text, cost(late) < cost(early), detail)


def _figure(setting: Setting) -> Reproduction:
    slopes = tuple(TABLE_3) if setting.scale != "smoke" else (1e-2, 0.9, 1.0)
    inside = ("relu", "layer1.2.relu2", "layer2.2.relu2", "layer3.2.relu1", "layer3.2.relu2")
    layers = setting.by_scale((), inside, ())
    zoos = {slope: zoo_of_slope(setting, slope) for slope in slopes}
    epochs = setting.by_scale(2, 2, 20)
    drawn = names_of(ring(zoos[slopes[0]]))
    jobs = [
        StitchedLayers(
            **checkpoints(pair), data=setting.data_spec, examples=setting.by_scale(200, 3000, None),
            tested=setting.by_scale(None, 2000, None), layers=layers, families=("g_relu",),
            recipe={"epochs": epochs, "head_start": epochs // 2}, translate=setting.by_scale(0, 2, 2),
            flip=setting.by_scale(False, True, True), seed=setting.seed + i, device=setting.device,
        )
        for zoo in zoos.values()
        for i, pair in enumerate(ring(zoo))  # both ways
    ]  # fmt: skip
    values = setting.run(jobs)
    rows: list[Row] = []
    means: dict[float, dict[str, float]] = {}
    for k, slope in enumerate(slopes):
        (found,) = by_family(values[2 * k : 2 * k + 2]).values()
        means[slope] = {layer: mean(numbers) for layer, numbers in found.items()}
        rows += line(f"slope {slope:g}", found, drawn)
    accuracy = {f"accuracy at slope {slope:g}": round(mean(zoo.accuracies), 4) for slope, zoo in zoos.items()}
    notes = [
        "Stitching penalties of G_ReLU: accuracy lost, 0.01 is a point. Two networks for each slope, as in the paper; "
        "each is stitched into the other, and what is shown as an interval are those two penalties.",
        "The less accurate networks of larger slopes have less to lose, as the paper says: see table3-leaky-slopes.",
        "At slope 1 batch norm and skip connections still tie every layer to its channels.",
    ]
    if setting.scale == "small":
        notes.append(
            f"Smaller than the paper: networks of width 8 after 3 epochs, {epochs} epochs of 3,000 images for maps."
        )
    return Reproduction(
        "fig8-leaky-slopes", "Stitching penalties against the negative slope", "v2 Fig. 8 (v1 Fig. 10)", setting.scale,
        rows, claims_of(means), notes=notes,
        facts={**provenance(), "network": zoos[slopes[0]].architecture, **accuracy},
    )  # fmt: skip


EXPERIMENTS = (
    Experiment(
        "fig8-leaky-slopes", "Stitching penalties against the negative slope", "v2 Fig. 8 (v1 Fig. 10)", _figure
    ),
)
