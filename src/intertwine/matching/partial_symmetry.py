"""The symmetry of some of the tensors of a network."""

from collections.abc import Collection
from dataclasses import replace

from ..symmetry.symmetry import Symmetry


def narrowed(sym: Symmetry, names: Collection[str]) -> Symmetry:
    """What a symmetry says of some of its tensors; its spaces stay, also those that none of the tensors carries."""
    if sym.layouts.keys() <= {*names}:
        return sym
    norms = tuple(
        norm for norm in sym.batch_norms if {norm.mean, norm.variance, norm.weight, norm.bias} - {None} <= {*names}
    )
    return replace(sym, layouts={n: layout for n, layout in sym.layouts.items() if n in names}, batch_norms=norms)
