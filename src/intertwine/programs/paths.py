"""Paths of data-dependent control flow: a captured run for every combination of answers to yes-or-no questions.

``if mask.all():`` is such a question. Runs in which it is answered the other way show what the code would do then;
where that is the same (a warning), the question decides nothing. Where the code then raises (an assertion, a check of
the values of a distribution), there is no other path: the question is a guard, whose answer the group must keep.

Programs whose norms multiply by ``1 + weight``, read as if the gain itself were the parameter.
"""

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from .._evaluation import in_usual_mode
from .._nested import map_leaves
from ..errors import CaptureError
from .calls import Call, Ref, Value, readers
from .capture import capture
from .operations import COPIES
from .program import Program
from .recording.run import Refused

_PATHS = 8  # most runs that end
_RUNS = 64  # most runs


@in_usual_mode
def capture_paths(model: nn.Module, args: tuple, kwargs: Mapping[str, Any]) -> Program:
    """All paths through a model as one program, where a few yes-or-no questions decide; else the path of the example.

    Returns:
        The runs of all paths, side by side. It has no ``reads`` where all paths were seen. Where the code takes numbers
        out of tensors, asks more questions, or fails when an answer is changed, the path of the example alone.
    """
    program = capture(model, args, kwargs)
    if not program.answers:
        return program
    found: dict[tuple[bool, ...], Program] = {program.answers: program}
    guarded = False
    waiting = list(_turned(program.answers, 0))
    for _ in range(_RUNS):
        if not waiting:
            return _decided(list(found.values()), program.reads, guarded)
        answers = waiting.pop()
        try:
            with _silent():
                other = capture(model, args, kwargs, answers)
            known = other.answers
            if known is not None:
                found[known] = other
        except Refused as refusal:
            known, guarded = refusal.answers, True
        except CaptureError:  # what was true of this example was not meant for that path
            return program
        if known is None or known[: len(answers)] != answers or len(found) > _PATHS:
            return program
        waiting += _turned(known, len(answers))
    return program


def _turned(answers: tuple[bool, ...], first: int) -> Iterator[tuple[bool, ...]]:
    """The beginnings of other paths that leave this one at a question from ``first`` on."""
    return ((*answers[:i], not answers[i]) for i in range(first, len(answers)))


def _decided(found: list[Program], reads: tuple[str, ...], guarded: bool) -> Program:
    """A program of all paths, without the caveat of one; without the questions where none of them matters."""
    paths: list[Program] = []
    for path in found:
        if not any(_same(path, other) for other in paths):
            paths.append(path)
    whole, matters = union(paths), guarded or len(paths) > 1
    asked = {*reads, *whole.reads}
    notes = tuple(note for note in whole.notes if not any(note.startswith(f"{line} takes a number") for line in asked))
    calls = whole.calls if matters else tuple(c for c in whole.calls if c.op != "intertwine::read")
    return replace(whole, calls=calls, reads=(), notes=notes)


def _same(a: Program, b: Program) -> bool:
    """Whether two runs computed the same, whatever they asked."""
    calls = [[(c.op, c.args, c.outputs) for c in p.calls if c.op != "intertwine::read"] for p in (a, b)]
    values = len(a.values) == len(b.values) and all(map(_same_value, a.values, b.values))
    return values and calls[0] == calls[1] and a.outputs == b.outputs


def _same_value(a: Value, b: Value) -> bool:
    if replace(a, data=None) != replace(b, data=None) or (a.data is None) != (b.data is None):
        return False
    return a.data is None or b.data is None or torch.equal(a.data, b.data)


@contextmanager
def _silent() -> Iterator[None]:
    """No warnings: what the code says on a path that the example does not take is not meant for the user."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def union(programs: Sequence[Program]) -> Program:
    """The runs of one model side by side.

    Returns:
        A program with the inputs, calls and outputs of all. Parameters and buffers are shared, taps are those of the
        first run that has them.

    Raises:
        CaptureError: If a run added or removed parameters or buffers.
    """
    whole = programs[0]
    for program in programs[1:]:
        if program.states.keys() != whole.states.keys():
            changed = sorted(program.states.keys() ^ whole.states.keys())[:5]
            raise CaptureError(f"model must have the same parameters in every run. Got a change in {changed}.")
        whole = _joined(whole, program)
    return whole


def _joined(a: Program, b: Program) -> Program:
    values: list[Value] = list(a.values)
    new = {ref.id: a.states[name].id for name, ref in b.states.items()}
    for number, value in enumerate(b.values):
        if number not in new:
            new[number] = len(values)
            source = value.source and replace(value.source, args=_moved(value.source.args, new))
            values.append(replace(value, source=source))
    moved = lambda refs: tuple(Ref(new[r.id]) for r in refs)
    made = lambda call: tuple(None if r is None else Ref(new[r.id]) for r in call.outputs)
    calls = tuple(replace(c, args=_moved(c.args, new), outputs=made(c)) for c in b.calls)
    visible = {
        name: a.visible.get(name, frozenset()) | {new[i] for i in b.visible.get(name, ())}
        for name in [*a.visible, *b.visible]
    }
    return replace(
        a,
        values=tuple(values),
        calls=(*a.calls, *calls),
        inputs=(*a.inputs, *moved(b.inputs)),
        outputs=(*a.outputs, *moved(b.outputs)),
        taps={**{tap: Ref(new[r.id]) for tap, r in b.taps.items()}, **a.taps},
        reads=tuple(dict.fromkeys((*a.reads, *b.reads))),
        dtype=max(a.dtype, b.dtype, key=lambda d: torch.finfo(d).eps),
        notes=tuple(dict.fromkeys((*a.notes, *b.notes))),
        caches=tuple(dict.fromkeys((*a.caches, *b.caches))),
        visible=visible,
    )


def _moved(argument: Any, new: Mapping[int, int]) -> Any:
    """An argument with every reference renumbered."""
    return map_leaves(argument, lambda leaf: Ref(new[leaf.id]) if isinstance(leaf, Ref) else leaf)


def gains_as_parameters(program: Program) -> tuple[Program, dict[str, float]]:
    """The program in which every parameter that is only read as ``weight + c`` stands for that sum.

    Returns:
        The program, which computes the same from ``weight + c`` in place of ``weight``; and ``c`` by parameter name.
    """
    read = readers(program.calls)
    offsets: dict[str, float] = {}
    stands: dict[int, Ref] = {}  # the number of each sum to the parameter that stands for it
    removed: set[int] = set()
    returned = {ref.id for ref in program.outputs}
    for name, ref in program.states.items():
        if program.values[ref.id].kind != "parameter":
            continue
        found = _sums(ref, read, returned)
        if found and len({constant for _, constant, _ in found}) == 1:
            offsets[name] = found[0][1]
            for number, _, sums in found:
                stands[number] = ref
                removed |= sums
    moved = lambda leaf: stands.get(leaf.id, leaf) if isinstance(leaf, Ref) else leaf
    calls = tuple(replace(c, args=map_leaves(c.args, moved)) for c in program.calls if id(c) not in removed)
    return (replace(program, calls=calls), offsets) if offsets else (program, offsets)


def _sums(ref: Ref, read: dict[int, list[Call]], returned: set[int]) -> list[tuple[int, float, set[int]]]:
    """Every sum that a parameter is read as, with its constant and the calls that make it; none if it is read else."""
    found: list[tuple[int, float, set[int]]] = []
    waiting: list[tuple[Ref, set[int]]] = [(ref, set())]
    while waiting:
        at, passed = waiting.pop()
        if at.id in returned or not read.get(at.id):
            return []
        for call in read[at.id]:
            output = call.outputs[0] if call.outputs else None
            other = call.args.get("other")
            if output is None:
                return []
            if call.op in COPIES:
                waiting.append((output, {*passed, id(call)}))
            elif call.op == "aten::add" and isinstance(other, int | float) and call.args.get("alpha", 1) == 1:
                found.append((output.id, float(other), {*passed, id(call)}))
            else:
                return []
    return found
