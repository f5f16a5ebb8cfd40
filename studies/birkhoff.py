"""Settings of the training of permutations, of which paper 1 swept none (v1 D.1.1): each is changed alone.

The rate, the number ``T`` of Sinkhorn steps, the head start of permutations, and SoftSort instead of projected
gradients, "comparable" and "more than 10 x" slower (v2 D.2.1). On digits, at a rate for which rate times steps is the
paper's.
"""

import math

from studies.descent import FAST, NO_HEAD_START, PLAIN, SLOW, SOFT_SORT, STARTS, Descended, show

from intertwine.lab.experiments import Design, Experiment, Findings, activations_of, cyclic_pairs
from intertwine.lab.statistics import Sample
from intertwine.stitching import RECIPES

SWEPT = (PLAIN, FAST, SLOW, "T = 4", "T = 64", NO_HEAD_START, SOFT_SORT)
SIMILAR, SLOWER = 0.03, 10.0
TRAVEL = 20 * 50_000 / 32 * RECIPES["v2"].learning_rate  # the paper's rate times its steps
HIGHEST = 0.08  # of a few steps; more diverges


def _plan(plan: Design) -> None:
    s = plan.setting
    zoo = plan.zoo("networks", "digits_cnn:width=8", s.by_scale(4, 8, 8))
    plan.baseline()
    layer = activations_of(zoo.network)[s.by_scale(0, 1, 1)]
    examples, epochs = s.by_scale(96, 1295, 1295), s.by_scale(2, 10, 10)
    rate = min(TRAVEL / (epochs * math.ceil(examples / 32)), HIGHEST)
    for pair in cyclic_pairs(zoo):
        plan.pair(Descended, pair, layer=layer, start="random", examples=examples, epochs=epochs, rate=rate, arms=SWEPT,
                  seed=s.seed)  # fmt: skip
    plan.note(f"At {layer}, {epochs} epochs of {examples} images at a rate of {rate:.3g}. SoftSort's time is of "
              "equally many epochs; the paper does not say how long it trained with it.")  # fmt: skip


def _analyse(found: Findings) -> None:
    guard, lost = found.guard(), show(found, "random", SWEPT)["penalty"]
    gaps = {arm: lost[arm] - lost[PLAIN] for arm in SWEPT[1:]}
    for text, arms in {
        "the learning rate does not matter, a tenth or ten times of it": (SLOW, FAST),
        "the number of Sinkhorn steps does not matter, 4 or 64": ("T = 4", "T = 64"),
        "the head start of permutations is not essential": (NO_HEAD_START,),
        "SoftSort is comparable": (SOFT_SORT,),
    }.items():
        found.state(f"{text}: within 3 points of the paper's settings", {arm: gaps[arm] for arm in arms},
                    above=-SIMILAR, below=SIMILAR, guard=guard)  # fmt: skip
    rates = {arm: gaps[arm] for arm in (SLOW, FAST)}
    found.state("the paper's rate is the best of the three", rates, above=0, guard=guard)
    seconds = {arm: found.values.sample("seconds", f"{arm}, {STARTS['random']}").means for arm in (SOFT_SORT, PLAIN)}
    times = Sample.of({pair: one / seconds[PLAIN][pair] for pair, one in seconds[SOFT_SORT].items()})
    found.show("processor time, as a multiple", {f"{SOFT_SORT} / {PLAIN}": times})
    found.state("SoftSort takes more than ten times as long", times, above=SLOWER, guard=guard)
    found.accuracies()


_TITLE, _FROM = "Rate, Sinkhorn steps, head start, and SoftSort", "left open by v1 D.1.1, v2 D.2.1"
STUDIES = (Experiment("open-birkhoff", _TITLE, _FROM, _plan, _analyse, digits=("smoke", "small", "paper")),)
