"""The page of two networks that may be one: the verdict, and what differs, tensor by tensor."""

from math import isfinite

from ..._words import sentence
from ...matching import Match
from ..blocks import Block, Facts, Figure, Heading, Paragraph, Table
from ..figures import bars, strip
from ..page import Page


def match_page(found: Match) -> Page:
    """Lay out a verdict on two networks."""
    rows = [[name, d if isfinite(d) else "only in one, or reshaped"] for name, d in found.differing.items()]
    blocks: list[Block] = [Paragraph(sentence(found.summary().splitlines()[0]), "verdict"), *_picture(found)]
    if rows:
        caption = "What is left of each tensor once the first network is moved, relative to the tensor's size."
        blocks += [Heading("What differs"), Table(["tensor", "difference"], rows, caption, digits=4)]
    facts = {
        "residual": f"{found.residual:.3g}", "deviation of single weights": f"{found.deviation:.3g}",
        "coarsest precision that explains it": found.precision or "none",
        "residual by chance": "not needed" if found.chance is None else f"{found.chance:.3g}",
    }  # fmt: skip
    return Page("Are two networks one?", [*blocks, Facts(facts, "In numbers")])


def _picture(found: Match) -> list[Figure]:
    known = {name: d for name, d in found.differing.items() if isfinite(d)}
    if known:
        title, row = "Where the networks differ", "difference"
        return [strip(list(known.values()), list(known), row=row, title=title, places="tensor")]
    if not isfinite(found.residual):
        return []
    levels = {"these two": found.residual, "unrelated networks": 1.0 if found.chance is None else found.chance}
    caption = "The share of the weights that is not explained after matching: 0 for one network."
    return [bars(list(levels), {"residual": list(levels.values())}, title="What is left", caption=caption)]
