"""Results of a dissection: best concepts in every basis, detector counts with intervals, finished bases on disk."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import inf, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor, nn

from .._io import digest, read_json, write_json
from .._io.codec import decode, encode
from .._nested import tensors_in
from .._result import Result
from .._words import counted
from .._zoo_intervals import student_t
from .bases import Arm
from .concepts import Concept, ConceptSet

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class ArmResult:
    """The best concept of every unit in one basis.

    Args:
        arm: The basis.
        concept: For each unit, in the order of ``Dissection.channels``, the index of the concept with the largest IoU;
            -1 where no concept overlaps.
        iou: That IoU.
    """

    arm: Arm
    concept: tuple[int, ...]
    iou: tuple[float, ...]

    def detectors(self, threshold: float) -> tuple[int, ...]:
        """Indices of the units whose IoU exceeds ``threshold``."""
        return tuple(u for u, iou in enumerate(self.iou) if iou > threshold)

    def findings(self) -> list[tuple[int, float]]:
        """Concepts and IoUs of all units, whatever their order: what a permutation with scales must not change."""
        return sorted(zip(self.concept, self.iou))


@dataclass(frozen=True)
class Picture:
    """One image that one of the best units responds to.

    Args:
        arm: Name of the basis.
        unit: Index of the unit among the units.
        concept: Index of its best concept.
        iou: Its IoU with that concept.
        place: Rank of the image by activation: 0 for the largest, then the next ones.
        image: Index of the image in the concept set.
        jpeg: The image with the outline of the unit's mask, as base64 of a JPEG file.
    """

    arm: str
    unit: int
    concept: int
    iou: float
    place: int
    image: int
    jpeg: str


@dataclass(frozen=True)
class Count:
    """A count over seeds.

    Args:
        kind: Kind of basis.
        alpha: Power of the rotation.
        seeds: Number of random elements counted.
        mean: Mean count.
        low: Lower end of the 95 % interval for the mean, at least 0; equals ``mean`` if there is only one count.
        high: Upper end.
    """

    kind: str
    alpha: float
    seeds: int
    mean: float
    low: float
    high: float

    @classmethod
    def over(cls, kind: str, alpha: float, values: list[int]) -> Count:
        """Mean and Student's interval of ``values``."""
        n, mean = len(values), sum(values) / len(values)
        half = 0.0
        if n > 1:
            half = student_t(0.95, n - 1) * sqrt(sum((v - mean) ** 2 for v in values) / (n - 1) / n)
        return cls(kind, alpha, n, mean, max(mean - half, 0.0), mean + half)

    @property
    def one_more(self) -> tuple[float, float]:
        """Student's 95 % prediction interval: where the count of one more seed falls.

        Counts are whole, so their standard deviation is taken as at least one half: two or three equal ones say little.
        """
        n = self.seeds
        if n < 2:
            return 0.0, inf
        half = max(self.high - self.mean, 0.5 * student_t(0.95, n - 1) / sqrt(n)) * sqrt(n + 1)
        return max(self.mean - half, 0.0), self.mean + half


@dataclass(frozen=True, repr=False)
class Dissection(Result):
    """The result of ``intertwine.dissect``.

    Args:
        model: Name of the model.
        layer: The layer.
        data: Name of the concept set.
        images: Number of images.
        channels: The channels that are units, in order: all but the constant ones.
        concepts: The concepts.
        coverage: For each concept, its share of the pixels of the images that have a label of its category; 0 for a
            concept that was left out because no pixel carries it.
        constant: Channels whose map is the same constant everywhere; neither dissected nor rotated.
        quantile: Share of a unit's values above its threshold.
        iou_threshold: IoU above which a unit is a detector.
        arms: One result for each basis; the network's own comes first.
        pictures: The best units of a few bases.
        notes: Caveats for the reader.
        settings: How the result was made: arguments, versions, and what the caller adds.
    """

    model: str
    layer: str
    data: str
    images: int
    channels: tuple[int, ...]
    concepts: tuple[Concept, ...]
    coverage: tuple[float, ...]
    constant: tuple[int, ...]
    quantile: float
    iou_threshold: float
    arms: tuple[ArmResult, ...]
    pictures: tuple[Picture, ...]
    notes: tuple[str, ...]
    settings: dict[str, Any]

    @property
    def units(self) -> int:
        """Number of units."""
        return len(self.channels)

    def unit_name(self, arm: Arm, unit: int) -> str:
        """Name of a unit: its channel in the network's own basis, ``direction k`` in another one."""
        return f"unit {self.channels[unit]}" if arm == self.own.arm else f"direction {unit}"

    @property
    def own(self) -> ArmResult:
        """The network's own basis."""
        return self.arms[0]

    @cached_property
    def categories(self) -> tuple[str, ...]:
        """Categories in the order of the concepts."""
        return tuple(dict.fromkeys(c.category for c in self.concepts))

    @property
    def unchanged(self) -> bool | None:
        """Whether every random element of G_ReLU left all findings exactly as they are; ``None`` without such arms."""
        found = [a.findings() for a in self.arms if a.arm.kind == "g_relu"]
        return all(f == self.own.findings() for f in found) if found else None

    def counts(self, category: str | None = None, unique: bool = False) -> tuple[Count, ...]:
        """Detectors for each power of the rotation, with intervals over seeds, then for G_ReLU; or those of a category.

        Raises:
            ValueError: If no concept has the category.
        """
        if category is not None and category not in self.categories:
            raise ValueError(f"category must be one of {', '.join(self.categories)}. Got {category!r}.")
        groups: dict[tuple[str, float], list[int]] = {}
        for result in self.arms:
            found = [result.concept[u] for u in result.detectors(self.iou_threshold)]
            found = [c for c in found if category is None or self.concepts[c].category == category]
            groups.setdefault((result.arm.kind, result.arm.alpha), []).append(len(set(found) if unique else found))
        return tuple(Count.over(kind, alpha, values) for (kind, alpha), values in groups.items())

    def powers(self, category: str | None = None, unique: bool = False) -> tuple[Count, ...]:
        """The part of ``counts`` for the powers of the rotation, the lowest first."""
        return tuple(count for count in self.counts(category, unique) if count.kind == "rotation")

    @property
    def over_concepts(self) -> tuple[float, float]:
        """The 95 % interval, over concepts, for how many more detectors the own basis has than the highest power has.

        ``sum_c d_c +- t sqrt(sum_c d_c^2)`` with the differences ``d_c`` by concept, and Student's ``t`` for as many
        concepts as either basis detects. The root measures how far the sum varies if each difference could as well have
        had the other sign. All units that detect one concept do so on the same images, by the same luck: a difference
        in one concept alone has no finite interval, however many units show it.
        """
        alpha = self.powers()[-1].alpha
        rotated = [a for a in self.arms if (a.arm.kind, a.arm.alpha) == ("rotation", alpha)]
        own, turned = (
            Counter(a.concept[u] for a in arms for u in a.detectors(self.iou_threshold))
            for arms in ([self.own], rotated)
        )
        d = [own[c] - turned[c] / len(rotated) for c in own | turned]
        half = student_t(0.95, len(d) - 1) * sqrt(sum(x * x for x in d)) if len(d) > 1 else inf
        return sum(d) - half, sum(d) + half

    @property
    def trend(self) -> Literal["falls", "rises", "undecided"]:
        """Trend of detectors from the own basis to the highest power: whether the own basis is like one more rotation.

        If no basis is special, the own count is drawn like those of the rotations, so it is compared with the interval
        for one more of them (``Count.one_more``). It lies outside the narrower interval of their mean for a third of
        such networks with five rotations, and for all of them with many. The difference must also hold over concepts
        (``over_concepts``). This is about one network; whether it holds for others needs several networks.
        """
        own, (low, high) = len(self.own.detectors(self.iou_threshold)), self.powers()[-1].one_more
        least, most = self.over_concepts
        return "falls" if high < own and least > 0 else "rises" if own < low and most < 0 else "undecided"

    @property
    def verdict(self) -> str:
        """The conclusion in one sentence."""
        found = [self.own.iou[u] for u in self.own.detectors(self.iou_threshold)]
        own, concepts = len(found), counted(len(self.by_concept(self.own)), "concept")
        seen = f": {concepts}, with IoUs from {min(found):.3f} to {max(found):.3f}" if found else ""
        if not any(c.mean for c in self.counts()):
            best = max((x for arm in self.arms for x in arm.iou), default=0.0)
            return (
                f"None of {self.units} units detects a concept, in the network's own basis or in any that was tried: "
                f"the best match has IoU {best:.3f}, and a detector needs more than {self.iou_threshold:g}."
            )
        text = (
            f"{own} of {self.units} units ({own / self.units:.0%}) detect a concept in the network's own basis{seen}."
        )
        powers = self.powers()
        if len(powers) == 1:
            return f"{text} No rotation was asked for."
        last = powers[-1]
        after = f"after rotations with power {last.alpha:g} it is {last.mean:.1f}"
        if last.seeds < 2:
            return f"{text} A{after[1:]} for the one rotation tried, which does not say how others would do."
        low, high = last.one_more
        interval = f"on average over {last.seeds} of them, and would be {low:.1f} to {high:.1f} after one more (95 %)"
        least, most = self.over_concepts
        if not low <= own <= high and least <= 0 <= most:
            over = (
                "is seen in one concept alone" if most == inf else f"is {least:.1f} to {most:.1f} over concepts (95 %)"
            )
            return f"{text} A{after[1:]} {interval}. That is no clear difference: it {over}."
        meaning = {
            "falls": "Rotating loses detectors: the network's own basis names concepts better than a random one.",
            "rises": "Rotating gains detectors: the network's own basis is not the one that names concepts best.",
            "undecided": "That is no clear difference: nothing here says that the network's own basis is special.",
        }[self.trend]
        return f"{text} A{after[1:]} {interval}. {meaning}"

    def table(self) -> pd.DataFrame:
        """One row for each power of the rotation and one for G_ReLU: detectors, share, unique, by category."""
        import pandas as pd

        total, unique = self.counts(), self.counts(unique=True)
        by_category = {c: self.counts(c) for c in self.categories}
        return pd.DataFrame(
            [
                {
                    "basis": count.kind,
                    "alpha": count.alpha,
                    "seeds": count.seeds,
                    "detectors": count.mean,
                    "low": count.low,
                    "high": count.high,
                    "share": count.mean / self.units,
                    "unique": unique[i].mean,
                    **{c: counts[i].mean for c, counts in by_category.items()},
                }
                for i, count in enumerate(total)
            ]
        )

    def _rows(self) -> list[dict[str, Any]]:
        """One row for each unit in each basis."""
        return [
            {
                "basis": result.arm.kind,
                "alpha": result.arm.alpha,
                "seed": result.arm.seed,
                "unit": self.channels[unit] if result is self.own else unit,
                "concept": self.concepts[c].name if c >= 0 else None,
                "category": self.concepts[c].category if c >= 0 else None,
                "iou": iou,
                "detector": iou > self.iou_threshold,
            }
            for result in self.arms
            for unit, (c, iou) in enumerate(zip(result.concept, result.iou))
        ]

    def by_concept(self, result: ArmResult) -> list[tuple[Concept, int]]:
        """Concepts that have detectors in one basis, and how many, the most first."""
        found = Counter(result.concept[u] for u in result.detectors(self.iou_threshold))
        return [(self.concepts[c], n) for c, n in found.most_common()]

    def summary(self) -> str:
        """The dissected layer and data, detectors for every power of the rotation, and the verdict."""
        lines = [
            f"Dissection of {self.layer} in {self.model}: {counted(self.units, 'unit')}, "
            f"{counted(self.images, 'image')} of {self.data}, {counted(len(self.concepts), 'concept')}, "
            f"IoU > {self.iou_threshold:g}",
            "basis             detectors (95 %)       share  unique",
        ]
        for total, unique in zip(self.counts(), self.counts(unique=True)):
            basis = f"rotation^{total.alpha:g}" if total.kind == "rotation" else "G_ReLU element"
            interval = f"({total.low:.1f}..{total.high:.1f})" if total.seeds > 1 else ""
            share = total.mean / self.units
            lines.append(f"{basis:16}  {total.mean:6.1f} {interval:14}  {share:6.1%}  {unique.mean:6.1f}")
        return "\n".join([*lines, self.verdict, *(f"Note: {note}" for note in self.notes)])


class Folder:
    """Finished bases on disk, for one plan."""

    def __init__(self, path: str | Path | None, plan: Mapping[str, Any]) -> None:
        self._path = None if path is None else Path(path)
        if self._path is None:
            return
        file = self._path / "plan.json"
        if file.exists() and (before := read_json(file)) != dict(plan):
            differing = sorted(k for k in plan if before.get(k) != plan[k])
            raise ValueError(
                f"resume must be a folder of the same dissection. Got {str(path)!r}, where {', '.join(differing)} "
                "differ. Use another folder."
            )
        write_json(file, plan)

    def load(self, arm: Arm, pictures: int) -> tuple[ArmResult, tuple[Picture, ...]] | None:
        """Findings in a basis, if it is finished."""
        file = self._path and self._path / f"{arm.name}.json"
        if not file or not file.exists() or (data := read_json(file))["asked"] < pictures:
            return None
        shown = decode(data["pictures"], tuple[Picture, ...]) if pictures else ()
        return decode(data["result"], ArmResult), shown

    def save(self, result: ArmResult, pictures: tuple[Picture, ...], asked: int) -> None:
        """Write a finished basis."""
        if self._path:
            shown = encode(pictures, tuple[Picture, ...])
            data = {"result": encode(result, ArmResult), "pictures": shown, "asked": asked}
            write_json(self._path / f"{result.arm.name}.json", data)


def digest_of(model: nn.Module) -> str:
    """A hash of all weights, and of the modules and their settings as printed, without addresses."""
    state = sorted(model.state_dict().items())
    printed = re.sub(r" at 0x[0-9a-f]+", "", repr(model))
    return digest([type(model).__qualname__, printed, *(part for entry in state for part in entry)])[:32]


def digest_data(concepts: ConceptSet, transform: Callable[[Tensor], Any]) -> str:
    """A hash of a concept set's names, its images with their labels, and of the first one's model input."""
    samples = map(concepts.__getitem__, range(len(concepts)))
    shown = (part for one in samples for part in (one.image, one.labels.long(), one.image_labels.long()))
    given = (x.cpu().double() for x in tensors_in(transform(next(concepts.batches(1)).images)))
    return digest(chain([repr((concepts.name, len(concepts), concepts.concepts))], shown, given))[:32]
