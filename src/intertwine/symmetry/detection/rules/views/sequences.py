"""Sequences of unlike lengths, packed one time step after the other."""

from .....programs import Call, Ref
from ...axis_terms import Value, forget_zeros
from ...engine import Engine
from ..registry import opaque, register_rule


@register_rule("aten::_pack_padded_sequence")
def pack(engine: Engine, call: Call) -> list[Value]:
    """The steps of all sequences one after the other: sequences and steps are fixed, features are as they were."""
    return _laid_out(engine, call, call.args["input"], 2, 1)


@register_rule("aten::_pad_packed_sequence")
def unpack(engine: Engine, call: Call) -> list[Value]:
    """Packed steps as sequences again, filled up with one number."""
    result, *lengths = _laid_out(engine, call, call.args["data"], 1, 2)
    if call.args["padding_value"] != 0:
        result = Value(tuple(forget_zeros(engine.rigid(axis, f"filled up at {call.where}")) for axis in result.axes))
    return [result, *lengths]


def _laid_out(engine: Engine, call: Call, source: Ref, before: int, after: int) -> list[Value]:
    """A tensor whose first ``before`` axes become ``after`` others."""
    x, shape = engine.value(source), engine.made(call)
    why = f"steps of sequences at {call.where}"
    for name in ("lengths", "batch_sizes"):
        if isinstance(call.args.get(name), Ref):
            engine.fix_all(engine.value(call.args[name]).axes, why)
    engine.fix_all(x.axes[:before], why)
    steps = (engine.fresh(n, why, i) for i, n in enumerate(shape[:after]))
    return [Value((*steps, *x.axes[before:]), x.zero), *(opaque(engine, ref, why, "sizes") for ref in call.outputs[1:])]
