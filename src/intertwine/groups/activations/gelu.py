"""The distance of GELU from being homogeneous (v2 E.2.1, eq. E.22-E.23), in closed form.

The paper estimates the error by sampling and calls it intractable; it has a closed form. With

    f(a, b) = E[x^2 Phi(a x) Phi(b x)],   x standard normal,

Stein's lemma ``E[x^2 h] = E[h] + E[x h']`` for ``h = Phi(a x) Phi(b x)`` leaves ``E[h]``, an orthant probability that
the arcsine law gives, and Gaussian integrals ``E[x phi(a x) Phi(b x)] = b / (2 pi (1 + a^2) sqrt(1 + a^2 + b^2))``:

    f(a, b) = 1/4 + asin(a b / sqrt((1 + a^2)(1 + b^2))) / (2 pi)
              + a b (1 / (1 + a^2) + 1 / (1 + b^2)) / (2 pi sqrt(1 + a^2 + b^2)).
"""

from math import pi, sqrt

import torch
from torch import Tensor

__all__ = ["ASYMPTOTIC_SLOPE", "gelu_error"]

ASYMPTOTIC_SLOPE = sqrt(1 / 12 - 1 / (2 * pi) + 1 / (2 * pi * sqrt(3)))
"""``lim error(a) / a`` for ``a -> infinity``, 0.12675...: ``Phi(a x)`` tends to the unit step."""


def _moment(a: Tensor, b: Tensor) -> Tensor:
    """``E[x^2 Phi(a x) Phi(b x)]``."""
    a2, b2, ab = 1 + a * a, 1 + b * b, a * b
    orthant = torch.asin(ab / torch.sqrt(a2 * b2)) / (2 * pi)
    return 0.25 + orthant + ab * (1 / a2 + 1 / b2) / (2 * pi * torch.sqrt(a2 + b * b))


def gelu_error(a: float | Tensor) -> Tensor:
    """Root-mean-square failure of ``GELU(a x) = a GELU(x)`` for standard normal ``x``.

    ``sqrt(E[(GELU(a x) - a GELU(x))^2]) = |a| sqrt(E[x^2 (Phi(a x) - Phi(x))^2])``: 0 at ``a = 0`` and ``a = 1``, and
    asymptotically ``ASYMPTOTIC_SLOPE * a``.

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
