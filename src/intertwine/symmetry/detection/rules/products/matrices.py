"""Functions of matrices: inverses, exponentials, vector products."""

from typing import Any

from .....programs import Call
from ...axis_terms import Axis, Flat, Value, bare, forget_zeros, slots
from ...engine import Engine
from ..elementwise import multiplied
from ..registry import opaque, register_rule, unknown
from ..unit_indices import plain


@register_rule("aten::linalg_inv_ex")
def inverse(engine: Engine, call: Call) -> list[Value]:
    """Inverses: what acts on the rows acts inversely on the columns of the result, and the other way round."""
    x = engine.value(call.args["A"])
    for axis in x.axes:
        engine.monomial(axis)
    for axis in x.axes[-2:]:
        engine.mix(x.axes, axis)
    *batch, rows, columns = (engine.powered(axis, -1, True) for axis in x.axes)
    errors = Value(tuple(engine.unscaled(axis) for axis in batch))
    return [Value((*batch, columns, rows)), errors]


@register_rule("aten::linalg_matrix_exp")
def exponential(engine: Engine, call: Call) -> Any:
    """Exponentials: what acts on the rows acts inversely on the columns, and so it does on the result."""
    x = engine.value(call.args["self"])
    *batch, rows, columns = x.axes
    if any(isinstance(f, Flat) for axis in (rows, columns) for f in axis) or not list(slots(rows)):
        return unknown(engine, call)
    for axis in batch:
        engine.rigid(axis)
    engine.contracted(engine.monomial(rows), engine.monomial(columns))
    for axis in (rows, columns):
        engine.mix(x.axes, axis)
    return Value((*(forget_zeros(axis) for axis in batch), rows, columns))


@register_rule("aten::diag_embed")
def along_diagonal(engine: Engine, call: Call) -> Value:
    """Diagonal matrices: the units are those of the rows and of the columns; scales and signs are those of the rows."""
    x = engine.value(call.args["self"])
    *batch, units = x.axes
    if call.args["offset"] or (call.args["dim1"], call.args["dim2"]) != (-2, -1) or not plain(units):
        return unknown(engine, call)[0]
    return Value((*batch, engine.monomial(units), bare(units)), x.zero)


@register_rule("aten::trace")
def trace(engine: Engine, call: Call) -> Value:
    """Sums of diagonals: what acts on the rows acts inversely on the columns."""
    x = engine.value(call.args["self"])
    if x.shape[0] != x.shape[1]:
        return unknown(engine, call)[0]
    engine.contracted(*x.axes)
    engine.met.append(x.axes)
    return Value(())


@register_rule("aten::_linalg_slogdet", "aten::_linalg_svd")
def volume(engine: Engine, call: Call) -> list[Value]:
    """Logarithms of determinants, and singular values: orthogonal maps pass on both sides if nothing else is read."""
    x, sizes = engine.value(call.args["A"]), call.outputs[1]
    if any(ref is not None and ref.id in engine.readers for ref in call.outputs if ref != sizes):
        return unknown(engine, call)
    *batch, rows, columns = x.axes
    for axis in (rows, columns):
        engine.orthogonal(engine.no_scale(axis))
        engine.mix(x.axes, axis)
    kept = tuple(forget_zeros(engine.rigid(axis)) for axis in batch)
    results = [opaque(engine, ref, f"made by {call.where}", i) for i, ref in enumerate(call.outputs)]
    results[1] = Value((*kept, *results[1].axes[len(kept) :]))
    return results


@register_rule("aten::_linalg_det")
def determinant(engine: Engine, call: Call) -> list[Value]:
    """Determinants: what acts on the rows acts inversely on the columns."""
    *batch, rows, columns = engine.value(call.args["A"]).axes
    if any(ref is not None and ref.id in engine.readers for ref in call.outputs[1:]):
        return unknown(engine, call)
    engine.contracted(rows, columns)
    for axis in (rows, columns):
        engine.mix((*batch, rows, columns), axis)
    results = [opaque(engine, ref, f"made by {call.where}", i) for i, ref in enumerate(call.outputs)]
    results[0] = Value(tuple(forget_zeros(engine.rigid(axis)) for axis in batch))
    return results


@register_rule("aten::linalg_cross")
def cross(engine: Engine, call: Call) -> Value:
    """Vector products: products of entries along the axis of the three coordinates, which is fixed."""
    x, y = engine.value(call.args["self"]), engine.value(call.args["other"])
    dim = call.args["dim"] % len(x.axes)
    why = f"coordinates of {call.where}"
    fixed = lambda v: Value((*v.axes[:dim], engine.fix(v.axes[dim], why), *v.axes[dim + 1 :]), v.zero)
    product = multiplied(engine, fixed(x), fixed(y))
    axes: list[Axis] = list(product.axes)
    axes[dim] = engine.fresh(3, why)
    return Value(tuple(axes), x.zero or y.zero)
