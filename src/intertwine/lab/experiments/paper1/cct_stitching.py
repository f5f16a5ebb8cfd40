"""Stitching Compact Convolutional Transformers behind every encoder block (paper 1, v2 D.4 and Fig. 12).

The figure is an image: what is checked are its claims in words.
"""

from collections.abc import Mapping

from ...training import RECIPES
from ..estimates import Estimate, minus
from ..experiment import Experiment, Measured, Setting
from ..pairs import pairs_at
from ..reproduction import Reproduction
from ..verdicts import Claim, Trained, claim
from ..zoos import accuracy_rows, trained, trained_words, zoo_for
from .stitched import ARMS, OURS, arm_claims, contrast, series, stitch_jobs

_FAMILIES = ("g_relu", "full")
_LARGE = 0.1  # 10 points


def claims_of(table: Mapping[str, Mapping[str, Estimate]], networks: Trained) -> list[Claim]:
    """What the paper says in words: there is no activation behind an encoder block, so G_ReLU must fail there."""
    one, full = table["g_relu"], table["full"]
    text = "G_ReLU loses much behind every encoder block: 10 points or more"
    return [
        claim(text, one, above=_LARGE, trained=networks),
        claim("and more than linear maps", table.get("g_relu - full") or minus(one, full), above=0, trained=networks),
    ]


def _measure(setting: Setting) -> Measured:
    network = setting.fitted(
        "cct_6_3x1:width=16,blocks=2,dropout=0", "cct_6_3x1:width=32,blocks=4,dropout=0", "cct_6_3x1"
    )
    none = {"warmup": 0, "mixup": 0.0, "cutmix": 0.0, "crop": 0.0, "automatic": 0.0}
    short = RECIPES["cct"].but(batch_size=64, learning_rate=2e-3, **none)
    recipe = setting.by_scale(short.but(epochs=8, flip=False), short.but(epochs=30, flip=False), RECIPES["cct"])
    zoo = zoo_for(setting, network, setting.by_scale(3, 6, 10), recipe)
    pairs = pairs_at(setting, zoo, setting.by_scale(3, 6, 0), 16)
    epochs = setting.by_scale(2, 6, 20)
    how = {"examples": setting.by_scale(96, None, None), "tested": None,
           "recipe": {"epochs": epochs, "head_start": epochs // 2}}  # fmt: skip
    layers = [f"blocks.{k}" for k in range(setting.by_scale(2, 4, 6))]
    jobs = [stitch_jobs(setting, pairs, arm, _FAMILIES, layers, **how) for arm in ARMS]
    values = iter(setting.run([job for listed in jobs for job in listed]))
    rows = accuracy_rows({"cct_6_3x1": zoo})
    for arm in ARMS:
        found, title = [next(values) for _ in pairs], "" if arm is OURS else arm.name
        rows += [*series(found, pairs, title=title), *contrast(found, pairs, *_FAMILIES, title)]
    notes = [
        f"Stitching penalties behind encoder blocks: accuracy lost, 0.01 is a point. {trained_words(zoo)}; "
        f"{len(pairs)} ordered pairs.",
        *(arm.words(**how["recipe"]) for arm in ARMS),
        "The paper's mean accuracy is lost in the text.",
    ]
    return Measured(rows, notes, {"network": network, "models": len(zoo), "pairs": len(pairs)})


def _judge(found: Reproduction) -> list[Claim]:
    networks = trained(found)
    return arm_claims(found.table, lambda own: claims_of(own, networks))


EXPERIMENTS = (
    Experiment(
        "fig12-cct",
        "Stitching penalties of Compact Convolutional Transformers",
        "v2 D.4, Fig. 12",
        _measure,
        _judge,
        digits=("smoke", "small"),
    ),
)
