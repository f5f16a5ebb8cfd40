"""Stitching by sparse linear maps: what is lost against how sparse a map is (paper 1, v2 D.6 and Fig. 15).

The figure is an image: what is checked are its claims in words.
"""

from itertools import pairwise

from ..experiment import Experiment, Findings
from ..plan import Design
from .stitched import ARMS, OURS, enter, length_of, minus, penalties, show_arms, telling

STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1)
_LASSOS = tuple(f"lasso-{strength:g}" for strength in STRENGTHS)
_AS_SPARSE = 0.95  # of the sparsity of a permutation


def _plan(plan: Design) -> None:
    s = plan.setting
    plan.baseline()
    zoo = plan.zoo("myrtle_cnn", s.by_scale("digits_cnn:width=8", "myrtle_cnn:base=16", "myrtle_cnn"),
                   s.by_scale(3, 8, 100))  # fmt: skip
    for arm in ARMS:
        how = length_of(s, arm)
        if s.scale != "paper":  # few steps need a larger rate: entries move by rate x strength x steps at most
            how["recipe"] |= {"learning_rate": 1e-2}
        if s.scale == "small" and arm is OURS:
            how["recipe"] |= {"epochs": 3, "batch_size": 16}
        enter(plan, zoo, arm, ("g_relu", *_LASSOS), **how)
    plan.note(
        "Penalties: accuracy lost, 0.01 is a point. Sparsity: share of entries of at most 1e-3 in size (v2 D.1), which "
        "is 1 - 1/n for G_ReLU.",
        "The lasso acts by its proximal step in ours, as a term of the loss as printed.",
        "In the last layer two points of the paper's figure nearly overlap; which ones is lost in the text.",
    )


def _analyse(found: Findings) -> None:
    for arm in show_arms(found):
        tell, by = telling(found, arm, ["myrtle_cnn"]), penalties(found.values, arm)
        sparse = {f: found.values.by_layer(f"sparsity, {f}", arm) for f in ("g_relu", *_LASSOS)}
        for family, of_layers in sparse.items():
            found.show(f"{family} sparsity" + ("" if arm == OURS.name else f", {arm}"), of_layers)
        rivals = {
            f"{f}, {layer}": by[f][layer] - by["g_relu"][layer]
            for f in _LASSOS
            for layer, share in sparse["g_relu"].items()
            if sparse[f][layer].mean >= _AS_SPARSE * share.mean
        }
        tell("G_ReLU loses little for its sparsity: lasso maps that are 95 % as sparse lose more", rivals, above=0)
        grows = {k: e for a, b in pairwise(_LASSOS) for k, e in minus(sparse[b], sparse[a], b).items()}
        tell("stronger penalties make sparser maps", grows, above=0)
    found.accuracies()


EXPERIMENTS = (Experiment("fig15-lasso", "Stitching by sparse linear maps", "v2 D.6, Fig. 15", _plan, _analyse),)
