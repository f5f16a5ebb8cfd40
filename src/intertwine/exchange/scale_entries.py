"""Scale mappings generalised over layers, for tools that scale whole layers channel by channel."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import torch

from .._words import counted
from ..symmetry import Axis, Fixed, Leaf
from ..symmetry.description import Description
from ..symmetry.explain import leaves
from .names import expression, outline
from .result import Absent, Entry, Place
from .scales import ScaleMapping, channels, scale_mappings

__all__ = ["ScaleEntries", "scale_entries"]

_HEADS = "the output layer, which quantisation recipes leave as it is"


@dataclass(frozen=True)
class ScaleEntries:
    """Entries with the mappings that each stands for.

    Attributes:
        mappings: For the outline of each entry (names without the numbers of layers) its mapping in every layer.
        entries: The entries by outline.
        absent: What reads channels that no entry scales, and why.
    """

    mappings: Mapping[tuple[str, ...], list[ScaleMapping]]
    entries: Mapping[tuple[str, ...], Entry]
    absent: tuple[Absent, ...]


def _entry(sym: Description, key: tuple[str, ...], found: list[ScaleMapping], names: Collection[str]) -> Entry:
    """One mapping in all of its layers."""
    parts: dict[str, set[str]] = {pattern: set() for pattern in key[1:]}
    for mapping in found:
        for name in mapping.balance:
            parts[_part(name, key[1:])].add(name)
    places = tuple(Place((m.smooth,), m.balance, m.space) for m in found)
    reads = tuple(expression(targets, names) for targets in parts.values())
    norm = all(len(sym.layouts[use.tensor].axes) == 1 for use in found[0].writes)
    writes = (expression({m.smooth for m in found}, names),)
    return Entry("norm" if norm else "linear", writes, reads, places, note=_note(sym, found[0]))


def scale_entries(sym: Description, names: Collection[str]) -> ScaleEntries:
    """Mappings that a tool can apply which scales whole layers, and the reasons for all others.

    Args:
        sym: The symmetry.
        names: Names of all modules of the model.
    """
    found, refused = scale_mappings(sym)
    grouped: dict[tuple[str, ...], list[ScaleMapping]] = {}
    reasons: dict[str, str] = {}
    for refusal in refused:
        reasons.update(dict.fromkeys(refusal.reads, refusal.reason))
    for mapping in found:
        why = _unfit(sym, mapping)
        if why:
            reasons.update({use.tensor: why for use in mapping.reads})
        else:
            grouped.setdefault(outline(mapping.smooth, mapping.balance), []).append(mapping)
    covered = {use.tensor for group in grouped.values() for m in group for use in m.reads}
    entries = {key: _entry(sym, key, group, names) for key, group in grouped.items()}
    return ScaleEntries(grouped, entries, tuple(_absent(sym, covered, reasons, names)))


def _part(name: str, patterns: Collection[str]) -> str:
    """The pattern of an outline that a name belongs to."""
    return next(p for p in patterns if re.fullmatch(re.escape(p).replace(r"\#", r"\d+"), name))


def _unfit(sym: Description, mapping: ScaleMapping) -> str:
    """Why a tool that scales whole layers in order cannot apply a mapping; empty if it can."""
    if any(_is_output(sym, use.tensor) for use in mapping.reads):
        return _HEADS
    if any(use.axis != len(sym.layouts[use.tensor].axes) - 1 for use in mapping.reads):
        return "its weight does not hold the inputs on the last axis, as a linear layer of torch does"
    orders = [channels(sym, mapping, use) for use in mapping.reads]
    if not all(bool((order >= 0).all()) for order in orders):
        return "only some of its inputs can be scaled"
    for use in mapping.writes:
        order = channels(sym, mapping, use)
        rows = (order >= 0).nonzero().flatten()
        if not torch.equal(rows, torch.arange(len(order) - len(rows), len(order))):
            return f"what may be scaled is not the last rows of {use.tensor}"
        if not torch.equal(order[rows], torch.arange(len(rows))):
            return f"the channels of {use.tensor} lie in another order"
        if not all(int(other.max()) == len(rows) - 1 for other in orders):
            return "written and read channels differ in number"
    return ""


def _note(sym: Description, mapping: ScaleMapping) -> str:
    """What to know: inputs that share a scale."""
    sizes = {len(order := channels(sym, mapping, use)) // (int(order.max()) + 1) for use in mapping.reads}
    if sizes == {1}:
        return ""
    return (
        f"each scale is shared by {counted(max(sizes), 'input')} of the balance layer (grouped heads); tools that ask "
        "for one scale for each input skip it"
    )


def _is_output(sym: Description, tensor: str) -> bool:
    return any(f.tensor == tensor and f.reason == "output" for f in sym.fixed)


def _absent(
    sym: Description, covered: set[str], reasons: Mapping[str, str], names: Collection[str]
) -> Iterator[Absent]:
    """Weights that read channels which no entry scales, generalised over layers."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, layout in sym.layouts.items():
        if (
            name in covered
            or len(layout.axes) < 2
            or any(f.tensor == name and f.reason == "vocabulary" for f in sym.fixed)
        ):
            continue
        why = reasons.get(name) or _restriction(sym, name)
        module = name.rpartition(".")[0] if name.endswith(".weight") else name
        key = re.sub(r"\d+", "#", module), re.sub(r"\.\d+\b", ".#", why)
        found.setdefault(key, []).append(module)
    for (_, why), modules in found.items():
        yield Absent(tuple(modules), expression(modules, [*names, *modules]), why)


def _is_table(axis: Axis) -> bool:
    """Whether an axis is looked up: words of a vocabulary."""
    return isinstance(axis, Fixed) and axis.reason == "vocabulary"


def _restriction(sym: Description, name: str) -> str:
    """What keeps the last axis that carries anything from being scaled."""
    said: list[str] = []
    for _, leaf in leaves(sym.layouts[name].axes[-1]):
        if not isinstance(leaf, Leaf):
            said.append(leaf.reason)
        else:
            said += [reason for reason in sym.space(leaf.space).reasons if "scales" in reason]
    return "; ".join(dict.fromkeys(said)) or "its inputs are written by nothing that may be scaled"
