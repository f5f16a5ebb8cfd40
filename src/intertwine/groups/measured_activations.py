"""Homogeneity of any scalar function, measured in float64.

Scales and parity are tested on a grid over twelve orders of magnitude, with both signs; the largest relative residual
of the accepted laws is the certificate. Exact laws leave a few units of rounding (1e-15); the tolerance is 1e-9. A
user's activation is first evaluated as a scalar function, and whatever could mislead is refused.

Limits that the caller should know: a function that breaks a law by less than the tolerance relative to its own value
(``relu(x) (1 + 1e-10 sin x)``) counts as obeying it; features outside ``1e-6 <= |x| <= 1e6`` are not seen (a clamp at
1e8 counts as linear); groups with only discrete scales (``x sin(2 pi log|x|)`` allows ``a = e^k``) are reported without
them, which is sound but not complete. Activations of the table are therefore never measured.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import log
from typing import Any

import torch
from torch import Tensor, nn

from .activations import Homogeneity, Parity

__all__ = ["ScalarFunction", "as_scalar_function", "Measurement", "measure"]

ScalarFunction = Callable[[Tensor], Tensor]


def as_scalar_function(activation: Callable[..., Any]) -> ScalarFunction:
    """A function from float64 vectors to float64 vectors that applies ``activation`` to every entry.

    Modules are copied, put in evaluation mode and cast to float64; the caller's module is left as it is. Functions of
    one Python number (``math.tanh``) are applied entry by entry. Every call checks shape and dtype of the result.

    Raises:
        TypeError: If ``activation`` is not callable.
        ValueError: If it is not deterministic, or entries influence each other (softmax, normalisation).
    """
    if not callable(activation):
        raise TypeError(
            f"activation must be a name, a module or a function. Got {type(activation).__name__}. "
            "intertwine.groups.activation_names() lists the names."
        )
    fn = copy.deepcopy(activation).eval().double() if isinstance(activation, nn.Module) else activation
    label = getattr(activation, "__name__", type(activation).__name__)

    def scalar(x: Tensor) -> Tensor:
        with torch.no_grad():
            # never one entry alone: `math` functions would take it for a number, normalisations for a constant
            return _evaluate(fn, x.repeat(2), label)[: len(x)]

    x = torch.tensor([-1.5, -0.75, -0.1, 0.2, 0.6, 1.0, 1.7, 2.4], dtype=torch.float64)
    y = scalar(x)
    if not torch.equal(y.nan_to_num(), scalar(x).nan_to_num()):
        raise ValueError(
            f"activation must be deterministic. Got {label!r}, whose two runs differ. Put it in eval mode."
        )
    alone = torch.cat([scalar(x[i : i + 1]) for i in range(len(x))])
    if not torch.allclose(y, alone, rtol=1e-12, atol=1e-12, equal_nan=True):
        raise ValueError(
            f"activation must act on every entry alone. Got {label!r}, whose entries influence each other "
            "(softmax, normalisation and pooling have no scalar activation)."
        )
    return scalar


def _evaluate(fn: Callable[..., Any], x: Tensor, label: str) -> Tensor:
    try:
        y = fn(x.clone())
    except (TypeError, ValueError, RuntimeError) as error:
        y = _entry_by_entry(fn, x, label, error)
    y = torch.as_tensor(y)
    if y.shape != x.shape:
        raise ValueError(
            f"activation must return the shape it gets. Got {label!r}: {tuple(x.shape)} to {tuple(y.shape)}. "
            "Gated units halve their input: use intertwiner('swiglu') and its kin."
        )
    if y.is_floating_point() and torch.finfo(y.dtype).eps > torch.finfo(torch.float64).eps:
        raise ValueError(
            f"activation must compute in float64 for its group to be measured. Got {label!r}, which returns {y.dtype}."
        )
    return y.detach().to(torch.float64)


def _entry_by_entry(fn: Callable[..., Any], x: Tensor, label: str, cause: Exception) -> Tensor:
    def one(v: float) -> float:
        try:
            return float(fn(v))
        except (ArithmeticError, ValueError):  # outside the range or the domain of a function of `math`
            return float("nan")
        except (TypeError, AttributeError, RuntimeError):
            raise ValueError(
                f"activation must accept one tensor or one number. Got {label!r}, which fails: {cause}"
            ) from None

    return torch.tensor([one(v) for v in x.tolist()], dtype=torch.float64)


TOLERANCE = 1e-9
_SCALES = (1.3137, 0.7071, 2.718, 0.2113)
_TINY = 1e-290  # values below lose relative precision


@dataclass(frozen=True)
class Measurement:
    """A measured homogeneity, and how sure it is."""

    homogeneity: Homogeneity  # The laws that hold
    residual: float  # The largest relative violation of an accepted law; 0 where none was accepted
    # The smallest relative violation among rejected laws (``inf`` where none was): far above the tolerance when the
    # answer is safe
    margin: float


def measure(activation: Callable[..., Any], tolerance: float = TOLERANCE) -> Measurement:
    """Find which scales and signs pass through a scalar function, up to a relative residual of ``tolerance``.

    Raises:
        ValueError: If the function is not finite on at least 60 % of the grid.

    Examples:
        >>> found = measure(lambda x: x * x.abs())
        >>> found.homogeneity, found.residual < 1e-12
        (Homogeneity(kind='nonlinear', degree=Fraction(2, 1), parity='odd'), True)
    """
    sigma = as_scalar_function(activation)
    x = _grid()
    y = sigma(x)
    usable = _usable(y)
    if usable.double().mean() < 0.6:
        raise ValueError(
            f"activation must be finite on most of the real line. Got finite values at {int(usable.sum())} of "
            f"{len(x)} points between -1e6 and 1e6."
        )
    x, y = x[usable], y[usable]
    if float((y.max() - y.min()) / y.abs().max().clamp_min(_TINY)) <= tolerance:
        return Measurement(Homogeneity("constant"), float(y.max() - y.min()), torch.inf)
    additive, offset = _additivity(sigma)
    if additive <= tolerance:
        affine = abs(offset) > tolerance * float(sigma(torch.ones(1, dtype=torch.float64)).abs() + abs(offset))
        homogeneity = Homogeneity("affine") if affine else Homogeneity("linear", Fraction(1), "odd")
        return Measurement(homogeneity, additive, torch.inf)
    degree, scale_residual = _degree(sigma, x, y, tolerance)
    parity, sign_residual = _parity(sigma, x, y, tolerance)
    laws = [(degree is not None, scale_residual), (parity is not None, sign_residual), (False, additive)]
    accepted = [r for held, r in laws if held]
    rejected = [r for held, r in laws if not held]
    return Measurement(Homogeneity("nonlinear", degree, parity), max(accepted, default=0.0), min(rejected))


def _grid() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    magnitudes = torch.logspace(-6, 6, 121, dtype=torch.float64)
    random = 10 ** (12 * torch.rand(128, generator=generator, dtype=torch.float64) - 6)
    return torch.cat([magnitudes, random[:64], -magnitudes, -random[64:]])


def _usable(y: Tensor) -> Tensor:
    return torch.isfinite(y) & ((y == 0) | (y.abs() > _TINY))


def _gap(a: Tensor, b: Tensor, scale: Tensor | None = None) -> float:
    """Largest ``|a - b|`` relative to ``|a| + |b|`` (or ``scale``); 0 = 0 counts as agreement, overflow is skipped."""
    underflow = ((a == 0) | (b == 0)) & (a.abs() + b.abs() < 1e-200)
    use = _usable(a) & _usable(b) & ~underflow
    size = (a.abs() + b.abs() if scale is None else scale)[use]
    gap = (a - b).abs()[use]
    return float(torch.where(gap == 0, gap, gap / size.clamp_min(_TINY)).max()) if bool(use.any()) else torch.inf


def _additivity(sigma: ScalarFunction) -> tuple[float, float]:
    """Residual of ``sigma(u + v) + sigma(0) = sigma(u) + sigma(v)`` over pairs of all magnitudes, and ``sigma(0)``."""
    generator = torch.Generator().manual_seed(1)
    u, v = (
        10 ** (10 * torch.rand(256, generator=generator, dtype=torch.float64) - 4)
        * (2.0 * torch.randint(0, 2, (256,), generator=generator) - 1)
        for _ in range(2)
    )
    zero = sigma(torch.zeros(1, dtype=torch.float64))
    if not bool(torch.isfinite(zero).all()):
        return torch.inf, 0.0
    su, sv, both = sigma(u), sigma(v), sigma(u + v)
    return _gap(both + zero, su + sv, scale=su.abs() + sv.abs() + zero.abs()), float(zero)


def _degree(sigma: ScalarFunction, x: Tensor, y: Tensor, tolerance: float) -> tuple[Fraction | float | None, float]:
    """Degree of positive homogeneity, or ``None``, with the residual."""
    degrees, worst = [], 0.0
    for a in _SCALES:
        scaled = sigma(a * x)
        usable = _usable(scaled)
        solid = usable & (y.abs() > 1e-6 * y.where(usable, 0 * y).abs().max())
        ratios = scaled[solid] / y[solid]
        b = float(ratios.median()) if len(ratios) else 0.0
        residual = _gap(scaled, b * y) if b > 0 else 1.0
        worst = max(worst, residual)
        if residual > tolerance:
            return None, residual
        degrees.append(log(b) / log(a))
    spread = max(degrees) - min(degrees)
    if spread > 1e-7:
        return None, spread
    return _rational(sum(degrees) / len(degrees)), worst


def _rational(degree: float) -> Fraction | float:
    near = Fraction(degree).limit_denominator(64)
    return near if abs(float(near) - degree) < 1e-7 else degree


def _parity(sigma: ScalarFunction, x: Tensor, y: Tensor, tolerance: float) -> tuple[Parity | None, float]:
    """Odd, even or neither, with the residual (if neither, the smaller violation of the two)."""
    mirrored = sigma(-x)
    odd, even = _gap(mirrored, -y), _gap(mirrored, y)
    if min(odd, even) > tolerance:
        return None, min(odd, even)
    return ("odd", odd) if odd <= even else ("even", even)
