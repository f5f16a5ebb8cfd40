"""The page of a dissection: detectors against the power of the rotation, categories, and a wall of the best units."""

from collections.abc import Sequence
from typing import Any

from ..._words import counted
from ...dissection import ArmResult, Count, Dissection
from ..blocks import Block, Details, Figure, Grid, Heading, Paragraph, Shot, Table, Tabs, Wall
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
        Paragraph(headline(dissection), "verdict"),
        *([Paragraph(f"What the symmetry group predicts: {prediction}.")] if prediction else []),
        *(Paragraph(f"Note: {note}", "note") for note in dissection.notes),
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
    curves: list[Block] = [_curve(dissection), *([] if single else [_category_curves(dissection)])]
    return [
        Heading("Detectors against the power of the rotation"),
        Grid(curves),
        _table(dissection),
        Paragraph(_equality(dissection)),
        *([] if single else [Heading("Concepts by category"), _category_bars(dissection)]),
    ]


def headline(dissection: Dissection) -> str:
    """The one sentence to take away."""
    own = len(dissection.own.detectors(dissection.iou_threshold))
    if not any(c.mean for c in dissection.counts()):
        best = max((x for arm in dissection.arms for x in arm.iou), default=0.0)
        return (
            f"None of {dissection.units} units detects a concept, in the network's own basis or in any that was tried: "
            f"the best match has IoU {best:.3f}, and a detector needs more than {dissection.iou_threshold:g}."
        )
    text = (
        f"{own} of {dissection.units} units ({own / dissection.units:.0%}) detect a concept in the network's own basis."
    )
    powers = dissection.powers()
    if len(powers) == 1:
        return f"{text} No rotation was asked for."
    last = powers[-1]
    after = f"after rotations with power {last.alpha:g} it is {last.mean:.1f}"
    if last.seeds < 2:
        return (
            f"{text} {after[0].upper()}{after[1:]} for the one rotation tried, which does not say how others would do."
        )
    low, high = last.one_more
    interval = f"on average over {last.seeds} of them, and would be {low:.1f} to {high:.1f} after one more (95 %)"
    meaning = {
        "falls": "Rotating loses detectors: the network's own basis names concepts better than a random one.",
        "rises": "Rotating gains detectors: the network's own basis is not the one that names concepts best.",
        "undecided": "That is no clear difference: nothing here says that the network's own basis is special.",
    }[dissection.trend]
    return f"{text} {after[0].upper()}{after[1:]} {interval}. {meaning}"


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


def _curve(dissection: Dissection) -> Figure:
    powers, units = dissection.powers(), dissection.units
    unique = _banded("different concepts", dissection.powers(unique=True), units)
    series = [_banded("units that detect a concept", powers, units), unique]
    if len(powers) > 1:
        series.append(Series("own basis", [powers[0].mean / units] * len(powers), dash="dash"))
    return lines(
        [f"{c.alpha:g}" for c in powers],
        series,
        title="Share of units, and different concepts for each unit",
        caption="Along the path from the network's own basis (0) to a random one (1). Bands: 95 % over rotations.",
        y_title="share of units",
        limits=None,
    )


def _category_curves(dissection: Dissection) -> Figure:
    return lines(
        [f"{c.alpha:g}" for c in dissection.powers()],
        [_banded(name, dissection.powers(name)) for name in dissection.categories],
        title="Detectors by category",
        caption="How many units have their best concept in each category. Bands: 95 % over rotations.",
        y_title="units",
        limits=None,
    )


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
    return bars(
        dissection.categories,
        groups,
        title="Different concepts that have a detector",
        caption="Mean over rotations.",
        y_title="concepts",
    )


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
    own: ArmResult = dissection.own
    ordered = sorted(range(dissection.units), key=lambda u: -own.iou[u])
    rows = []
    for unit in ordered:
        concept = dissection.concepts[own.concept[unit]] if own.concept[unit] >= 0 else None
        detects = own.iou[unit] > dissection.iou_threshold
        rows.append(
            [dissection.channels[unit], concept and concept.name, concept and concept.category, own.iou[unit], detects]
        )
    found = [(c.name, c.category, n) for c, n in dissection.by_concept(own)]
    blocks: list[Block] = []
    if found:
        blocks.append(Table(["concept", "category", "detectors"], found))
    return [*blocks, Details("All units", [Table(["channel", "best concept", "category", "IoU", "detector"], rows)])]


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
