"""Stitching Compact Convolutional Transformers behind every encoder block (paper 1, v2 D.4 and Fig. 12).

The figure is an image: what is checked are its claims in words.
"""

from __future__ import annotations

from ...data import load
from ...networks import fit_to
from ...training import RECIPES
from ..experiment import Experiment, Setting
from ..pairs import checkpoints, names_of, pairs_at
from ..reproduction import Claim, Reproduction, provenance
from ..zoos import zoo_for
from .stitched_layers import StitchedLayers, by_family, line, mean

__all__ = ["EXPERIMENTS", "claims_of"]

_FAMILIES = ("g_relu", "full")
_LARGE = 0.1  # 10 points


def claims_of(means: dict[str, dict[str, float]]) -> list[Claim]:
    """What the paper says in words: there is no activation behind an encoder block, so G_ReLU must fail there.

    Args:
        means: Mean penalties by family and block.
    """
    one, full = means["g_relu"], means["full"]
    shown = "; ".join(f"{layer}: {100 * one[layer]:.1f} against {100 * full[layer]:.1f}" for layer in one)
    return [
        Claim("G_ReLU loses much behind every encoder block: 10 points or more", min(one.values()) >= _LARGE, shown),
        Claim("and more than linear maps", all(one[layer] > full[layer] for layer in one), shown),
    ]


def _figure(setting: Setting) -> Reproduction:

    data = load(setting.data_spec)
    chosen = setting.by_scale(
        "cct_6_3x1:width=16,blocks=2,dropout=0", "cct_6_3x1:width=32,blocks=4,dropout=0", "cct_6_3x1"
    )
    network = fit_to(chosen, data.shape, len(data.classes))
    short = RECIPES["cct"].but(batch_size=64, learning_rate=2e-3, warmup=0, mixup=0.0, cutmix=0.0)
    recipe = setting.by_scale(short.but(epochs=8, translate=0, flip=False), short.but(epochs=4), RECIPES["cct"])
    examples = setting.by_scale(None, 10_000, None)
    zoo = zoo_for(setting, network, setting.by_scale(3, 3, 10), recipe, examples)
    blocks = setting.by_scale(2, 4, 6)
    pairs = pairs_at(setting, zoo, 3, 16)
    drawn = names_of(pairs)
    epochs = setting.by_scale(2, 2, 20)
    jobs = [
        StitchedLayers(
            **checkpoints(pair), data=setting.data_spec, examples=setting.by_scale(200, 1000, None),
            tested=setting.by_scale(None, 1000, None), layers=tuple(f"blocks.{k}" for k in range(blocks)),
            families=_FAMILIES, recipe={"epochs": epochs, "head_start": epochs // 2},
            translate=setting.by_scale(0, 2, 2), flip=setting.by_scale(False, True, True), seed=setting.seed + i,
            device=setting.device,
        )
        for i, pair in enumerate(pairs)
    ]  # fmt: skip
    found = by_family(setting.run(jobs))
    means = {family: {layer: mean(v) for layer, v in by.items()} for family, by in found.items()}
    notes = [
        f"Stitching penalties behind encoder blocks: accuracy lost, 0.01 is a point; {len(zoo)} networks, "
        f"{len(pairs)} ordered pairs; intervals leave out networks.",
        "The paper's mean accuracy is lost in the text. Its recipe has automatic augmentation too, ours has not.",
    ]
    if setting.scale == "small":
        notes.append(
            f"Much smaller than the paper: {network}, {recipe.epochs} epochs of {examples:,} images, without mixup and "
            "CutMix; maps are trained on 1,000 images."
        )
    return Reproduction(
        "fig12-cct", "Stitching penalties of Compact Convolutional Transformers", "v2 D.4, Fig. 12", setting.scale,
        [row for family in _FAMILIES for row in line(family, found[family], drawn)], claims_of(means), notes=notes,
        facts={**provenance(), "network": zoo.architecture, "models": len(zoo), "pairs": len(pairs),
               "accuracy": round(mean(zoo.accuracies), 4)},
    )  # fmt: skip


EXPERIMENTS = (
    Experiment("fig12-cct", "Stitching penalties of Compact Convolutional Transformers", "v2 D.4, Fig. 12", _figure),
)
