"""Names of modules with repeated layers folded into one."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

__all__ = ["folded"]


def folded(uses: Mapping[str, Hashable]) -> dict[str, tuple[str, str]]:
    """Block and role of each module: layers whose modules have the same names and uses are one block.

    Args:
        uses: What each module is used for, by name.

    Returns:
        For each name the block, with the numbers of its layers (empty outside of layers), and the name within it.

    Examples:
        >>> folded({"in": 0, "h.0.up": 1, "h.1.up": 1, "h.2.up": 2})
        {'in': ('', 'in'), 'h.0.up': ('h.0–1', 'up'), 'h.1.up': ('h.0–1', 'up'), 'h.2.up': ('h.2', 'up')}
    """
    paths = _folded({tuple(name.split(".")): use for name, use in uses.items()})
    found = {}
    for name in uses:
        path = paths[tuple(name.split("."))]
        layer = next((i + 1 for i, part in enumerate(path[:-1]) if part[0].isdigit()), 0)
        found[name] = ".".join(path[:layer]), ".".join(path[layer:])
    return found


def _folded(uses: Mapping[tuple[str, ...], Hashable]) -> dict[tuple[str, ...], tuple[str, ...]]:
    """Paths with the numbers of alike layers in place of one."""
    inner: dict[str, dict[tuple[str, ...], Hashable]] = {}
    found: dict[tuple[str, ...], tuple[str, ...]] = {}
    for (first, *rest), use in uses.items():
        if rest:
            inner.setdefault(first, {})[tuple(rest)] = use
        else:
            found[first,] = (first,)
    below = {first: _folded(paths) for first, paths in inner.items()}
    alike: dict[Hashable, list[str]] = {}
    for first, paths in inner.items():
        shape = frozenset((below[first][rest], use) for rest, use in paths.items())
        alike.setdefault(shape if first.isdigit() else first, []).append(first)
    for group in alike.values():
        text = _ranges([int(first) for first in group]) if group[0].isdigit() else group[0]
        for first in group:
            found.update({(first, *rest): (text, *path) for rest, path in below[first].items()})
    return found


def _ranges(numbers: Iterable[int]) -> str:
    """Numbers as ``0–3, 5``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
