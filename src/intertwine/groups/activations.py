"""Activations whose homogeneity is known by proof, by name, by module and by torch function.

Theorem E.14 reduces the intertwiner group of a scalar activation to its homogeneity. Each entry of the table pairs the
activation (a function to evaluate) with its homogeneity as a rule of its exact parameters. So LeakyReLU with slope
0.999999 is nonlinear and with slope 1 linear, whatever a float32 probe would say.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from math import inf
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._words import near
from .dense import GeneralLinear, UnitRowSum
from .group import Group
from .monomial import Monomial

__all__ = [
    "Homogeneity", "Kind", "Parity", "Activation", "RULE_NAMES", "activation_names", "known_activation",
    "named_activation",
]  # fmt: skip

Kind = Literal["linear", "affine", "nonlinear", "constant"]
Parity = Literal["odd", "even"]


@dataclass(frozen=True)
class Homogeneity:
    """Relation of ``sigma(a x)`` to ``sigma(x)`` for all ``x``, to which Theorem E.14 reduces the group.

    Examples:
        >>> relu = Homogeneity("nonlinear", degree=Fraction(1))
        >>> relu.group(3), float(relu.phi_scale(2.0))
        (PositiveMonomial(3), 2.0)
        >>> Homogeneity("nonlinear", Fraction(2), "even").phi_words
        'abs(A)^2 (every entry)'
    """

    kind: Kind  # Linear is ``sigma(x) = c x``, affine ``c x + b`` with ``b != 0``
    degree: Fraction | float | None = None  # ``d`` where ``sigma(a x) = a^d sigma(x)`` for every ``a > 0``, if any
    parity: Parity | None = None  # Odd where ``sigma(-x) = -sigma(x)``, even where ``sigma(-x) = sigma(x)``

    @property
    def scales(self) -> bool:
        """Whether every positive scale passes."""
        return self.degree is not None

    @property
    def signs(self) -> bool:
        """Whether a change of sign passes."""
        return self.parity is not None

    @property
    def kind_of_group(self) -> Callable[[int], Group]:
        """Maker of the group on any number of channels.

        Raises:
            ValueError: If the activation is constant: every matrix passes and ``phi`` is not unique.
        """
        if self.kind == "constant":
            raise ValueError(
                "activation must not be constant. Got one: every matrix passes through it and phi is not unique "
                "(sigma(I) is not invertible), so it has no intertwiner group."
            )
        if self.kind in ("linear", "affine"):
            return GeneralLinear if self.kind == "linear" else UnitRowSum
        return partial(Monomial, scales=int(self.scales), signs=int(self.signs))

    def group(self, n: int) -> Group:
        """The intertwiner group on ``n`` channels.

        For ``n = 1`` and ``sigma`` affine this is the trivial group written as ``UnitRowSum(1)``.
        """
        return self.kind_of_group(n)

    def phi_scale(self, scale: float | Tensor) -> Tensor:
        """``phi`` on one channel: the ``b`` with ``sigma(a x) = b sigma(x)``, for scales ``a`` that the group allows.

        ``sgn(a)^p |a|^d`` with ``p = 1`` where ``sigma`` is odd.
        """
        a = torch.as_tensor(scale, dtype=None if isinstance(scale, Tensor) else torch.float64)
        if self.kind in ("linear", "affine"):
            return a.clone()
        b = a.abs() ** float(self.degree) if self.degree is not None else torch.ones_like(a)
        return b * a.sign() if self.parity == "odd" else b

    @property
    def phi_words(self) -> str:
        """``phi(A)`` in words, as a function of the entries of ``A``."""
        if self.kind in ("linear", "affine"):
            return "A"
        odd = self.parity == "odd"
        base = "abs(A)" if self.parity == "even" else "A"
        if self.degree in (None, 1):
            return base
        if self.degree == 0:
            return "sign(A)" if odd else "P"
        if odd and not (isinstance(self.degree, Fraction) and self.degree.denominator == 1 and self.degree % 2 == 1):
            return f"sign(A) abs(A)^{_short(self.degree)} (every entry)"
        return f"{base}^{_short(self.degree)} (every entry)"


def _short(degree: Fraction | float) -> str:
    return str(degree) if isinstance(degree, Fraction) else f"{degree:.6g}"


LINEAR = Homogeneity("linear", Fraction(1), "odd")
NONE = Homogeneity("nonlinear")
ODD = Homogeneity("nonlinear", None, "odd")
EVEN = Homogeneity("nonlinear", None, "even")
POSITIVE = Homogeneity("nonlinear", Fraction(1))
ABSOLUTE = Homogeneity("nonlinear", Fraction(1), "even")
_IN_A_NETWORK = "alone it lets all through; batch norm, skips and pooling in a network may not: see symmetries(model)"


@dataclass(frozen=True)
class Activation:
    """A known activation: its name with parameters, the function, its homogeneity."""

    name: str  # As ``intertwiner`` accepts it, such as ``"leaky_relu:0.1"``
    function: Callable[[Tensor], Tensor]  # Scalar function on tensors
    homogeneity: Homogeneity  # Known by proof
    note: str = ""  # Caveat beyond the group, or empty


def _leaky(slope: float) -> Homogeneity:
    return LINEAR if slope == 1 else ABSOLUTE if slope == -1 else POSITIVE


def _power(degree: float) -> Homogeneity:
    if degree == 1:
        return LINEAR
    if degree == 0:
        return Homogeneity("constant")
    if degree != int(degree):
        raise ValueError(f"degree must be a whole number for x^d on the real line. Got {degree}.")
    return Homogeneity("nonlinear", Fraction(int(degree)), "even" if degree % 2 == 0 else "odd")


def _clamp(low: float, high: float) -> Homogeneity:
    if low >= high:
        return Homogeneity("constant")
    if (low, high) == (-inf, inf):
        return LINEAR
    if (low, high) in ((0, inf), (-inf, 0)):
        return POSITIVE
    return ODD if low == -high else NONE


def _threshold(threshold: float, value: float) -> Homogeneity:
    if threshold == -inf:
        return LINEAR
    if threshold == inf:
        return Homogeneity("constant")
    return POSITIVE if threshold == 0 == value else NONE


def _shrink(lambd: float) -> Homogeneity:
    return Homogeneity("constant") if lambd == inf else LINEAR if lambd == 0 else ODD


_Rule = tuple[Callable[..., Callable[[Tensor], Tensor]], Callable[..., Homogeneity], dict[str, float]]


def _plain(function: Callable[[Tensor], Tensor], homogeneity: Homogeneity) -> _Rule:
    return (lambda: function), (lambda: homogeneity), {}


# name -> (parameters to function, parameters to homogeneity, default parameters in order)
_RULES: dict[str, _Rule] = {
    "identity": _plain(lambda x: x.clone(), LINEAR),
    "relu": _plain(F.relu, POSITIVE),
    "leaky_relu": (lambda slope: lambda x: F.leaky_relu(x, slope), _leaky, {"slope": 0.01}),
    "prelu": (lambda slope: lambda x: F.leaky_relu(x, slope), _leaky, {"slope": 0.25}),
    "relu_squared": _plain(lambda x: F.relu(x).square(), Homogeneity("nonlinear", Fraction(2))),
    "relu6": _plain(F.relu6, NONE),
    "abs": _plain(torch.abs, ABSOLUTE),
    "power": (lambda degree: lambda x: x ** int(degree), _power, {"degree": 2}),
    "sign": _plain(torch.sign, Homogeneity("nonlinear", Fraction(0), "odd")),
    "step": _plain(lambda x: (x > 0).to(x.dtype), Homogeneity("nonlinear", Fraction(0))),
    "sigmoid": _plain(torch.sigmoid, NONE),
    "logsigmoid": _plain(F.logsigmoid, NONE),
    "hardsigmoid": _plain(F.hardsigmoid, NONE),
    "tanh": _plain(torch.tanh, ODD),
    "hardtanh": (lambda low, high: lambda x: x.clamp(low, high), _clamp, {"low": -1.0, "high": 1.0}),
    "tanhshrink": _plain(F.tanhshrink, ODD),
    "softsign": _plain(F.softsign, ODD),
    "erf": _plain(torch.erf, ODD),
    "atan": _plain(torch.atan, ODD),
    "sin": _plain(torch.sin, ODD),
    "cos": _plain(torch.cos, EVEN),
    "rbf": _plain(lambda x: torch.exp(-x.square() / 2), EVEN),
    "gelu": _plain(F.gelu, NONE),
    "gelu_tanh": _plain(lambda x: F.gelu(x, approximate="tanh"), NONE),
    "quick_gelu": _plain(lambda x: x * torch.sigmoid(1.702 * x), NONE),
    "silu": _plain(F.silu, NONE),
    "hardswish": _plain(F.hardswish, NONE),
    "mish": _plain(F.mish, NONE),
    "softplus": (lambda beta: lambda x: F.softplus(x, beta), lambda beta: NONE, {"beta": 1.0}),
    "elu": (lambda a: lambda x: F.elu(x, a), lambda alpha: POSITIVE if alpha == 0 else NONE, {"alpha": 1.0}),
    "celu": (lambda a: lambda x: F.celu(x, a), lambda alpha: NONE, {"alpha": 1.0}),
    "selu": _plain(F.selu, NONE),
    "exp": _plain(torch.exp, NONE),
    "hardshrink": (lambda c: lambda x: F.hardshrink(x, c), lambda c: _shrink(max(c, 0)), {"lambd": 0.5}),
    "softshrink": (lambda c: lambda x: F.softshrink(x, c), _shrink, {"lambd": 0.5}),
    "threshold": (lambda t, v: lambda x: F.threshold(x, t, v), _threshold, {"threshold": 0.0, "value": 0.0}),
}
RULE_NAMES = tuple(_RULES)
_ALIASES = {
    "swish": "silu", "gaussian": "rbf", "squared_relu": "relu_squared", "relu2": "relu_squared",
    "linear": "identity", "gelu_new": "gelu_tanh", "square": "power:2", "heaviside": "step",
}  # fmt: skip

# a module's rule and the attributes that hold its parameters, in order
_MODULES: dict[type[nn.Module], tuple[str, ...]] = {
    nn.Identity: ("identity",), nn.ReLU: ("relu",), nn.LeakyReLU: ("leaky_relu", "negative_slope"),
    nn.ReLU6: ("relu6",), nn.Sigmoid: ("sigmoid",), nn.LogSigmoid: ("logsigmoid",), nn.Hardsigmoid: ("hardsigmoid",),
    nn.Tanh: ("tanh",), nn.Hardtanh: ("hardtanh", "min_val", "max_val"), nn.Tanhshrink: ("tanhshrink",),
    nn.Softsign: ("softsign",), nn.GELU: ("gelu",), nn.SiLU: ("silu",), nn.Hardswish: ("hardswish",),
    nn.Mish: ("mish",), nn.Softplus: ("softplus", "beta"), nn.ELU: ("elu", "alpha"), nn.CELU: ("celu", "alpha"),
    nn.SELU: ("selu",), nn.Hardshrink: ("hardshrink", "lambd"), nn.Softshrink: ("softshrink", "lambd"),
    nn.Threshold: ("threshold", "threshold", "value"), nn.RReLU: ("leaky_relu", "lower", "upper"),
}  # fmt: skip
_FUNCTIONS: dict[Any, str] = {
    F.relu: "relu", torch.relu: "relu", F.relu_: "relu", torch.relu_: "relu", F.leaky_relu: "leaky_relu",
    F.relu6: "relu6", torch.abs: "abs", torch.square: "power:2", torch.sign: "sign", torch.sigmoid: "sigmoid",
    F.sigmoid: "sigmoid", F.logsigmoid: "logsigmoid", F.hardsigmoid: "hardsigmoid", torch.tanh: "tanh", F.tanh: "tanh",
    F.hardtanh: "hardtanh", F.tanhshrink: "tanhshrink", F.softsign: "softsign", torch.erf: "erf", torch.atan: "atan",
    torch.sin: "sin", torch.cos: "cos", F.gelu: "gelu", F.silu: "silu", F.hardswish: "hardswish", F.mish: "mish",
    F.softplus: "softplus", F.elu: "elu", F.celu: "celu", F.selu: "selu", torch.exp: "exp",
    F.hardshrink: "hardshrink", F.softshrink: "softshrink",
}  # fmt: skip
# keyword names of torch.nn.functional -> ours, for functools.partial
_KEYWORDS = {"negative_slope": "slope", "min_val": "low", "max_val": "high"}


def activation_names() -> tuple[str, ...]:
    """The names of known activations; those with parameters take them after a colon, as in ``"leaky_relu:0.1"``."""
    return (*_RULES, *_ALIASES)


def named_activation(text: str) -> Activation:
    """The known activation of a name, with parameters behind a colon: ``"hardtanh:-2,2"`` or ``"elu:alpha=0.5"``.

    Raises:
        ValueError: If the name is unknown or the parameters do not fit.

    Examples:
        >>> named_activation("leaky_relu:-1").homogeneity.parity
        'even'
    """
    text = "power:" + text[2:] if text.startswith("x^") else _ALIASES.get(text, text)
    name, _, rest = text.partition(":")
    if name not in _RULES:
        raise ValueError(
            f"activation must be one of {', '.join(activation_names())} (gated units: intertwiner()). Got {text!r}."
            f"{near(name, activation_names())}"
        )
    defaults = _RULES[name][2]
    given: dict[str, float] = {}
    parts = [p for p in (p.strip() for p in rest.split(",")) if p]
    if sum("=" not in p for p in parts) > len(defaults):
        takes = f"at most {len(defaults)} ({', '.join(defaults)})" if defaults else "none"
        raise ValueError(f"parameters of {name} must be {takes}. Got {rest.strip()!r} in {text!r}.")
    for position, part in enumerate(parts):
        key, equals, value = part.rpartition("=")
        key = key.strip() if equals else list(defaults)[position]
        try:
            given[key] = float(value)
        except ValueError:
            raise ValueError(f"parameters of {name} must be numbers. Got {part!r} in {text!r}.") from None
    return _build(name, given)


def known_activation(activation: object) -> Activation | None:
    """The known activation behind a name, a module, a torch function or a ``functools.partial`` of one.

    ``None`` for any other callable, and for a subclass of a known module with its own ``forward``.

    Raises:
        ValueError: If a parameter is NaN.
    """  # noqa: DOC502 - raised by the rules
    if isinstance(activation, str):
        return named_activation(activation)
    if isinstance(activation, nn.PReLU):
        return _prelu(activation)
    if isinstance(activation, nn.Module):
        base = next((c for c in type(activation).__mro__ if c in _MODULES), None)
        if base is None or type(activation).forward is not base.forward:
            return None
        name, *attributes = _MODULES[base]
        values = [float(getattr(activation, attribute)) for attribute in attributes]
        if base is nn.RReLU:  # its slope in evaluation mode
            values = [sum(values) / 2]
        name = "gelu_tanh" if base is nn.GELU and activation.approximate == "tanh" else name
        return _build(name, dict(zip(_RULES[name][2], values, strict=True)))
    try:
        if isinstance(activation, functools.partial) and not activation.args:
            return _partial(activation)
        text = _FUNCTIONS.get(activation)
    except TypeError:  # not hashable, so not one of torch's functions
        return None
    return None if text is None else named_activation(text)


def _build(name: str, given: dict[str, float]) -> Activation:
    function, homogeneity, defaults = _RULES[name]
    if not set(given) <= set(defaults):
        takes = ", ".join(defaults) or "none"
        raise ValueError(f"parameters of {name} must be among: {takes}. Got {', '.join(map(repr, given))}.")
    values = {**defaults, **given}
    if any(v != v for v in values.values()):
        raise ValueError(f"parameters of {name} must be numbers. Got NaN in {values}.")
    shown = f":{','.join(f'{v:g}' for v in values.values())}" if values else ""
    laws = homogeneity(*values.values())
    return Activation(name + shown, function(*values.values()), laws, _IN_A_NETWORK if laws == LINEAR else "")


def _prelu(module: nn.PReLU) -> Activation:
    slopes = module.weight.detach().to("cpu", torch.float64)
    if bool((slopes == slopes[0]).all()):
        return _build("prelu", {"slope": float(slopes[0])})
    if bool(torch.isnan(slopes).any()):
        raise ValueError("parameters of prelu must be numbers. Got NaN among the slopes.")
    return Activation(
        "prelu:per channel",
        lambda x: F.prelu(x, slopes.to(x)),
        POSITIVE,
        "one slope per channel: the slopes move with the permutation, and no scale changes them",
    )


def _partial(activation: functools.partial[Any]) -> Activation | None:
    name = _FUNCTIONS.get(activation.func)
    keywords = {k: v for k, v in activation.keywords.items() if k != "inplace"}
    if name == "gelu" and set(keywords) == {"approximate"}:
        return _build("gelu_tanh" if keywords["approximate"] == "tanh" else "gelu", {})
    if name is None or ":" in name:
        return None
    given = {_KEYWORDS.get(k, k): v for k, v in keywords.items()}
    return _build(name, {k: float(v) for k, v in given.items()}) if set(given) <= set(_RULES[name][2]) else None
