"""Growth of an expression in the rows of a parameter, such as distances to the entries of a codebook.

Where the part of the highest degree has no factor that may be zero, such as ``|c|^2`` in ``|c|^2 - 2 z c``, two
different rows give one number in exceptional cases only, whatever ``z`` is.
"""

from collections.abc import Collection
from typing import Any, NamedTuple

from ....programs import Call, Ref
from ....programs.operations import COPIES, aten
from ..axis_terms import slots
from ..engine import Engine


class Growth(NamedTuple):
    """Growth of an expression with the rows."""

    degree: float  # 0 where the rows are not in it
    certain: bool  # Whether its part of the highest degree has no factor that may be zero


def growth(engine: Engine, ref: Ref, units: Collection[int]) -> Growth | None:
    """The growth in the rows of some units, which are spaces on one axis; ``None`` where nothing is known."""
    if not engine.dtype(ref).is_floating_point:
        return None
    call = engine.producer(ref)
    if not any(slot.space in units for axis in engine.value(ref).axes for slot in slots(axis)):
        return Growth(0, False)
    if call is None:
        return Growth(1, True) if engine.moves(ref) else None
    if any(call.args.get(name) in _DEGENERATE for name in ("alpha", "beta", "ord", "p", "rounding_mode")):
        return None
    of = lambda name: growth(engine, call.args[name], units) if isinstance(call.args[name], Ref) else Growth(0, False)
    if getattr(call.func, "is_view", False) or call.op in _KEPT:
        return growth(engine, call.inputs[0], units)
    if call.op in ("aten::add", "aten::sub"):
        return _sum(of("self"), of("other"))
    if call.op in ("aten::mul", "aten::mm", "aten::bmm", "aten::div"):
        return _product(call, *(of(name) for name in list(call.args)[:2]))
    if call.op in ("aten::addmm", "aten::baddbmm"):
        return _sum(of("self"), _product(call, *(of(name) for name in list(call.args)[1:3])))
    if call.op in _DISTANCES:
        return _sum(of("x1"), of("x2"))
    power: Any = call.args.get("exponent") if call.op == "aten::pow" else None
    inner = of("self") if isinstance(power, int | float) and power > 0 else None
    return inner and Growth(inner.degree * power, inner.certain)


_KEPT = COPIES | aten("neg sum mean linalg_vector_norm")
_DEGENERATE = (0, "floor", "trunc")  # settings that take an argument out of the result, or make it whole
_DISTANCES = {"aten::_cdist_forward", "aten::_euclidean_dist", "aten::cdist"}


def _sum(a: Growth | None, b: Growth | None) -> Growth | None:
    """The growth of a sum, unless the parts of the highest degree may cancel."""
    return None if a is None or b is None or a.degree == b.degree else max(a, b)


def _product(call: Call, a: Growth | None, b: Growth | None) -> Growth | None:
    """The growth of a product: certain for a multiple and a square."""
    if a is None or b is None or (call.op == "aten::div" and (b.degree or len(call.inputs) > 1)):
        return None
    number = call.args.get("other", call.args.get("mat2"))
    square = number == call.args.get("self") and call.op == "aten::mul"
    multiple = isinstance(number, int | float) and number != 0
    return Growth(a.degree + b.degree, (square or multiple) and max(a, b).certain)
