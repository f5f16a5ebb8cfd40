"""Scale mappings generalised over layers, for tools that scale whole layers channel by channel."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .._words import counted
from ..symmetry import Axis, Fixed, Leaf
from ..symmetry.description import Description
from ..symmetry.spaces import UNREAD, leaves
from .exported_model import Subject
from .names import expression, outline, packed, unpacked
from .result import Absent, Entry, Place
from .scales import ScaleMapping, channels, scale_mappings

_OUTPUT = "the output layer, which quantisation recipes leave as it is"
_OFFSET = "the gain is {c:g} + weight, and {c:g} + weight is what is scaled: llm-compressor converts such norms"


@dataclass(frozen=True)
class ScaleEntries:
    """Entries with the mappings that each stands for."""

    # For the outline of each entry (names without the numbers of layers) its mapping in every layer
    mappings: Mapping[tuple[str, ...], list[ScaleMapping]]
    entries: Mapping[tuple[str, ...], Entry]  # The entries by outline
    absent: tuple[Absent, ...]  # What reads channels that no entry scales, and why


def scale_entries(subject: Subject) -> ScaleEntries:
    """Mappings that a tool can apply which scales whole layers, and the reasons for all others."""
    sym = subject.sym
    found, refused = scale_mappings(sym)
    grouped: dict[tuple[str, ...], list[ScaleMapping]] = {}
    places: dict[tuple[str, ...], list[Place]] = {}
    reasons: dict[str, str] = {}
    for refusal in refused:
        reasons.update(dict.fromkeys(refusal.reads, refusal.reason))
    for mapping in found:
        why = _unfit(subject, mapping)
        if why:
            reasons.update({use.tensor: why for use in mapping.reads})
            continue
        for place in _places(sym, mapping):
            key = outline(place.writes[0], place.reads)
            places.setdefault(key, []).append(place)
            if mapping not in grouped.setdefault(key, []):
                grouped[key].append(mapping)
    entries = {key: _entry(subject, key, group, places[key]) for key, group in grouped.items()}
    covered = {use.tensor for group in grouped.values() for m in group for use in m.reads}
    return ScaleEntries(grouped, entries, tuple(_absent(subject, covered, reasons)))


def _entry(subject: Subject, key: tuple[str, ...], found: list[ScaleMapping], places: list[Place]) -> Entry:
    """One mapping in all of its layers."""
    parts: dict[str, set[str]] = {pattern: set() for pattern in key[1:]}
    for place in places:
        for name in place.reads:
            parts[_part(name, key[1:])].add(name)
    reads = tuple(expression(targets, subject.names) for targets in parts.values())
    writes = (expression({place.writes[0] for place in places}, subject.names),)
    norm = all(len(subject.sym.layouts[use.tensor].axes) == 1 for use in found[0].writes)
    notes = [_shared(subject.sym, found[0])]
    notes += [_OFFSET.format(c=c) for use in found[0].writes if (c := subject.offsets.get(use.tensor)) is not None]
    return Entry("norm" if norm else "linear", writes, reads, tuple(places), note="; ".join(filter(None, notes)))


def _part(name: str, patterns: Collection[str]) -> str:
    """The pattern of an outline that a name belongs to."""
    return next(p for p in patterns if re.fullmatch(re.escape(p).replace(r"\#", r"\d+"), name))


def _places(sym: Description, mapping: ScaleMapping) -> list[Place]:
    """Names of the modules: one place, or one for each expert where experts write."""
    if not packed(mapping.writes[0].tensor):
        reads: list[str] = []
        for name in mapping.balance:
            reads += [part for parts in unpacked(sym, name) for part in parts] if packed(name) else [name]
        return [Place((mapping.smooth,), tuple(reads), mapping.space)]
    rows = (channels(sym, mapping, mapping.writes[0]) >= 0).nonzero().flatten()
    writers = unpacked(sym, mapping.smooth, "gate" if int(rows[0]) == 0 else "up")
    readers = zip(*(unpacked(sym, name) for name in mapping.balance))
    return [
        Place(write, tuple(name for part in read for name in part), mapping.space)
        for write, read in zip(writers, readers)
    ]


def _unfit(subject: Subject, mapping: ScaleMapping) -> str:
    """Why a tool that scales whole layers in order cannot apply a mapping; empty if it can."""
    sym = subject.sym
    if any(use.module in subject.last for use in mapping.reads):
        return _OUTPUT
    if any(use.axis != len(sym.layouts[use.tensor].axes) - 1 for use in mapping.reads if not packed(use.tensor)):
        return "its weight holds inputs before outputs (Conv1D of transformers), and these tools scale the last axis"
    if any(use.tensor.rpartition(".")[2] not in ("weight", "bias") for use in mapping.writes if not packed(use.tensor)):
        return f"{mapping.writes[0].tensor} is not the weight of a layer"
    orders = [channels(sym, mapping, use) for use in mapping.reads]
    if not all(bool((order >= 0).all()) for order in orders):
        return "only some of its inputs can be scaled"
    return next(filter(None, (_disorder(sym, mapping, use.tensor, use.axis, orders) for use in mapping.writes)), "")


def _disorder(sym: Description, mapping: ScaleMapping, tensor: str, axis: int, reads: list[Tensor]) -> str:
    """What is wrong with the order of the written channels; empty if they are the last rows, one for each scale."""
    use = next(u for u in mapping.writes if (u.tensor, u.axis) == (tensor, axis))
    order = channels(sym, mapping, use)
    rows = (order >= 0).nonzero().flatten()
    if not packed(tensor) and not torch.equal(rows, torch.arange(len(order) - len(rows), len(order))):
        return f"what may be scaled is not the last rows of {tensor}"
    if not torch.equal(order[rows], torch.arange(len(rows))):
        return f"the channels of {tensor} lie in another order"
    if not all(int(other.max()) == len(rows) - 1 for other in reads):
        return "written and read channels differ in number"
    return ""


def _shared(sym: Description, mapping: ScaleMapping) -> str:
    """Inputs that share a scale."""
    sizes = {len(order := channels(sym, mapping, use)) // (int(order.max()) + 1) for use in mapping.reads}
    if sizes == {1}:
        return ""
    return (
        f"each scale is shared by {counted(max(sizes), 'input')} of the balance layer (grouped heads); tools that ask "
        "for one scale for each input skip it"
    )


def _absent(subject: Subject, covered: set[str], reasons: Mapping[str, str]) -> Iterator[Absent]:
    """Weights that read channels which no entry scales, generalised over layers."""
    sym, found = subject.sym, dict[tuple[str, str], list[str]]()
    for name, layout in sym.layouts.items():
        if name in covered or len(layout.axes) < 2 or _is_table(layout.axes[0]):
            continue
        why = reasons.get(name) or _restriction(sym, name)
        module = name.rpartition(".")[0] if name.endswith(".weight") else name
        kind = "" if why == UNREAD else re.sub(r"\d+", "#", module)
        found.setdefault((kind, re.sub(r"\.\d+\b", ".#", why)), []).append(module)
    for (kind, why), modules in found.items():
        pattern = expression(modules, [*subject.names, *modules]) if kind else "modules that the example does not run"
        yield Absent(tuple(modules), pattern, why if kind else "give an example that reads them")


def _is_table(axis: Axis) -> bool:
    """Whether an axis is looked up: words of a vocabulary."""
    return isinstance(axis, Fixed) and axis.reason == "vocabulary"


def _input_axis(sym: Description, name: str) -> int:
    """The axis of a weight along which it reads: the last, but the first where the last is what its module returns."""
    axes, returned = sym.layouts[name].axes, sym.features.get(name.rpartition(".")[0])
    carried = [{leaf.space for _, leaf in leaves(axis) if isinstance(leaf, Leaf)} for axis in axes]
    if returned is None or len(axes) != 2 or not carried[1]:
        return len(axes) - 1
    written = {leaf.space for _, leaf in leaves(returned.axes[-1]) if isinstance(leaf, Leaf)}
    return 0 if carried[1] <= written and not carried[0] <= written else 1


def _restriction(sym: Description, name: str) -> str:
    """What keeps the last axis that carries anything from being scaled."""
    said: list[str] = []
    for _, leaf in leaves(sym.layouts[name].axes[_input_axis(sym, name)]):
        if not isinstance(leaf, Leaf):
            said.append(leaf.reason)
        else:
            reasons = [reason.partition(": ") for reason in sym.space(leaf.space).reasons]
            of_scales = [why for what, _, why in reasons if "scales" in what] or [why for _, _, why in reasons[:1]]
            said += [f"{why} lets no such scale through" for why in of_scales]
    return "; ".join(dict.fromkeys(said)) or "its inputs are written by nothing that may be scaled"
