"""Training of permutations with and without momentum: paper 1 says that it was used, and that it was not.

Version 1 stitches with 0.9, version 2 says in D.2 "no momentum", because it "interacted in complicated ways" with the
projection, and in D.2.1 still 0.9. At a constant rate ``r``, momentum ``m`` takes steps that add up to ``r / (1 - m)``:
momentum 0.9 is ten times the rate. So there is an arm with ten times the rate and no momentum: where it does as well,
it was the step, not the momentum.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from intertwine.lab.data import load
from intertwine.lab.experiments import Design, Experiment, Findings, PairJob, activations_of, cyclic_pairs
from intertwine.lab.statistics import Sample
from intertwine.stitching import RECIPES, StitchOptions, stitch

PLAIN, MOMENTUM, FAST = "no momentum", "momentum 0.9", "ten times the rate"
SLOW, NO_HEAD_START, SOFT_SORT = "a tenth of the rate", "no head start", "SoftSort"
ARMS: dict[str, dict[str, Any]] = {  # what differs: factor of the rate, recipe, settings of the family, family
    PLAIN: {},
    MOMENTUM: {"recipe": {"momentum": 0.9}},
    FAST: {"rate": 10.0},
    SLOW: {"rate": 0.1},
    "T = 4": {"settings": {"sinkhorn_steps": 4}},
    "T = 64": {"settings": {"sinkhorn_steps": 64}},
    NO_HEAD_START: {"recipe": {"head_start": 0}},
    SOFT_SORT: {"family": "softsort"},
}
STARTS = {"random": "random start", "direct": "closed-form start"}
POINT = 0.01


class Descended(PairJob):
    """One ordered pair of networks, stitched through permutations and scales that each arm trains."""

    layer: str  # Where to stitch
    start: str  # One of ``STARTS``
    examples: int | None  # Training images; all of them if ``None``
    epochs: int  # Half of them are the head start of permutations
    rate: float  # Learning rate that the arms start from
    arms: tuple[str, ...]  # Names among ``ARMS``
    seed: int  # Of starts and training order

    def run(self, files: Path) -> list[dict[str, Any]]:
        """Train every arm from the same start on the same batches.

        Penalty, share of live channels matched as activations are, last epoch's loss, seconds of processor time.
        """
        (a, b), data = self.networks(), load(self.data).first(self.examples)
        base, rows = replace(RECIPES["v2"], epochs=self.epochs, head_start=self.epochs // 2, keep="last"), []
        for k, (name, arm) in enumerate((name, ARMS[name]) for name in self.arms):
            recipe = replace(base, **{"learning_rate": arm.get("rate", 1.0) * self.rate, **arm.get("recipe", {})})
            options = StitchOptions(
                start=self.start, settings=arm.get("settings", {}), state=files / f"{k}.pt", progress=False
            )  # fmt: skip
            train, began = data.loader("train", recipe.batch_size, shuffle=True), time.process_time()
            one: Any = stitch(a, b, self.layer, arm.get("family", "g_relu"), loader=train, seeds=self.seed,
                              eval_loader=data.loader("test"), method=recipe, options=options)  # fmt: skip
            measured = {"penalty": one.penalty, "agreement": one.agreement, "loss": one.history[-1]["loss"],
                        "seconds": time.process_time() - began}  # fmt: skip
            rows += [{"statistic": what, "arm": f"{name}, {STARTS[self.start]}", "value": value,
                      "images": len(data.test) if what == "penalty" else 0}
                     for what, value in measured.items() if value is not None]  # fmt: skip
        return rows


def _plan(plan: Design) -> None:
    s = plan.setting
    zoo = plan.zoo("networks", *s.by_scale(("digits_cnn:width=8", 4), ("myrtle_cnn:base=16", 8), ("myrtle_cnn", 10)))
    plan.baseline()
    layer, rate = activations_of(zoo.network)[s.by_scale(1, 2, 2)], RECIPES["v2"].learning_rate
    examples, epochs = s.by_scale(200, 3200, None), s.by_scale(2, 6, 20)
    for start in STARTS:
        for pair in cyclic_pairs(zoo):
            plan.pair(Descended, pair, layer=layer, start=start, examples=examples, epochs=epochs, rate=rate,
                      arms=(PLAIN, MOMENTUM, FAST), seed=s.seed)  # fmt: skip
    plan.note(f"Permutations and scales (G_ReLU) at {layer}, trained {epochs} epochs on {examples or 'all'} images "
              f"at a rate of {rate:g}; the last epoch counts. All arms see the same batches.")  # fmt: skip


def show(found: Findings, start: str, arms: Sequence[str]) -> dict[str, dict[str, Sample]]:
    """All numbers of arms from one start, by what was measured and arm."""
    words = {"penalty": "penalty", "agreement": "share matched as activations are", "loss": "last training loss"}
    table = {what: {arm: found.values.sample(what, f"{arm}, {STARTS[start]}") for arm in arms} for what in words}
    for what, by in table.items():
        found.show(f"{words[what]}, {STARTS[start]}", by)
    return table


def _analyse(found: Findings) -> None:
    guard, table = found.guard(), {start: show(found, start, (PLAIN, MOMENTUM, FAST)) for start in STARTS}
    for start, words in STARTS.items():
        lost = table[start]["penalty"]
        found.state(f"{words}: momentum loses no more than a point more than none",
                    {f"{MOMENTUM} - {PLAIN}": lost[MOMENTUM] - lost[PLAIN]}, below=POINT, guard=guard)  # fmt: skip
        found.state(f"{words}: ten times the rate does within a point what momentum does",
                    {f"{FAST} - {MOMENTUM}": lost[FAST] - lost[MOMENTUM]}, above=-POINT, below=POINT,
                    guard=guard)  # fmt: skip
    found.state("from a random start, some arm matches half of the channels as activations are",
                table["random"]["agreement"], above=0.5, but=2, guard=guard)  # fmt: skip
    found.accuracies()


_TITLE, _FROM = "Does momentum matter to projected gradient descent?", "left open by v2 D.2 and D.2.1, which disagree"
STUDIES = (Experiment("open-momentum", _TITLE, _FROM, _plan, _analyse),)
