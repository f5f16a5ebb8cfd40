"""Graph of a network for metanetworks: hidden spaces as nodes, tensors as edges between them, with their symmetry.

Plain JSON. A node is a space (its units may be permuted, scaled, flipped or mixed, as its symmetry says) or an axis
that stays (input, output, kernel). An edge is a tensor with the nodes of its axes, in order; an axis that is a product
or a concatenation names several.
"""

from typing import Any

from ...symmetry import Fixed, Leaf
from ...symmetry.explanation.explain import leaves
from ..exported_model import Proving, Subject
from ..permutations import permutation_entries, units_of
from ..result import Mappings


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
