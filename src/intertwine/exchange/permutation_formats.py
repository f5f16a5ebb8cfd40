"""Formats of permutations: Torch-Pruning, git-re-basin and universal neural functionals, metanetworks.

A unit is what may be removed at once: a channel, a head of attention with all of its channels, a group of query heads
with the key and value head that they share, a hidden unit of a gated MLP in all of its tensors. Torch-Pruning calls the
same a group of (layer, pruning function, indices); ``iw.exchange.prune_channels`` removes them.

git-re-basin (Ainsworth et al. 2023, ``weight_matching.py``) takes ``axes_to_perm``: for every tensor a tuple with the
name of a permutation for each axis, or ``None`` where there is none. universal_neural_functional (Zhou et al. 2024,
``layers.py``) takes ``perm_spec``: a whole number for each axis, where equal numbers mean one permutation. It has no
axes that stay, and permutes inputs and outputs too: every such axis gets a number of its own, which asks for more
equivariance than the network has, never for less.

Both know whole axes only. Where a permutation moves blocks of an axis (heads; channels before a flatten), ``views``
holds the shape that the tensor must be given first, with one axis for the blocks; the specification is that of the
view. Permutations that lie in one segment of an axis (packed projections, concatenations), or differ from head to
head, are in ``left_out`` with the places of their units, and are nowhere else: a permutation of which a tool knew only
some axes would change the function.

Graphs for metanetworks are plain JSON. A node is a space (its units may be permuted, scaled, flipped or mixed, as its
symmetry says) or an axis that stays (input, output, kernel). An edge is a tensor with the nodes of its axes, in order;
an axis that is a product or a concatenation names several.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from ..symmetry import Axis, Fixed, Leaf, Product
from ..symmetry.description import Description
from ..symmetry.spaces import axis_size, leaves
from .exported_model import Proving, Subject
from .permutations import Held, Units, permutation_entries, units_of
from .result import Absent, Mappings


def groups(subject: Subject, proving: Proving) -> Mappings:
    """One group for each space whose units may be removed."""
    units = units_of(subject.sym)
    entries, absent = permutation_entries(subject, proving, units)

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
    return Mappings("", "", entries, absent, {"groups": said}, notes=proving.notes)


def specification(subject: Subject, proving: Proving) -> Mappings:
    """The permutation of every tensor axis."""
    sym = subject.sym
    units = units_of(sym)
    entries, absent = permutation_entries(subject, proving, units)
    listed = _whole(sym, units)
    views = {name: [piece for axis in lay.axes for piece in _view(axis, listed)] for name, lay in sym.layouts.items()}
    named = {name: [_permutation(axis, listed) for axis in view] for name, view in views.items()}
    numbers = _numbered(views, listed)
    reshaped = {n: [axis_size(axis) for axis in v] for n, v in views.items() if len(v) > len(sym.layouts[n].axes)}
    others = [unit for unit in units if unit.space.name not in listed]
    state = {} if subject.network is None else subject.network.state_dict()  # with tied names and buffers that stay
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
        absent = (*absent, Absent(tuple(u.space.name for u in others), f"{len(others)} permutations", why))
    return Mappings("", "", entries, absent, document, _python(axes_to_perm), (*proving.notes, *_repeated(named)))


def _whole(sym: Description, units: Sequence[Units]) -> frozenset[str]:
    """Spaces that fill a factor of every axis that carries them, alike under all units of other spaces."""
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
    """The axis cut at the factors that are listed; what lies between them stays together."""
    pieces: list[list[Axis]] = []
    for factor in _factors(axis):
        alone = _permutation(factor, listed) is not None
        if alone or not pieces or _permutation(pieces[-1][0], listed) is not None:
            pieces.append([factor])
        else:
            pieces[-1].append(factor)
    if len(pieces) == 1:
        return (axis,)
    return tuple(piece[0] if len(piece) == 1 else Product(tuple(piece)) for piece in pieces)


def _permutation(axis: Axis, listed: frozenset[str]) -> str | None:
    return axis.space if isinstance(axis, Leaf) and axis.space in listed else None


def _numbered(views: dict[str, list[Axis]], listed: frozenset[str]) -> dict[str, list[int]]:
    """A number for each axis: one for each permutation, one for each kind of axis that stays."""
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
    """What git-re-basin assumes and a network may not keep."""
    for name, perms in named.items():
        twice = [p for p, count in Counter(filter(None, perms)).items() if count > 1]
        if twice:
            yield f"{twice[0]} moves two axes of {name}; the matching of git-re-basin assumes one"
            return


def _python(axes_to_perm: dict[str, list[str | None]]) -> str:
    named = {name: tuple(perms) for name, perms in axes_to_perm.items()}
    return (
        "from weight_matching import permutation_spec_from_axes_to_perm\n\n"
        f"axes_to_perm = {named!r}\npermutation_spec = permutation_spec_from_axes_to_perm(axes_to_perm)\n"
    )


def graph(subject: Subject, proving: Proving) -> Mappings:
    """Nodes, edges and their symmetry."""
    entries, absent = permutation_entries(subject, proving, units_of(subject.sym))
    nodes: dict[str, dict[str, Any]] = {}
    for space in subject.sym.spaces:
        group = space.group
        nodes[space.name] = {
            "id": space.name, "size": space.size, "symmetry": space.symbol, "permutes": group.permutes,
            "scales": group.scales, "signs": group.signs, "mixes": group.mixes, "parents": list(space.parents),
        }  # fmt: skip
    edges = []
    for name, layout in subject.sym.layouts.items():
        axes = []
        for axis in layout.axes:
            parts = []
            for place, leaf in leaves(axis):
                node = leaf.space if isinstance(leaf, Leaf) else _still(nodes, leaf)
                scale = [str(e) for e in leaf.scale] if isinstance(leaf, Leaf) and any(leaf.scale) else []
                parts.append({"node": node, "place": place.strip(), "scale_exponents": scale})
            axes.append(parts)
        edges.append({"tensor": name, "module": name.rpartition(".")[0], "axes": axes})
    document = {"nodes": list(nodes.values()), "edges": edges, "tied": dict(subject.sym.aliases)}
    return Mappings("", "", entries, absent, document, notes=proving.notes)


def _still(nodes: dict[str, dict[str, Any]], leaf: Fixed) -> str:
    """The node of an axis that stays, one for each reason and size."""
    name = f"{leaf.reason} ({leaf.size})"
    nodes.setdefault(name, {"id": name, "size": leaf.size, "symmetry": "none", "fixed": leaf.reason})
    return name
