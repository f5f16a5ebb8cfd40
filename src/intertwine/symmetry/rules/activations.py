"""How an activation scales: its degree of homogeneity and its parity."""

from fractions import Fraction

from ...graph import Call

__all__ = ["scaling_of"]

_IDENTITY = ("neg", "positive", "_to_copy", "to", "clone", "detach", "alias", "lift_fresh", "contiguous", "conj", "real")
_KNOWN: dict[str, tuple[int | None, int]] = {
    "relu": (1, 0), "leaky_relu": (1, 0), "abs": (1, -1), "sign": (0, 1), "sgn": (0, 1), "reciprocal": (-1, 1),
    "tanh": (None, 1), "erf": (None, 1), "sin": (None, 1), "asinh": (None, 1), "atan": (None, 1), "cos": (None, -1),
    "sigmoid": (None, 0), "gelu": (None, 0), "silu": (None, 0), "exp": (None, 0), "softplus": (None, 0), "elu": (None, 0),
    "log": (None, 0), "hardswish": (None, 0), "hardsigmoid": (None, 0), "mish": (None, 0), "log_sigmoid": (None, 0),
}  # fmt: skip


def scaling_of(call: Call) -> tuple[Fraction | int | None, int, bool]:
    """Degree (``None`` where no scale passes), parity (1 odd, -1 even, 0 neither) and additivity of a pointwise call."""
    name = call.op.removeprefix("aten::")
    if name in _IDENTITY:
        return 1, 1, True
    if name == "sqrt":
        return Fraction(1, 2), 0, False
    if name == "rsqrt":
        return Fraction(-1, 2), 0, False
    degree, parity = _KNOWN.get(name, (None, 0))
    return degree, parity, False
