"""Liveness of a program's values: which calls compute a value, what depends on it, and when it is last read."""

from collections.abc import Callable, Iterable, Sequence

from .calls import Call, Ref


def needed(
    calls: Sequence[Call],
    wanted: Iterable[Ref],
    stop: Iterable[Ref] = (),
    kept: Callable[[Call], bool] = lambda call: False,
) -> tuple[int, ...]:
    """Positions of the calls that compute ``wanted``, in order, without going behind ``stop``; and of all ``kept``."""
    given = set(stop)
    missing, found = set(wanted) - given, []
    for position in range(len(calls) - 1, -1, -1):
        call = calls[position]
        if kept(call) or any(out in missing for out in call.outputs):
            found.append(position)
            missing.update(ref for ref in call.inputs if ref not in given)
    return tuple(reversed(found))


def reached(calls: Iterable[Call], start: Iterable[Ref]) -> frozenset[int]:
    """Numbers of the values that depend on ``start``, those included."""
    found = set(start)
    for call in calls:
        if any(ref in found for ref in call.inputs):
            found.update(out for out in call.outputs if out is not None)
    return frozenset(ref.id for ref in found)


def last_reads(calls: Sequence[Call], kept: Iterable[Ref]) -> tuple[tuple[int, ...], ...]:
    """For every call the numbers of the values that nothing reads after it, ``kept`` left out."""
    seen, found = set(kept), []
    for call in reversed(calls):
        here = {*call.inputs, *(out for out in call.outputs if out is not None)}
        found.append(tuple(ref.id for ref in here - seen))
        seen |= here
    return tuple(reversed(found))
