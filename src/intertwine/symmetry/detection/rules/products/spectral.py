"""Complex numbers, for which elements are real as everywhere, and Fourier transforms, which fix the axes they run over.

A complex tensor has the axes of its real and its imaginary part: real maps of its units commute with taking the parts.
"""

from .....programs import Call
from ...axis_terms import Value
from ...engine import Engine
from ..elementwise import added, broadcast, through
from ..registry import register_rule


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


@register_rule("aten::imag", "aten::_conj", "aten::_conj_physical", "aten::conj_physical", "aten::resolve_conj",
               "aten::_neg_view", "aten::resolve_neg")  # fmt: skip
def part(engine: Engine, call: Call) -> Value:
    """Parts and conjugates: real maps pass."""
    return engine.value(call.inputs[0])


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
