"""Several captured runs of one model as one program: the same parameters, one run after the other."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from .._nested import map_leaves
from ..errors import CaptureError
from .calls import Ref, Value
from .program import Program


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
            values.append(value)
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
