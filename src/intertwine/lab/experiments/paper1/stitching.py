"""Stitching penalties of independently trained networks (paper 1: v2 Figs 1, 6 to 8 and 12; v1 Figs 1 and 8 to 10).

The figures are images: what is checked are the claims about them in words, for our and for the paper's way to train
maps. Myrtle CNNs and ResNets come first, then ResNet20s by negative slope of LeakyReLU, trained (v2 Table 3) and
stitched, and transformers, stitched after every encoder block.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from ...statistics import Estimate, Sample, independent, mean_of
from ...training import RECIPES, fast_precision
from ..experiment import CEILING, Experiment, Findings
from ..plan import Design, PlannedZoo, cyclic_pairs
from ..reproduction import TABLE_3, ZOO_ACCURACY
from .stitched import (
    ARMS,
    FLAT,
    OURS,
    PRINTED,
    PRINTED_V1,
    Arm,
    curves,
    enter,
    minus,
    penalties,
    show_arms,
    show_losses,
    telling,
)

FAMILIES = ("g_relu", "full", "rank-4", "rank-2", "rank-1")
_REDUCED = FAMILIES[2:]
_NEARLY = 0.03  # "nearly achieve the accuracy of the original models": 3 points
_LOST = 0.6  # of accuracy: a loss that leaves a trained network near 10 %
_CHANCE = "layer4.1.relu1*"  # layer 70, the penultimate, inside a residual block
_END = "as printed in v2, to the end"
_FIRST = 8  # networks at the scale small
_EPOCHS = 22  # on the 45,000 images here: 31,000 steps, like 20 epochs on the paper's 50,000

Penalties = Mapping[str, Mapping[str, Sample]]


def state_figure(tell: Callable[..., None], table: Penalties, residual: bool, ranked: bool = True) -> None:
    """State what the text says about one figure (for ResNet18s it ranks no families); ``*``: in residual blocks."""
    part = lambda star: {f: {k: e for k, e in by.items() if k.endswith("*") is star} for f, by in table.items()}
    outside, inside = part(False), part(True)
    full, g_relu = outside["full"], outside["g_relu"]
    if ranked:
        tell("G_ReLU loses more than full convolutions outside residual blocks", minus(g_relu, full), above=0)
        tell("G_ReLU loses less than rank 1 outside residual blocks", minus(outside["rank-1"], g_relu), above=0)
    if residual:
        if ranked:
            beaten = {k: e for f in FAMILIES[1:] for k, e in minus(inside["g_relu"], inside.get(f, {}), f).items()}
            tell("inside residual blocks G_ReLU loses more than all other families", beaten, above=0)
        costs = {f: mean_of(inside[f].values()) - mean_of(outside[f].values()) for f in ("full", "g_relu")}
        tell("layers inside residual blocks cost more on average, with full convolutions too", costs, above=0)
        return
    tell("full convolutions nearly achieve the accuracy of the networks: within 3 points", full, below=_NEARLY)
    tell("G_ReLU comes within 10 points in all layers but one", g_relu, below=0.1, but=1)
    reduced = {k: e for f in _REDUCED for k, e in minus(table.get(f, {}), g_relu, f).items()}
    tell("maps of reduced rank lose more than G_ReLU at every layer", reduced, above=0)
    steps = {f: [(b, by[b] - by[a]) for a, b in pairwise(by)] for f, by in table.items() if f != "rank-1"}
    rises = {f"{f}, {k}": e for f, by in steps.items() for k, e in by[:2]}
    falls = {f"{f}, {k}": e.times(-1) for f, by in steps.items() for k, e in by[2:]}
    tell("penalties rise to the third activation, for every family but rank 1", rises, above=0)
    tell("and fall at the last one", falls, above=0)


@dataclass(frozen=True)
class _Figure:
    """What one figure stitches at each scale: network, layers, pairs."""

    networks: tuple[str, str, str]
    layers: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]] = ((), (), ())
    pairs: int = 16
    residual: bool = True
    ranked: bool = True
    # At the scale small, where the networks of a first run are skipped:
    ours: int = 0  # Networks of our arm
    printed: int = 0  # Further networks, of the printed arms; 0 if these have the networks of ours
    anew: int = 0  # Further networks, of v2's arm alone, where those of all printed arms could not tell
    most_printed: int | None = None  # Most networks in a printed arm; all of its own if ``None``
    epochs: int = 8  # Of training maps in v2's arm

    def enter(
        self, plan: Design, arm: Arm, zoo: PlannedZoo | None = None, zoo_arm: str = "", name: str = ""
    ) -> PlannedZoo:
        """Add networks, unless given, and pairs of one arm, with fewer families in printed arms; returns the zoo."""
        s, own = plan.setting, (zoo_arm or self.networks[-1], plan.setting.by_scale(*self.networks))
        how: dict[str, Any] = {}
        if s.scale == "small" and self.ours:
            shared = arm is OURS or not self.printed
            first, count = (_FIRST, self.ours) if shared else (_FIRST + self.ours, self.printed)
            if self.anew and arm is PRINTED:
                first, count = first + count, self.anew
            known = zoo if shared or (arm is PRINTED_V1 and not self.anew) else None
            zoo = known or plan.zoo(*own, count, first=first)
            most = None if arm is OURS else self.most_printed
            how = {"pairs": cyclic_pairs(replace(zoo, seeds=zoo.seeds[:most]))}
            if arm is PRINTED:
                how["recipe"] = {"epochs": self.epochs, "head_start": self.epochs // 2}
        zoo = zoo or plan.zoo(*own, s.by_scale(3, _FIRST, 100))
        # Rank 4 of 64 channels is rank 1 of 16. On residual networks printed arms skip ranks that no claim needs.
        few = arm is PRINTED_V1 or (arm is PRINTED and self.residual)
        ranks = s.by_scale(("rank-1",), ("rank-1",) if few else ("rank-2", "rank-1"), _REDUCED)
        enter(plan, zoo, arm, ("g_relu", "full", *ranks), s.by_scale(*self.layers), name, most=self.pairs, **how)
        return zoo

    def plan(self, plan: Design) -> None:
        """Plan networks of both versions, stitched in every arm."""
        s = plan.setting
        plan.baseline()
        zoo = self.enter(plan, PRINTED, self.enter(plan, OURS))
        if s.scale == "paper":
            recipe = s.recipe(zoo.network, crop=PRINTED_V1.crop, translate=0)
            zoo = plan.zoo(f"{zoo.arm}, cropped", zoo.network, 10, recipe)
        if s.scale != "small" or not self.residual:  # there Myrtle CNNs alone show what momentum changes
            self.enter(plan, PRINTED_V1, zoo)
        if s.scale == "small" and self.ours:
            whose = f"Our arm and the printed ones have {self.ours} and {self.printed} networks of their own"
            same = f"All arms have the same {self.ours} networks"
            same += f", but printed arms only the first {self.most_printed}" if self.most_printed else ""
            whose += f", v2 {self.anew} others, since {self.printed} decided too little" if self.anew else ""
            plan.note(
                f"{whose if self.printed else same}. First runs, with {_FIRST} other networks, decided few statements "
                "(v2's maps did not train in 8 epochs) and no longer count."
            )
        plan.note("Stitching penalties: accuracy lost, 0.01 is a point; one line for each family.", s.by_scale(
            "Digits are not cropped: here v1 differs in momentum only.",
            "Here v1 stitches the same networks, and Myrtle CNNs only; its maps see random resized crops, on which "
            "its own networks were trained.",
            "v1 has a zoo of its own, trained on random resized crops of at least 8 % of an image.",
        ))  # fmt: skip

    def analyse(self, found: Findings) -> None:
        """State the claims about every arm, and what our start and choice of epoch change."""
        for name in show_arms(found, (OURS, PRINTED, PRINTED_V1)):
            table = penalties(found.values, name)
            found.show(f"channels matched as activations are, {name}", found.values.by_layer("agreement, g_relu", name))
            state_figure(telling(found, name, self.networks[-1:]), table, self.residual, self.ranked)
        ours, printed = (found.values.by_layer("penalty, g_relu", arm.name) for arm in (OURS, PRINTED))
        both = {k: (e, printed[k]) for k, e in ours.items() if k in printed}
        apart = any(not {*e.networks} & {*p.networks} for e, p in both.values())
        gains = {k: independent((1, e), (-1, p)) if apart else e - p for k, (e, p) in both.items()}
        found.show("ours - as printed in v2", gains)
        found.state("our closed-form start and best epoch lose less with G_ReLU than the paper's arm at every layer",
                    gains, below=0, guard=found.guard(self.networks[-1]))  # fmt: skip
        found.accuracies(ZOO_ACCURACY)


_FIG_1 = _Figure(("digits_cnn:width=8", "myrtle_cnn:base=16", "myrtle_cnn"), pairs=32, residual=False, ours=16,
                  printed=16, anew=64, epochs=14)  # fmt: skip
_FIG_6 = _Figure(
    ("resnet20:width=4", "resnet20:width=8", "resnet20"),
    (("layer1.0.relu1", "layer2.2.relu2"),
     ("layer1.1.relu1", "layer1.2.relu2", "layer2.2.relu2", "layer3.2.relu1"), ()), ours=16, epochs=14,
)  # fmt: skip
_FIG_7 = _Figure(
    ("resnet18:width=4", "resnet18:width=8", "resnet18"),
    (("layer1.0.relu1", "layer2.1.relu2"),
     ("layer1.1.relu1", "layer2.1.relu2", "layer3.1.relu2", "layer4.1.relu1"), ()), ranked=False, ours=25,
    most_printed=8, epochs=14,
)  # fmt: skip


def _plan_end(plan: Design) -> None:
    """Plan one pair stitched as printed, for as many steps as printed, beside the same pair in fewer steps."""
    s = plan.setting
    plan.baseline()
    short = Design(s)
    zoo = replace(_FIG_1, anew=0).enter(short, PRINTED)
    plan.zoos, plan.tasks = short.zoos, plan.tasks + short.tasks[:1]
    epochs = s.by_scale(4, _EPOCHS, _EPOCHS)
    length = {"examples": s.by_scale(96, None, None), "recipe": {"epochs": epochs, "head_start": epochs // 2}}
    enter(plan, zoo, PRINTED, ("g_relu", "full"), name=_END, pairs=cyclic_pairs(zoo)[:1], **length)
    plan.note("One pair of networks says nothing about others: its numbers are shown, but no conclusions drawn.")


def _analyse_end(found: Findings) -> None:
    short, end = (penalties(found.values, arm) for arm in (PRINTED.name, _END))
    for family, by in end.items():
        found.show(f"{family}, in fewer steps", short[family])
        found.show(f"{family}, the end - fewer steps", minus(by, short[family]))
    show_arms(found, (Arm(_END),))
    if found.values.facts.get("scale") != "smoke":
        told = {f: Estimate(by[-1] - by[-2], 0.0) for f, by in curves(found.values, _END).items()}
        found.state(f"the training loss ends flat: it changes by less than {FLAT:g} in the last epoch", told,
                    within=FLAT, check=True)  # fmt: skip
    found.accuracies()


_BESIDE = {"ResNet20": _FIG_6, "ResNet18": _FIG_7}


def _plan_below(plan: Design) -> None:
    plan.baseline()
    for network, figure in _BESIDE.items():
        figure.enter(plan, OURS, None, network, f"{network}, ours")
    plan.note("Means leave out layer 70 of the ResNet18, as the text does.")


def _analyse_below(found: Findings) -> None:
    tables = {network: penalties(found.values, f"{network}, ours") for network in _BESIDE}
    mean = lambda by: mean_of(e for k, e in by.items() if k != _CHANCE)
    usual = {network: {f: mean(by) for f, by in table.items()} for network, table in tables.items()}
    for network, by in usual.items():
        found.show(f"{network}, mean over layers", by)
    lower = {f: independent((1, e), (-1, usual["ResNet18"][f])) for f, e in usual["ResNet20"].items()}
    at_chance = {f: by[_CHANCE] for f, by in tables["ResNet18"].items() if _CHANCE in by}
    found.show("at layer 70 of ResNet18s", at_chance)
    found.state("penalties of ResNet18s are lower than those of ResNet20s, for every family", lower, above=0,
                guard=found.guard(*_BESIDE))  # fmt: skip
    lost = {f: e for f, e in at_chance.items() if f == "g_relu"}
    found.state("at layer 70 stitched ResNet18s are at chance: 60 points are lost with G_ReLU", lost, above=_LOST,
                guard=found.guard("ResNet18"))  # fmt: skip
    found.accuracies()


SLOPES = tuple(float(name.split()[1]) for name in TABLE_3)
_FEW = (1e-2, 0.1, 0.5, 0.9, 1.0)  # at the scale small: of three slopes near 0, one is enough
_PRINTED = (1e-2, 0.9, 1.0)  # of the printed arm there
_NEARLY_RELU = 0.1
_EQUAL, _FAR = 0.03, 0.2  # accuracy: 3 and 20 points
_SIMILAR = 0.1  # penalties: 10 points
_BEFORE = 6  # networks of a slope there, in a first run
_ANEW = {1e-2: 14, 0.1: 14, 1.0: 24}  # new networks of slopes where the first run left statements open
_FEWER = 14  # of them in the printed arm, whose maps are trained longer
_INSIDE = ("layer1.2.relu2", "layer2.2.relu2", "layer3.2.relu1", "layer3.2.relu2")


def _zoo(plan: Design, slope: float, count: int, arm: str = "", longer: int = 1, first: int = 0) -> PlannedZoo:
    """Networks of one slope, trained ``longer`` times as long as usual."""
    base = plan.setting.by_scale("mlp:widths=16-16-16", "resnet20:width=8", "resnet20")
    recipe = plan.setting.recipe(base)
    network = f"{base}{',' if ':' in base else ':'}leaky_slope={slope:g}"
    return plan.zoo(arm or f"slope {slope:g}", network, count, recipe.but(epochs=longer * recipe.epochs),
                     first=first)  # fmt: skip


def _apart(samples: dict[str, Sample]) -> dict[str, Estimate]:
    """Difference of each of several independent arms from the mean of all."""
    share = -1 / len(samples)
    return {name: independent(*((share + (other == name), s) for other, s in samples.items())) for name in samples}


def _plan_slopes(plan: Design) -> None:
    s = plan.setting
    plan.baseline()
    for slope in s.by_scale(SLOPES, _FEW, SLOPES):
        _zoo(plan, slope, s.by_scale(2, 6, 2))
    _zoo(plan, 1e-2, s.by_scale(1, 2, 2), CEILING, 3)
    if s.scale == "smoke":
        plan.note("A linear network does well on digits: the cost of slope 1 shows on CIFAR-10.")


def _analyse_slopes(found: Findings) -> None:
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


def _plan_stitched_slopes(plan: Design) -> None:
    s = plan.setting
    plan.baseline()
    for slope in s.by_scale(_PRINTED, _FEW, SLOPES):
        anew = _ANEW.get(slope, 0) if s.scale == "small" else 0
        zoo = _zoo(plan, slope, anew or s.by_scale(3, _BEFORE, 2), first=_BEFORE if anew else 0)
        for arm in ARMS:
            if arm is OURS or s.scale != "small" or slope in _PRINTED:
                some = zoo if arm is OURS else replace(zoo, seeds=zoo.seeds[:_FEWER])
                name, pairs = f"{zoo.arm}, {arm.name}", cyclic_pairs(some)
                enter(plan, some, arm, ("g_relu",), s.by_scale((), _INSIDE, ()), name, pairs)
    plan.note(
        "Stitching penalties of G_ReLU: accuracy lost, 0.01 is a point. Each network of a slope is stitched into the "
        "next.",
        "The less accurate networks of larger slopes have less to lose, as the paper says: see table3-leaky-slopes.",
        "At slope 1 batch norm and skip connections still tie every layer to its channels.",
    )
    if s.scale == "small":
        slopes = ", ".join(f"{slope:g} ({count})" for slope, count in _ANEW.items())
        plan.note(f"Slopes {slopes} have other networks than the {_BEFORE} of a first run, which left half of the "
                  f"statements open and no longer counts; maps as printed use the first {_FEWER}.")  # fmt: skip


def _analyse_stitched_slopes(found: Findings) -> None:
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
            _state_slopes(found, arm.name, slopes, [names[s] for s in slopes], nearly)
    found.accuracies()


def _state_slopes(
    found: Findings, arm: str, slopes: dict[float, dict[str, Sample]], names: list[str], nearly: list[str]
) -> None:
    """State what the paper says in words about penalties by slope and layer."""
    tell = telling(found, arm, nearly, [f"{name}, " for name in names])
    enough = len(next(iter(slopes.values()))) > 2
    gap = lambda by: mean_of([*by.values()][:-2]) - mean_of([*by.values()][-2:])  # the others minus the last two
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


_OF_BLOCKS = ("g_relu", "full")
_LARGE = 0.1  # 10 points


def _plan_transformers(plan: Design) -> None:
    s = plan.setting
    plan.baseline()
    network = s.by_scale(
        "cct_6_3x1:width=16,blocks=2,dropout=0", "cct_6_3x1:width=96,blocks=3,dropout=0,depth_dropout=0", "cct_6_3x1"
    )
    none = {"warmup": 0, "mixup": 0.0, "cutmix": 0.0, "crop": 0.0, "automatic": 0.0}
    short = RECIPES["cct"].but(batch_size=64, learning_rate=2e-3, epochs=8, flip=False, **none)
    small = RECIPES["cct"].but(**none | {"warmup": 2}, batch_size=128, learning_rate=1e-3, epochs=32, translate=2,
                                precision=fast_precision(s.device))  # fmt: skip
    zoo = plan.zoo("cct_6_3x1", network, s.by_scale(3, 6, 10), s.by_scale(short, small, RECIPES["cct"]))
    layers = [f"blocks.{k}" for k in range(s.by_scale(2, 3, 6))]
    for arm in ARMS:  # after the usual 8 epochs the loss of printed maps was not flat
        longer = s.scale == "small" and arm is PRINTED
        how: dict[str, Any] = {"recipe": {"epochs": 14, "head_start": 7}} if longer else {}
        enter(plan, zoo, arm, _OF_BLOCKS, layers, most=16, **how)
    plan.note("Stitching penalties after encoder blocks: accuracy lost, 0.01 is a point.",
              "The paper's mean accuracy is lost in the text.")  # fmt: skip


def _analyse_transformers(found: Findings) -> None:
    for arm in show_arms(found):
        tell, by = telling(found, arm, ["cct_6_3x1"]), penalties(found.values, arm)
        more = minus(by["g_relu"], by["full"])
        found.show(f"g_relu - full, {arm}", more)
        # No activation follows an encoder block, so G_ReLU must fail there.
        tell("G_ReLU loses much behind every encoder block: 10 points or more", by["g_relu"], above=_LARGE)
        tell("and more than linear maps", more, above=0)
    found.accuracies()


EXPERIMENTS = (
    Experiment("fig1-stitching-myrtle", "Stitching penalties of Myrtle CNNs", "v2 Fig. 1 (v1 Fig. 1)", _FIG_1.plan,
               _FIG_1.analyse),
    Experiment("fig6-stitching-resnet20", "Stitching penalties of ResNet20s", "v2 Fig. 6 (v1 Fig. 8)", _FIG_6.plan,
               _FIG_6.analyse),
    Experiment("fig7-stitching-resnet18", "Stitching penalties of ResNet18s", "v2 Fig. 7 (v1 Fig. 9)", _FIG_7.plan,
               _FIG_7.analyse),
    Experiment("fig1-to-the-end", "One pair of Myrtle CNNs, stitched for the paper's own number of steps",
               "v2 Fig. 1, D.2", _plan_end, _analyse_end, scales=("smoke", "small")),
    Experiment("fig7-below-fig6", "ResNet18s are stitched more cheaply than ResNet20s", "v2 D.3, Figs 6, 7",
               _plan_below, _analyse_below),
    Experiment("table3-leaky-slopes", "Accuracy against the negative slope", "v2 Table 3 (v1 Table 1)", _plan_slopes,
               _analyse_slopes),
    Experiment("fig8-leaky-slopes", "Stitching penalties against the negative slope", "v2 Fig. 8 (v1 Fig. 10)",
               _plan_stitched_slopes, _analyse_stitched_slopes),
    Experiment("fig12-cct", "Stitching penalties of Compact Convolutional Transformers", "v2 D.4, Fig. 12",
               _plan_transformers, _analyse_transformers),
)  # fmt: skip
