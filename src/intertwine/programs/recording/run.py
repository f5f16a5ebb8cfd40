"""Recording of one run of a model: every operation, with the module that ran it."""

import dis
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from ..._attributes import Kept
from ..._nested import answers, leaves, tensors_in
from ..._random import host_state
from ..._words import listed
from ...errors import CaptureError
from ...features.activations import function_names, nonlinearity
from ..calls import Ref
from ..program import Program
from .decompositions import Plainly
from .memory import Geometry, geometry, overlap, storage_key
from .recorder import Recorder, WatchReads
from .source import error_line


class Refused(CaptureError):
    """An error raised by the model's own code after given answers to its yes-or-no questions."""

    def __init__(self, said: str, answers: Sequence[bool]) -> None:
        super().__init__(said)
        self.answers = tuple(answers)


def record_run(model: nn.Module, args: tuple, kwargs: dict[str, Any], answers: Sequence[bool] = ()) -> Program:
    """Record one run of ``model`` as it is."""
    recorder, kept = Recorder(answers), Kept(model)
    states, aliases = declare_states(recorder, model)
    inputs = tuple(recorder.declare(t, "input", str(i)) for i, t in enumerate(tensors_in([args, kwargs])))
    for tensor in kept.tensors():
        recorder.guard(tensor)
    taps: dict[str, Ref] = {}
    passed: dict[str, set[int]] = {"": set()}
    before = host_state()
    with ExitStack() as stack:
        at = _follow_modules(recorder, model, taps, passed, stack)
        try:
            with torch.no_grad(), Plainly(), WatchReads(recorder), recorder:
                result = model(*args, **kwargs)
        except CaptureError:
            raise
        except Exception as error:
            first, line = next(iter(str(error).splitlines()), ""), error_line(error)
            said = (
                f"model must run on the example inputs. Got {type(error).__name__} in {at() or type(model).__name__}"
                f"{f' at {line}' if line else ''}: {first.rstrip('.')}. {_advice(model, [args, kwargs])}"
            )
            if recorder.answers is not None and _is_raised(error):
                raise Refused(said, recorder.answers) from error
            raise CaptureError(said) from error
        finally:
            recorder.restore()
    taps |= _functions(recorder, model)
    program = _finished(recorder, states, aliases, inputs, result, taps)
    asked = None if recorder.answers is None or recorder.printed else tuple(recorder.answers)
    # values that the code of every module that ran can see
    passed[""].update(ref.id for ref in (*program.inputs, *program.outputs))
    for call in program.calls:
        passed[call.module].update(ref.id for ref in (*call.inputs, *call.made))
    seen = {name: frozenset(numbers) for name, numbers in passed.items()}
    caches, drawn = kept.filled(recorder.computed), before != host_state()
    return replace(program, caches=caches, visible=seen, answers=asked, drawn=drawn)


def _is_raised(error: BaseException) -> bool:
    """Whether Python code raised (or asserted) it: what an operation raises may depend on numbers."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_code[trace.tb_lasti] == dis.opmap["RAISE_VARARGS"]


def _advice(model: nn.Module, inputs: Any) -> str:
    ours, theirs = (
        dict.fromkeys(str(t.dtype).removeprefix("torch.") for t in found if t.is_floating_point())
        for found in (model.parameters(), tensors_in(inputs))
    )
    if len(ours) == 1 and theirs and ours != theirs:
        return (
            f"The weights of this {type(model).__name__} are {next(iter(ours))}, the example inputs "
            f"{' and '.join(theirs)}: convert the inputs, or the model ('.float()' keeps every half-precision value)."
        )
    flags = "on the command line, --input-shape, and --tokens for whole numbers"
    return f"Check shapes, dtypes and that inputs are on the model's device ({flags})."


def _functions(recorder: Recorder, model: nn.Module) -> dict[str, Ref]:
    """Results of nonlinearities that are called as functions, named as ``features.layers`` names them."""
    named = function_names(dict(model.named_modules()))
    found: dict[str, Ref] = {}
    numbers = defaultdict[str, Iterator[int]](count)
    for call in recorder.calls:
        function = nonlinearity(call.op, call.args.get("min"), call.args.get("max"))
        name = named(call.module, function) if function else None
        if name is not None and call.outputs[0] is not None:
            found[f"{name}#{next(numbers[name])}"] = call.outputs[0]
    return found


def _finished(
    recorder: Recorder, states: dict[str, Ref], aliases: dict[str, str], inputs: tuple[Ref, ...], result: Any,
    taps: dict[str, Ref],
) -> Program:  # fmt: skip
    """The program of what was recorded."""
    notes: list[str] = []
    kept = answers(result)
    if kept is not result and (hidden := [name for name in result if name not in kept]):
        notes.append(f"what is returned besides the logits is not part of the function preserved: {listed(hidden)}")
    found = list(output_tensors(kept, notes))
    if not found:
        raise CaptureError(
            f"model must return a tensor, or a list, tuple or mapping of them. Got {type(result).__name__}. "
            "Wrap it in a module that returns the tensor to preserve."
        )
    outputs = tuple(ref for t in found if (ref := recorder.ref(t)) is not None)
    reads = tuple(dict.fromkeys(recorder.reads))
    notes += [
        f"{line} takes a number out of a tensor that varies: only the path of this run is certified" for line in reads
    ]
    floats = [d for d in recorder.dtypes if d.is_floating_point] or [torch.get_default_dtype()]
    lowest = max(floats, key=lambda d: torch.finfo(d).eps)
    # modules that ran once have no number
    once = lambda tap: tap.removesuffix("#0") if f"{tap.removesuffix('#0')}#1" not in taps else tap
    return Program(
        tuple(recorder.values), tuple(recorder.calls), inputs, outputs, states, aliases,
        {once(tap): ref for tap, ref in taps.items()}, reads, lowest, tuple(notes),
    )  # fmt: skip


def _follow_modules(
    recorder: Recorder, model: nn.Module, taps: dict[str, Ref], passed: dict[str, set[int]], stack: ExitStack
) -> Any:
    """Keep ``recorder.module`` at the module that runs, and note what each module was given and returned."""
    running: list[str] = [""]
    numbers = defaultdict[str, Iterator[int]](count)

    def note(*given: Any) -> None:
        """The module that runs and the one that called it see these."""
        found = {ref.id for t in output_tensors(given) if (ref := recorder.ref(t)) is not None}
        for name in running[-2:]:
            passed.setdefault(name, set()).update(found)

    def enter(name: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            running.append(name)
            note(args, kwargs)
            recorder.module = name

        return hook

    def leave(name: str) -> Any:
        def hook(module: nn.Module, args: Any, result: Any) -> None:
            note(result)
            running.pop()
            recorder.module = running[-1]
            first = next(iter(output_tensors(result)), None)
            ref = None if first is None else recorder.ref(first)
            if ref is not None:
                taps[f"{name}#{next(numbers[name])}"] = ref

        return hook

    for name, module in model.named_modules():
        if name and not isinstance(module, torch.jit.ScriptModule):  # those take no hooks: the module above runs them
            stack.callback(module.register_forward_pre_hook(enter(name), with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(leave(name)).remove)
    return lambda: running[-1]


def output_tensors(result: Any, notes: list[str] | None = None) -> Iterator[Tensor]:
    """Tensors of an output: lists, tuples, mappings and dataclasses are opened; other objects go into ``notes``."""
    for leaf in leaves(result, dataclasses=True):
        if isinstance(leaf, Tensor):
            yield leaf
        elif notes is not None and leaf is not None and not isinstance(leaf, str | int | float | bool):
            notes.append(f"the {type(leaf).__name__} that the model also returns is not part of the function preserved")


def check_states(model: nn.Module) -> None:
    """Check that parameters and buffers are dense tensors with contents."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if nn.parameter.is_lazy(tensor):
            raise CaptureError(
                f"model must be initialised. Got the lazy parameter {name}. Run it once on an example first."
            )
        if tensor.layout != torch.strided or tensor.is_quantized:
            kind = "quantised" if tensor.is_quantized else str(tensor.layout)
            raise CaptureError(
                f"parameters must be dense floating-point tensors. Got {kind} {name}. Scalings leave its grid; convert "
                "it to dense floating point first."
            )
        plain = type(tensor) in (Tensor, nn.Parameter) or isinstance(tensor, nn.Buffer)
        if not plain and hasattr(type(tensor), "__torch_dispatch__") and not isinstance(tensor, nn.Parameter):
            raise CaptureError(f"parameters must be ordinary tensors. Got {type(tensor).__name__} {name}.")


def declare_states(recorder: Recorder, model: nn.Module) -> tuple[dict[str, Ref], dict[str, str]]:
    """Declare parameters and buffers; tied ones are declared once, under the first name."""
    states: dict[str, Ref] = {}
    aliases: dict[str, str] = {}
    taken: dict[int, list[tuple[Geometry, str]]] = {}  # storage -> what lies there
    # buffers that a state dict holds; the others are made anew with every model, as constants are
    modules = model.named_modules(remove_duplicate=False)
    own = lambda module: {n for n, _ in module.named_buffers(recurse=False)} - module._non_persistent_buffers_set
    saved = {f"{at}.{name}".strip(".") for at, module in modules for name in own(module)}
    for kind, items in (
        ("parameter", model.named_parameters(remove_duplicate=False)),
        ("buffer", model.named_buffers(remove_duplicate=False)),
    ):
        for name, tensor in items:
            here, shown = taken.setdefault(storage_key(tensor), []), geometry(tensor)
            tied = next((other for place, other in here if place == shown and tensor.numel()), None)
            if tied is not None:
                aliases[name] = tied
                continue
            for other in (other for place, other in here if overlap(place, shown)):  # they cannot move independently
                raise CaptureError(
                    f"parameters and buffers must not share memory in part. Got {name} and {other}. Clone one, or tie "
                    "them as one parameter."
                )
            here.append((shown, name))
            states[name] = recorder.declare(
                tensor, "constant" if kind == "buffer" and name not in saved else kind, name
            )
    return states, aliases
