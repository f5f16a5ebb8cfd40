"""Hidden units that were removed: their weights are zero after, and were not before."""

from collections.abc import Iterable, Iterator

from torch import Tensor

from ..._words import counted
from ...symmetry.action import moved
from ...symmetry.blocks import blocks
from ...symmetry.parent_axes import parent_dims
from ...symmetry.spaces import Leaf
from ...symmetry.transformation import Transformation
from .element_words import Finding
from .pairs import Pairs
from .places import place_of

_NAMED = 8


def pruned_units(pairs: Pairs, g: Transformation, pruned: Iterable[str]) -> Iterator[Finding]:
    """One finding for every space some of whose units are zero in all the tensors that were pruned."""
    gone: dict[str, Tensor] = {}
    where: dict[str, list[str]] = {}
    sym = pairs.sym
    for name in (n for n in pruned if n in sym.layouts):
        before = moved(sym, g, pairs.a, [name]).get(name, pairs.a[name])
        for block in blocks(sym.layouts[name]):
            x, y = (block.read(t) != 0 for t in (before, pairs.b[name]))
            for dim, leaf in enumerate(block.leaves):
                if isinstance(leaf, Leaf):
                    dims = parent_dims(sym.space(leaf.space), dim, block.spaces)
                    rest = [d for d in range(x.ndim) if d not in dims]
                    here = [t.permute(*dims, *rest).flatten(len(dims) - 1 if not rest else len(dims)) for t in (x, y)]
                    was, still = (t.any(-1) if rest else t for t in here)
                    zero = was & ~still
                    known = gone.get(leaf.space)
                    gone[leaf.space] = zero if known is None else known & (zero | ~was)
                    where.setdefault(leaf.space, []).append(name)
    for space, units in gone.items():
        count = int(units.sum())
        if 0 < count < units.numel():
            numbers = sorted(g[space].permutation.flatten()[units.flatten()].tolist())  # as the first network has them
            named = f" ({', '.join(map(str, numbers))})" if count <= _NAMED else ""
            text = f"{count} of {counted(units.numel(), 'unit')} of {place_of(space)} removed: their weights are zero"
            yield Finding("units removed", text + named, tuple(where[space]))
