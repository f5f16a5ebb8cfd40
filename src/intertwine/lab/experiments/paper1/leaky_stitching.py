"""Stitching ResNet20s whose activations are LeakyReLUs (paper 1, v2 Fig. 8, v1 Fig. 10).

The figure is an image: what is checked are its claims in words. The networks are those of Table 3.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from ..estimates import Estimate, mean_of
from ..experiment import Experiment, Measured, Setting
from ..pairs import ring
from ..reproduction import Reproduction
from ..verdicts import Claim, Trained, claim
from ..zoos import accuracy_rows, trained, trained_words
from .leaky_slopes import slopes_at, zoo_of_slope
from .stitched import ARMS, OURS, arm_claims, series, stitch_jobs

_SMALL = 0.1  # the slopes up to which a LeakyReLU is nearly a ReLU
_SIMILAR = 0.1  # penalties: 10 points


def claims_of(table: Mapping[str, Mapping[str, Estimate]], networks: Trained) -> list[Claim]:
    """What the paper says in words.

    Args:
        table: Penalties by ``"slope S"`` and layer; layers in the order of the network.
        networks: Those of small slopes.
    """
    told = partial(claim, trained=networks)
    slopes = {float(g.split()[1]): by for g, by in table.items() if g.startswith("slope ")}
    small = [by for slope, by in slopes.items() if slope <= _SMALL]
    gap = lambda by: mean_of([*by.values()][:-2]) - mean_of([*by.values()][-2:])  # the last two against the others
    usual = mean_of(map(gap, small))
    constant = lambda slope: {f"{k}": e - mean_of(slopes[slope].values()) for k, e in slopes[slope].items()}
    level = {f"slope {slope:g}": mean_of(by.values()) for slope, by in slopes.items() if slope < 1}
    middle = mean_of(level.values())
    enough = len(next(iter(slopes.values()))) > 2
    return [
        told("at slope 1 penalties are mostly constant: within 10 points of their mean in all layers", constant(1.0),
             above=-_SIMILAR, below=_SIMILAR),
        told("at slope 0.9, to a lesser extent: within 20 points", constant(0.9), above=-2 * _SIMILAR,
             below=2 * _SIMILAR),
        told("at small slopes the last two layers cost least", {"others - last two": usual} if enough else {}, above=0),
        told("and by more than at slope 1", {"small slopes - slope 1": usual - gap(slopes[1.0])} if enough else {},
             above=0),
        told("penalties are similar for all slopes below 1: within 10 points of their mean",
             {name: e - middle for name, e in level.items()}, above=-_SIMILAR, below=_SIMILAR),
    ]  # fmt: skip


def _measure(setting: Setting) -> Measured:
    slopes = (1e-2, 0.9, 1.0) if setting.scale == "smoke" else slopes_at(setting)
    inside = ("relu", "layer1.2.relu2", "layer2.2.relu2", "layer3.2.relu1", "layer3.2.relu2")
    layers = setting.by_scale((), inside, ())
    zoos = {slope: zoo_of_slope(setting, slope) for slope in slopes}
    epochs = setting.by_scale(2, 2, 20)
    judged = setting.by_scale({}, {"judged": 512}, {})
    how = {"examples": setting.by_scale(96, 1600, None), "tested": setting.by_scale(None, 1000, None),
           "recipe": {"epochs": epochs, "head_start": epochs // 2, **judged}}  # fmt: skip
    drawn = {(arm, slope): ring(zoo) for arm in ARMS for slope, zoo in zoos.items()}
    jobs = [stitch_jobs(setting, pairs, arm, ("g_relu",), layers, **how) for (arm, _), pairs in drawn.items()]
    values = iter(setting.run([job for listed in jobs for job in listed]))
    rows = accuracy_rows({f"slope {slope:g}": zoo for slope, zoo in zoos.items()})
    for (arm, slope), pairs in drawn.items():
        group = f"slope {slope:g}" + ("" if arm is OURS else f", {arm.name}")
        rows += [replace(row, group=group) for row in series([next(values) for _ in pairs], pairs)]
    notes = [
        "Stitching penalties of G_ReLU: accuracy lost, 0.01 is a point. Each network of a slope is stitched into the "
        f"next; {trained_words(zoos[slopes[0]])}.",
        *(arm.words(**how["recipe"]) for arm in ARMS),
        "The less accurate networks of larger slopes have less to lose, as the paper says: see table3-leaky-slopes.",
        "At slope 1 batch norm and skip connections still tie every layer to its channels.",
    ]
    return Measured(rows, notes)


def _judge(found: Reproduction) -> list[Claim]:
    networks = trained(found)
    small = {
        k: e
        for k, e in networks.accuracy.items()
        if k in ("networks", "slope 0.0001", "slope 0.001", "slope 0.01", "slope 0.1")
    }
    return arm_claims(found.table, lambda own: claims_of(own, replace(networks, accuracy=small)))


EXPERIMENTS = (
    Experiment(
        "fig8-leaky-slopes",
        "Stitching penalties against the negative slope",
        "v2 Fig. 8 (v1 Fig. 10)",
        _measure,
        _judge,
    ),
)
