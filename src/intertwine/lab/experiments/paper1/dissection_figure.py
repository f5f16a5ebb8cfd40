"""Detectors under rotations of the basis, in small networks (paper 1, section 6, v2 Figs 3 and 18-25).

The paper dissects a ResNet-50, the same network without ReLU on the residual outputs, and a ConvNeXt. These need
ImageNet, the concepts come from Broden, and the figures are images. Here three small networks of the same kinds are
trained to name the concepts of a concept set at every position. A plain CNN with and without its last ReLU is added:
the two differ in nothing but the activation. What is checked are the claims that the paper makes in words.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from ....dissection import Bases, Criterion, Dissection, dissect
from ...data.concepts import concept_sets
from ...networks import PlainCNN, resnet50, small_convnext
from ...statistics import Guard, Sample, independent
from ...training import choose_device
from ...training.concepts import place_accuracy, train_on_concepts
from ..experiment import Experiment, Findings
from ..plan import DataJob, Design, MeasuredJob, row

# The paper's 0.005 and 0.04 fit Broden, whose concepts are small: on a concept that covers a share f of all pixels, a
# unit's IoU is at most 0.005 / f; on CamVid's eleven concepts that is 0.02 or less. Four times the quantile with the
# paper's threshold makes nearly every unit a detector. Here both are larger, so that shares lie between 0 and 1.
_QUANTILE, _IOU = 0.02, 0.08
_FEWEST, _MOST = 0.02, 1.0  # shares of detectors that count as none, and as all
_SAME = 0.05  # a change of the share of detectors up to which it counts as the same
_SHOWN = 3  # concepts for each power
_PLACES = {"output": "at the output", "inside": "inside the residual block"}

_NEEDED = (
    "fig3-dissection at scale paper must have Broden (1.2 GB) and ImageNet networks, not part of this package. "
    "Unpack broden1_227 into FOLDER and pass --concepts broden:FOLDER to run the small networks on it. The paper's own "
    "take one command each: intertwine dissect --model resnet50 --weights FILE --layer layer4 --concepts "
    "broden:FOLDER --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225; --layer layer4.2.conv2 inside the block; for a "
    "ConvNeXt as save_pretrained of transformers writes it: intertwine dissect --weights FOLDER --layer "
    "convnext.encoder.stages.3 --concepts broden:FOLDER; and for the modified network --model "
    "resnet50:residual_relu=false, trained by: intertwine train --model resnet50:residual_relu=false --data "
    "imagenet:DIR --recipe resnet50_residual --out FILE, where DIR holds train and val with one folder for each class "
    "(v2 F.3: 76.1 %)."
)


@dataclass(frozen=True)
class Situation:
    """One of the paper's networks at small scale."""

    build: Callable[[int], nn.Module]  # Makes the network for a number of concepts
    # Layers: the last residual output, and a convolution inside the last residual block where there is one
    places: Mapping[str, str]


def _resnet(residual_relu: bool) -> Situation:
    build = lambda n: resnet50(classes=n, width=8, blocks=(2, 2), residual_relu=residual_relu, stem="small")
    return Situation(build, {"output": "layer2.1", "inside": "layer2.1.conv2"})


_CNN, _RESIDUAL, _WITHOUT = "plain CNN", "residual network", "residual network without ReLU on the residual"
_CONVNEXT = "ConvNeXt-style network"
SITUATIONS = {
    _CNN: Situation(lambda n: PlainCNN(n, True), {"output": "features.relu4"}),
    f"{_CNN} without its last ReLU": Situation(lambda n: PlainCNN(n, False), {"output": "features.relu4"}),
    _RESIDUAL: _resnet(True),
    _WITHOUT: _resnet(False),
    _CONVNEXT: Situation(lambda n: small_convnext(n), {"output": "layer2.3", "inside": "layer2.3.conv1"}),
}


class DissectedNetwork(MeasuredJob):
    """One small network, trained to name concepts and dissected at its last residual output and inside that block."""

    gpus: ClassVar[float] = DataJob.gpus

    situation: str  # Which network; a name among ``SITUATIONS``
    concepts: str  # As ``lab.data.load_concepts`` takes it
    images: tuple[int, int]  # Most images in the training set and in the test set
    side: int  # Side of generated images
    epochs: int  # Epochs of training
    rotations: tuple[float, ...]  # Powers of the random rotations
    rotation_seeds: int  # Random rotations for each power
    quantile: float  # Share of a unit's values above its threshold
    iou: float  # IoU above which a unit is a detector
    seed: int  # Of the network
    device: str = "cpu"  # Where

    def run(self, files: Path) -> list[dict[str, Any]]:
        """Rows of the trained network, and of its dissection by place."""
        train, test = concept_sets(self.concepts, self.images, self.side)
        situation = SITUATIONS[self.situation]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            model = situation.build(len(train.concepts)).to(choose_device(self.device))
        loss = train_on_concepts(model, train, epochs=self.epochs, seed=self.seed)[-1]
        rows = [row("loss", loss), row("mean average precision", place_accuracy(model, test))]
        for place, layer in situation.places.items():
            found = dissect(
                model, layer, test, Bases(self.rotations, self.rotation_seeds), pictures=0,
                criterion=Criterion(self.quantile, self.iou, empty="drop"),
            )  # fmt: skip
            rows += [{"layer": place, **numbers} for numbers in detector_rows(found)]
        return rows


def detector_rows(found: Dissection) -> list[dict[str, Any]]:
    """Rows for each power, means over rotations: share of detectors, best IoU, detectors by concept and category.

    All rotations of one network count as one number: they say nothing about other networks.
    """
    rows = [row("unchanged by G_ReLU", float(found.unchanged in (True, None)))]
    for alpha in dict.fromkeys(a.arm.alpha for a in found.arms if a.arm.kind == "rotation"):
        arms = [a for a in found.arms if (a.arm.kind, a.arm.alpha) == ("rotation", alpha)]
        units = {c.name: 0.0 for c in found.concepts}
        for concept, count in (pair for arm in arms for pair in found.by_concept(arm)):
            units[concept.name] += count / len(arms)
        kinds = {k: sum(units[c.name] for c in found.concepts if c.category == k) for k in found.categories}
        best = sum(sum(a.iou) / len(a.iou) for a in arms) / len(arms)
        told = {"share of detectors": {"": sum(kinds.values()) / found.units}, "best IoU": {"": best},
                "detectors by concept": units, "detectors by category": kinds}  # fmt: skip
        rows += [row(f"{what}, power {alpha:g}", value, partner_layer=name, draws=len(arms))
                 for what, by in told.items() for name, value in by.items()]  # fmt: skip
    return rows


def _plan(plan: Design) -> None:
    s = plan.setting
    scale = lambda smoke, small: s.by_scale(smoke, small, small)
    concepts, epochs, draws = scale("generated", s.concepts), scale(1, 24), scale(1, 3)
    # The first 8 are pilots, whose spread showed how many networks are needed: others are judged.
    judged = dict.fromkeys(SITUATIONS, scale((0, 3), (8, 33))) | {_WITHOUT: scale((0, 3), (41, 79))}
    for situation, (first, count) in judged.items():
        for seed in range(s.seed + first, s.seed + first + count):
            job = DissectedNetwork(
                situation=situation, concepts=concepts, images=scale((80, 40), (1000, 300)), side=scale(32, 48),
                epochs=epochs, rotations=scale((0, 1), (0, 0.5, 1)), rotation_seeds=draws, quantile=_QUANTILE, iou=_IOU,
                seed=seed, device=s.device,
            )  # fmt: skip
            plan.add(job, situation, seed)
    plan.note(
        f"Small networks, trained {epochs} epochs to name the concepts of {concepts.partition(':')[0]} images at every "
        f"place, and dissected on others; quantile {_QUANTILE:g}, IoU over {_IOU:g}; {draws} rotations for each power.",
        "At scale small 33 networks of each kind were judged. Without ReLU on the residual they could not tell what "
        "happens inside the block: there, 79 others are judged in their place, a second attempt.",
        "The paper's 0.005 and 0.04 suit small concepts: on CamVid's eleven no unit could be a detector.",
        "The paper dissects ImageNet networks on Broden, which were not run here (scale paper says what they need). "
        "Pictures of the best units (its Figs 21, 23, 25) are on the pages of intertwine dissect.",
    )


def _shares(found: Findings, situation: str, place: str, what: str = "share of detectors") -> dict[str, Sample]:
    """Samples by power, the lowest first."""
    by = {power: found.values.sample(s, situation, place) for power, s in found.values.statistics(f"{what}, ").items()}
    return {power: sample for power, sample in by.items() if sample.numbers}


def guard(shares: Mapping[str, Sample]) -> Guard:
    """Guard on shares of detectors: bases in which no unit is a detector, or every unit is, cannot be told apart."""
    reached = {name: sample.estimate() for name, sample in shares.items()}
    most = max(reached, key=lambda name: reached[name].value)
    some = Guard({most: reached[most]}, floor=_FEWEST)
    return some if some.why else Guard(reached, floor=-1.0, ceiling=_MOST)


def _analyse(found: Findings) -> None:
    shares = {(a, p): by for p in _PLACES for a in SITUATIONS if (by := _shares(found, a, p))}
    change = {key: by[list(by)[-1]] - by[next(iter(by))] for key, by in shares.items()}
    for what in ("share of detectors", "best IoU"):
        for situation, place in shares:
            by = _shares(found, situation, place, what)
            found.show(f"{situation}, {_PLACES[place]}: {what} of units", by)
    found.show("change of the share of detectors from the lowest power to the highest",
               {f"{a}, {_PLACES[p]}": one for (a, p), one in change.items()})  # fmt: skip
    found.show("mean average precision", {a: found.values.sample("mean average precision", a) for a in SITUATIONS})
    for situation in SITUATIONS:
        _show_parts(found, situation)
    away, far = "detectors become {} away from the neuron basis", "highest power - lowest"
    told = lambda text, key, **how: found.state(text, {far: change[key]}, guard=guard(shares[key]), **how)
    for a in (_CNN, _RESIDUAL):
        told(f"after a ReLU {away.format('fewer')} ({a})", (a, "output"), below=0)
    told("without ReLU on the residual their number stays the same, within 5 points", (_WITHOUT, "output"),
         within=_SAME)  # fmt: skip
    told(f"without an activation on the residual {away.format('more')} ({_CONVNEXT})", (_CONVNEXT, "output"), above=0)
    for a in (_RESIDUAL, _WITHOUT):
        told(f"inside the residual block {away.format('more')} ({a})", (a, "inside"), above=0)
    own = {a: next(iter(shares[a, "output"].values())) for a in (_RESIDUAL, _WITHOUT)}
    found.state("without ReLU on the residual there are fewer detectors in the neuron basis",
                {"with - without": independent((1, own[_RESIDUAL]), (-1, own[_WITHOUT]))}, above=0,
                guard=guard(own))  # fmt: skip
    same = [s.mean for a in SITUATIONS for s in found.values.by_layer("unchanged by G_ReLU", a).values()]
    found.fact("elements of G_ReLU leave every finding exactly as it was", min(same), above=0.5, check=True)


def _show_parts(found: Findings, situation: str) -> None:
    """Show, at the output and by power, detectors by category (v2 Fig. 18) and top concepts (Figs 20, 22, 24)."""
    frame = found.values.frame
    own = frame[(frame["arm"] == situation) & (frame["layer"] == "output")]
    for what, most in (("detectors by category", None), ("detectors by concept", _SHOWN)):
        means = {s: own[own["statistic"] == s].groupby("partner_layer", sort=False)["value"].mean()
                 for s in found.values.statistics(f"{what}, ").values()}  # fmt: skip
        ordered = [by if most is None else by.sort_values(ascending=False, kind="stable") for by in means.values()]
        names = list(dict.fromkeys(name for by in ordered for name in by.index[:most]))
        for statistic in means:
            where = {"statistic": statistic, "arm": situation, "layer": "output"}
            found.show(f"{statistic.partition(', ')[2]}, {situation}: {what}",
                       {n: found.values.sample(**where, partner_layer=n) for n in names})  # fmt: skip


_TITLE = "Detectors of concepts against rotations of the basis"
_needs = lambda s: _NEEDED if s.scale == "paper" and not s.concepts.startswith("broden:") else ""
EXPERIMENTS = (Experiment("fig3-dissection", _TITLE, "v2 Figs 3, 18-25", _plan, _analyse, needs=_needs),)
