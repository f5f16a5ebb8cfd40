"""Similarity measures by name, and those that are invariant to what a network's symmetries do to its features."""

from collections.abc import Sequence
from functools import cache, reduce
from itertools import chain, repeat
from typing import Any

import torch
from torch import nn

from .._words import near
from ..errors import CaptureError
from ..features import Point
from ..features import batches as batching
from ..features.activations import unwrap
from ..groups import Group, Monomial, Semidirect, Trivial, name_of, named
from ..symmetry import Symmetry, symmetries
from ..symmetry.spaces import Leaf, leaves
from .base import Measure
from .measures.canonical import PWCCA, R2CCA, SVCCA, LinearRegression
from .measures.cka import CKA, kernel, kernel_names
from .measures.example_distances import CKNNA, RSA, DistanceCorrelation, MutualKNN, NeighbourJaccard
from .measures.procrustes import KINDS, Procrustes, SoftMatching

DEFAULT = ("orthogonal_procrustes_centered", "g_relu_procrustes_centered", "linear_cka", "g_relu_cka")
"""Measures that ``compare`` takes by default: the four measures of paper 1, all on centred channels."""

CENTRED = "_centered"
"""Suffix of the names of Procrustes measures on centred channels."""
_WRITTEN = ["CKA", "RBF", "SVCCA", "PWCCA", "RSA", "R2", "CCA", "CKNNA", "Jaccard", "Procrustes"]
_TITLES = {"knn": "k-NN", **{word.lower(): word for word in _WRITTEN}}  # words of names that are spelt otherwise


def register(new: Measure[Any]) -> Measure[Any]:
    """Register a measure under its name, a ``ValueError`` if another measure has it, and return it."""
    if _REGISTRY.get(new.name, new) != new:
        raise ValueError(f"measure name must be free. Got {new.name!r}, which is {_REGISTRY[new.name]!r}.")
    _REGISTRY[new.name] = new
    return new


def measure(name: str | Measure[Any]) -> Measure[Any]:
    """Find a measure by name; measures pass through.

    Raises:
        ValueError: If no measure has this name.

    Examples:
        >>> from intertwine import similarity
        >>> similarity.measure("g_relu_procrustes").group
        'positive monomial maps (permutations times positive scales per channel)'
    """
    if isinstance(name, Measure):
        return name
    if name not in _REGISTRY:
        known = measure_names()
        raise ValueError(f"measure must be one of {', '.join(known)}, or a Measure. Got {name!r}.{near(name, known)}")
    return _REGISTRY[name]


def measure_names() -> tuple[str, ...]:
    """Names of all registered measures."""
    return tuple(_REGISTRY)


def measure_title(name: str) -> str:
    """A measure's name, written for people."""
    words = name.removesuffix(CENTRED).replace("g_relu", "G-ReLU").split("_")
    title = " ".join(_TITLES.get(word, word) for word in words)
    return title[:1].upper() + title[1:] + (" (centred)" if name.endswith(CENTRED) else "")


_EVERY: tuple[Measure[Any], ...] = (
    *(Procrustes(kind, center) for kind in KINDS for center in (False, True)),
    *(CKA(kernel(name), estimator) for name in kernel_names() for estimator in ("unbiased", "biased")),
    *(SVCCA(), PWCCA(), R2CCA(), LinearRegression(), LinearRegression("backward")),
    *(DistanceCorrelation(), DistanceCorrelation("biased")),
    *(MutualKNN(), NeighbourJaccard(), CKNNA(), SoftMatching(), RSA(), RSA("euclidean")),
)
_REGISTRY: dict[str, Measure[Any]] = {one.name: one for one in _EVERY}


_OWN: dict[str, tuple[str, ...]] = {  # by the group of their invariance; the first that contains a layer's is taken
    "permutation": ("permutation_procrustes_centered",),
    "signed_permutation": ("signed_permutation_procrustes_centered",),
    "orthogonal": ("linear_cka", "orthogonal_procrustes_centered"),
    "positive_monomial": ("g_relu_cka", "g_relu_procrustes_centered"),
    "monomial": ("monomial_procrustes_centered",),
    "general_linear": ("r2_cca",),
}
SPACES = _OWN["orthogonal"]  # always measured
_UNKNOWN = ("g_relu_cka", "linear_cka", "g_relu_procrustes_centered")
_DRAWN = 16  # channels of drawn features; measures that cut off small directions leave out the last one
_EQUAL = 1e-6  # scores of drawn features that differ by less count as equal
_CHANNELS = 2  # number on which kinds of groups are compared: any number but 1, where they coincide, would do


def acting(model: nn.Module, points: Sequence[Point], batch: Any) -> tuple[tuple[str, ...], str]:
    """Groups that may move each layer's features, by name, empty where unknown; and why a capture failed."""
    model, device = unwrap(model), batching.device_of(model)
    try:
        sym = symmetries(model, batching.example(batch, 2, device))
    except CaptureError as error:
        return ("",) * len(points), str(error)
    return tuple(_kind(sym, point) for point in points), ""


def _kind(sym: Symmetry, point: Point) -> str:
    """Group on the channels of a layer, from its features or else from the one space that reads them."""
    if layout := sym.features.get(point.name):
        carried: list[Group] = [Trivial(_CHANNELS)]
        for leaf in (leaf for _, leaf in leaves(layout.axes[point.channel_dim]) if isinstance(leaf, Leaf)):
            group = sym.space(leaf.space).group
            carried.append(Monomial(_CHANNELS, scales=int(any(leaf.scale)), signs=int(any(leaf.sign))))
            carried += [group.linear.on(_CHANNELS)] if leaf.variance and isinstance(group, Semidirect) else []
        return _name(*carried)
    readers = (wire for vertex in sym.graph for wire in vertex.inputs if sym.graph[wire.source].module == point.name)
    spaces = {name for wire in readers for name in wire.spaces}
    if len(spaces) != 1:
        return ""
    group = sym.space(spaces.pop()).group
    return _name(group.linear if isinstance(group, Semidirect) else group.reduced(scales=1, signs=1).closed)


def _name(*groups: Group) -> str:
    """Smallest group that contains several, by name; empty where there is none."""
    return (name_of(reduce(Group.join, groups)) or "") if groups else ""


def larger(*kinds: str) -> str:
    """Smallest group that contains several, all by name; empty where none of them is known."""
    return _name(*(named(kind, _CHANNELS) for kind in kinds if kind))


def joined(a: Sequence[str], b: Sequence[str], paired: bool) -> tuple[str, ...]:
    """Groups that may move either side of each layer of A and its partner: the counterpart in B, or else any layer."""
    return tuple(larger(kind, *others) for kind, others in zip(a, zip(b) if paired else repeat(b)))


def default_measures(kinds: Sequence[str], otherwise: Sequence[str]) -> tuple[str, ...]:
    """Default measures: those of whole spaces and those of the networks' own groups, or else ``otherwise``."""
    own = [name for kind, names in _OWN.items() if kind in kinds for name in names]
    wanted = {*SPACES, *own} if own else {*otherwise}
    return (*(name for name in otherwise if name in wanted), *(name for name in own if name not in otherwise))


def own_measure(kind: str, measures: Sequence[str]) -> str:
    """The measure, among those given, that is invariant under a group and little else; or else one of whole spaces."""
    known = (name for own, names in _OWN.items() if larger(kind, own) == own for name in names) if kind else _UNKNOWN
    either = (one for name in known for one in (name, name.removesuffix(CENTRED)))
    forgiving = (name for name in measures if kind and forgives(name, kind))
    return next((name for name in chain(either, forgiving, SPACES) if name in measures), measures[0])


@cache
def forgives(name: str, kind: str) -> bool:
    """Whether a measure scores drawn features alike after a random element of a group has moved either side."""
    if name not in measure_names():
        return False
    generator, one = torch.Generator().manual_seed(0), measure(name)
    x, y = torch.randn(2, 60, _DRAWN, generator=generator, dtype=torch.float64) * torch.arange(1, _DRAWN + 1) ** -2.0
    moved = named(kind, _DRAWN).random(generator).apply(x)
    try:
        return max(abs(one(moved, y) - one(x, y)), abs(one(y, moved) - one(y, x))) < _EQUAL
    except (ValueError, TypeError, IndexError, RuntimeError):  # features of another form
        return False
