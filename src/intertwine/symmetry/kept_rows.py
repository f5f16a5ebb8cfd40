"""Rows of tensors that stay when only some units of a space do."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .spaces import Axis, Leaf, Product, Sum, axis_size, spaces_of
from .symmetry import Symmetry


def kept_rows(sym: Symmetry, space: str | Sequence[str], keep: Sequence[int]) -> dict[str, dict[int, Tensor]]:
    """The rows that stay: of every tensor that carries a space, by axis.

    Args:
        sym: The symmetry.
        space: Name of the space, or several that keep the same units.
        keep: Units that stay.

    Examples:
        >>> from torch import nn
        >>> import intertwine as iw
        >>> model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> rows = kept_rows(iw.symmetries(model, torch.randn(5, 3)), "0.weight[0]", [0, 5])
        >>> {name: {axis: r.tolist() for axis, r in axes.items()} for name, axes in rows.items()}
        {'0.weight': {0: [0, 5]}, '0.bias': {0: [0, 5]}, '2.weight': {1: [0, 5]}}
    """
    units, chosen = torch.as_tensor(sorted(keep)), {space} if isinstance(space, str) else set(space)
    found: dict[str, dict[int, Tensor]] = {}
    for name, layout in sym.layouts.items():
        for dim, axis in enumerate(layout.axes):
            for one in chosen.intersection(spaces_of([axis])):
                rows, before = axis_rows(axis, one, units), found.setdefault(name, {}).get(dim)
                found[name][dim] = rows if before is None else rows[torch.isin(rows, before)]
    return found


def axis_rows(axis: Axis, space: str, units: Tensor) -> Tensor:
    """Rows of an axis that stay, in order."""
    if isinstance(axis, Leaf) and axis.space == space:
        return units
    if isinstance(axis, Product):
        rows = torch.zeros(1, dtype=torch.int64)
        for factor in axis.factors:
            rows = (rows[:, None] * axis_size(factor) + axis_rows(factor, space, units)).flatten()
        return rows
    if isinstance(axis, Sum):
        parts = []
        for part in axis.parts:
            own = torch.cat([torch.arange(start, stop) for start, stop in part.ranges])
            parts.append(own[axis_rows(part.axis, space, units)])
        return torch.cat(parts).sort().values
    return torch.arange(axis_size(axis))
