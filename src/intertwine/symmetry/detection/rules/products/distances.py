"""Distances between rows."""

from .....programs import Call
from ...axis_terms import Axis, Value
from ...engine import Engine
from ..registry import register_rule


@register_rule("aten::_cdist_forward", "aten::_euclidean_dist", "aten::cdist")
def between(engine: Engine, call: Call) -> Value:
    """Distances of all rows of one tensor to all rows of another: Euclidean ones let orthogonal maps pass."""
    x, y = engine.value(call.args["x1"]), engine.value(call.args["x2"])
    batch = [engine.equal(a, b) for a, b in zip(x.axes[:-2], y.axes[:-2], strict=True)]
    rows = (*batch, x.axes[-2], y.axes[-2])
    _measured(engine, call, rows, engine.equal(x.axes[-1], y.axes[-1]))
    return Value(rows)


@register_rule("aten::_pdist_forward")
def among(engine: Engine, call: Call) -> Value:
    """Distances among the rows of one tensor, pair after pair: the rows are fixed."""
    x = engine.value(call.args["self"])
    why = f"pairs of rows at {call.where}"
    engine.fix(x.axes[0], why)
    _measured(engine, call, (x.axes[0],), x.axes[1])
    return Value((engine.fresh(engine.made(call)[0], why),))


def _measured(engine: Engine, call: Call, rows: tuple[Axis, ...], units: Axis) -> None:
    """The length of differences along ``units``, row by row."""
    for axis in rows:
        engine.rigid(axis, f"distances taken by {call.where}")
    engine.no_scale(units, f"distances taken by {call.where}")
    if call.args.get("p", 2) == 2:
        engine.orthogonal(units)
    else:
        engine.monomial(units)
    engine.met += [(*rows, units), rows]
