"""All paths of a model whose code only asks yes-or-no questions of tensors: a run for every combination of answers.

``if mask.all():`` is such a question. Runs in which it is answered the other way show what the code would do then;
where that is the same (a warning), the question decides nothing.
"""

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ..errors import CaptureError
from .calls import Value
from .capture import capture
from .program import Program
from .union import union

_QUESTIONS = 3  # most questions of one run
_PATHS = 8  # most runs


def capture_paths(model: nn.Module, args: tuple, kwargs: Mapping[str, Any]) -> Program:
    """All paths through a model as one program, where a few yes-or-no questions decide; else the path of the example.

    Args:
        model: As for ``capture``.
        args: Positional arguments of its ``forward``.
        kwargs: Keyword arguments.

    Returns:
        The runs of all paths, side by side. It has no ``reads`` where all paths were seen. Where the code takes numbers
        out of tensors, asks more questions, or fails when an answer is changed, the path of the example alone.
    """
    program = capture(model, args, kwargs)
    questions = program.answers or ()
    if not 0 < len(questions) <= _QUESTIONS:
        return program
    found: dict[tuple[bool, ...], Program] = {questions: program}
    waiting = list(_turned(questions, 0))
    while waiting:
        answers = waiting.pop()
        try:
            with _silent():
                other = capture(model, args, kwargs, answers)
        except CaptureError:  # what was true of this example was not meant for that path
            return program
        known = other.answers
        if known is None or known[: len(answers)] != answers or len(known) > _QUESTIONS or len(found) == _PATHS:
            return program
        found[known] = other
        waiting += _turned(known, len(answers))
    paths: list[Program] = []
    for path in found.values():
        if not any(_same(path, other) for other in paths):
            paths.append(path)
    return _decided(union(paths), program.reads, matters=len(paths) > 1)


def _turned(answers: tuple[bool, ...], first: int) -> Iterator[tuple[bool, ...]]:
    """The beginnings of other paths that leave this one at a question from ``first`` on."""
    return ((*answers[:i], not answers[i]) for i in range(first, len(answers)))


def _decided(whole: Program, reads: tuple[str, ...], matters: bool) -> Program:
    """A program of all paths, without the caveat of one; without the questions where they do not matter."""
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
