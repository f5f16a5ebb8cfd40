"""Detectors against rotations of the basis, in small counterparts (paper 1, section 6, v2 Figs 3 and 18-25).

The paper's networks need ImageNet and its concepts Broden; the figures are images. What is checked are their claims in
words, on networks that are small enough to be trained here (see ``dissection``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ....dissection import ConceptSet, Criterion, Dissection
from ...data import load_concepts
from ...runs import Job
from ..experiment import Experiment, Setting
from ..reproduction import Claim, Reproduction, Row, provenance
from .dissection import SITUATIONS, dissect_situations, summarise

__all__ = ["EXPERIMENTS", "DissectedNetwork", "claims_of", "concept_sets"]

# The paper's 0.005 fits Broden, whose concepts are small. A concept that covers more than quantile / IoU of all pixels
# cannot be found; at 0.02 no concept of CamVid or of the generated images covers as much as that.
_QUANTILE = 0.02

_TITLES = {
    "cnn": "plain CNN",
    "cnn, last relu removed": "plain CNN without its last ReLU",
    "relu": "residual network",
    "no relu": "residual network without ReLU on the residual",
    "convnext": "ConvNeXt-style network",
}
_PLACES = {"output": "at the output", "inside": "inside the residual block"}
_SAME = 0.05  # a change of the share of detectors that is none
_SHOWN = 3  # concepts for each power

# What the paper did, and what a run of it would need.
_NOT_RUN = (
    "ResNet-50, residual output",
    "ResNet-50 without ReLU on the residual, residual output",
    "ConvNeXt, residual output",
    "ResNet-50, inside the last block (Fig. 19)",
    "ResNet-50 without ReLU on the residual, inside the last block (Fig. 19)",
)
_NEEDED = (
    "Needs Broden (1.2 GB), torchvision's ResNet-50, a ConvNeXt of timm or Hugging Face, and ImageNet to train the "
    "modified ResNet-50; none of it is part of this package.",
    "The modified network is resnet50:residual_relu=false, trained on ImageNet by SGD with momentum for 88 epochs in "
    "batches of 512, cyclic learning rate with peak 1.7, label smoothing 0.1, weight decay 1e-4; the paper's reaches "
    "76.1 % (v2 F.3).",
    "With checkpoints, each row is one command: intertwine dissect --model resnet50 --weights FILE --layer layer4 "
    "--concepts broden:FOLDER --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225, with --model "
    "resnet50:residual_relu=false for the modified network and --layer layer4.2.conv2 inside the block.",
)

# situation and place -> power -> mean share of detectors; and the interval of its change from the lowest power to the
# highest
Summary = Sequence[Mapping[str, Any]]


class DissectedNetwork(Job):
    """One small network, trained to name concepts and dissected at its last residual output and inside that block.

    Attributes:
        situation: Which network; a name among ``dissection.SITUATIONS``.
        concepts: As ``lab.data.load_concepts`` takes it.
        images: Most images of the training and of the test set.
        side: Side of generated images.
        epochs: Of training.
        rotations: Powers.
        rotation_seeds: Random rotations for each power.
        quantile: Share of a unit's values above its threshold.
        seed: Of the network.
    """

    situation: str
    concepts: str
    images: tuple[int, int]
    side: int
    epochs: int
    rotations: tuple[float, ...]
    rotation_seeds: int
    quantile: float
    seed: int

    def run(self, files: Path) -> dict[str, Any]:
        """Train and dissect.

        Returns:
            For each place, the dissection as plain data.
        """
        train, test = concept_sets(self.concepts, self.images, self.side)
        (situation,) = (s for s in SITUATIONS if s.name == self.situation)
        found = dissect_situations(
            train, test, (self.seed,), (situation,), epochs=self.epochs, rotations=self.rotations,
            rotation_seeds=self.rotation_seeds, criterion=Criterion(self.quantile, empty="drop"), pictures=0,
        )  # fmt: skip
        return {place: result.to_dict() for (_, place), (result,) in found.items()}


def concept_sets(spec: str, images: tuple[int, int], side: int) -> tuple[ConceptSet, ConceptSet]:
    """What networks learn from, and what they are dissected on.

    Args:
        spec: As ``lab.data.load_concepts`` takes it.
        images: Most images of either.
        side: Of generated images; photographs are brought to 90 x 120 pixels, and Broden's have one size.

    Returns:
        Generated images of two seeds; the splits of a set that has them (``train`` and ``test``, of Broden ``val``);
        of another set every fourth image for the test.

    Examples:
        >>> [len(part) for part in concept_sets("generated", (6, 3), 16)]
        [6, 3]
    """
    kind = spec.removesuffix("+colours").partition(":")[0]
    if kind == "generated":
        train, test = (load_concepts(spec, images=n, size=(side, side), seed=i) for i, n in enumerate(images))
        return train, test
    if kind == "broden":
        parts = [load_concepts(spec, split=split) for split in ("train", "val")]
    elif kind == "parquet":
        parts = [load_concepts(spec, split=split, size=_PHOTOGRAPH) for split in ("train", "test")]
    else:
        whole = load_concepts(spec, size=_PHOTOGRAPH)
        held_out = range(0, len(whole), 4)
        parts = [whole.subset([i for i in range(len(whole)) if i % 4]), whole.subset(held_out)]
    train, test = (part.subset(range(min(n, len(part)))) for part, n in zip(parts, images))
    return train, test


_PHOTOGRAPH = (90, 120)


def claims_of(summary: Summary) -> list[Claim]:
    """What the paper says in words; a trend whose interval over networks holds 0 cannot be told.

    Args:
        summary: From ``dissection.summarise``.
    """
    last = {(row["situation"], row["place"]): row for row in summary}
    first: dict[tuple[str, str], Mapping[str, Any]] = {}
    for row in summary:
        first.setdefault((row["situation"], row["place"]), row)
    claims = [
        _trend(f"after a ReLU detectors become fewer away from the neuron basis ({_TITLES[s]})", last[s, "output"], -1)
        for s in ("cnn", "relu")
        if (s, "output") in last
    ]
    if ("no relu", "output") in last:
        claims.append(_constant(last["no relu", "output"]))
    claims += [
        _trend(f"{text} detectors become more away from the neuron basis ({_TITLES[s]})", last[s, place], 1)
        for s, place, text in (
            ("convnext", "output", "without an activation on the residual"),
            ("relu", "inside", "inside the residual block"),
            ("no relu", "inside", "inside the residual block"),
        )
        if (s, place) in last
    ]
    if {("relu", "output"), ("no relu", "output")} <= set(first):
        one, other = first["no relu", "output"], first["relu", "output"]
        apart = one["high"] < other["low"] or one["low"] > other["high"]
        claims.append(
            Claim("without ReLU on the residual there are far fewer detectors in a given basis",
                  one["share"] < other["share"] if apart else None,
                  f"{one['share']:.0%} ({one['low']:.0%} to {one['high']:.0%}) against {other['share']:.0%} "
                  f"({other['low']:.0%} to {other['high']:.0%}) of units in the neuron basis")
        )  # fmt: skip
    exact = all(row["g_relu_unchanged"] for row in summary)
    claims.append(Claim("elements of G_ReLU leave every finding exactly as it was", exact, required=True))
    return claims


def _trend(text: str, row: Mapping[str, Any], sign: int) -> Claim:
    told = {"falls": -1, "rises": 1}.get(row["verdict"])
    return Claim(text, None if told is None else told == sign, _change(row))


def _constant(row: Mapping[str, Any]) -> Claim:
    text = "without ReLU on the residual their number stays the same: it changes by less than 5 points"
    within = row["change_low"] >= -_SAME and row["change_high"] <= _SAME
    outside = row["change_low"] > _SAME or row["change_high"] < -_SAME
    held = None if row["networks"] < 2 or not (within or outside) else within
    return Claim(text, held, _change(row))


def _change(row: Mapping[str, Any]) -> str:
    interval = f"{100 * row['change_low']:+.0f} to {100 * row['change_high']:+.0f}"
    return f"{100 * row['change']:+.1f} points ({interval}) from the lowest power to the highest"


def _rows(summary: Summary, found: Mapping[tuple[str, str], Sequence[Dissection]]) -> list[Row]:
    rows = [
        Row(f"power {r['alpha']:g}", r["share"], None, r["low"], r["high"],
            group=f"{_TITLES[r['situation']]}, {_PLACES[r['place']]}: share of units that are detectors")
        for place in _PLACES
        for r in summary
        if r["place"] == place
    ]  # fmt: skip
    for (situation, place), results in found.items():
        if place == "output":
            rows += _categories(_TITLES[situation], results)
            rows += _concepts(_TITLES[situation], results)
    return rows


def _powers(result: Dissection) -> list[float]:
    """The lowest, the middle and the highest."""
    every = sorted({arm.arm.alpha for arm in result.arms if arm.arm.kind == "rotation"})
    return list(dict.fromkeys([every[0], every[len(every) // 2], every[-1]]))


def _categories(title: str, results: Sequence[Dissection]) -> list[Row]:
    """Detectors of each category at three powers, for each basis (v2 Fig. 18)."""
    rows = []
    for alpha in _powers(results[0]):
        for category in results[0].categories:
            counts = [c for r in results for c in r.counts(category) if (c.kind, c.alpha) == ("rotation", alpha)]
            value = sum(count.mean for count in counts) / len(results)
            rows.append(Row(category, value, group=f"power {alpha:g}, {title}: detectors by category"))
    return rows


def _concepts(title: str, results: Sequence[Dissection]) -> list[Row]:
    """The concepts with the most detectors at any of three powers, for each basis (v2 Figs 20, 22, 24)."""
    units: dict[float, dict[str, float]] = {}
    for alpha in _powers(results[0]):
        found = units.setdefault(alpha, {})
        for result in results:
            arms = [arm for arm in result.arms if (arm.arm.kind, arm.arm.alpha) == ("rotation", alpha)]
            for concept, count in (pair for arm in arms for pair in result.by_concept(arm)):
                found[concept.name] = found.get(concept.name, 0.0) + count / len(arms) / len(results)
    most = lambda found: sorted(found, key=lambda name: (-found[name], name))[:_SHOWN]
    names = list(dict.fromkeys(name for found in units.values() for name in most(found)))
    return [
        Row(name, found.get(name, 0.0), group=f"power {alpha:g}, {title}: detectors by concept")
        for alpha, found in units.items()
        for name in names
    ]


def _figure(setting: Setting) -> Reproduction:

    title, papers = "Detectors of concepts against rotations of the basis", "v2 Figs 3, 18-25"
    if setting.scale == "paper":
        rows = [Row(what, None, group="share of units that are detectors") for what in _NOT_RUN]
        return Reproduction("fig3-dissection", title, papers, "paper", rows, notes=["Not run.", *_NEEDED])
    concepts = setting.by_scale("generated", setting.concepts, None)
    networks = [
        DissectedNetwork(
            situation=situation.name, concepts=concepts, images=setting.by_scale((80, 40), (1000, 300), None),
            side=setting.by_scale(32, 48, None), epochs=setting.by_scale(1, 24, None),
            rotations=setting.by_scale((0, 1), (0, 0.5, 1), None), rotation_seeds=setting.by_scale(1, 3, None),
            quantile=_QUANTILE,
            seed=setting.seed + k,
        )
        for situation in SITUATIONS
        for k in range(setting.by_scale(2, 3, None))
    ]  # fmt: skip
    found: dict[tuple[str, str], list[Dissection]] = {}
    for network, value in zip(networks, setting.run(networks)):
        for place, data in value.items():
            found.setdefault((network.situation, place), []).append(Dissection.from_dict(data))
    summary = summarise(found)
    one = found["relu", "output"][0]
    notes = [
        f"Small networks, trained {networks[0].epochs} epochs to name {len(one.concepts)} concepts at every place, "
        f"and dissected on {one.images} other images of {one.data}; quantile {one.quantile:g}, IoU over "
        f"{one.iou_threshold:g}; {networks[0].rotation_seeds} rotations for each power. Intervals are Student's over "
        f"{len(found['relu', 'output'])} networks of a kind.",
        "The paper's quantile is 0.005; there, a concept on more than an eighth of all pixels could not be found.",
        "The paper dissects ImageNet networks on Broden, which were not run here (scale paper lists them). Pictures of "
        "the best units (its Figs 21, 23, 25) are on the pages of intertwine dissect.",
    ]
    return Reproduction(
        "fig3-dissection", title, papers, setting.scale, _rows(summary, found), claims_of(summary), notes=notes,
        facts={**provenance(), "data": concepts.partition(":")[0], "concepts": one.data},
    )  # fmt: skip


EXPERIMENTS = (
    Experiment("fig3-dissection", "Detectors of concepts against rotations of the basis", "v2 Figs 3, 18-25", _figure),
)
