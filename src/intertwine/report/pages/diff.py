"""The page of a difference: what was done, a heat strip by block, and every tensor."""

from dataclasses import replace

from ..._words import counted, sentence
from ...provenance import Diff
from ..blocks import Block, Details, Facts, Heading, Listing, Paragraph, Table
from ..figures import heatmap, strip
from ..page import Page

_ROWS = 2000


def diff_page(found: Diff) -> Page:
    """Lay out a difference.

    Args:
        found: The result of ``diff``.
    """
    frame = found.to_frame()
    if (frame["source"] == frame["tensor"]).all():
        frame = frame.drop(columns="source")
    shown = f"The first {_ROWS:,} of {len(frame):,} tensors. " if len(frame) > _ROWS else ""
    blocks: list[Block] = [
        Paragraph(sentence(f"{found.verdict}: {found.reason}"), "verdict"),
        *_strips(found),
        Heading("What was done"),
        Table(["kind", "in words", "tensors"], [[f.kind, f.text, len(f.tensors)] for f in found.findings]),
        *(Paragraph(f"Ambiguous: {said}", "note") for said in found.ambiguous),
        *_units(found),
        Heading("Tensor by tensor"),
        Table(
            list(frame.columns),
            frame.head(_ROWS).astype(object).to_numpy().tolist(),
            caption=f"{shown}The first network is brought into the basis of the second; changes are what remains.",
        ),
        Details("The difference as text", [Listing(found.summary())]),
    ]
    if found.output_error is not None:
        blocks.append(Facts({"difference of the outputs, relative": f"{found.output_error:.2e}"}, "On the example"))
    return Page("What changed", blocks, f"{counted(len(found.tensors), 'tensor')} in {len(found.blocks)} blocks")


def _strips(found: Diff) -> list[Block]:
    """Relative change by block, and by block and role."""
    sizes = found.blocks
    if not sizes:
        return []
    names = list(sizes)
    blocks = strip(
        list(sizes.values()), names, row="relative change", title="Relative change of each block", places="block",
        caption="The size of the change over that of the weights, all tensors of a block together.",
    )  # fmt: skip
    roles: dict[str, dict[str, float]] = {}
    for t in found.tensors:
        if t.relative < float("inf"):
            role = t.name.removeprefix(t.block).removeprefix(".") or t.name
            roles.setdefault(role, {})[t.block] = t.relative
    most = max((v for row in roles.values() for v in row.values()), default=0.0)
    grid = heatmap(
        [[row.get(name) for name in names] for row in roles.values()], list(roles), names,
        title="Relative change of each tensor", caption="Blank where a block has no such tensor.",
        row_title="tensor", column_title="block", name="relative change", limits=(0.0, max(most, 1e-12)),
    )  # fmt: skip
    return [blocks, replace(grid, height=min(900, 160 + 22 * len(roles)))]


def _units(found: Diff) -> list[Block]:
    """The units that moved most."""
    if not found.units:
        return []
    rows = [[u.space, ", ".join(map(str, u.unit)), u.relative] for u in found.units]
    return [Heading("Units that changed most"), Table(["space", "unit", "relative change"], rows)]
