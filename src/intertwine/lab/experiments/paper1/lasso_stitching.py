"""Stitching by sparse linear maps: what is lost against how sparse a map is (paper 1, v2 D.6 and Fig. 15).

The figure is an image: what is checked are its claims in words.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from ..experiment import Experiment, Setting
from ..pairs import checkpoints, names_of, pairs_at
from ..reproduction import Claim, Reproduction, provenance
from ..zoos import recipe_at, zoo_for
from .stitched_layers import StitchedLayers, by_family, line, mean

__all__ = ["EXPERIMENTS", "STRENGTHS", "claims_of"]

STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1)
_AS_SPARSE = 0.95  # of the sparsity of a permutation

# family -> layer -> mean
Means = Mapping[str, Mapping[str, float]]


def claims_of(penalties: Means, sparsities: Means) -> list[Claim]:
    """What the paper says in words: no lasso map that is as sparse as those of G_ReLU loses less.

    Args:
        penalties: Mean penalties by family and layer.
        sparsities: Mean shares of entries of at most 1e-3 in size.
    """
    lassos = [family for family in sparsities if family != "g_relu"]
    beaten, rivals, grows = list[str](), 0, list[bool]()
    for layer, sparse in sparsities["g_relu"].items():
        known = [(sparsities[f][layer], penalties[f][layer], f) for f in lassos]
        as_sparse = [(cost, f) for share, cost, f in known if share >= _AS_SPARSE * sparse]
        rivals += len(as_sparse)
        beaten += [f"{f} at {layer}" for cost, f in as_sparse if cost < penalties["g_relu"][layer]]
        shares = [share for share, _, _ in known]
        grows.append(all(one <= other for one, other in itertools.pairwise(shares)))
    detail = f"{rivals} lasso maps are 95 % as sparse; better: {', '.join(beaten) or 'none'}"
    return [
        Claim("G_ReLU loses little for its sparsity: no lasso map that is as sparse loses less",
              not beaten if rivals else None, detail),
        Claim("stronger penalties make sparser maps", all(grows), f"at {sum(grows)} of {len(grows)} layers"),
    ]  # fmt: skip


def _figure(setting: Setting) -> Reproduction:

    network = setting.by_scale("digits_cnn:width=8", "myrtle_cnn:base=16", "myrtle_cnn")
    zoo = zoo_for(setting, network, setting.by_scale(3, 4, 100), recipe_at(setting))
    pairs = pairs_at(setting, zoo, setting.by_scale(2, 3, 0), 32)
    drawn = names_of(pairs)
    # Few steps need a larger rate: soft thresholds move entries by rate x strength x steps at most.
    recipe = setting.by_scale(
        {"epochs": 2, "head_start": 1, "learning_rate": 1e-2},
        {"epochs": 3, "head_start": 1, "learning_rate": 1e-2, "batch_size": 16},
        {},
    )
    jobs = [
        StitchedLayers(
            **checkpoints(pair), data=setting.data_spec, examples=setting.by_scale(150, 3000, None),
            tested=setting.by_scale(None, 2000, None), layers=(),
            families=("g_relu", *(f"lasso-{strength:g}" for strength in STRENGTHS)), recipe=recipe,
            translate=setting.by_scale(0, 2, 2), flip=setting.by_scale(False, True, True), seed=setting.seed + i,
            device=setting.device,
        )
        for i, pair in enumerate(pairs)
    ]  # fmt: skip
    values = setting.run(jobs)
    found = {what: _named(by_family(values, what)) for what in ("penalties", "sparsities")}
    means = {
        what: {family: {layer: mean(v) for layer, v in by.items()} for family, by in families.items()}
        for what, families in found.items()
    }
    rows = [
        row
        for what, title in (("penalties", "penalty"), ("sparsities", "sparsity"))
        for family, by in found[what].items()
        for row in line(f"{family}, {title}", by, drawn)
    ]
    notes = [
        "Penalties: accuracy lost, 0.01 is a point. Sparsity: share of entries of at most 1e-3 in size (v2 D.1), which "
        "is 1 - 1/n for G_ReLU. Full maps start at least squares; their penalty acts by its proximal step.",
        "In the last layer two points of the paper's figure nearly overlap; which ones is lost in the text.",
    ]
    if setting.scale == "small":
        notes.append(
            f"Smaller than the paper: {network}, {len(zoo)} networks, {len(pairs)} pairs, 3 epochs of 3,000 images in "
            "batches of 16 at a rate of 0.01."
        )
    return Reproduction(
        "fig15-lasso", "Stitching by sparse linear maps", "v2 D.6, Fig. 15", setting.scale, rows,
        claims_of(means["penalties"], means["sparsities"]), notes=notes,
        facts={**provenance(), "network": zoo.architecture, "models": len(zoo), "pairs": len(pairs),
               "accuracy": round(mean(zoo.accuracies), 4)},
    )  # fmt: skip


def _named(found: Mapping[str, Mapping[str, list[float]]]) -> dict[str, Mapping[str, list[float]]]:
    """Every strength in its name, the usual one too."""
    return {"lasso-0.001" if family == "lasso" else family: by for family, by in found.items()}


EXPERIMENTS = (Experiment("fig15-lasso", "Stitching by sparse linear maps", "v2 D.6, Fig. 15", _figure),)
