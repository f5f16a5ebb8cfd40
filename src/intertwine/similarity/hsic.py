"""The Hilbert-Schmidt independence criterion of two Gram matrices, unbiased or biased.

Both estimators are inner products of *centred* Gram matrices, ``<center(K), center(L)>`` over a constant. Centring
commutes with permutations of the examples, and centring a submatrix of a centred matrix equals centring the submatrix
itself. So one centred matrix per side serves scores, nulls and subsamples.
"""

import torch
from torch import Tensor

from .._words import near
from ._features import double, working_dtype

_LEAST = {"unbiased": 4, "biased": 2}  # examples, by estimator
_ROWS = 1 << 21  # elements upcast to float64 at a time


def hsic(k: Tensor, l: Tensor, estimator: str = "unbiased") -> float:
    """Estimate the Hilbert-Schmidt independence criterion of two Gram matrices.

    Unbiased (``HSIC_1``, paper 1 eq. 5.4): ``[tr(K L) + 1'K1 1'L1 / ((N-1)(N-2)) - 2 1'KL1 / (N-2)] / (N (N-3))`` with
    zeroed diagonals. Biased: ``tr(K H L H) / (N-1)^2``. The biased estimate grows with the width of the features even
    if the two sides are independent; the unbiased one may be negative.

    Raises:
        TypeError: If a matrix is not real floating point of at least 16 bits.
        ValueError: If the matrices are not square, not finite, not of one size, too small, or the estimator is unknown.

    References:
        Song, Smola, Gretton, Bedo, Borgwardt, "Feature selection via dependence maximization", JMLR 2012.
        Nguyen, Raghu, Kornblith, "Do wide and deep networks learn the same things?", ICLR 2021, eq. 3.

    Examples:
        >>> import torch
        >>> from intertwine.similarity import hsic
        >>> x = torch.eye(6, dtype=torch.float64)[:, :2]
        >>> round(hsic(x @ x.T, x @ x.T, estimator="biased"), 4)
        0.0578
    """  # noqa: DOC502 - raised by the check
    k, l = check_gram(k, "k"), check_gram(l, "l")
    if k.shape != l.shape:
        raise ValueError(f"k and l must be Gram matrices of the same examples. Got {len(k)} and {len(l)} examples.")
    n = len(k)
    scale = n * (n - 3) if check_estimator(estimator) == "unbiased" else (n - 1) ** 2
    return inner(center_gram(k, estimator), center_gram(l, estimator)) / scale


def check_gram(gram: Tensor, name: str = "gram") -> Tensor:
    """A Gram matrix, checked to be real, square and finite; half precision becomes float32."""
    if not isinstance(gram, Tensor) or not gram.is_floating_point() or gram.dtype.itemsize < 2:
        kind = gram.dtype if isinstance(gram, Tensor) else type(gram).__name__
        raise TypeError(f"{name} must be a real floating-point tensor of 16 bits or more. Got {kind}.")
    if gram.ndim != 2 or gram.shape[0] != gram.shape[1]:
        raise ValueError(f"{name} must be a square Gram matrix. Got shape {tuple(gram.shape)}.")
    if not torch.isfinite(gram).all():
        raise ValueError(f"{name} must be finite. Got NaN or infinite values.")
    return gram.detach().to(working_dtype(gram))


def check_estimator(estimator: str) -> str:
    """Name of an estimator, checked to be known."""
    if estimator not in _LEAST:
        known = ", ".join(map(repr, _LEAST))
        raise ValueError(f"estimator must be one of {known}. Got {estimator!r}.{near(estimator, _LEAST)}")
    return estimator


def center_gram(gram: Tensor, estimator: str = "unbiased") -> Tensor:
    """Centre a Gram matrix so that HSIC is an inner product: U-centring with a zero diagonal, or double centring."""
    n, least = len(gram), _LEAST[check_estimator(estimator)]
    if n < least:
        raise ValueError(f"examples must be at least {least} for the {estimator} estimator. Got {n}.")
    step = max(1, _ROWS // n)
    rows = torch.cat([double(part).sum(1) for part in gram.split(step)])
    if estimator == "unbiased":
        rows = rows - double(gram.diagonal())
        row_mean, mean = rows / (n - 2), rows.sum() / ((n - 1) * (n - 2))
    else:
        row_mean, mean = rows / n, rows.sum() / n**2
    centred = torch.empty_like(gram)
    for out, part, own in zip(centred.split(step), gram.split(step), row_mean.split(step)):
        out.copy_((double(part) - own[:, None]).sub_(row_mean).add_(mean))
    return centred.fill_diagonal_(0) if estimator == "unbiased" else centred


def inner(a: Tensor, b: Tensor) -> float:
    """Frobenius inner product in float64, without upcasting whole matrices."""
    step = max(1, _ROWS // max(1, a.shape[1]))
    return float(sum((double(x) * double(y)).sum() for x, y in zip(a.split(step), b.split(step))))
