"""Tensors made from the shape of another one, copies, checks, and reads of numbers."""

from typing import Any

from ....programs import Call, Ref
from ....programs.operations import FILLS
from ..axis_terms import Value, axis_size, flat
from ..engine import Engine
from .elementwise import broadcast
from .registry import opaque, register_rule


@register_rule(*FILLS, "aten::fill", "aten::zero")
def uniform(engine: Engine, call: Call) -> Value:
    """One number everywhere; memory not written yet counts as zeros, since nobody may depend on what it holds."""
    fill: Any = call.args.get("fill_value", call.args.get("value"))
    zero = "zero" in call.op or "empty" in call.op or (isinstance(fill, int | float) and fill == 0)
    if isinstance(fill, Ref):
        zero = engine.value(fill).zero
    engine.skip(*(ref for ref in call.inputs if ref is not fill))
    return Value(tuple(flat(n, zero) for n in engine.made(call)), zero)


@register_rule("aten::rand_like", "aten::randn_like")
def drawn(engine: Engine, call: Call) -> list[Value]:
    """Random numbers: nothing of the tensor whose shape was taken."""
    engine.skip(*call.inputs)
    return [opaque(engine, ref, f"random numbers of {call.where}", i) for i, ref in enumerate(call.outputs)]


def cast(engine: Engine, source: Ref, out: Ref | None) -> Value:
    """A tensor as another type; as whole numbers it only lets permutations pass."""
    x = engine.value(source)
    whole = lambda ref: not (engine.dtype(ref).is_floating_point or engine.dtype(ref).is_complex)
    if out is not None and whole(out) and not whole(source):
        return Value(tuple(engine.rigid(a) for a in x.axes), x.zero)
    return x


@register_rule("aten::copy")
def copy(engine: Engine, call: Call) -> Value:
    """A copy: the written tensor replaces the old one."""
    engine.skip(call.args["self"])
    there, written = engine.value(call.args["self"]), cast(engine, call.args["src"], call.args["self"])
    axes = (y or flat(axis_size(x), written.zero) for x, y in broadcast(there, written))
    return Value(tuple(axes), written.zero)


@register_rule("aten::_assert_async", "aten::_assert_scalar", "aten::_assert_tensor_metadata",
               "aten::_linalg_check_errors")  # fmt: skip
def check(engine: Engine, call: Call) -> list[Value]:
    """Checks change nothing."""
    return []


@register_rule("intertwine::read")
def read(engine: Engine, call: Call) -> list[Value]:
    """Host read: fix all source axes."""
    engine.fix_all(engine.value(call.args["self"]).axes, f"a number is taken out of it at {call.line}")
    return []
