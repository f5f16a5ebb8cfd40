"""Unit indices: integers that name units, and rows selected by them, as in routing to experts.

If an operation returns indices along an axis (``topk``, ``sort``, ``argmax``), these numbers name units, and only
operations that know what the numbers stand for let the units move. Rows picked by such numbers still record the unit
they came from, so that every unit may have its own inner spaces.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ....programs import Call, Ref, operations
from ....programs.calls import reached
from ....programs.operations import aten
from ....programs.program import float64_handler, run_call
from ..axis_terms import Axis, Pick, Segments, Slot, Value, axis_size, slots
from ..engine import Engine
from .registry import is_pointwise

# numbers are only copied and rearranged; the first operations keep each of them exactly once
_SAME = operations.REARRANGEMENTS
_SOME = operations.PARTS | operations.REPEATS | {"intertwine::part"}
# rules that interpret the numbers as units
_READERS = {"transformers::grouped_mm_fallback"} | aten(
    "index index_select gather sort argsort scatter histc cumsum index_put _grouped_mm floor_divide div embedding"
)
# every row of the result comes from the corresponding rows of the arguments
_ROWWISE = operations.LAYER_NORMS | operations.RMS_NORMS | operations.SOFTMAXES | aten("native_dropout glu")


def unread_names(engine: Engine, call: Call) -> None:
    """Fix units named by numbers that an operation reads as mere numbers."""
    if call.op in _SAME | _SOME | _READERS | operations.FILLS:
        return
    engine.drop(*map(engine.value, call.inputs))


def named(engine: Engine, ref: Any, size: int) -> Axis | None:
    """The axis of ``size`` units that the numbers in a tensor name, if any."""
    names = engine.value(ref).names if isinstance(ref, Ref) else None
    if names is None or names.kind != "units":
        return None
    of = engine.pool.resolve(names.of)
    if axis_size(of) == size:
        return of
    engine.drop(engine.value(ref))
    return None


def carried(engine: Engine, call: Call, value: Value, first_mix: int) -> Value:
    """The result of a call, with the names and origins of rows that it inherits from its arguments."""
    copies = call.op in _SAME | _SOME
    if not copies and call.op not in _READERS and any(value.names is engine.value(r).names for r in call.inputs):
        value = replace(value, names=None)  # of an argument returned unchanged; they were read as numbers
    if copies and value.names is None and (names := engine.value(call.inputs[0]).names) is not None:
        kept = replace(names, all=names.all and call.op in _SAME)
        value = replace(value, names=kept if names.kind == "units" or call.op in _SAME else None)
    if copies or call.op in _ROWWISE or is_pointwise(call):
        mixed = tuple(along for _, along in engine.mixed[first_mix:])
        via = joined(engine, [value.via, *(without(engine, engine.value(ref).via, mixed) for ref in call.inputs)])
        value = replace(value, via=via)
    return value


def joined(engine: Engine, parts: Iterable[tuple[Pick, ...]]) -> tuple[Pick, ...]:
    """The origins of rows made from several tensors; rows from more than one unit of an axis lose that origin."""
    found: dict[tuple, list[Pick]] = {}
    for pick in (pick for part in parts for pick in part):
        of = engine.pool.resolve(pick.of)
        key = tuple(slot.space for slot in slots(of))
        twin = next((p for known in found.values() for p in known if _same_unit(engine, p, pick)), None)
        if twin is not None and key not in found:
            engine.equal(of, twin.of)  # first unit with first unit, and so on
        elif not any(pick.label == known.label for known in found.setdefault(key, [])):
            found[key].append(pick)
    return tuple(picks[0] for picks in found.values() if len(picks) == 1)


def _same_unit(engine: Engine, a: Pick, b: Pick) -> bool:
    """Whether both mean the same position of axes of equal length, neither of which moves."""
    if a.label != b.label or a.rows or b.rows:
        return False
    both = (*engine.pool.resolve(a.of), *engine.pool.resolve(b.of))
    return axis_size(a.of) == axis_size(b.of) and all(engine.pool.node(s.space).pinned for s in slots(both))


def without(engine: Engine, via: tuple[Pick, ...], along: Iterable[Axis]) -> tuple[Pick, ...]:
    """The origins that survive mixing or summing over some axes: those of rows that are not among these."""
    gone = {slot.space for axis in along for slot in slots(engine.pool.resolve(axis))}
    return tuple(p for p in via if not gone.intersection(s.space for s in slots(engine.pool.resolve(p.rows))))


def origins(engine: Engine, axes: Sequence[Axis], via: Iterable[Pick]) -> list[Axis]:
    """The axes that rows of a tensor come from: inner spaces beside them may have one element for each unit."""
    tally = Counter(slot.space for axis in axes for slot in slots(axis))
    found = []
    for pick in via:
        rows = engine.pool.resolve(pick.rows)
        cut = any(isinstance(f, Segments) for f in rows)  # of some rows only: it is unknown which
        if not cut and all(tally[slot.space] == 1 for slot in slots(rows)):
            found.append(engine.pool.resolve(pick.of))
    return found


# sums, products and functions that make two numbers equal only if they were equal before
_TOLD = operations.SOFTMAXES | aten(
    "add sub mul div neg pow sum mean mm bmm addmm baddbmm linear linalg_vector_norm _cdist_forward _euclidean_dist "
    "cdist sigmoid exp log softplus sqrt _safe_softmax _log_softmax topk sort max amax cat"
)
_EQUAL = 1e-13  # relative difference of numbers that differ by rounding
# operations that can set a whole row to zero, so that every unit without a bias gives zero
_VANISHING = operations.RELUS - aten("leaky_relu _prelu_kernel abs") | aten(  # those are zero only at zero
    "clamp_max hardtanh where masked_fill index_put scatter masked_scatter zero fill round floor sign"
)
# operations that map zeros to zeros
_KEEPS_ZERO = aten(
    "mm bmm mul div neg sum mean expand index slice select cat _fused_rms_norm tanh silu gelu leaky_relu elu mish "
    "hardswish abs sin sqrt pow glu"
)
_MAY_ADD = operations.LAYER_NORMS | aten("linear convolution")  # so do these, without a bias


def distinct(engine: Engine, ref: Ref, dim: int, count: int = 0) -> bool:
    """Whether entries along an axis differ for almost all weights, so that their order is independent of position.

    This is tested on sums and products of random weights, with zeros for whatever may vanish. Nothing is claimed of
    operations that set different units to one number, as rectifiers and masks do. Units that a mask excludes may be
    equal if ``count`` others are always chosen before them.
    """
    along = engine.value(ref).axes[dim]
    if not engine.dtype(ref).is_floating_point or engine.value(ref).zero or not plain(along):
        return False
    units = {slot.space for slot in slots(along)}
    own = [r for r in engine.program.states.values() if engine.moves(r) and units & engine.spaces(r)]
    numbers = _drawn(engine, ref, reached(engine.calls, own), count)
    rows = None if numbers is None else numbers.movedim(dim, -1).reshape(-1, axis_size(along))[:8]
    return rows is not None and bool((rows.sort().values.diff() > _EQUAL * rows.abs().amax()).all())


def _drawn(engine: Engine, ref: Ref, made: Collection[int], count: int = 0) -> Tensor | None:
    """A tensor for random weights, computed where it is ``made`` from those of the units; ``None`` if undetermined."""
    value, call = engine.program.values[ref.id], engine.producer(ref)
    if ref.id not in made or call is None:
        if value.data is not None and not value.drawn:
            return value.data.cpu()
        may = cache(lambda read: not is_state(engine, read) and _vanishes(engine, read, may))
        spread = max(value.shape, default=1) ** -0.5 * (not may(ref))
        generator = torch.Generator().manual_seed(ref.id)
        numbers = torch.randn(value.shape, generator=generator, dtype=torch.float64, device="cpu")
        return numbers * spread if value.dtype.is_floating_point else None
    if call.op == "aten::masked_fill":
        return _drawn(engine, call.args["self"], made) if _never_chosen(engine, call, count) else None
    if call.op == "intertwine::part" and (source := _drawn(engine, call.args["self"], made)) is not None:
        _, view, offset = call.args["shown"]
        return source.contiguous().as_strided([n for n, _ in view], [step for _, step in view], offset)
    told = call.op in _TOLD | _SAME or getattr(call.func, "is_view", False)
    whole = call.args.get("rounding_mode") or (call.op == "aten::max" and isinstance(call.args.get("other"), Ref))
    if not told or whole or ref != call.outputs[0] or call.op.startswith("intertwine::"):
        return None
    given = {r.id: _drawn(engine, r, made, count if call.op in _SAME else 0) for r in dict.fromkeys(call.inputs)}
    known = {number: x for number, x in given.items() if x is not None}
    return run_call(call, known, float64_handler)[0] if len(known) == len(given) else None


def plain(axis: Axis) -> bool:
    """Whether every factor of an axis distinguishes its units: none is constant or concatenated."""
    return bool(axis) and all(isinstance(f, Slot) for f in axis)


def _vanishes(engine: Engine, ref: Ref, may: Callable[[Ref], bool]) -> bool:
    """Whether whole rows of a tensor may be zero on some inputs: by padding, rectifiers, masks, or kept zeros.

    ``may`` tells it of the tensors that made it.
    """
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
    """Whether a factor may be zero for whole rows: booleans, integers, inputs and constants."""
    ref, call = behind(engine, ref, _SAME | {"aten::expand"}, lambda r: engine.dtype(r).is_floating_point)
    return not engine.dtype(ref).is_floating_point or (call is None and not engine.moves(ref))


def behind(
    engine: Engine, ref: Ref, ops: Collection[str] = _SAME, goes: Callable[[Ref], bool] = lambda ref: True
) -> tuple[Ref, Call | None]:
    """The tensor before some operations, as far back as it ``goes``, and the call that made it, if any."""
    while goes(ref) and (call := engine.producer(ref)) is not None and call.op in ops:
        ref = call.inputs[0]
    return ref, engine.producer(ref)


def _never_chosen(engine: Engine, call: Call, count: int) -> bool:
    """Whether entries that a mask excludes are smaller than the rest, of which enough always remain."""
    number, left = call.args["value"], _left(engine, call.args["mask"])
    _, base = behind(engine, call.args["self"])
    positive = base is not None and base.op in operations.SOFTMAXES | aten("sigmoid exp")
    smaller = isinstance(number, int | float) and (number == float("-inf") or (number <= 0 and positive))
    last = engine.program.values[call.args["self"].id].shape[-1]
    return smaller and left is not None and count > 0 and left * last >= count


def _left(engine: Engine, mask: Ref) -> Fraction | None:
    """The share of a row that a mask keeps, if it is made from a given number of distinct positions in each row."""
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


def is_state(engine: Engine, ref: Ref) -> bool:
    """Whether a tensor is a parameter or a moving buffer, perhaps in another layout."""
    ref, call = behind(engine, ref)
    return call is None and engine.moves(ref)
