"""The page of a dissection: detectors against the power of the rotation, categories, and a wall of the best units."""

from collections.abc import Sequence
from typing import Any

from ..._nested import by_key
from ..._words import counted
from ...dissection import ArmResult, Count, Dissection
from ..blocks import Block, Details, Figure, Grid, Heading, Paragraph, Shot, Table, Tabs, Wall, noted
from ..figures import Series, bars, lines
from ..page import Page, provenance

_FEWEST = 2  # categories that are shown apart


def dissection_page(dissection: Dissection) -> Page:
    """Lay out a dissection; what the symmetry group predicts is ``settings["prediction"]``, if it is there."""
    prediction = dissection.settings.get("prediction")
    blocks: list[Block] = [
        Paragraph(dissection.verdict, "verdict"),
        *([Paragraph(f"What the symmetry group predicts: {prediction}.")] if prediction else []),
        *noted(dissection.notes),
        *_walls(dissection),
        *(_detectors(dissection) if any(c.mean for c in dissection.counts()) else []),
        Heading("What each unit detects in the network's own basis"),
        *_units(dissection),
        *_provenance(dissection),
    ]
    sizes = f"{counted(dissection.units, 'unit')}, {counted(dissection.images, 'image')} of {dissection.data}"
    title = f"Dissection of {dissection.layer or 'the output'} in {dissection.model}"
    return Page(title, blocks, f"{sizes}, {counted(len(dissection.concepts), 'concept')}")


def _detectors(dissection: Dissection) -> list[Block]:
    """The number of units that detect a concept, by rotation and by category."""
    single = len(dissection.categories) < _FEWEST
    return [
        Heading("Detectors against the power of the rotation"),
        Grid(_curves(dissection)),
        Table.of(dissection.table(), "Means over what was drawn.", digits=2),
        Paragraph(_equality(dissection)),
        *([] if single else [Heading("Concepts by category"), _category_bars(dissection)]),
    ]


def _walls(dissection: Dissection) -> list[Block]:
    tabs = {}
    for result in dissection.arms:
        shots = by_key((picture.unit, picture) for picture in dissection.pictures if picture.arm == result.arm.name)
        if shots:
            power = result.arm.alpha
            title = "Its own basis" if power == 0 else f"Rotated, power {power:g}"
            tabs[title] = [Wall([_shot(dissection, result, unit, taken) for unit, taken in shots.items()])]
    if not tabs:
        return []
    text = (
        "The units with the largest intersection over union, each on the images that excite it most; the outline is "
        "where the unit is above its threshold. Every unit is named by its best concept."
    )
    return [Heading("What the best units see"), Paragraph(text), Tabs(tabs, "Basis")]


def _shot(dissection: Dissection, result: ArmResult, unit: int, taken: list[Any]) -> Shot:
    concept = dissection.concepts[taken[0].concept]
    detail = f"{concept.category} · {dissection.unit_name(result.arm, unit)} · IoU {taken[0].iou:.3f}"
    if taken[0].iou <= dissection.iou_threshold:
        detail += " (no detector)"
    return Shot([p.jpeg for p in taken], concept.name, detail)


def _banded(name: str, counts: Sequence[Count], over: float = 1.0) -> Series:
    """Counts divided by a number, with their intervals."""
    mean, low, high = ([getattr(c, key) / over for c in counts] for key in ("mean", "low", "high"))
    return Series(name, mean, low, high)


def _curves(dissection: Dissection) -> list[Block]:
    """Shares of units by rotation, and counts by category if there are several."""
    powers, units = dissection.powers(), dissection.units
    names = [f"{c.alpha:g}" for c in powers]
    unique = _banded("different concepts", dissection.powers(unique=True), units)
    series = [_banded("units that detect a concept", powers, units), unique]
    if len(powers) > 1:
        series.append(Series("own basis", [powers[0].mean / units] * len(powers), dash="dash"))
    caption = "Along the path from the network's own basis (0) to a random one (1). Bands: 95 % over rotations."
    title = "Share of units, and different concepts for each unit"
    all_of_them = lines(names, series, title=title, caption=caption, y_title="share of units", limits=None)
    if len(dissection.categories) < _FEWEST:
        return [all_of_them]
    series = [_banded(name, dissection.powers(name)) for name in dissection.categories]
    caption = "How many units have their best concept in each category. Bands: 95 % over rotations."
    title = "Detectors by category"
    return [all_of_them, lines(names, series, title=title, caption=caption, y_title="units", limits=None)]


def _category_bars(dissection: Dissection) -> Figure:
    powers = [c.alpha for c in dissection.powers()]
    chosen = sorted({powers[0], powers[len(powers) // 2], powers[-1]})
    means = {c: {n.alpha: n.mean for n in dissection.powers(c, unique=True)} for c in dissection.categories}
    groups = {f"power {alpha:g}": [by_power[alpha] for by_power in means.values()] for alpha in chosen}
    title = "Different concepts that have a detector"
    return bars(dissection.categories, groups, title=title, caption="Mean over rotations.", y_title="concepts")


def _equality(dissection: Dissection) -> str:
    if dissection.unchanged is None:
        return "No element of G_ReLU was tried."
    drawn = counted(sum(a.arm.kind == "g_relu" for a in dissection.arms), "random element")
    said = "exactly as they are" if dissection.unchanged else "NOT as they are, which is an error"
    return (
        f"{drawn} of G_ReLU (a permutation with positive scales) left all "
        f"findings {said}. This is no evidence about the network: with thresholds computed anew it must be so."
    )


def _units(dissection: Dissection) -> list[Block]:
    frame = dissection.to_frame()[: dissection.units].sort_values("iou", ascending=False, kind="stable")
    names = {"unit": "channel", "concept": "best concept", "category": "category", "iou": "IoU", "detector": "detector"}
    everything = Details("All units", [Table.of(frame[list(names)].rename(columns=names))])
    found = [(c.name, c.category, n) for c, n in dissection.by_concept(dissection.own)]
    return [*([Table(["concept", "category", "detectors"], found)] if found else []), everything]


def _provenance(dissection: Dissection) -> list[Block]:
    facts = {
        "IoU of a detector": f"> {dissection.iou_threshold:g}",
        "unit threshold": f"top {dissection.quantile:.2%} of its values",
    }
    covered = zip(dissection.concepts, dissection.coverage, strict=True)
    table = Table(["concept", "category", "share"], [[c.name, c.category, f"{share:.2%}"] for c, share in covered])
    said = provenance(dissection.settings, facts, shown=("prediction", "quantile"))
    return [*said, Details("Concepts and the share of pixels that they cover", [table])]
