"""A symmetry in words: the table of its spaces, and the reason why an axis moves or stays."""

import re
from collections import Counter
from math import prod
from textwrap import wrap
from typing import Any

from .._words import columns, counted, near
from .description import Description
from .spaces import Fixed, Leaf, Space, axis_size, leaves

_WIDE = 100  # characters of a line of prose


def rows(sym: Description) -> list[dict[str, Any]]:
    """One row per space, as plain values."""
    members: dict[str, int] = {}
    for layout in sym.layouts.values():
        for axis in layout.axes:
            for _, leaf in leaves(axis):
                if isinstance(leaf, Leaf):
                    members[leaf.space] = members.get(leaf.space, 0) + 1
    sizes = {s.name: s.size for s in sym.spaces}
    return [
        {
            "space": sym.titles[s.name],
            "name": s.name,
            "size": s.size,
            "copies": prod(sizes[p] for p in s.parents),
            "group": s.symbol,
            "scales": s.group.scales,
            "signs": s.group.signs,
            "mixes": s.group.mixes,
            "permutes": s.group.permutes,
            "axes": members.get(s.name, 0),
            "restricted by": "; ".join(s.reasons),
        }
        for s in sym.spaces
    ]


def summary(sym: Description) -> str:
    """The table of the spaces in text, what restricts them, and totals."""
    precision = str(sym.dtype).removeprefix("torch.")
    table = ["No hidden space may move; explain(parameter, axis) says why for each axis."]
    if sym.spaces:
        short = lambda row: row["space"].removesuffix(f" ({row['name']})")
        found = [[short(r), str(r["size"]), r["group"], str(r["axes"]), r["name"]] for r in rows(sym)]
        table = columns([["space", "size", "group", "axes", "name"], *found])
    everywhere = lambda reason: re.sub(r" in [\w.]+$", "", reason)  # without the module in which it was met
    restrictions = Counter(why for space in sym.spaces for why in dict.fromkeys(map(everywhere, space.reasons)))
    lines = [f"{why} ({counted(count, 'space')})" for why, count in restrictions.items()]
    lines.append(totals(sym))
    lines.append(f"lowest precision {precision}")
    if sym.unknown_ops:
        lines.append(f"operations without a rule (what they touch is fixed): {', '.join(sym.unknown_ops)}")
    if sym.path_only:
        lines.append(f"certified for {sym.certified}")
    folded = (part for line in [*lines, *sym.notes] for part in wrap(line, _WIDE, subsequent_indent="  "))
    return "\n".join([*table, *folded])


def totals(sym: Description) -> str:
    """Number of spaces, dimension, size of the discrete part and number of fixed axes."""
    return (
        f"{counted(len(sym.spaces), 'space')}, dimension {sym.dim}, log of discrete size {sym.log_size:.1f}, "
        f"{counted(len(sym.fixed), 'fixed axis')}"
    )


def explain(sym: Description, parameter: str, axis: int) -> str:
    """Why one axis of one parameter moves or stays."""
    name = sym.aliases.get(parameter, parameter)
    if name not in sym.layouts:
        close = near(parameter, (*sym.layouts, *sym.aliases))
        raise ValueError(f"parameter must be a name in the state dict. Got {parameter!r}.{close}")
    axes = sym.layouts[name].axes
    if not -len(axes) <= axis < len(axes):
        raise ValueError(f"axis must be below {len(axes)} for {parameter}. Got {axis}.")
    axis %= len(axes)
    said = []
    for place, leaf in leaves(axes[axis]):
        if isinstance(leaf, Fixed):
            said.append(f"{place.strip()} fixed, {leaf.reason}".strip())
        else:
            said.append(f"{place.strip()} {_moved(sym.space(leaf.space), leaf)}".strip())
    tied = f" (tied to {name})" if name != parameter else ""
    return f"{parameter}[{axis}]{tied} (size {axis_size(axes[axis])}): " + "; ".join(said)


def _moved(space: Space, leaf: Leaf) -> str:
    exponents = [f"scale exponents {', '.join(map(str, leaf.scale))}"] if any(leaf.scale) else []
    why = [f"restricted by {'; '.join(space.reasons)}"] if space.reasons else []
    of = f" unit of {', '.join(space.parents)}" if space.parents else ""
    return ", ".join([f"moved by {space.name}: {space.symbol}{of}", *exponents, *why])
