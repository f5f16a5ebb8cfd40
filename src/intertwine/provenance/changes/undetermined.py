"""Tensors of which it cannot be told whether they changed: a scale explains them that only lost tensors share."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..._words import counted
from ...matching.consensus.pinned import Freedom, moving
from ...symmetry.symmetry import Symmetry
from ...symmetry.transformation import Transformation
from .element_words import Finding
from .tensor_change import UNDETERMINED, TensorChange

_LOST = ("replaced", "constant")  # nothing is left of what a scale did to them


def told_apart(changes: Sequence[TensorChange], sym: Symmetry, g: Transformation) -> list[TensorChange]:
    """Changes, those of vectors marked that may as well have been rescaled with tensors of which nothing is left.

    A gain is such where all that reads it was replaced: its units could have any scales. Where ``g`` rescales nothing
    else, none was.
    """
    if all(e.restrict({"scale", "sign", "linear"}).is_identity(0.0) for e in g.elements.values()):
        return list(changes)
    sharing: dict[Freedom, list[TensorChange]] = {}
    for c in changes:
        for freedom in moving(sym.layouts[c.name]) if c.name in sym.layouts else ():
            sharing.setdefault(freedom, []).append(c)

    def free(c: TensorChange) -> bool:
        scales = [f for f in moving(sym.layouts[c.name]) if f[1] == "scale"]
        rest = [[other for other in sharing[f] if other.name != c.name] for f in scales]
        return any(others and all(other.kind in _LOST for other in others) for others in rest)

    def told(c: TensorChange) -> TensorChange:
        vector = c.name in sym.layouts and not c.settled and len(c.shape) == 1 and c.zeros[0] == c.zeros[1]
        return replace(c, kind=UNDETERMINED, detail="", rank=None) if vector and free(c) else c

    return [told(c) for c in changes]


def undetermined_findings(changes: Sequence[TensorChange]) -> Iterator[Finding]:
    """What cannot be told, in a sentence."""
    names = tuple(c.name for c in changes if c.kind == UNDETERMINED)
    if names:
        said = ", ".join([*names[:3], *["..."][: len(names) > 3]])
        text = f"cannot be told of {counted(len(names), 'tensor')} ({said}): changed, or as before and rescaled "
        yield Finding(UNDETERMINED, f"{text}together with what was replaced", names)
