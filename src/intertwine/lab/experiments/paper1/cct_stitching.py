"""Stitching Compact Convolutional Transformers behind every encoder block (paper 1, v2 D.4 and Fig. 12).

The figure is an image: what is checked are its claims in words.
"""

from typing import Any

from ...training import RECIPES, fast_precision
from ..experiment import Experiment, Findings
from ..plan import Design
from .stitched import ARMS, PRINTED, enter, minus, penalties, show_arms, telling

_FAMILIES = ("g_relu", "full")
_LARGE = 0.1  # 10 points


def _plan(plan: Design) -> None:
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
        enter(plan, zoo, arm, _FAMILIES, layers, most=16, **how)
    plan.note("Stitching penalties behind encoder blocks: accuracy lost, 0.01 is a point.",
              "The paper's mean accuracy is lost in the text.")  # fmt: skip


def _analyse(found: Findings) -> None:
    for arm in show_arms(found):
        tell, by = telling(found, arm, ["cct_6_3x1"]), penalties(found.values, arm)
        more = minus(by["g_relu"], by["full"])
        found.show(f"g_relu - full, {arm}", more)
        # There is no activation behind an encoder block, so G_ReLU must fail there.
        tell("G_ReLU loses much behind every encoder block: 10 points or more", by["g_relu"], above=_LARGE)
        tell("and more than linear maps", more, above=0)
    found.accuracies()


_TITLE = "Stitching penalties of Compact Convolutional Transformers"
EXPERIMENTS = (Experiment("fig12-cct", _TITLE, "v2 D.4, Fig. 12", _plan, _analyse),)
