"""Detectors against rotations of the basis, in small counterparts (paper 1, section 6, v2 Figs 3 and 18-25).

The paper's networks need ImageNet and its concepts Broden; the figures are images. What is checked are their claims in
words, on networks that are small enough to be trained here (see ``dissection``).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ....dissection import Bases, ConceptSet, Criterion, Dissection
from ...data import load_concepts
from ...runs import Job
from ..estimates import Estimate, exact
from ..experiment import Experiment, Measured, Setting
from ..reproduction import Reproduction, Row
from ..verdicts import Claim, claim
from .dissection import SITUATIONS, dissect_situations, summarise

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

_NEEDED = (
    "fig3-dissection at scale paper must have Broden (1.2 GB) and ImageNet networks, not part of this package. "
    "Unpack broden1_227 into FOLDER and say --concepts broden:FOLDER; that runs the small networks on it. The paper's "
    "own are one command each: intertwine dissect --model resnet50 --weights FILE --layer layer4 --concepts "
    "broden:FOLDER --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225; --layer layer4.2.conv2 inside the block; for a "
    "ConvNeXt as save_pretrained of transformers writes it: intertwine dissect --weights FOLDER --layer "
    "convnext.encoder.stages.3 --concepts broden:FOLDER; and for the modified network --model "
    "resnet50:residual_relu=false, trained by: intertwine train --model resnet50:residual_relu=false --data "
    "imagenet:DIR --recipe resnet50_residual --out FILE, where DIR holds train and val with one folder for each class "
    "(v2 F.3: 76.1 %)."
)

_CHANGE = "change of the share of detectors from the lowest power to the highest"
_UNCHANGED = "whether elements of G_ReLU leave every finding as it was"

# situation and place -> power -> mean share of detectors, and its change from the lowest power to the highest
Summary = Sequence[Mapping[str, Any]]


class DissectedNetwork(Job):
    """One small network, trained to name concepts and dissected at its last residual output and inside that block."""

    situation: str  # Which network; a name among ``dissection.SITUATIONS``
    concepts: str  # As ``lab.data.load_concepts`` takes it
    images: tuple[int, int]  # Most images of the training and of the test set
    side: int  # Side of generated images
    epochs: int  # Of training
    rotations: tuple[float, ...]  # Powers
    rotation_seeds: int  # Random rotations for each power
    quantile: float  # Share of a unit's values above its threshold
    seed: int  # Of the network

    def run(self, files: Path) -> dict[str, Any]:
        """Train and dissect. For each place, the dissection as plain data."""
        train, test = concept_sets(self.concepts, self.images, self.side)
        (situation,) = (s for s in SITUATIONS if s.name == self.situation)
        found = dissect_situations(
            train, test, (self.seed,), (situation,), Bases(self.rotations, self.rotation_seeds), epochs=self.epochs,
            criterion=Criterion(self.quantile, empty="drop"), pictures=0,
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


def claims_of(table: Mapping[str, Mapping[str, Estimate]]) -> list[Claim]:
    """What the paper says in words.

    Args:
        table: Shares of detectors by network, place and power; changes from the lowest power to the highest.
    """
    shares = {(s, p): by for s in _TITLES for p in _PLACES if (by := table.get(_share(s, p)))}
    known = table.get(_CHANGE, {})
    change, far = {}, "highest power - lowest"
    for (s, p), by in shares.items():
        first, *_, last = by.values()
        found = known.get(_name(s, p)) or last - first
        # Where all units are detectors in every basis, or none, the images do not tell one basis from another.
        change[s, p] = Estimate(found.value) if {e.value for e in by.values()} in ({0.0}, {1.0}) else found
    away = "detectors become {} away from the neuron basis"
    claims = [
        claim(f"after a ReLU {away.format('fewer')} ({_TITLES[s]})", {far: change[s, "output"]}, below=0)
        for s in ("cnn", "relu")
        if (s, "output") in change
    ]
    if ("no relu", "output") in change:
        text = "without ReLU on the residual their number stays the same, within 5 points"
        claims.append(claim(text, {far: change["no relu", "output"]}, above=-_SAME, below=_SAME))
    claims += [
        claim(f"{text} {away.format('more')} ({_TITLES[s]})", {far: change[s, place]}, above=0)
        for s, place, text in (
            ("convnext", "output", "without an activation on the residual"),
            ("relu", "inside", "inside the residual block"),
            ("no relu", "inside", "inside the residual block"),
        )
        if (s, place) in change
    ]
    if {("relu", "output"), ("no relu", "output")} <= set(shares):
        one, other = (next(iter(shares[s, "output"].values())) for s in ("relu", "no relu"))
        claims.append(
            claim(
                "without ReLU on the residual there are fewer detectors in the neuron basis",
                {"with - without": one - other},
                above=0,
            )
        )
    if exact_share := table.get(_UNCHANGED):
        text = "elements of G_ReLU leave every finding exactly as it was"
        claims.append(claim(text, exact_share, above=0.5, check=True))
    return claims


def _name(situation: str, place: str) -> str:
    return f"{_TITLES[situation]}, {_PLACES[place]}"


def _share(situation: str, place: str) -> str:
    return f"{_name(situation, place)}: share of units that are detectors"


def _rows(summary: Summary, found: Mapping[tuple[str, str], Sequence[Dissection]]) -> list[Row]:
    rows = [
        Row.of(f"power {r['alpha']:g}", r["share"], group=_share(r["situation"], place))
        for place in _PLACES
        for r in summary
        if r["place"] == place
    ]
    last = {(r["situation"], r["place"]): r for r in summary}
    rows += [Row.of(_name(*key), r["change"], group=_CHANGE) for key, r in last.items()]
    unchanged = all(r["g_relu_unchanged"] for r in summary)
    rows.append(Row.of("every network and place", exact(unchanged), group=_UNCHANGED))
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


def _measure(setting: Setting) -> Measured:
    scale = lambda smoke, small: setting.by_scale(smoke, small, small)
    concepts = scale("generated", setting.concepts)
    networks = [
        DissectedNetwork(
            situation=situation.name, concepts=concepts, images=scale((80, 40), (1000, 300)), side=scale(32, 48),
            epochs=scale(1, 24), rotations=scale((0, 1), (0, 0.5, 1)), rotation_seeds=scale(1, 3), quantile=_QUANTILE,
            seed=setting.seed + k,
        )
        for situation in SITUATIONS
        for k in range(scale(2, 6))
    ]  # fmt: skip
    found: dict[tuple[str, str], list[Dissection]] = {}
    for network, value in zip(networks, setting.run(networks)):
        for place, data in value.items():
            found.setdefault((network.situation, place), []).append(Dissection.from_dict(data))
    one = found["relu", "output"][0]
    notes = [
        f"Small networks, trained {networks[0].epochs} epochs to name {len(one.concepts)} concepts at every place, "
        f"and dissected on {one.images} other images of {one.data}; quantile {one.quantile:g}, IoU over "
        f"{one.iou_threshold:g}; {networks[0].rotation_seeds} rotations for each power. Intervals are Student's over "
        f"{len(found['relu', 'output'])} networks of a kind.",
        "The paper's quantile is 0.005; there, a concept on more than an eighth of all pixels could not be found.",
        "The paper dissects ImageNet networks on Broden, which were not run here (scale paper says what they need). "
        "Pictures of the best units (its Figs 21, 23, 25) are on the pages of intertwine dissect.",
    ]
    return Measured(_rows(summarise(found), found), notes, {"concepts": one.data})


def _needs(setting: Setting) -> str:
    return _NEEDED if setting.scale == "paper" and not setting.concepts.startswith("broden:") else ""


def _judge(found: Reproduction) -> list[Claim]:
    return claims_of(found.table)


EXPERIMENTS = (
    Experiment(
        "fig3-dissection", "Detectors of concepts against rotations of the basis", "v2 Figs 3, 18-25", _measure, _judge,
        data=False, needs=_needs,
    ),
)  # fmt: skip
