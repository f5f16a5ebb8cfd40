"""Functions of matrices: inverses, exponentials, vector products.

Complex numbers, for which elements are real as everywhere, and Fourier transforms, which fix the axes they run over.

A complex tensor has the axes of its real and its imaginary part: real maps of its units commute with taking the parts.
"""

from typing import Any

from ....programs import Call
from ..axis_terms import Flat, Value, forget_zeros, slots
from ..engine import Engine
from .elementwise import added, broadcast, through
from .registry import opaque, register_rule, unknown


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


@register_rule("aten::view_as_complex")
def as_complex(engine: Engine, call: Call) -> Value:
    """Pairs of numbers as complex ones: which is which is fixed."""
    x = engine.value(call.args["self"])
    engine.fix(x.axes[-1], f"real and imaginary parts at {call.where}")
    return Value(x.axes[:-1], x.zero)


@register_rule("aten::view_as_real")
def as_real(engine: Engine, call: Call) -> Value:
    """Complex numbers as pairs."""
    x = engine.value(call.args["self"])
    return Value((*x.axes, engine.fresh(2, f"real and imaginary parts at {call.where}")), x.zero)


@register_rule("aten::complex")
def compose(engine: Engine, call: Call) -> Value:
    """A complex tensor from its parts."""
    return added(engine, engine.value(call.args["real"]), engine.value(call.args["imag"]))


@register_rule("aten::polar")
def polar(engine: Engine, call: Call) -> Value:
    """A complex tensor from lengths and angles: lengths scale, angles only move."""
    lengths = engine.value(call.args["abs"])
    angles = through(engine, engine.value(call.args["angle"]), None, 0)
    axes = (engine.multiplied(a, b) for a, b in broadcast(lengths, angles))
    return Value(tuple(axes), lengths.zero)


@register_rule("aten::_fft_r2c", "aten::_fft_c2c", "aten::_fft_c2r")
def fourier(engine: Engine, call: Call) -> Value:
    """Fourier transforms: linear in the axes that they leave alone."""
    x, shape = engine.value(call.args["self"]), engine.made(call)
    where = {d % len(x.axes) for d in call.args["dim"]}
    why = f"Fourier transform at {call.where}"
    for i in where:
        engine.fix(x.axes[i], why)
    axes = tuple(engine.fresh(shape[i], why, i) if i in where else a for i, a in enumerate(x.axes))
    for i in where:
        engine.mix(axes, axes[i])
    return Value(axes, x.zero)
