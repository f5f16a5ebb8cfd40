"""Costs of the negative slope of LeakyReLU to a ResNet20 (v2 Table 3), and stitching such networks (v2 Fig. 8).

The figure is an image: what is checked are its claims in words.
"""

from ...statistics import Estimate, Sample, independent, mean_of
from ..experiment import CEILING, Experiment, Findings
from ..plan import Design, PlannedZoo, cyclic_pairs
from ..printed import TABLE_3
from .stitched import ARMS, OURS, enter, show_losses, telling

SLOPES = tuple(float(name.split()[1]) for name in TABLE_3)
_FEW = (1e-2, 0.1, 0.5, 0.9, 1.0)  # at the scale small: three slopes that are nearly 0 say one thing
_PRINTED = (1e-2, 0.9, 1.0)  # of the printed arm there
_NEARLY_RELU = 0.1
_EQUAL, _FAR = 0.03, 0.2  # accuracy: 3 and 20 points
_SIMILAR = 0.1  # penalties: 10 points
_FIRST, _ANEW = 6, 14  # networks of a slope there, and those of ours, which are others
_INSIDE = ("layer1.2.relu2", "layer2.2.relu2", "layer3.2.relu1", "layer3.2.relu2")


def _zoo(plan: Design, slope: float, count: int, arm: str = "", longer: int = 1, first: int = 0) -> PlannedZoo:
    """Networks of one slope, trained so many times as long."""
    base = plan.setting.by_scale("mlp:widths=16-16-16", "resnet20:width=8", "resnet20")
    recipe = plan.setting.recipe(base)
    network = f"{base}{',' if ':' in base else ':'}leaky_slope={slope:g}"
    return plan.zoo(arm or f"slope {slope:g}", network, count, recipe.but(epochs=longer * recipe.epochs),
                     first=first)  # fmt: skip


def _apart(samples: dict[str, Sample]) -> dict[str, Estimate]:
    """Each of several independent arms against the mean of all."""
    share = -1 / len(samples)
    return {name: independent(*((share + (other == name), s) for other, s in samples.items())) for name in samples}


def _plan_table(plan: Design) -> None:
    s = plan.setting
    plan.baseline()
    for slope in s.by_scale(SLOPES, _FEW, SLOPES):
        _zoo(plan, slope, s.by_scale(2, 6, 2))
    _zoo(plan, 1e-2, s.by_scale(1, 2, 2), CEILING, 3)
    if s.scale == "smoke":
        plan.note("A linear network does well on digits: what slope 1 costs shows on CIFAR-10.")


def _analyse_table(found: Findings) -> None:
    values = found.values
    by = {s: values.sample("accuracy", f"slope {s:g}") for s in SLOPES if f"slope {s:g}" in values.arms("accuracy")}
    found.show("test accuracy, percent", {f"slope {s:g}": e for s, e in by.items()}, TABLE_3, 100)
    found.accuracies()
    small = {f"slope {s:g}": e for s, e in by.items() if s <= _NEARLY_RELU}
    guard = found.guard(*small, compared=True, ended=("slope 0.01",))
    usual = [(1 / len(small), e) for e in small.values()]
    falls = {"0.1 to 0.5": independent(*usual, (-1, by[0.5])), "0.5 to 0.9": independent((1, by[0.5]), (-1, by[0.9])),
             "0.9 to 1": independent((1, by[0.9]), (-1, by[1.0]))}  # fmt: skip
    found.state("slopes up to 0.1 are equally good, within 3 points", _apart(small), within=_EQUAL, guard=guard)
    found.state("beyond 0.1 accuracy falls with the slope", falls, above=0, guard=guard)
    found.state("a linear network (slope 1) is far worse: by more than 20 points",
                {"small slopes - slope 1": independent(*usual, (-1, by[1.0]))}, above=_FAR, guard=guard)  # fmt: skip


def _plan_figure(plan: Design) -> None:
    s = plan.setting
    plan.baseline()
    for slope in s.by_scale(_PRINTED, _FEW, SLOPES):
        zoo = _zoo(plan, slope, s.by_scale(3, _FIRST, 2))
        for arm in ARMS:
            if arm is OURS or s.scale != "small" or slope in _PRINTED:
                own = _zoo(plan, slope, _ANEW, first=_FIRST) if arm is OURS and s.scale == "small" else zoo
                name, pairs = f"{zoo.arm}, {arm.name}", cyclic_pairs(own)
                enter(plan, own, arm, ("g_relu",), s.by_scale((), _INSIDE, ()), name, pairs)
    plan.note(
        "Stitching penalties of G_ReLU: accuracy lost, 0.01 is a point. Each network of a slope is stitched into the "
        "next.",
        "The less accurate networks of larger slopes have less to lose, as the paper says: see table3-leaky-slopes.",
        "At slope 1 batch norm and skip connections still tie every layer to its channels.",
    )
    if s.scale == "small":
        plan.note(f"Ours is of {_ANEW} networks of each slope that no other arm has: a first run, of {_FIRST} others, "
                  "could not tell half of its statements, and counts no more.")  # fmt: skip


def _analyse_figure(found: Findings) -> None:
    names = {s: f"slope {s:g}" for s in SLOPES if f"slope {s:g}" in found.values.arms("accuracy")}
    nearly = [name for s, name in names.items() if s <= _NEARLY_RELU]
    for arm in ARMS:
        slopes = {
            s: by for s, n in names.items() if (by := found.values.by_layer("penalty, g_relu", f"{n}, {arm.name}"))
        }
        for s, by in slopes.items():
            found.show(names[s] if arm is OURS else f"{names[s]}, {arm.name}", by)
            show_losses(found, f"{names[s]}, {arm.name}")
        if slopes:
            _state(found, arm.name, slopes, [names[s] for s in slopes], nearly)
    found.accuracies()


def _state(
    found: Findings, arm: str, slopes: dict[float, dict[str, Sample]], names: list[str], nearly: list[str]
) -> None:
    """What the paper says in words, of penalties by slope and layer."""
    tell = telling(found, arm, nearly, [f"{name}, " for name in names])
    enough = len(next(iter(slopes.values()))) > 2
    gap = lambda by: mean_of([*by.values()][:-2]) - mean_of([*by.values()][-2:])  # the last two against the others
    small = [by for s, by in slopes.items() if s <= _NEARLY_RELU]
    usual = [(1 / len(small), gap(by)) for by in small] if enough else []
    apart = lambda by: {k: e - mean_of(by.values()) for k, e in by.items()}
    level = {f"slope {s:g}": mean_of(by.values()) for s, by in slopes.items() if s < 1}
    tell("at slope 1 penalties are mostly constant: within 10 points of their mean in all layers", apart(slopes[1.0]),
         within=_SIMILAR)  # fmt: skip
    tell("at slope 0.9, to a lesser extent: within 20 points", apart(slopes[0.9]), within=2 * _SIMILAR)
    last = {"others - last two": independent(*usual)} if enough else {}
    more = {"small slopes - slope 1": independent(*usual, (-1, gap(slopes[1.0])))} if enough else {}
    tell("at small slopes the last two layers cost least", last, above=0)
    tell("and by more than at slope 1", more, above=0)
    tell("penalties are similar for all slopes below 1: within 10 points of their mean", _apart(level), within=_SIMILAR)


EXPERIMENTS = (
    Experiment("table3-leaky-slopes", "Accuracy against the negative slope", "v2 Table 3 (v1 Table 1)", _plan_table,
               _analyse_table),
    Experiment("fig8-leaky-slopes", "Stitching penalties against the negative slope", "v2 Fig. 8 (v1 Fig. 10)",
               _plan_figure, _analyse_figure),
)  # fmt: skip
