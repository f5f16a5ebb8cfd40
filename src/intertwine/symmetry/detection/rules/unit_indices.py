"""Unit indices: integers that name units, and rows selected by them, as in routing to experts.

Where an operation gives places along an axis (``topk``, ``sort``, ``argmax``), the numbers name units, and only
operations that know what the numbers stand for let these move. Rows picked by such numbers still tell from which unit
they came, so that every unit may have its own inner spaces.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple

from ....programs import Call, Ref, operations
from ....programs.operations import aten
from ..axis_terms import Axis, Pick, Segments, Slot, Value, axis_size, slots
from ..engine import Engine
from .registry import is_pointwise

# numbers are only copied and laid out anew; the first ones keep each of them exactly once
_SAME = operations.REARRANGEMENTS
_SOME = operations.PARTS | operations.REPEATS
# rules that read the numbers for what they stand for
_READERS = {"transformers::grouped_mm_fallback"} | aten(
    "index index_select gather sort argsort scatter histc cumsum index_put _grouped_mm floor_divide div embedding"
)
# every row of the result comes from the same rows of the arguments
_ROWWISE = operations.LAYER_NORMS | operations.RMS_NORMS | operations.SOFTMAXES | aten("native_dropout glu")


def unread_names(engine: Engine, call: Call) -> None:
    """Units named by numbers that an operation reads as mere numbers stay where they are."""
    if call.op in _SAME | _SOME | _READERS | operations.FILLS:
        return
    for ref in call.inputs:
        engine.drop(engine.value(ref).names)


def named(engine: Engine, ref: Any, size: int) -> Axis | None:
    """The axis of ``size`` units that the numbers in a tensor name, if they name any."""
    names = engine.value(ref).names if isinstance(ref, Ref) else None
    if names is None or names.kind != "units":
        return None
    of = engine.pool.resolve(names.of)
    if axis_size(of) == size:
        return of
    engine.drop(names)
    return None


def carried(engine: Engine, call: Call, value: Any, first_mix: int) -> Any:
    """The result of a call with the names and origins of rows that it has from its arguments."""
    copies = call.op in _SAME | _SOME
    if not isinstance(value, Value):
        for ref in call.inputs if copies else ():
            engine.drop(engine.value(ref).names)
        return value
    if not copies and call.op not in _READERS and any(value.names is engine.value(r).names for r in call.inputs):
        value = replace(value, names=None)  # of an argument that came back as it was; they were read as numbers
    if copies and value.names is None and (names := engine.value(call.inputs[0]).names) is not None:
        kept = replace(names, all=names.all and call.op in _SAME)
        value = replace(value, names=kept if names.kind == "units" or call.op in _SAME else None)
    if copies or call.op in _ROWWISE or is_pointwise(call):
        mixed = tuple(along for _, along in engine.mixed[first_mix:])
        via = joined(engine, [value.via, *(without(engine, engine.value(ref).via, mixed) for ref in call.inputs)])
        value = replace(value, via=via)
    return value


def joined(engine: Engine, parts: Iterable[tuple[Pick, ...]]) -> tuple[Pick, ...]:
    """The origins of rows made from several tensors; rows from more than one unit of an axis have none there."""
    found: dict[tuple, list[Pick]] = {}
    for pick in (pick for part in parts for pick in part):
        of = engine.pool.resolve(pick.of)
        key = tuple(slot.space for slot in slots(of))
        twin = next((p for known in found.values() for p in known if _same_unit(engine, p, pick)), None)
        if twin is not None and key not in found:
            engine.equal(of, twin.of)  # the first unit of one axis with the first of the other, and so on
        elif not any(pick.label == known.label for known in found.setdefault(key, [])):
            found[key].append(pick)
    return tuple(picks[0] for picks in found.values() if len(picks) == 1)


def _same_unit(engine: Engine, a: Pick, b: Pick) -> bool:
    """Whether both stand for the same place of axes of one length, neither of which moves."""
    if a.label != b.label or a.rows or b.rows:
        return False
    both = (*engine.pool.resolve(a.of), *engine.pool.resolve(b.of))
    return axis_size(a.of) == axis_size(b.of) and all(engine.pool.node(s.space).pinned for s in slots(both))


def without(engine: Engine, via: tuple[Pick, ...], along: Iterable[Axis]) -> tuple[Pick, ...]:
    """The origins that outlive mixing, or summing over, some axes: those of rows that are not among them."""
    gone = {slot.space for axis in along for slot in slots(engine.pool.resolve(axis))}
    return tuple(p for p in via if not gone.intersection(s.space for s in slots(engine.pool.resolve(p.rows))))


def origins(engine: Engine, axes: Sequence[Axis], via: Iterable[Pick]) -> list[Axis]:
    """The axes that rows of a tensor come from: beside them, inner spaces may have one element for each unit."""
    tally = Counter(slot.space for axis in axes for slot in slots(axis))
    found = []
    for pick in via:
        rows = engine.pool.resolve(pick.rows)
        cut = any(isinstance(f, Segments) for f in rows)  # of some rows only: which ones they were is lost
        if not cut and all(tally[slot.space] == 1 for slot in slots(rows)):
            found.append(engine.pool.resolve(pick.of))
    return found


# functions that make two numbers equal only where they were equal before
_INJECTIVE = aten("sigmoid exp log softplus neg sqrt") | _SAME
_NORMALISED = operations.SOFTMAXES | aten("_safe_softmax _log_softmax")  # these may have equal sums
_BEST = {"aten::topk", "aten::sort", "aten::max", "aten::amax"}
_PRODUCTS = {"aten::mm", "aten::bmm"}
_BIASED = {"aten::addmm", "aten::baddbmm", "aten::linear"}
_COMBINED = {"aten::add", "aten::sub", "aten::mul", "aten::div"}
# what can set a whole row to zero, so that every unit without a bias gives zero
_VANISHING = operations.RELUS - aten("leaky_relu _prelu_kernel abs") | aten(  # those are zero at zero alone
    "clamp_max hardtanh where masked_fill index_put scatter masked_scatter zero fill round floor sign"
)
# what makes zeros of zeros
_KEEPS_ZERO = aten(
    "mm bmm mul div neg sum mean expand index slice select cat _fused_rms_norm tanh silu gelu leaky_relu elu mish "
    "hardswish abs sin sqrt pow glu"
)
_MAY_ADD = operations.LAYER_NORMS | aten("linear convolution")  # they do too, without a bias


def distinct(engine: Engine, ref: Ref, along: Axis, count: int = 0, summed: bool = False) -> bool:
    """Whether entries along an axis differ for almost all weights, so that their order does not depend on their places.

    They do where every unit has its own row of a weight matrix and nothing sets different units to one number, as
    rectifiers and masks do. Units that a mask excludes may be equal where ``count`` others are always chosen before.
    """
    call = engine.producer(ref)
    known = engine.dtype(ref).is_floating_point and not engine.value(ref).zero
    if call is None or ref != call.outputs[0] or not plain(along) or not known:
        return False
    if call.op in _SAME:
        return distinct(engine, call.inputs[0], along, count, summed)
    if call.op in _INJECTIVE | _BEST | {"aten::sum"} or (call.op in _NORMALISED and not summed):
        return distinct(engine, call.inputs[0], along, summed=summed or call.op == "aten::sum")
    units = {slot.space for slot in slots(along)}
    if (found := growth(engine, ref, units)) is not None and found.certain:
        return True
    if call.op in _PRODUCTS | _BIASED:
        own = [r for r in call.inputs if is_state(engine, r) and units <= _spaces(engine, r)]
        biased = call.op in _BIASED and len(own) > 1
        return bool(own) and (biased or not any(_may_vanish(engine, r) for r in call.inputs if r not in own))
    if call.op == "aten::masked_fill":
        return distinct(engine, call.args["self"], along, 0, summed) and _never_chosen(engine, call, count)
    if call.op not in _COMBINED or call.args.get("rounding_mode"):
        return False
    a, b = call.args["self"], call.args["other"]
    if not isinstance(b, Ref):
        return b != 0 and distinct(engine, a, along, 0, summed)
    if call.op == "aten::div" and not summed and not units & _spaces(engine, b):  # one divisor for all units
        return distinct(engine, a, along)
    return any(distinct(engine, x, along, 0, summed) and is_state(engine, y) for x, y in ((a, b), (b, a)))


def plain(axis: Axis) -> bool:
    """Whether every factor of an axis tells its units apart: none is the same all along, none is put together."""
    return bool(axis) and all(isinstance(f, Slot) for f in axis)


def _may_vanish(engine: Engine, ref: Ref, known: dict[int, bool] | None = None) -> bool:
    """Whether whole rows of a tensor may be zero on some inputs: padding, rectifiers, masks, and what keeps zeros."""
    known = {} if known is None else known
    if ref.id not in known:
        known[ref.id] = False  # while it is looked at; a run has no circles
        known[ref.id] = _vanishes(engine, ref, lambda r: not is_state(engine, r) and _may_vanish(engine, r, known))
    return known[ref.id]


def _vanishes(engine: Engine, ref: Ref, may: Callable[[Ref], bool]) -> bool:
    call = engine.producer(ref)
    if call is None:
        return engine.program.values[ref.id].kind == "input"
    if call.op in _VANISHING:
        return True
    if call.op in ("aten::add", "aten::sub"):
        return isinstance(call.args["other"], Ref) and may(call.args["self"]) and may(call.args["other"])
    if call.op in _MAY_ADD:
        return call.args.get("bias") is None and may(call.args["input"])
    masked = call.op == "aten::mul" and any(_is_mask(engine, r) for r in call.inputs)
    return masked or (call.op in _SAME | _KEEPS_ZERO and any(map(may, call.inputs)))


def _is_mask(engine: Engine, ref: Ref) -> bool:
    """Whether a factor may be zero for whole rows: truth values, whole numbers, inputs and constants."""
    ref, call = behind(engine, ref, _SAME | {"aten::expand"}, lambda r: engine.dtype(r).is_floating_point)
    return not engine.dtype(ref).is_floating_point or (call is None and not engine.moves(ref))


def behind(
    engine: Engine, ref: Ref, ops: Collection[str] = _SAME, goes: Callable[[Ref], bool] = lambda ref: True
) -> tuple[Ref, Call | None]:
    """What a tensor was before some operations, as far back as it ``goes``, and the call that made it, if one did."""
    while goes(ref) and (call := engine.producer(ref)) is not None and call.op in ops:
        ref = call.inputs[0]
    return ref, engine.producer(ref)


def _never_chosen(engine: Engine, call: Call, count: int) -> bool:
    """Whether what a mask excludes is smaller than the rest, of which enough are always left."""
    number, left = call.args["value"], _left(engine, call.args["mask"])
    _, base = behind(engine, call.args["self"])
    positive = base is not None and base.op in operations.SOFTMAXES | aten("sigmoid exp")
    smaller = isinstance(number, int | float) and (number == float("-inf") or (number <= 0 and positive))
    last = engine.program.values[call.args["self"].id].shape[-1]
    return smaller and left is not None and count > 0 and left * last >= count


def _left(engine: Engine, mask: Ref) -> Fraction | None:
    """The share of a row that a mask leaves, where it is made of a given number of different places in each."""
    flipped = False
    kept = _SAME | {"aten::expand"}
    _, call = behind(engine, mask, kept)
    while call is not None and call.op in ("aten::bitwise_not", "aten::logical_not"):
        flipped = not flipped
        _, call = behind(engine, call.inputs[0], kept)
    if call is None or call.op != "aten::scatter" or call.args.get("value") != 1 or not flipped:
        return None
    chosen, dim = call.args["index"], call.args["dim"]
    source = engine.producer(chosen)
    if source is None or source.op != "aten::topk" or not engine.is_zero(call.args["self"]):
        return None
    chosen, every = (engine.program.values[ref.id].shape[dim] for ref in (chosen, call.args["self"]))
    return Fraction(chosen, every)


def _spaces(engine: Engine, ref: Ref) -> set[int]:
    return {slot.space for axis in engine.value(ref).axes for slot in slots(axis)}


def is_state(engine: Engine, ref: Ref) -> bool:
    """Whether a tensor is a parameter, or a buffer that moves, perhaps laid out anew."""
    ref, call = behind(engine, ref)
    return call is None and engine.moves(ref)


class Growth(NamedTuple):
    """Growth of an expression with the rows."""

    degree: float  # 0 where the rows are not in it
    certain: bool  # Whether its part of the highest degree has no factor that may be zero


def growth(engine: Engine, ref: Ref, units: Collection[int]) -> Growth | None:
    """The growth in the rows of some units, which are spaces on one axis; ``None`` where nothing is known.

    Where the part of the highest degree has no factor that may be zero, as ``|c|^2`` in ``|c|^2 - 2 z c``, two
    different rows of a codebook give one number in exceptional cases only, whatever ``z`` is.
    """
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
    names = list(call.args)
    if call.op in ("aten::mul", "aten::mm", "aten::bmm", "aten::div"):
        return _product(call, of(names[0]), of(names[1]))
    if call.op in _SUMS:
        a = of(names[0])
        b = _product(call, of(names[1]), of(names[2])) if call.op in _BIASED else of(names[1])
        # the parts of the highest degree may cancel
        return None if a is None or b is None or a.degree == b.degree else max(a, b)
    power: Any = call.args.get("exponent") if call.op == "aten::pow" else None
    inner = of("self") if isinstance(power, int | float) and power > 0 else None
    return inner and Growth(inner.degree * power, inner.certain)


_KEPT = operations.COPIES | aten("neg sum mean linalg_vector_norm")
_DEGENERATE = (0, "floor", "trunc")  # settings that take an argument out of the result, or make it whole
_SUMS = aten("add sub addmm baddbmm _cdist_forward _euclidean_dist cdist")


def _product(call: Call, a: Growth | None, b: Growth | None) -> Growth | None:
    """The growth of a product: certain for a multiple and a square."""
    if a is None or b is None or (call.op == "aten::div" and (b.degree or len(call.inputs) > 1)):
        return None
    number = call.args.get("other", call.args.get("mat2"))
    square = number == call.args.get("self") and call.op == "aten::mul"
    multiple = isinstance(number, int | float) and number != 0
    return Growth(a.degree + b.degree, (square or multiple) and max(a, b).certain)
