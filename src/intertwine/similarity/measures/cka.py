"""Centred kernel alignment with any kernel, unbiased by default."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import acos
from typing import Any, Self

import torch
from torch import Tensor

from ..._words import near
from .._features import Moments, channels_first, check_distinct, check_same_examples, positions_last
from ..base import Measure, P, PairwiseSide, check_same_size, living_channels
from ..hsic import center_gram, check_estimator, check_gram, inner
from .kernels import ChannelNormalizedKernel, GatesKernel, Kernel, LaplaceKernel, LinearKernel, MaxKernel, RBFKernel

_LEAST = 1e-8  # share of <K, K> that U-centring must leave, as the formula takes differences
_EVERY = (LinearKernel(), MaxKernel(), LaplaceKernel(), RBFKernel(), GatesKernel(), ChannelNormalizedKernel())
_KERNELS: dict[str, Kernel] = {k.name: k for k in _EVERY}


def kernel(name: str | Kernel) -> Kernel:
    """Find a kernel by name, a ``ValueError`` if there is none; kernels pass through."""
    if isinstance(name, Kernel):
        return name
    if name not in _KERNELS:
        known = ", ".join(map(repr, _KERNELS))
        raise ValueError(f"kernel must be one of {known}, or a Kernel. Got {name!r}.{near(name, _KERNELS)}")
    return _KERNELS[name]


def kernel_names() -> tuple[str, ...]:
    """Names of all kernels."""
    return tuple(_KERNELS)


@dataclass(frozen=True)
class GramSide(PairwiseSide):
    """One side of a CKA: its centred Gram matrix at Frobenius norm 1; the CKA of two sides is their inner product.

    For some of the examples, the submatrix is centred and normalised anew, but what the kernel learned from all
    examples (channel means and norms, a bandwidth) stays.
    """

    estimator: str = field(kw_only=True)

    def _taken(self, part: Tensor, index: Tensor, everything: bool) -> Self:
        return replace(self, gram=part if everything else _unit(part, self.estimator))


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
        index, everything = check_distinct(index, self.features, self.n)
        unit = self.features[index] if everything else _unit_features(self.features[index], self.estimator)
        if unit is None:
            raise ValueError("features must tell examples apart. Got a subsample in which all are equally similar.")
        return replace(self, features=unit)


def _unit_features(z: Tensor, estimator: str) -> Tensor | None:
    """Features of an explicit side; ``None`` where centring leaves too little to take differences of."""
    z = z - z.mean(0)
    total, size = _inner(z, z, "biased"), _inner(z, z, estimator)
    return z / size**0.25 if size > _LEAST * total else None


def _inner(x: Tensor, y: Tensor, estimator: str) -> float:
    n, product = len(x), float((x.T @ y).square().sum())
    if estimator == "biased":
        return product
    d, e = x.square().sum(1), y.square().sum(1)
    return product - n / (n - 2) * float(d @ e) + float(d.sum() * e.sum()) / ((n - 1) * (n - 2))


class Aligned(Measure[P]):
    """Inner products of matrices over pairs of examples, centred by an ``estimator`` and scaled to norm 1."""

    estimator: str
    psd: bool
    metric = True
    pairwise = True

    def __post_init__(self) -> None:
        # 0 to 1 for the biased estimator of a positive semi-definite kernel, -1 to 1 otherwise
        vars(self)["range"] = (0.0 if check_estimator(self.estimator) == "biased" and self.psd else -1.0), 1.0

    def to_distance(self, score: float, a: P, b: P) -> float:
        """Angle between the centred matrices, ``arccos(score)``: a metric, in radians."""
        return acos(score)

    def floor(self, a: P, b: P) -> float | None:
        """0 where scores cannot be negative; elsewhere no bound above -1 is known."""
        return 0.0 if self.range[0] == 0 else None


@dataclass(frozen=True)
class CKA(Aligned[GramSide | ExplicitSide]):
    """Centred kernel alignment: ``HSIC(K, L) / sqrt(HSIC(K, K) HSIC(L, L))`` (paper 1, definition 5.3, eq. 5.4).

    ``K[m, n] = k(x_m, x_n)`` compares two examples of one side. Each feature map in ``(N, C, *S)`` is one example: the
    kernels of G_ReLU-CKA (``"max"``, ``"laplace"``) take every channel's mean and norm over examples and positions, and
    sum over positions channel by channel; the linear kernel is ``sum over c, s of x[m, c, s] x[n, c, s]``.

    Raises:
        ValueError: If the kernel or the estimator is unknown.
    """

    kernel: Kernel = field(default_factory=LinearKernel)  # Kernel that compares two examples of one side, or its name
    # ``"unbiased"`` (0 on average for independent sides, may be negative) or ``"biased"`` (near 1 for wide features
    # even when they are independent)
    estimator: str = "unbiased"

    def __post_init__(self) -> None:
        k = kernel(self.kernel)
        vars(self).update(kernel=k, stem=k.measure, group=k.group, psd=k.psd, reads_gates=k.reads_gates)
        super().__post_init__()

    def prepare(self, x: Tensor, channel_dim: int = 1) -> GramSide | ExplicitSide:
        """Compute, centre and normalise the Gram matrix; or the features instead, where they are fewer numbers."""
        x, m, dead = living_channels(x, channel_dim)
        if 2 * x[0].numel() <= len(x) and (numbers := self.kernel.explicit(x, m)) is not None:  # it is less work
            unit = _unit_features(numbers.flatten(1), self.estimator)
            if unit is not None:
                return ExplicitSide(unit, self.estimator, x.shape[1] + dead, dead)
        return self._by_gram(x, m, dead)

    def gram_side(self, x: Tensor, channel_dim: int = 1) -> GramSide:
        """Compute the Gram matrix whatever the number of channels, for use in many pairs, shuffles and subsamples."""
        return self._by_gram(*living_channels(x, channel_dim))

    def _by_gram(self, x: Tensor, m: Moments, dead: int) -> GramSide:
        gram, details = self.kernel.gram(x, m)
        return prepare_gram(gram, self.estimator, channels=x.shape[1] + dead, dead=dead, details=details)

    def _compared(self, a: GramSide | ExplicitSide, b: GramSide | ExplicitSide) -> float:
        if not a.estimator == b.estimator == self.estimator:
            raise ValueError(
                f"both sides must be prepared for the {self.estimator} estimator. Got {a.estimator} and {b.estimator}."
            )
        if isinstance(a, ExplicitSide) and isinstance(b, ExplicitSide):
            return _inner(a.features, b.features, self.estimator)
        return inner(a.gram, b.gram)


def prepare_gram(
    gram: Tensor,
    estimator: str = "unbiased",
    *,
    channels: int = 0,
    dead: int = 0,
    details: Mapping[str, Any] | None = None,
) -> GramSide:
    """Turn any Gram matrix into a side of a CKA, such as one that was streamed or computed elsewhere.

    Raises:
        TypeError: If it is not a real floating-point matrix.
        ValueError: If the matrix is not finite, constant after centring, or too small; or the estimator is unknown.
    """  # noqa: DOC502 - raised by the centring
    return GramSide(_unit(check_gram(gram), estimator), channels, dead, details or {}, estimator=estimator)


def _unit(gram: Tensor, estimator: str) -> Tensor:
    centred = center_gram(gram, estimator)
    size, total = inner(centred, centred) ** 0.5, inner(gram, gram) ** 0.5
    if size <= 8 * torch.finfo(gram.dtype).eps * total:
        raise ValueError(
            "features must tell examples apart. Got a Gram matrix that is constant after centring: all pairs of "
            "different examples are equally similar, and the score would be 0/0. Use more examples, or leave this "
            "layer out."
        )
    return centred.div_(size)


def cka(
    x: Tensor, y: Tensor, kernel: str | Kernel = "linear", estimator: str = "unbiased", *, channel_dim: int = 1
) -> float:
    """Centred kernel alignment of two sets of features ``(N, C, *S)`` of the same examples, as :class:`CKA` defines it.

    Spatial axes are summed over inside the kernel (paper 1, section D.7.2), so widths and resolutions may differ. The
    kernel is ``"linear"``, ``"max"`` (G_ReLU-CKA), ``"laplace"``, ``"rbf"``, ``"gates"`` (which units are on),
    ``"channel_normalized"`` or a ``Kernel``. The estimator is ``"unbiased"`` or ``"biased"``.

    Raises:
        TypeError: If ``x`` or ``y`` is not a dense floating-point tensor.
        ValueError: If they hold NaN or infinities, fewer than 4 examples, different numbers of examples, or nothing
            that tells examples apart; or if the kernel or the estimator is unknown.

    Examples:
        >>> import torch
        >>> from intertwine.similarity import cka
        >>> g = torch.Generator().manual_seed(0)
        >>> x, y = torch.randn(200, 64, generator=g), torch.randn(200, 64, generator=g)
        >>> rotation = torch.linalg.qr(torch.randn(64, 64, generator=g)).Q
        >>> round(cka(x, x @ rotation), 6)
        1.0
        >>> abs(cka(x, y)) < 0.05, cka(x, y, estimator="biased") > 0.1
        (True, True)
    """  # noqa: DOC502 - raised by the checks of the measure
    return CKA(kernel, estimator)(x, y, channel_dim)  # type: ignore[arg-type]


def location_cka(
    x: Tensor,
    y: Tensor,
    kernel: str | Kernel = "max",
    *,
    samples: int | None = 10_000,
    seed: int = 0,
    channel_dim: int = 1,
) -> float:
    """CKA between features at single positions instead of whole examples (paper 1, v2 remark D.3, v1 remark D.2).

    Differs from the other CKAs: nothing is summed over space, so positions of ``(N, C, *S)`` and ``(N, C', *S)`` must
    correspond, and the ``P`` rows of one example are not independent. If there are more than ``samples`` locations,
    that many are drawn without replacement from a ``seed`` (``None`` takes all), and channels are centred, and
    normalised, over these. With a kernel of channels it takes time ``n^2 C`` and memory ``n^2`` for ``n`` locations.

    Raises:
        TypeError: If ``x`` or ``y`` is not a dense floating-point tensor.
        ValueError: If the kernel is unknown, positions differ, there are fewer than 4 locations, or a side is constant.

    Examples:
        >>> import torch
        >>> from intertwine.similarity import location_cka
        >>> x = torch.randn(20, 8, 4, 4, generator=torch.Generator().manual_seed(0))
        >>> round(location_cka(x, -2 * x.flip(1)), 6), location_cka(x, x.flip(2)) < 0.5  # positions must correspond
        (1.0, True)
    """  # noqa: DOC502 - raised by the checks of the measure
    sides = [channels_first(side, channel_dim, name) for side, name in ((x, "x"), (y, "y"))]
    check_same_examples(len(sides[0]), len(sides[1]))
    check_same_size(*(tuple(side.shape[2:]) for side in sides))
    rows = [positions_last(side).mT.flatten(0, 1) for side in sides]
    if samples is not None and samples < len(rows[0]):
        chosen = torch.randperm(len(rows[0]), generator=torch.Generator().manual_seed(seed))[:samples]
        rows = [side[chosen.to(side.device)] for side in rows]
    return cka(rows[0], rows[1], kernel)
