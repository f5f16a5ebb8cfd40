"""A side of a CKA by its features: no Gram matrix where there are fewer numbers per example than examples."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from torch import Tensor

from .._features import check_distinct
from ..hsic import center_gram

_LEAST = 1e-8  # share of <K, K> that U-centring must leave: the formula takes differences


@dataclass(frozen=True)
class ExplicitSide:
    """One side of a CKA as centred features ``Z`` whose centred Gram matrix has Frobenius norm 1.

    With ``K = Z Z^T``, ``Z`` centred over examples, and ``d`` the diagonal of ``K``, the double-centred inner product
    is ``|Z_a^T Z_b|^2``, and the U-centred one, with zero diagonals, is ``|Z_a^T Z_b|^2 - n/(n-2) d_a . d_b
    + sum d_a sum d_b / ((n-1)(n-2))``: ``N D D'`` multiplications instead of ``N^2 (D + D')``.
    """

    features: Tensor = field(repr=False)
    estimator: str
    channels: int
    dead: int
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def n(self) -> int:
        """Number of examples."""
        return len(self.features)

    @property
    def gram(self) -> Tensor:
        """The centred Gram matrix at norm 1, ``(N, N)``."""
        return center_gram(self.features @ self.features.T, self.estimator)

    def take(self, index: Tensor) -> Self:
        """Return the side with the examples ``index``, centred and normalised anew."""
        index = index.to(self.features.device)
        everything = check_distinct(index, self.n)
        part = self.features[index]
        if not everything:
            unit = _unit(part, self.estimator)
            if unit is None:
                raise ValueError("features must tell examples apart. Got a subsample in which all are equally similar.")
            part = unit
        return type(self)(part, self.estimator, self.channels, self.dead, self.details)

    def inner(self, other: Self) -> float:
        """Inner product of the two centred Gram matrices."""
        return _inner(self.features, other.features, self.estimator)


def pays(features: Tensor) -> bool:
    """Whether the formula takes fewer multiplications than Gram matrices, in float64 against float32."""
    return 2 * features[0].numel() <= len(features)


def explicit_side(
    features: Tensor, estimator: str, channels: int, dead: int, details: Mapping[str, Any]
) -> ExplicitSide | None:
    """A side from features ``(N, ...)`` in float64; ``None`` where centring leaves too little for differences."""
    unit = _unit(features.flatten(1), estimator)
    return None if unit is None else ExplicitSide(unit, estimator, channels, dead, details)


def _unit(z: Tensor, estimator: str) -> Tensor | None:
    z = z - z.mean(0)
    total, size = _inner(z, z, "biased"), _inner(z, z, estimator)
    return z / size**0.25 if size > _LEAST * total else None


def _inner(x: Tensor, y: Tensor, estimator: str) -> float:
    n, product = len(x), float((x.T @ y).square().sum())
    if estimator == "biased":
        return product
    d, e = x.square().sum(1), y.square().sum(1)
    return product - n / (n - 2) * float(d @ e) + float(d.sum() * e.sum()) / ((n - 1) * (n - 2))
