"""Groups of Torch-Pruning: channels that must go together, with the layers, functions and indices of each.

A unit is what may be removed at once: a channel, a head of attention with all of its channels, a group of query heads
with the key and value head that they share, a hidden unit of a gated MLP in all of its tensors. Torch-Pruning calls the
same a group of (layer, pruning function, indices); ``iw.exchange.prune_channels`` removes them.
"""

from typing import Any

from ..exported_model import Proving, Subject
from ..permutations import Units, permutation_entries, units_of
from ..result import Mappings
from ..units import Held


def groups(subject: Subject, proving: Proving) -> Mappings:
    """One group for each space whose units may be removed."""
    units = units_of(subject.sym)
    entries, absent = permutation_entries(subject, proving, units)
    document = {"groups": [_group(unit) for unit in units]}
    return Mappings("", "", entries, absent, document, notes=proving.notes)


def _group(units: Units) -> dict[str, Any]:
    return {
        "name": units.space.name,
        "units": units.space.size,
        "for_each_unit_of": list(units.space.parents),
        "members": [
            {"module": h.tensor.rpartition(".")[0], "tensor": h.tensor, "axis": h.axis, **_indices(h)}
            for h in units.held
        ],
    }


def _indices(held: Held) -> dict[str, Any]:
    """Positions of every unit: in order and in blocks, or one by one."""
    if held.block:
        return {"channels_of_unit": held.block}
    return {"channels_of_unit": len(held.positions[0]), "positions": [list(places) for places in held.positions]}
