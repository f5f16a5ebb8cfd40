"""Similarity measures by name."""

from typing import Any

from .._words import near
from .base import Measure
from .measures.canonical import PWCCA, R2CCA, SVCCA, LinearRegression
from .measures.cka import CKA, kernel, kernel_names
from .measures.example_distances import CKNNA, RSA, DistanceCorrelation, MutualKNN, NeighbourJaccard
from .measures.procrustes import KINDS, Procrustes, SoftMatching

DEFAULT = ("orthogonal_procrustes_centered", "g_relu_procrustes_centered", "linear_cka", "g_relu_cka")
"""What ``compare`` measures unless told otherwise: the four measures of paper 1, of centred channels all of them."""

CENTRED = "_centered"
"""What Procrustes on centred channels has behind its name."""
_WRITTEN = ["CKA", "RBF", "SVCCA", "PWCCA", "RSA", "R2", "CCA", "CKNNA", "Jaccard", "Procrustes"]
_TITLES = {"knn": "k-NN", **{word.lower(): word for word in _WRITTEN}}  # words of names that people write otherwise


def register(new: Measure[Any]) -> Measure[Any]:
    """Give a measure its name in the registry, and return it.

    Raises:
        ValueError: If another measure has the name.
    """
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
    """A measure's name for people.

    Examples:
        >>> measure_title("g_relu_cka"), measure_title("orthogonal_procrustes_centered")
        ('G-ReLU CKA', 'Orthogonal Procrustes (centred)')
    """
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
