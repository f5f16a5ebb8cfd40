"""The page of a dissection: detectors against the power of the rotation, categories, and a wall of the best units."""

from collections.abc import Sequence
from typing import Any

from ..._words import counted
from ...dissection import ArmResult, Count, Dissection
from ..blocks import Block, Details, Figure, Grid, Heading, Paragraph, Shot, Table, Tabs, Wall, noted
from ..figures import Series, bars, lines
from ..page import Page
from ..provenance import provenance

_FEWEST = 2  # categories that are shown apart


def dissection_page(dissection: Dissection) -> Page:
    """Lay out a dissection.

    What the symmetry group predicts, facts of the network and the command line are shown where ``dissection.settings``
    holds them as ``prediction`` (text), ``network`` (a mapping) and ``command`` (text).
    """
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
    where = dissection.layer or "the output"
    return Page(
        f"Dissection of {where} in {dissection.model}",
        blocks,
        f"{counted(dissection.units, 'unit')}, {counted(dissection.images, 'image')} of {dissection.data}, "
        f"{counted(len(dissection.concepts), 'concept')}",
    )


def _detectors(dissection: Dissection) -> list[Block]:
    """How many units detect a concept, by rotation and by category."""
    single = len(dissection.categories) < _FEWEST
    return [
        Heading("Detectors against the power of the rotation"),
        Grid(_curves(dissection)),
        _table(dissection),
        Paragraph(_equality(dissection)),
        *([] if single else [Heading("Concepts by category"), _category_bars(dissection)]),
    ]


def _walls(dissection: Dissection) -> list[Block]:
    tabs = {}
    for result in dissection.arms:
        shots: dict[int, list[Any]] = {}
        for picture in dissection.pictures:
            if picture.arm == result.arm.name:
                shots.setdefault(picture.unit, []).append(picture)
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
    """Counts over a number, with their intervals."""
    mean, low, high = ([getattr(c, key) / over for c in counts] for key in ("mean", "low", "high"))
    return Series(name, mean, low, high)


def _curves(dissection: Dissection) -> list[Block]:
    """Shares of units by rotation, and counts by category where there are several."""
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
    return [
        all_of_them,
        lines(names, series, title="Detectors by category", caption=caption, y_title="units", limits=None),
    ]


def _category_bars(dissection: Dissection) -> Figure:
    powers = [c.alpha for c in dissection.powers()]
    chosen = sorted({powers[0], powers[len(powers) // 2], powers[-1]})
    groups = {
        f"power {alpha:g}": [
            next(c.mean for c in dissection.powers(category, unique=True) if c.alpha == alpha)
            for category in dissection.categories
        ]
        for alpha in chosen
    }
    title = "Different concepts that have a detector"
    return bars(dissection.categories, groups, title=title, caption="Mean over rotations.", y_title="concepts")


def _table(dissection: Dissection) -> Table:
    frame = dissection.table()
    names = {"rotation": "rotation", "g_relu": "G_ReLU element"}
    rows = []
    for row in frame.itertuples(index=False):
        interval = f"{row.low:.1f} to {row.high:.1f}" if row.seeds > 1 else ""
        counted_by = [float(v) for v in (row.unique, *row[8:])]
        drawn = [names[row.basis], float(row.alpha), int(row.seeds)]
        rows.append([*drawn, float(row.detectors), interval, f"{row.share:.1%}", *counted_by])
    columns = ["basis", "power", "drawn", "detectors", "95 % interval", "share", "different concepts"]
    return Table([*columns, *dissection.categories], rows, "Means over what was drawn.", digits=2)


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
    covered = [
        [c.name, c.category, f"{share:.2%}"] for c, share in zip(dissection.concepts, dissection.coverage, strict=True)
    ]
    return [
        *provenance(dissection.settings, facts, shown=("prediction", "quantile")),
        Details("Concepts and the share of pixels that they cover", [Table(["concept", "category", "share"], covered)]),
    ]
