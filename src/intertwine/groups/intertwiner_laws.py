"""Lemmas of sections E.1-E.2 as functions of any scalar function and any matrices; how far GELU is from homogeneous."""

from collections.abc import Callable, Sequence
from math import pi, sqrt

import torch
from torch import Tensor

from .measured_activations import ScalarFunction

__all__ = [
    "chain_rule_gap", "equivariance_gap", "identity_image_eigenvalues", "identity_image_is_invertible",
    "phi_by_definition", "span_representation", "ASYMPTOTIC_SLOPE", "gelu_error",
]  # fmt: skip


def identity_image_eigenvalues(sigma: ScalarFunction, n: int) -> tuple[float, float]:
    """The eigenvalues ``sigma(1) - sigma(0)`` (n - 1 times) and ``sigma(1) + (n - 1) sigma(0)`` of ``sigma(I_n)``."""
    zero, one = sigma(torch.tensor([0.0, 1.0], dtype=torch.float64)).tolist()
    return one - zero, one + (n - 1) * zero


def identity_image_is_invertible(sigma: ScalarFunction, n: int) -> bool:
    """Lemma E.7: whether ``sigma(I_n)`` is invertible, the condition of Lemma 3.1.

    The paper's condition ``sigma(1) != sigma(0)`` and ``sigma(1) != -(n - 1) sigma(0)`` is sufficient for every ``n``
    and necessary only for ``n >= 2``: for ``n = 1`` the eigenvalue ``sigma(1) - sigma(0)`` occurs ``n - 1 = 0``
    times. This function is exact for every ``n``.

    Examples:
        >>> identity_image_is_invertible(torch.relu, 3), identity_image_is_invertible(lambda x: x * 0 + 2, 3)
        (True, False)
        >>> identity_image_is_invertible(lambda x: x * 0 + 2, 1)  # where the printed condition fails
        True
    """
    repeated, single = identity_image_eigenvalues(sigma, n)
    return single != 0 and (n == 1 or repeated != 0)


def phi_by_definition(sigma: ScalarFunction, matrix: Tensor, at: float = 1.0) -> Tensor:
    """``phi(A) = sigma(A) sigma(I)^-1`` (Lemma 3.1), ``(n, n)``, for ``A`` in the intertwiner group of ``sigma``.

    For a matrix outside the group it has no meaning. ``at`` is a ``t``: ``sigma(t A) sigma(t I)^-1`` is the same for
    every ``t`` with invertible ``sigma(t I)``, which serves functions with ``sigma(1) = sigma(0)`` such as a shrinkage.

    Raises:
        ValueError: If ``sigma(t I)`` is not invertible.

    Examples:
        >>> a = torch.tensor([[0.0, 2.0], [1.0, 0.0]], dtype=torch.float64)
        >>> phi_by_definition(torch.square, a)
        tensor([[0., 4.],
                [1., 0.]], dtype=torch.float64)
    """
    n = matrix.shape[0]
    if not identity_image_is_invertible(lambda x: sigma(at * x), n):
        raise ValueError(
            f"sigma({at:g} I) must be invertible for Lemma 3.1. Got sigma({at:g}) and sigma(0) that break "
            f"Lemma E.7 at n = {n}. Try another at=."
        )
    a = matrix.to(torch.float64)
    eye = torch.eye(n, dtype=torch.float64, device=a.device)
    return torch.linalg.solve(_image(sigma, at * eye).T, _image(sigma, at * a).T).T


def equivariance_gap(sigma: ScalarFunction, a: Tensor, b: Tensor, x: Tensor | None = None) -> float:
    """Largest ``|sigma(A x) - B sigma(x)|`` over vectors ``(N, n)``, relative to the values' size.

    About 1e-15 where ``sigma A = B sigma``. Without ``x``, 256 random vectors of sizes from 0.03 to 30 are taken.

    Examples:
        >>> a = torch.diag(torch.tensor([2.0, -1.0], dtype=torch.float64))
        >>> equivariance_gap(torch.relu, a.abs(), a.abs()) < 1e-14, equivariance_gap(torch.relu, a, a) > 0.1
        (True, True)
    """
    a, b = a.to(torch.float64), b.to(torch.float64)
    if x is None:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(256, a.shape[0], generator=generator, dtype=torch.float64)
        x = (x * torch.logspace(-1.5, 1.5, 256, dtype=torch.float64)[:, None]).to(a.device)
    left, right = _image(sigma, x @ a.T), _image(sigma, x) @ b.T
    size = left.abs().amax(1) + right.abs().amax(1)
    return float(((left - right).abs().amax(1) / size.clamp_min(1e-300)).max())


def chain_rule_gap(sigma: Callable[[Tensor], Tensor], a: Tensor, b: Tensor, x: Tensor) -> float:
    """Lemma E.12: the largest entry of ``diag(sigma'(A x)) A - B diag(sigma'(x))``, zero where ``sigma A = B sigma``.

    ``sigma`` must be differentiable, by autograd, at the entries of ``x`` and ``A x``.
    """
    a, b, x = (t.to(torch.float64) for t in (a, b, x))
    slope = torch.func.grad(lambda at: sigma(at).sum())
    return float((slope(a @ x)[:, None] * a - b * slope(x)).abs().max())


def span_representation(
    functions: Sequence[Callable[[Tensor], Tensor]], transform: Callable[[Tensor], Tensor], points: Tensor
) -> tuple[Tensor, float]:
    """Remark E.6: the matrix of ``f -> f o g`` on ``V = span(f_1, ..., f_k)``, and how far ``V`` is from stable.

    ``f_i o g = sum_j M_ij f_j`` is solved by least squares over the points. For ``f_i(x) = sigma(x_i)`` and ``g`` in
    the intertwiner group, ``M = phi(g)``; ``g`` belongs to ``G_V`` exactly when the residual is zero.

    The ``k`` linearly independent functions map ``N >= k`` points ``(N, ...)`` to values ``(N,)``. Returned are ``M``,
    ``(k, k)``, and the largest relative residual.
    """
    f = torch.stack([function(points) for function in functions], dim=1)
    moved = torch.stack([function(transform(points)) for function in functions], dim=1)
    m = torch.linalg.lstsq(f, moved).solution.T
    residual = (moved - f @ m.T).abs().max() / moved.abs().max().clamp_min(1e-300)
    return m, float(residual)


def _image(sigma: ScalarFunction, matrix: Tensor) -> Tensor:
    return sigma(matrix.reshape(-1)).reshape(matrix.shape)


ASYMPTOTIC_SLOPE = sqrt(1 / 12 - 1 / (2 * pi) + 1 / (2 * pi * sqrt(3)))
"""``lim error(a) / a`` for ``a -> infinity``, 0.12675...: ``Phi(a x)`` tends to the unit step."""


def _moment(a: Tensor, b: Tensor) -> Tensor:
    """``E[x^2 Phi(a x) Phi(b x)]``."""
    a2, b2, ab = 1 + a * a, 1 + b * b, a * b
    orthant = torch.asin(ab / torch.sqrt(a2 * b2)) / (2 * pi)
    return 0.25 + orthant + ab * (1 / a2 + 1 / b2) / (2 * pi * torch.sqrt(a2 + b * b))


def gelu_error(a: float | Tensor) -> Tensor:
    """Root-mean-square failure of ``GELU(a x) = a GELU(x)`` for standard normal ``x`` (v2 E.2.1, eq. E.22-E.23).

    ``sqrt(E[(GELU(a x) - a GELU(x))^2]) = |a| sqrt(E[x^2 (Phi(a x) - Phi(x))^2])``: 0 at ``a = 0`` and ``a = 1``, and
    asymptotically ``ASYMPTOTIC_SLOPE * a``. The paper estimates it by sampling and calls it intractable; it has a
    closed form. With ``f(a, b) = E[x^2 Phi(a x) Phi(b x)]``, Stein's lemma ``E[x^2 h] = E[h] + E[x h']`` for ``h =
    Phi(a x) Phi(b x)`` leaves ``E[h]``, an orthant probability that the arcsine law gives, and Gaussian integrals
    ``E[x phi(a x) Phi(b x)] = b / (2 pi (1 + a^2) sqrt(1 + a^2 + b^2))``:

        f(a, b) = 1/4 + asin(a b / sqrt((1 + a^2)(1 + b^2))) / (2 pi)
                  + a b (1 / (1 + a^2) + 1 / (1 + b^2)) / (2 pi sqrt(1 + a^2 + b^2)).

    Returns:
        The errors in float64, of the shape of ``a``; absolute rounding error below 2e-8 ``|a|`` (near ``a = 1``,
        where terms cancel).

    Examples:
        >>> [round(float(e), 4) for e in gelu_error(torch.tensor([0.25, 0.5, 1.0, 2.0, 4.0, 10.0]))]
        [0.065, 0.0687, 0.0, 0.1767, 0.4762, 1.2611]
    """
    a = torch.as_tensor(a, dtype=torch.float64)
    one = torch.ones_like(a)
    square = _moment(a, a) - 2 * _moment(a, one) + _moment(one, one)
    return a.abs() * square.clamp_min(0).sqrt()
