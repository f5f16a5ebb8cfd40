"""Verified permutations of each space, the same in every layer, in the formats of pruners, mergers, metanetworks.

A unit is whatever is removed as a whole: a channel, an attention head with all of its channels, a group of query heads
with the key/value head that they share, a hidden unit of a gated MLP in all of its tensors. Torch-Pruning describes
this as a group of (layer, pruning function, indices); ``iw.exchange.prune_channels`` removes units.

git-re-basin (Ainsworth et al. 2023, ``weight_matching.py``) takes ``axes_to_perm``: for every tensor a tuple with the
name of a permutation for each axis, or ``None`` if there is none. universal_neural_functional (Zhou et al. 2024,
``layers.py``) takes ``perm_spec``: an integer for each axis, where equal numbers mean the same permutation. It has no
fixed axes, and permutes inputs and outputs too: every such axis gets its own number, which imposes more equivariance
than the network has, never less.

Both support only whole axes. If a permutation moves blocks of an axis (heads; channels before a flatten), ``views``
holds the shape to which the tensor must be reshaped first, with one axis for the blocks; the specification describes
that view. Permutations within one segment of an axis (packed projections, concatenations), or that differ from head to
head, are listed only in ``left_out``, with the positions of their units: a permutation of which a tool knew only some
axes would change the function.

Graphs for metanetworks are plain JSON. A node is a space (whose units may be permuted, scaled, flipped or mixed, as its
symmetry says) or a fixed axis (input, output, kernel). An edge is a tensor with the nodes of its axes, in order; an
axis that is a product or a concatenation names several nodes.
"""

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from ..symmetry import Axis, Layout, Leaf, Product, Space
from ..symmetry.action import moved
from ..symmetry.blocks import align, blocks
from ..symmetry.description import Description
from ..symmetry.proof import without_each
from ..symmetry.spaces import axis_size, leaves, spaces_of
from ..symmetry.transformation import random
from .exported_model import Proving, Subject
from .names import expression, unnumbered
from .result import Absent, Entry, Mappings, Place, Proof


@dataclass(frozen=True)
class Held:
    """One tensor axis that holds the units of a space."""

    tensor: str  # Name of a parameter or buffer
    axis: int  # Its axis
    block: int  # Positions per unit if contiguous and in order, else 0
    positions: tuple[tuple[int, ...], ...] = ()  # The positions of each unit in that case


def carriers(sym: Description, space: Space) -> Iterator[tuple[str, int]]:
    """Every tensor axis that carries a space."""
    for name, layout in sym.layouts.items():
        for axis, along in enumerate(layout.axes):
            if space.name in spaces_of([along]):
                yield name, axis


def _held(sym: Description, space: Space, tensor: str, axis: int) -> Held:
    units = unit_numbers(sym, space, tensor, axis)
    count = int(units.max()) + 1
    block = len(units) // count
    if torch.equal(units, torch.arange(len(units)) // block):
        return Held(tensor, axis, block)
    order = units.argsort(stable=True)[int((units < 0).sum()) :]
    split = order.split(torch.bincount(units[units >= 0]).tolist())
    return Held(tensor, axis, 0, tuple(tuple(rows.tolist()) for rows in split))


def unit_numbers(
    sym: Description, space: Space, tensor: str, axis: int, kept: Callable[[Leaf], bool] = lambda leaf: True
) -> Tensor:
    """Unit number of each position along an axis, counting the space's parents there first; -1 if there is none."""
    along = sym.layouts[tensor].axes[axis]
    found = torch.full((axis_size(along),), -1)
    for block in blocks(Layout((along,))):
        if space.name not in block.spaces:
            continue
        leaf = block.leaves[block.spaces.index(space.name)]
        if not isinstance(leaf, Leaf) or not kept(leaf):
            continue
        index = torch.zeros(block.shape, dtype=torch.int64)
        for name in (*space.parents, space.name):
            if name in block.spaces:
                at = block.spaces.index(name)
                index = index * block.shape[at] + align(torch.arange(block.shape[at]), [at], len(block.shape))
        found[slice(None) if block.rows[0] is None else block.rows[0]] = index.flatten()
    return found


@dataclass(frozen=True)
class Units:
    """A space whose units may be permuted, and the tensor axes that hold it."""

    space: Space
    held: tuple[Held, ...]


def units_of(sym: Description) -> list[Units]:
    """Every space of a symmetry whose units may be permuted or removed together."""
    free = [s for s in sym.spaces if s.group.permutes and s.size > 1]
    return [Units(s, tuple(_held(sym, s, *at) for at in carriers(sym, s))) for s in free]


def _permuted(subject: Subject, proving: Proving, units: Sequence[Units]) -> Mappings:
    """Entries of spaces, generalised over layers, and the spaces that may not be permuted, with the reason."""
    tensors = list(subject.sym.layouts)
    grouped = _by_outline(units)
    there = _by_outline(units if proving.subject is subject else units_of(proving.subject.sym))

    def patterns(group: Sequence[Units], read: bool) -> tuple[str, ...]:
        named: dict[tuple[str, int], set[str]] = {}
        for h in (h for unit in group for h in unit.held if (h.axis > 0) == read):
            named.setdefault((unnumbered(h.tensor), h.axis), set()).add(h.tensor)
        return tuple(f"{expression(names, tensors)}[{axis}]" for (_, axis), names in named.items())

    def place(unit: Units) -> Place:
        writes, reads = (tuple(f"{h.tensor}[{h.axis}]" for h in unit.held if (h.axis > 0) == r) for r in (False, True))
        return Place(writes, reads, unit.space.name)

    entries = []
    for key, group in grouped.items():
        proof = _proof(proving, [unit.space.name for unit in there.get(key, ())])
        sides = patterns(group, False), patterns(group, True)
        entries.append(Entry("permutation", *sides, tuple(map(place, group)), proof))
    still: dict[tuple[str, str], list[str]] = {}  # spaces that may be scaled or mixed but not permuted
    for space in subject.sym.spaces:
        if not space.group.permutes:
            why = next((lost.cause for lost in space.causes("no permutations")), "")
            key = re.sub(r"\.\d+\b", ".#", space.name), re.sub(r"\.\d+\b", ".#", why)
            still.setdefault(key, []).append(space.name)
    absent = [
        Absent(tuple(names), names[0] if len(names) == 1 else pattern, f"not permuted: {why}")
        for (pattern, why), names in still.items()
    ]
    return Mappings("", "", tuple(entries), tuple(absent), notes=proving.notes)


def _by_outline(units: Sequence[Units]) -> dict[tuple[str, ...], list[Units]]:
    """Units with the same tensor axes, up to layer numbers."""
    found: dict[tuple[str, ...], list[Units]] = {}
    for unit in units:
        outline = dict.fromkeys(unnumbered(f"{h.tensor}[{h.axis}]") for h in unit.held)
        found.setdefault(tuple(outline), []).append(unit)
    return found


def _proof(proving: Proving, spaces: list[str]) -> Proof | None:
    """The proof with random permutations of some spaces, and a control that leaves one tensor unchanged."""
    if proving.probe is None or not spaces:
        return None
    sym, probe = proving.subject.sym, proving.probe
    g = random(sym, 0, {"permutation"})
    for seed in range(1, 20):
        if not g.restrict(spaces=spaces).is_identity(0.0):
            break
        g = random(sym, seed, {"permutation"})
    changed = moved(sym, g.restrict(spaces=spaces), probe.tensors)
    proof = probe.prove(changed, without_each(sym, changed))
    return proving.of_the_model(proof)


def groups(subject: Subject, proving: Proving) -> Mappings:
    """The mappings for Torch-Pruning: one group for each space whose units may be removed."""
    units = units_of(subject.sym)

    def member(h: Held) -> dict[str, Any]:
        size = {"channels_of_unit": h.block or len(h.positions[0])}
        place = {} if h.block else {"positions": [list(p) for p in h.positions]}
        return {"module": h.tensor.rpartition(".")[0], "tensor": h.tensor, "axis": h.axis, **size, **place}

    said = [
        {
            "name": u.space.name, "units": u.space.size, "for_each_unit_of": list(u.space.parents),
            "members": [member(h) for h in u.held],
        }
        for u in units
    ]  # fmt: skip
    return replace(_permuted(subject, proving, units), document={"groups": said})


def specification(subject: Subject, proving: Proving) -> Mappings:
    """The mappings with the permutation of every tensor axis."""
    sym = subject.sym
    units = units_of(sym)
    found = _permuted(subject, proving, units)
    listed = _whole(sym, units)
    views = {name: [piece for axis in lay.axes for piece in _view(axis, listed)] for name, lay in sym.layouts.items()}
    named = {name: [_permutation(axis, listed) for axis in view] for name, view in views.items()}
    numbers = _numbered(views, listed)
    reshaped = {n: [axis_size(axis) for axis in v] for n, v in views.items() if len(v) > len(sym.layouts[n].axes)}
    others = [unit for unit in units if unit.space.name not in listed]
    state = {} if subject.network is None else subject.network.state_dict()  # with tied names and fixed buffers
    ranks = {**{name: tensor.ndim for name, tensor in state.items()}, **{name: len(x) for name, x in named.items()}}
    first = {name: sym.aliases.get(name, name) for name in ranks}
    axes_to_perm = {name: named.get(first[name], [None] * rank) for name, rank in ranks.items()}
    document = {
        "axes_to_perm": axes_to_perm,
        "perm_spec": {name: numbers[at] for name, at in first.items() if at in numbers},
        "views": {name: reshaped[at] for name, at in first.items() if at in reshaped},
        "left_out": [
            {"permutation": u.space.name, "for_each_unit_of": list(u.space.parents), "axes": [*map(_place, u.held)]}
            for u in others
        ],
    }
    if others:
        why = "they lie in segments of an axis, or differ from unit to unit of another space: see left_out"
        left_out = Absent(tuple(u.space.name for u in others), f"{len(others)} permutations", why)
        found = replace(found, absent=(*found.absent, left_out))
    said = {name: tuple(perms) for name, perms in axes_to_perm.items()}
    python = (
        "from weight_matching import permutation_spec_from_axes_to_perm\n\n"
        f"axes_to_perm = {said!r}\npermutation_spec = permutation_spec_from_axes_to_perm(axes_to_perm)\n"
    )
    return replace(found, document=document, python=python, notes=(*found.notes, *_repeated(named)))


def _whole(sym: Description, units: Sequence[Units]) -> frozenset[str]:
    """Spaces that fill a factor of every axis that carries them, in the same way for all units of other spaces."""
    free = {unit.space.name for unit in units if not unit.space.parents}
    for layout in sym.layouts.values():
        for axis in layout.axes:
            factors = {f.space for f in _factors(axis) if isinstance(f, Leaf) and f.size == sym.space(f.space).size}
            free -= {leaf.space for _, leaf in leaves(axis) if isinstance(leaf, Leaf)} - factors
    return frozenset(free)


def _factors(axis: Axis) -> Iterator[Axis]:
    if isinstance(axis, Product):
        for factor in axis.factors:
            yield from _factors(factor)
    else:
        yield axis


def _view(axis: Axis, listed: frozenset[str]) -> tuple[Axis, ...]:
    """The axis split at the listed factors; everything between them stays together."""
    alone = lambda at: at[0] if _permutation(at[1], listed) is not None else None
    pieces = [tuple(factor for _, factor in some) for _, some in groupby(enumerate(_factors(axis)), alone)]
    if len(pieces) == 1:
        return (axis,)
    return tuple(piece[0] if len(piece) == 1 else Product(piece) for piece in pieces)


def _permutation(axis: Axis, listed: frozenset[str]) -> str | None:
    return axis.space if isinstance(axis, Leaf) and axis.space in listed else None


def _numbered(views: dict[str, list[Axis]], listed: frozenset[str]) -> dict[str, list[int]]:
    """A number for each axis: one for each permutation, and one for each kind of fixed axis."""
    numbers: dict[Hashable, int] = {space: i for i, space in enumerate(sorted(listed))}
    found: dict[str, list[int]] = {}
    for name, axes in views.items():
        count: Counter[Hashable] = Counter()
        found[name] = []
        for axis in axes:
            key: Hashable = _permutation(axis, listed)
            if key is None:
                acted = lambda leaf: leaf.space if isinstance(leaf, Leaf) else leaf.reason
                kind = tuple((place, acted(leaf), leaf.size) for place, leaf in leaves(axis))
                key = kind, count[kind]  # a kernel's two axes stay apart
                count[kind] += 1
            found[name].append(numbers.setdefault(key, len(numbers)))
    return found


def _place(h: Held) -> dict[str, Any]:
    where = {"block": h.block} if h.block else {"positions": [list(p) for p in h.positions]}
    return {"tensor": h.tensor, "axis": h.axis, **where}


def _repeated(named: dict[str, list[str | None]]) -> Iterator[str]:
    """Notes on assumptions of git-re-basin that a network may violate."""
    for name, perms in named.items():
        twice = [p for p, count in Counter(filter(None, perms)).items() if count > 1]
        if twice:
            yield f"{twice[0]} moves two axes of {name}; the matching of git-re-basin assumes one"
            return


def graph(subject: Subject, proving: Proving) -> Mappings:
    """The mappings as a graph: nodes, edges and their symmetry."""
    sym, nodes = subject.sym, dict[str, dict[str, Any]]()
    for space in sym.spaces:
        group = space.group
        nodes[space.name] = {
            "id": space.name, "size": space.size, "symmetry": space.symbol, "permutes": group.permutes,
            "scales": group.scales, "signs": group.signs, "mixes": group.mixes, "parents": list(space.parents),
        }  # fmt: skip

    def parts(axis: Axis) -> Iterator[dict[str, Any]]:
        for place, leaf in leaves(axis):
            scale: list[str] = []
            if isinstance(leaf, Leaf):
                node, scale = leaf.space, [str(e) for e in leaf.scale] if any(leaf.scale) else []
            else:  # a fixed axis: one node for each reason and size
                node = f"{leaf.reason} ({leaf.size})"
                nodes.setdefault(node, {"id": node, "size": leaf.size, "symmetry": "none", "fixed": leaf.reason})
            yield {"node": node, "place": place.strip(), "scale_exponents": scale}

    edges = [
        {"tensor": name, "module": name.rpartition(".")[0], "axes": [list(parts(axis)) for axis in layout.axes]}
        for name, layout in sym.layouts.items()
    ]
    document = {"nodes": list(nodes.values()), "edges": edges, "tied": dict(sym.aliases)}
    return replace(_permuted(subject, proving, units_of(sym)), document=document)
