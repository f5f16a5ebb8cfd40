"""Capture of a model's run as a program, and of all paths of a model whose control flow depends on data.

``if mask.all():`` is a yes-or-no question. Runs with the other answer show what the code would do then. If that is the
same (but for a warning), the question decides nothing. If the code then raises (an assertion, a check of the values of
a distribution), there is no other path: the question is a guard, whose answer the group must keep.
"""

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from .._attributes import Kept
from .._evaluation import FASTPATH, Switch, alone, check_module, evaluating, in_usual_mode
from .._examples import arguments, each
from .._nested import map_leaves
from ..errors import CaptureError
from .calls import Call, Ref, Value, readers
from .operations import COPIES
from .program import Program
from .recording.run import Refused, check_states, record_run


@in_usual_mode
def capture(
    model: nn.Module,
    args: tuple = (),
    kwargs: Mapping[str, Any] | None = None,
    answers: Sequence[bool] = (),
    evaluation: bool = True,
) -> Program:
    """Run ``model`` once without gradients, and list what it did, operation by operation.

    Control flow that depends on the data follows the path taken, and ``Program.reads`` names the lines.

    Args:
        model: Any module. Its mode, hooks, parameters, buffers and all other attributes are restored afterwards, and it
            runs as if it had cached nothing before. On the meta device nothing is computed.
        args: Positional arguments of its ``forward``.
        kwargs: Keyword arguments.
        answers: Answers, instead of the true ones, to the first yes-or-no questions that the code asks of tensors.
        evaluation: Whether it runs in evaluation mode; otherwise its modules keep their modes.

    Raises:
        CaptureError: If the model fails on the example, returns no tensor, holds sparse or quantised tensors or is
            scripted.

    Examples:
        >>> program = capture(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), (torch.zeros(2, 3),))
        >>> [call.op for call in program.calls]
        ['aten::t', 'aten::addmm', 'aten::relu']
    """
    check_module(model)
    if isinstance(model, torch.jit.ScriptModule):
        raise CaptureError("model must be a Python module. Got a scripted one: give the module that it was made from.")
    check_states(model)
    with _quiet(model, evaluation), torch.random.fork_rng(devices=[]):
        kept = Kept(model)
        try:
            return _capture_cold(kept, lambda: record_run(model, args, dict(kwargs or {}), answers))
        finally:
            kept.restore()


def _capture_cold(kept: Kept, run: Callable[[], Program]) -> Program:
    """Capture a run without tensors in attributes that it restores: caches of earlier runs; others are constants."""
    for delete in (False, True):
        places = kept.empty(lambda place: True, delete)
        while places:
            try:
                program = run()
            except CaptureError:  # the model needs what was taken out, or not there at all
                break
            filled = [place for place in places if kept.holds(place)]
            if len(filled) == len(places):
                return program
            kept.restore()
            places = kept.empty(set(filled).__contains__, delete)
        kept.restore()
    return run()


_MKLDNN = Switch(torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled)


@contextmanager
def _quiet(model: nn.Module, evaluation: bool) -> Iterator[None]:
    """Evaluation mode if wanted, without fused kernels that would hide what a layer does; restored afterwards."""
    # mkldnn runs a whole recurrent layer as one operation
    recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
    mode = evaluating if evaluation else alone
    with mode(model), FASTPATH.off(), _MKLDNN.off() if recurrent else nullcontext():
        yield


_PATHS = 8  # most runs that complete
_RUNS = 64  # most runs


@in_usual_mode
def capture_paths(model: nn.Module, args: tuple, kwargs: Mapping[str, Any]) -> Program:
    """All paths through a model as one program, if a few yes-or-no questions decide; else the path of the example.

    Returns:
        The runs of all paths, side by side, without ``reads`` if all paths were seen. If the code takes numbers out of
        tensors, asks more questions, or fails when an answer is changed, only the path of the example.
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
    """Beginnings of other paths that leave this one at a question from ``first`` on."""
    return ((*answers[:i], not answers[i]) for i in range(first, len(answers)))


def _decided(found: list[Program], reads: tuple[str, ...], guarded: bool) -> Program:
    """A program of all paths, without the caveat of a single one; without the questions if none of them matters."""
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
    """Whether two runs computed the same, whatever questions they asked."""
    calls = [[(c.op, c.args, c.outputs) for c in p.calls if c.op != "intertwine::read"] for p in (a, b)]
    values = len(a.values) == len(b.values) and all(map(_same_value, a.values, b.values))
    return values and calls[0] == calls[1] and a.outputs == b.outputs


def _same_value(a: Value, b: Value) -> bool:
    if replace(a, data=None) != replace(b, data=None) or (a.data is None) != (b.data is None):
        return False
    return a.data is None or b.data is None or torch.equal(a.data, b.data)


@contextmanager
def _silent() -> Iterator[None]:
    """No warnings or logs: what the code says on a path that the example does not take is not meant for the user."""
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


def capture_examples(model: nn.Module, example_inputs: Any) -> Program:
    """All paths through a model on each of its examples, side by side."""
    return union([capture_paths(model, *arguments(example)) for example in each(example_inputs)])


def _joined(a: Program, b: Program) -> Program:
    values: list[Value] = list(a.values)
    renumbered = lambda args: map_leaves(args, lambda leaf: Ref(new[leaf.id]) if isinstance(leaf, Ref) else leaf)
    new = {ref.id: a.states[name].id for name, ref in b.states.items()}
    for number, value in enumerate(b.values):
        if number not in new:
            new[number] = len(values)
            source = value.source and replace(value.source, args=renumbered(value.source.args))
            values.append(replace(value, source=source))
    calls = tuple(replace(c, args=renumbered(c.args), outputs=renumbered(c.outputs)) for c in b.calls)
    visible = {
        name: a.visible.get(name, frozenset()) | {new[i] for i in b.visible.get(name, ())}
        for name in [*a.visible, *b.visible]
    }
    return replace(
        a,
        values=tuple(values),
        calls=(*a.calls, *calls),
        inputs=(*a.inputs, *renumbered(b.inputs)),
        outputs=(*a.outputs, *renumbered(b.outputs)),
        taps={**renumbered(b.taps), **a.taps},
        reads=tuple(dict.fromkeys((*a.reads, *b.reads))),
        dtype=max(a.dtype, b.dtype, key=lambda d: torch.finfo(d).eps),
        notes=tuple(dict.fromkeys((*a.notes, *b.notes))),
        caches=tuple(dict.fromkeys((*a.caches, *b.caches))),
        visible=visible,
    )


def gains_as_parameters(program: Program) -> tuple[Program, dict[str, float]]:
    """The program with every parameter that is only read as ``weight + c`` standing for that sum.

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
    """Every sum that a parameter is read as, with its constant and the calls that make it; none if read otherwise."""
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
