"""Rules of elementwise operations: additions, products, powers, activations, comparisons, choices.

Also of tensors made from the shape of another one, copies, checks, and reads of numbers.
"""

from dataclasses import replace
from fractions import Fraction
from functools import partial, reduce
from math import inf
from typing import Any

from ....programs import Call, Ref
from ....programs.operations import FILLS, aten
from ..axis_terms import Axis, Flat, Names, Slot, Value, axis_size, flat, forget_zeros, slots
from ..engine import Engine
from .registry import opaque, register_rule, scaling_of, unknown

_SIZED = aten("hypot fmod remainder clamp clamp_min clamp_max maximum minimum max min")  # of degree one


def broadcast(a: Value, b: Value) -> list[tuple[Axis, Axis]]:
    """Pairs of axes of two tensors, aligned from the right; missing dimensions are empty axes."""
    n = max(len(a.axes), len(b.axes))
    pad = lambda v: ((),) * (n - len(v.axes)) + v.axes
    return list(zip(pad(a), pad(b)))


def through(engine: Engine, x: Value, degree: Fraction | int | None, parity: int, linear: bool = False) -> Value:
    """The value of an elementwise ``f(x)``.

    ``f(a x) = a^degree f(x)`` for positive ``a``; ``degree`` is ``None`` if no scale passes. ``parity`` is 1 for an odd
    function, -1 for an even one, 0 for neither; ``linear`` says whether ``f`` is additive.
    """
    axes, power = [], degree or 0
    keeps_zero = power > 0 or (power == 0 and parity == 1)
    for axis in x.axes:
        if degree is None:
            engine.no_scale(axis)
        if parity == 0:
            engine.no_sign(axis)
        if not linear:
            engine.monomial(axis)
        axes.append(axis if linear else engine.powered(axis, power, parity == 1, keeps_zero))
    return Value(tuple(axes), x.zero and keeps_zero)


def added(engine: Engine, a: Value, b: Value) -> Value:
    """The value of ``a + b``."""
    if a.zero or b.zero:
        zero, other = (a, b) if a.zero else (b, a)
        axes = tuple(_beside_zero(engine, zero, z, o) for z, o in broadcast(zero, other))
        return Value(axes, a.zero and b.zero)
    alone = lambda axis: forget_zeros(engine.rigid(axis, f"one number added to all units at {engine.call.where}"))
    return Value(tuple(engine.equal(x, y) if x and y else alone(x or y) for x, y in broadcast(a, b)))


def _beside_zero(engine: Engine, zero: Value, axis: Axis, other: Axis) -> Axis:
    """An axis of zero plus something. Zeros that were made from parameters may be other numbers in another run."""
    if not any(True for _ in slots(axis)):
        return other or flat(axis_size(axis))
    if not other:
        return forget_zeros(engine.rigid(axis, f"one number added to all units at {engine.call.where}"))

    def pair(x: Any, y: Any) -> Any:
        if isinstance(x, Slot) and isinstance(y, Flat) and not y.zero:
            engine.rigid((x,), f"a number common to all units at {engine.call.where}")
        return y

    return engine.zip(axis, other, pair) if zero.loose else engine.equal(axis, other)


def multiplied(engine: Engine, a: Value, b: Value, divide: bool = False) -> Value:
    """The value of ``a * b`` or ``a / b``."""
    if a.zero or (b.zero and not divide):
        return _times_zero(engine, a, b)
    inverse = lambda axis: engine.powered(engine.monomial(axis), -1, True)
    axes = (engine.multiplied(x, y, divide) if x or not divide else inverse(y) for x, y in broadcast(a, b))
    return Value(tuple(axes))


def _times_zero(engine: Engine, a: Value, b: Value) -> Value:
    """Zero times something: another run may have other numbers there, with the same units and unknown scales."""

    def pair(x: Any, y: Any) -> Any:
        engine.monomial(tuple(f for f in (x, y) if isinstance(f, Slot)))
        found = x if isinstance(x, Slot) else y
        return Slot(found.space, found.size) if isinstance(found, Slot) else Flat(found.size)

    axes = (engine.zip(x or y, y or x, pair) for x, y in broadcast(unzero(a), unzero(b)))
    return Value(tuple(axes), zero=True, loose=True)


def operand(engine: Engine, argument: Any) -> Value | None:
    """The value of a tensor argument; ``None`` for a Python number."""
    return engine.value(argument) if isinstance(argument, Ref) else None


@register_rule("aten::add", "aten::sub", "aten::rsub")
def add(engine: Engine, call: Call) -> Value:
    """Sums and differences."""
    x, other = engine.value(call.args["self"]), call.args["other"]
    if not isinstance(other, Ref) and other == 0:
        return x
    return added(engine, x, operand(engine, other) or Value(()))


def unzero(x: Value) -> Value:
    """``x`` with its zeros forgotten: there it is only known to be constant."""
    return Value(tuple(forget_zeros(axis) for axis in x.axes))


@register_rule("aten::mul")
def mul(engine: Engine, call: Call) -> Value:
    """Products, left open until read: a sum of squares lets orthogonal maps pass, a sum of products opposite maps."""
    x, y = engine.value(call.args["self"]), operand(engine, call.args["other"])
    if y is None:
        return replace(x, zero=x.zero or call.args["other"] == 0)
    if call.args["self"] == call.args["other"]:
        return squared(engine, x)
    if x.zero or y.zero:
        return multiplied(engine, x, y)
    axes = (engine.multiplied(a, b, summed=True) for a, b in broadcast(x, y))
    return Value(tuple(axes), factors=(x, y))


def squared(engine: Engine, x: Value) -> Value:
    """The value of ``x^2``, flagged as a square."""
    return Value(tuple(engine.powered(a, 2, False) for a in x.axes), x.zero, square=True)


@register_rule("aten::pow")
def power(engine: Engine, call: Call) -> Value:
    """Powers with a fixed exponent."""
    exponent: Any = call.args.get("exponent")
    if isinstance(exponent, Ref) or not isinstance(call.args["self"], Ref):
        return measured(engine, call)
    x = engine.value(call.args["self"])
    if exponent == 2:
        return squared(engine, x)
    whole = float(exponent).is_integer()
    parity = 0 if not whole else (1 if int(exponent) % 2 else -1)
    degree = Fraction(exponent).limit_denominator(64)
    # only exponents that are short fractions are tracked exactly: 1.005 is not 1
    exact = float(degree) == float(exponent)
    return through(engine, x if exact else unzero(x), degree if exact else None, parity, linear=exponent == 1)


@register_rule(*aten("neg _conj _conj_physical _neg_view"))
def unchanged(engine: Engine, call: Call) -> Value:
    """Operations that commute with every real linear map."""
    return engine.value(call.inputs[0])


_LAWS: dict[str, tuple[Fraction | int, int]] = {
    "aten::sqrt": (Fraction(1, 2), 0), "aten::rsqrt": (Fraction(-1, 2), 0), "aten::reciprocal": (-1, 1),
    "aten::isnan": (0, -1), "aten::isinf": (0, -1), "aten::isfinite": (0, -1),
}  # fmt: skip
"""Degree and parity of operations on one tensor that need not be measured."""


@register_rule(*_LAWS)
def by_law(engine: Engine, call: Call) -> Value:
    """Powers of fixed degree, and tests for finite numbers, through which scales and signs pass without a trace."""
    return through(engine, engine.value(call.inputs[0]), *_LAWS[call.op])


@register_rule("aten::_prelu_kernel")
def prelu(engine: Engine, call: Call) -> Value:
    """``max(x, 0) + w min(x, 0)`` with a slope for every unit: slopes move with their units but do not scale."""
    x, w = engine.value(call.args["self"]), engine.value(call.args["weight"])
    both = broadcast(through(engine, x, 1, 0), w)
    return Value(tuple(engine.multiplied(a, engine.rigid(b, "a slope is no scale")) for a, b in both), x.zero)


@register_rule("aten::rrelu_with_noise")
def rrelu(engine: Engine, call: Call) -> list[Value]:
    """In evaluation, a leaky ReLU with the mean slope that leaves its noise unchanged; in training, random slopes."""
    if call.args["training"]:
        return unknown(engine, call)
    return [through(engine, engine.value(call.args["self"]), 1, 0), engine.value(call.args["noise"])]


@register_rule("aten::where", "aten::masked_fill")
def choose(engine: Engine, call: Call) -> Value:
    """A choice between two tensors by a condition."""
    first, second = call.args["self"], call.args.get("other", call.args.get("value"))
    chosen, instead = (second, first) if call.op == "aten::masked_fill" else (first, second)
    mask = call.args.get("condition", call.args.get("mask"))
    branches = [operand(engine, one) or Value((), zero=one == 0) for one in (first, second)]
    known = engine.program.values[mask.id].data
    if known is not None and bool(known.all()):
        engine.skip(instead)
    elif known is not None and not bool(known.any()):
        engine.skip(chosen)

    def pair(branch: Any, condition: Any) -> Any:  # where the branches are constant, it varies with the condition
        follows = isinstance(branch, Flat) and not branch.zero and isinstance(condition, Slot)
        return Slot(condition.space, condition.size) if follows else branch

    both = broadcast(added(engine, *branches), unzero(engine.value(mask)))
    axes = (engine.zip(engine.monomial(a), engine.monomial(c), pair) for a, c in both)
    return Value(tuple(axes), all(branch.zero for branch in branches))


@register_rule(*aten("gt ge lt le eq ne"))
def compare(engine: Engine, call: Call) -> Value:
    """Comparisons: with zero (or infinity) they only see signs, so positive scales pass without a trace."""
    x, other = engine.value(call.args["self"]), call.args["other"]
    if isinstance(other, Ref):
        return together(engine, call)
    even = call.op in ("aten::eq", "aten::ne")
    return through(engine, x, 0 if other in (0, inf, -inf) else None, -1 if even and other == 0 else 0)


@register_rule(*aten("hypot fmod remainder atan2 maximum minimum"))
def together(engine: Engine, call: Call) -> Value:
    """Functions that are jointly homogeneous in several tensors: ``f(a x, a y) = a^d f(x, y)`` for ``a > 0``."""
    if len(call.inputs) < 2:
        return measured(engine, call)
    parity = -1 if call.op == "aten::hypot" else 0
    result = reduce(partial(added, engine), [through(engine, engine.value(ref), 1, parity) for ref in call.inputs])
    return through(engine, result, 1 if call.op in _SIZED else 0, 0)


@register_rule("aten::clamp", "aten::clamp_min", "aten::clamp_max")
def clamp(engine: Engine, call: Call) -> Value:
    """Clamps: jointly positively homogeneous in the tensor and its bounds, if no bound is a number other than zero."""
    bounds = [call.args.get(key) for key in ("min", "max")]
    numbers = [bound for bound in bounds if bound is not None and not isinstance(bound, Ref) and bound != 0]
    return measured(engine, call) if numbers else together(engine, call)


_FACTORS: dict[str, tuple[tuple[Any, int], tuple[Any, int]]] = {
    "aten::copysign": ((1, -1), (0, 0)), "aten::xlogy": ((1, 1), (None, 0)),
    **dict.fromkeys(aten("softshrink_backward hardshrink_backward"), ((1, 1), (None, -1))),
}  # fmt: skip
"""Degree and parity of both factors, as in ``copysign``, ``x log y``, or ``g f'(x)`` for an odd ``f``.

``copysign(x, 0) = |x|``, so it is not odd in what the sign is taken from.
"""


@register_rule(*_FACTORS)
def factorwise(engine: Engine, call: Call) -> Value:
    """Products of a function of one tensor and a function of another."""
    if len(call.inputs) < 2:
        return measured(engine, call)
    laws = zip(call.inputs, _FACTORS[call.op])
    a, b = (through(engine, engine.value(ref), *law, linear=law == (1, 1)) for ref, law in laws)
    return multiplied(engine, a, b)


@register_rule("aten::bucketize", "aten::searchsorted")
def bucket(engine: Engine, call: Call) -> Value:
    """The place of every number among sorted numbers, which are fixed."""
    sizes = engine.value(call.args["boundaries" if call.op == "aten::bucketize" else "sorted_sequence"])
    if len(sizes.axes) != 1 or call.args.get("sorter") is not None or not isinstance(call.args["self"], Ref):
        return unknown(engine, call)[0]
    engine.fix_all(sizes.axes, f"places among sorted numbers at {call.where}")
    return through(engine, unzero(engine.value(call.args["self"])), None, 0)


@register_rule("aten::glu")
def glu(engine: Engine, call: Call) -> Value:
    """``a * sigmoid(b)`` for the two halves of an axis."""
    x = engine.value(call.args["self"])
    dim = call.args["dim"] % len(x.axes)
    half = x.shape[dim] // 2
    a, b = (x.put(dim, engine.slice(x.axes[dim], low, low + half)) for low in (0, half))
    return multiplied(engine, a, through(engine, b, None, 0))


@register_rule("aten::div")
def div(engine: Engine, call: Call) -> Value:
    """Quotients; those that round are ordinary pointwise functions."""
    x, y = engine.value(call.args["self"]), operand(engine, call.args["other"])
    if call.args.get("rounding_mode"):
        return floor_divide(engine, call)
    engine.drop(*map(engine.value, call.inputs))
    return x if y is None else multiplied(engine, x, y, divide=True)


@register_rule("aten::floor_divide")
def floor_divide(engine: Engine, call: Call) -> Value:
    """Integer quotients: the index of a pair divided by the size of the second axis is the index in the first."""
    x, other = engine.value(call.args["self"]), call.args["other"]
    if x.names is not None and x.names.kind == "units" and isinstance(other, int) and other > 0:
        size = axis_size(x.names.of)
        if size % other == 0:
            outer = engine.split(engine.pool.resolve(x.names.of), (size // other, other))[0]
            return Value(x.axes, names=Names(outer))
    engine.drop(*map(engine.value, call.inputs))
    return measured(engine, call)


@register_rule("aten::hardswish", "aten::log_sigmoid_forward")  # torch does not tag them as pointwise
def measured(engine: Engine, call: Call) -> Value:
    """Any other elementwise function: of one tensor it is looked up or measured; of several, only permutations pass."""
    if len(call.inputs) == 1:
        law = scaling_of(call)
        if law.kind == "linear":
            return engine.value(call.inputs[0])
        if law.kind == "constant":
            return Value(tuple(flat(n) for n in engine.value(call.inputs[0]).shape))
        if law.kind != "nonlinear" or not (law.degree is None or float(law.degree).is_integer() or law.degree == 0.5):
            return through(engine, unzero(engine.value(call.inputs[0])), None, 0)
        degree = None if law.degree is None else Fraction(law.degree)
        return through(engine, engine.value(call.inputs[0]), degree, {"odd": 1, "even": -1, None: 0}[law.parity])
    return reduce(partial(added, engine), [through(engine, unzero(engine.value(ref)), None, 0) for ref in call.inputs])


@register_rule(*FILLS, "aten::fill", "aten::zero")
def uniform(engine: Engine, call: Call) -> Value:
    """One number everywhere; uninitialised memory counts as zeros, since nothing may depend on its contents."""
    fill: Any = call.args.get("fill_value", call.args.get("value"))
    zero = "zero" in call.op or "empty" in call.op or (isinstance(fill, int | float) and fill == 0)
    if isinstance(fill, Ref):
        zero = engine.value(fill).zero
    engine.skip(*(ref for ref in call.inputs if ref is not fill))
    return Value(tuple(flat(n, zero) for n in engine.made(call)), zero)


@register_rule("aten::rand_like", "aten::randn_like")
def drawn(engine: Engine, call: Call) -> list[Value]:
    """Random numbers: nothing depends on the tensor whose shape was taken."""
    engine.skip(*call.inputs)
    return [opaque(engine, ref, f"random numbers of {call.where}", i) for i, ref in enumerate(call.outputs)]


def cast(engine: Engine, source: Ref, out: Ref | None) -> Value:
    """A tensor cast to another type; a cast to integers lets only permutations pass."""
    x = engine.value(source)
    whole = lambda ref: not (engine.dtype(ref).is_floating_point or engine.dtype(ref).is_complex)
    if out is not None and whole(out) and not whole(source):
        return Value(tuple(engine.rigid(a) for a in x.axes), x.zero)
    return x


@register_rule("aten::copy")
def copy(engine: Engine, call: Call) -> Value:
    """A copy: the source tensor replaces the old one."""
    engine.skip(call.args["self"])
    there, written = engine.value(call.args["self"]), cast(engine, call.args["src"], call.args["self"])
    axes = (y or flat(axis_size(x), written.zero) for x, y in broadcast(there, written))
    return Value(tuple(axes), written.zero)


@register_rule(*aten("_assert_async _assert_scalar _assert_tensor_metadata _linalg_check_errors"))
def check(engine: Engine, call: Call) -> list[Value]:
    """Checks, which change nothing."""
    return []


@register_rule("intertwine::read")
def read(engine: Engine, call: Call) -> list[Value]:
    """A host read, which fixes all source axes."""
    engine.fix_all(engine.value(call.args["self"]).axes, f"a number is taken out of it at {call.line}")
    return []
