"""Stitching by sparse linear maps: what is lost against how sparse a map is (paper 1, v2 D.6 and Fig. 15).

The figure is an image: what is checked are its claims in words.
"""

import itertools
from collections.abc import Mapping
from dataclasses import replace

from ..estimates import Estimate
from ..experiment import Experiment, Measured, Setting
from ..pairs import pairs_at
from ..reproduction import Reproduction
from ..verdicts import Claim, Trained, claim
from ..zoos import accuracy_rows, trained, trained_words, zoo_for
from .stitched import ARMS, OURS, arm_claims, series, stitch_jobs

STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1)
_LASSOS = tuple(f"lasso-{strength:g}" for strength in STRENGTHS)
_AS_SPARSE = 0.95  # of the sparsity of a permutation
_SPARSITY = " sparsity"


def claims_of(table: Mapping[str, Mapping[str, Estimate]], networks: Trained) -> list[Claim]:
    """What the paper says in words: no lasso map that is as sparse as those of G_ReLU loses less.

    Args:
        table: Penalties by family and layer; under ``"FAMILY sparsity"`` shares of entries of at most 1e-3 in size.
        networks: Those that were stitched.
    """
    sparse = {f: table[f + _SPARSITY] for f in ("g_relu", *_LASSOS) if f + _SPARSITY in table}
    lassos = [f for f in _LASSOS if f in sparse]
    rivals = {
        f"{f}, {layer}": table[f][layer] - table["g_relu"][layer]
        for layer, share in sparse["g_relu"].items()
        for f in lassos
        if sparse[f][layer].value >= _AS_SPARSE * share.value
    }
    grows = {f"{b}, {layer}": sparse[b][layer] - sparse[a][layer]
             for a, b in itertools.pairwise(lassos) for layer in sparse[a]}  # fmt: skip
    text = "G_ReLU loses little for its sparsity: lasso maps that are 95 % as sparse lose more"
    return [
        claim(text, rivals, above=0, trained=networks),
        claim("stronger penalties make sparser maps", grows, above=0, trained=networks),
    ]


def _measure(setting: Setting) -> Measured:
    network = setting.fitted("digits_cnn:width=8", "myrtle_cnn:base=16", "myrtle_cnn")
    zoo = zoo_for(setting, network, setting.by_scale(3, 6, 100))
    pairs = pairs_at(setting, zoo, setting.by_scale(3, 6, 0), 32)
    # Few steps need a larger rate: soft thresholds move entries by rate x strength x steps at most.
    recipe = setting.by_scale(
        {"epochs": 2, "head_start": 1, "learning_rate": 1e-2},
        {"epochs": 3, "head_start": 1, "learning_rate": 1e-2, "batch_size": 16, "judged": 512},
        {},
    )
    how = {
        "examples": setting.by_scale(96, 1600, None),
        "tested": setting.by_scale(None, 1000, None),
        "recipe": recipe,
    }
    jobs = [stitch_jobs(setting, pairs, arm, ("g_relu", *_LASSOS), (), **how) for arm in ARMS]
    values = iter(setting.run([job for listed in jobs for job in listed]))
    rows = accuracy_rows({network.partition(":")[0]: zoo})
    for arm in ARMS:
        found, title = [next(values) for _ in pairs], "" if arm is OURS else arm.name
        rows += series(found, pairs, title=title)
        sparsities = series(found, pairs, "sparsities")
        rows += [replace(row, group=", ".join(filter(None, [row.group + _SPARSITY, title]))) for row in sparsities]
    notes = [
        "Penalties: accuracy lost, 0.01 is a point. Sparsity: share of entries of at most 1e-3 in size (v2 D.1), which "
        f"is 1 - 1/n for G_ReLU. {trained_words(zoo)}; {len(pairs)} ordered pairs.",
        *(arm.words(**recipe) for arm in ARMS),
        "The lasso acts by its proximal step in ours, as a term of the loss as printed.",
        "In the last layer two points of the paper's figure nearly overlap; which ones is lost in the text.",
    ]
    return Measured(rows, notes, {"network": network, "models": len(zoo), "pairs": len(pairs)})


def _judge(found: Reproduction) -> list[Claim]:
    networks = trained(found)
    return arm_claims(found.table, lambda own: claims_of(own, networks))


EXPERIMENTS = (Experiment("fig15-lasso", "Stitching by sparse linear maps", "v2 D.6, Fig. 15", _measure, _judge),)
