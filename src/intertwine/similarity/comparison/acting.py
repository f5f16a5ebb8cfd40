"""Maps that a network's own symmetries apply to its features, and the measures that forgive just those."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from ..._nested import map_tensors
from ...errors import CaptureError
from ...features import Point
from ...features import batches as batching
from ...features._hooks import unwrap
from ...symmetry import Symmetry, symmetries
from ...symmetry.spaces import Axis, Leaf, leaves

KINDS = ("none", "permutation", "signed permutation", "positive monomial", "monomial", "linear")
"""From the smallest group to the largest."""

_CENTRED = "_centered"  # what Procrustes on centred channels has behind its name
_SPACES = ("orthogonal_procrustes_centered", "linear_cka")  # measured always
_OWN: dict[str, tuple[str, ...]] = {
    "permutation": ("permutation_procrustes_centered",),
    "signed permutation": ("signed_permutation_procrustes_centered",),
    "positive monomial": ("g_relu_cka", "g_relu_procrustes_centered"),
    "monomial": ("monomial_procrustes_centered",),
    "linear": ("linear_cka", "orthogonal_procrustes_centered"),
}
_UNKNOWN = ("g_relu_cka", "linear_cka", "g_relu_procrustes_centered")


def acting(model: nn.Module, points: Sequence[Point], batch: Any) -> tuple[tuple[str, ...], str]:
    """The kind of maps by which other weights of the same function may move each layer's features.

    Returns:
        One of ``KINDS`` for every layer, empty where it is not known; and why, where the model could not be captured.
    """
    model, device = unwrap(model), batching.device_of(model)
    example = map_tensors(batching.head(batch, 2), lambda x: x.to(device or x.device))
    inputs = example[0] if isinstance(example, tuple) and isinstance(example[0], tuple) else example
    try:
        sym = symmetries(model, inputs)
    except CaptureError as error:
        return ("",) * len(points), str(error)
    return tuple(_kind(sym, point) for point in points), ""


def _kind(sym: Symmetry, point: Point) -> str:
    """The kind of maps on the channels of a layer, from its features or else from the one space that reads them."""
    if layout := sym.features.get(point.name):
        return kind_of(layout.axes[point.channel_dim])
    readers = (wire for vertex in sym.graph for wire in vertex.inputs if sym.graph[wire.source].module == point.name)
    spaces = {name for wire in readers for name in wire.spaces}
    if len(spaces) != 1:
        return ""
    group = sym.space(spaces.pop()).group
    return "linear" if group.mixes else _word(bool(group.scales), bool(group.signs))


def kind_of(axis: Axis) -> str:
    """The kind of maps that act on an axis."""
    found = [leaf for _, leaf in leaves(axis) if isinstance(leaf, Leaf)]
    if not found:
        return "none"
    scaled, signed = (any(any(getattr(leaf, what)) for leaf in found) for what in ("scale", "sign"))
    if any(leaf.variance for leaf in found):
        return "linear"
    return _word(scaled, signed)


def _word(scaled: bool, signed: bool) -> str:
    if scaled:
        return "monomial" if signed else "positive monomial"
    return "signed permutation" if signed else "permutation"


def default_measures(kinds: Sequence[str], otherwise: Sequence[str]) -> tuple[str, ...]:
    """What to compare by: measures of whole spaces, and those whose group is the networks' own.

    Args:
        kinds: Of all layers of both networks.
        otherwise: What to compare by where nothing is known of them; also the order.
    """
    own = [name for kind in KINDS if kind in kinds for name in _OWN.get(kind, ())]
    wanted = {*_SPACES, *own} if own else {*otherwise}
    return (*(name for name in otherwise if name in wanted), *(name for name in own if name not in otherwise))


def larger(kind: str, other: str) -> str:
    """The larger one of two kinds of maps; empty where nothing is known of either."""
    return max((kind, other), key=lambda one: KINDS.index(one) if one else -1)


def own_measure(kind: str, measures: Sequence[str]) -> str:
    """The measure, of those that there are, whose group is of this kind, centred or not; else one of whole spaces."""
    wanted = (*_OWN[kind], *_SPACES[::-1]) if kind in _OWN else _UNKNOWN
    either = (one for name in wanted for one in (name, name.removesuffix(_CENTRED)))
    return next((name for name in either if name in measures), measures[0])
