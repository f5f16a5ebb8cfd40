"""Capture a model's run as a program, with the dispatch recorder or through ``torch.export``."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .._attributes import Kept
from .._evaluation import evaluating
from ..errors import CaptureError
from .caches import capture_cold
from .circular import CircularAsIndex
from .memory import Geometry, geometry, overlap, storage_key
from .one_hot import OneHotAsScatter
from .program import Program, Ref
from .record import Recorder, WatchReads, tensors
from .source import error_line
from .switches import FASTPATH, MKLDNN

__all__ = ["capture"]


def capture(
    model: nn.Module,
    args: tuple = (),
    kwargs: Mapping[str, Any] | None = None,
    front: Literal["auto", "record", "export"] = "auto",
    answers: Sequence[bool] = (),
) -> Program:
    """Run ``model`` once in evaluation mode, without gradients, and list what it did.

    ``"record"`` follows one real run operation by operation; control flow that depends on the data follows the path
    taken, and ``Program.reads`` names the lines. ``"export"`` asks ``torch.export`` first, which refuses such control
    flow, and records the exported graph. ``"auto"`` records: a run without such reads is as strict.

    Args:
        model: Any module; its mode, hooks, parameters, buffers and all other attributes are as before afterwards, and
            it runs as if it had cached nothing before. On the meta device nothing is computed.
        args: Positional arguments of its ``forward``.
        kwargs: Keyword arguments.
        front: Which front-end.
        answers: What the first yes-or-no questions that the code asks of tensors are answered, instead of the truth.

    Returns:
        The program.

    Raises:
        CaptureError: If the model fails on the example, returns no tensor, holds sparse or quantised tensors or is
            scripted; with ``"export"`` also if its control flow depends on the data.
        ValueError: If ``front`` is none of the three.
        TypeError: If ``model`` is not a module.

    Examples:
        >>> program = capture(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), (torch.zeros(2, 3),))
        >>> [call.op for call in program.calls], program.is_cut_vertex("0")
        (['aten::t', 'aten::addmm', 'aten::relu'], True)
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module. Got {type(model).__name__}.")
    if isinstance(model, torch.jit.ScriptModule):
        raise CaptureError("model must be a Python module. Got a scripted one: give the module that it was made from.")
    if front not in ("auto", "record", "export"):
        raise ValueError(f'front must be "auto", "record" or "export". Got {front!r}.')
    _check_states(model)
    with _quiet(model), torch.random.fork_rng(devices=[]):
        kept = Kept(model)
        try:
            if front == "export":
                from .export import record_export

                return record_export(model, args, dict(kwargs or {}))
            return capture_cold(kept, lambda: record_run(model, args, dict(kwargs or {}), answers))
        finally:
            kept.restore()


def record_run(model: nn.Module, args: tuple, kwargs: dict[str, Any], answers: Sequence[bool] = ()) -> Program:
    """Record one run of ``model`` as it is.

    Raises:
        CaptureError: If the model fails.
    """
    recorder, kept = Recorder(answers), Kept(model)
    states, aliases = declare_states(recorder, model)
    inputs = tuple(recorder.declare(t, "input", str(i)) for i, t in enumerate(tensors([args, kwargs])))
    for tensor in kept.tensors():
        recorder.guard(tensor)
    taps: dict[str, Ref] = {}
    passed: dict[str, set[int]] = {"": set()}
    with ExitStack() as stack:
        at = _follow_modules(recorder, model, taps, passed, stack)
        try:
            with torch.no_grad(), CircularAsIndex(), OneHotAsScatter(), WatchReads(recorder), recorder:
                result = model(*args, **kwargs)
        except CaptureError:
            raise
        except Exception as error:
            first = next(iter(str(error).splitlines()), "")
            raise CaptureError(
                f"model must run on the example inputs. Got {type(error).__name__} in {at() or type(model).__name__}"
                f"{_place(error)}: {first.rstrip('.')}. Check shapes, dtypes and that inputs are on the model's device."
            ) from error
        finally:
            recorder.restore()
    program = finish(recorder, states, aliases, inputs, result, taps, "record")
    asked = None if recorder.answers is None else tuple(recorder.answers)
    return replace(program, caches=kept.filled(recorder.computed), visible=_visible(program, passed), answers=asked)


def _visible(program: Program, passed: dict[str, set[int]]) -> dict[str, frozenset[int]]:
    """What the code of every module that ran can see."""
    seen = {name: set(numbers) for name, numbers in passed.items()}
    seen[""].update(ref.id for ref in (*program.inputs, *program.outputs))
    for call in program.calls:
        seen[call.module].update(ref.id for ref in (*call.inputs, *call.outputs) if ref is not None)
    return {name: frozenset(numbers) for name, numbers in seen.items()}


def _place(error: BaseException) -> str:
    """Where the model's own code failed, if it did outside torch and this package."""
    line = error_line(error)
    return f" at {line}" if line else ""


def declare_states(recorder: Recorder, model: nn.Module) -> tuple[dict[str, Ref], dict[str, str]]:
    """Declare parameters and buffers; tied ones are declared once, under the first name."""
    states: dict[str, Ref] = {}
    aliases: dict[str, str] = {}
    first: dict[int, str] = {}
    taken: dict[int, list[tuple[Geometry, str]]] = {}
    saved = {name for name, _ in _saved_buffers(model)}
    for kind, items in (
        ("parameter", model.named_parameters(remove_duplicate=False)),
        ("buffer", model.named_buffers(remove_duplicate=False)),
    ):
        for name, tensor in items:
            known = first.get(id(tensor)) or _same_memory(tensor, taken)
            if known is not None and tensor.numel():
                aliases[name] = known
                continue
            _check_memory(tensor, name, taken)
            first[id(tensor)] = name
            states[name] = recorder.declare(
                tensor, "constant" if kind == "buffer" and name not in saved else kind, name
            )
    return states, aliases


def _saved_buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Buffers that a state dict holds; the others are made anew with every model, as constants are."""
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name, tensor in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set:
                yield f"{prefix}.{name}" if prefix else name, tensor


def _same_memory(tensor: Tensor, taken: dict[int, list[tuple[Geometry, str]]]) -> str | None:
    here = taken.get(storage_key(tensor), ())
    return next((name for place, name in here if place == geometry(tensor)), None)


def _check_memory(tensor: Tensor, name: str, taken: dict[int, list[tuple[Geometry, str]]]) -> None:
    """Tensors that overlap without being one cannot move independently.

    Raises:
        CaptureError: If ``tensor`` overlaps one that was declared before.
    """
    here = taken.setdefault(storage_key(tensor), [])
    for place, other in here:
        if overlap(place, geometry(tensor)):
            raise CaptureError(
                f"parameters and buffers must not share memory in part. Got {name} and {other}. Clone one, or tie them "
                "as one parameter."
            )
    here.append((geometry(tensor), name))


def finish(
    recorder: Recorder,
    states: dict[str, Ref],
    aliases: dict[str, str],
    inputs: tuple[Ref, ...],
    result: Any,
    taps: dict[str, Ref],
    front: str,
) -> Program:
    """Make the program from what was recorded.

    Raises:
        CaptureError: If the model returned no tensor.
    """
    notes: list[str] = []
    found = list(_output_tensors(result, notes))
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
    return Program(
        tuple(recorder.values), tuple(recorder.calls), inputs, outputs, states, aliases, _number(taps), reads, lowest,
        tuple(notes), front,
    )  # fmt: skip


def _number(taps: dict[str, Ref]) -> dict[str, Ref]:
    """Drop ``#0`` from modules that ran once."""
    return {
        (tap.removesuffix("#0") if f"{tap.removesuffix('#0')}#1" not in taps else tap): r for tap, r in taps.items()
    }


def _check_states(model: nn.Module) -> None:
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


@contextmanager
def _quiet(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, and no fused kernels that would hide what a layer does; restored afterwards."""
    # mkldnn runs a whole recurrent layer as one operation
    recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
    with evaluating(model), FASTPATH.off(), MKLDNN.off() if recurrent else nullcontext():
        yield


def _follow_modules(
    recorder: Recorder, model: nn.Module, taps: dict[str, Ref], passed: dict[str, set[int]], stack: ExitStack
) -> Any:
    """Keep ``recorder.module`` at the module that runs, and note what each module was given and returned."""
    running: list[str] = [""]
    counts: dict[str, int] = {}

    def note(*given: Any) -> None:
        """The module that runs and the one that called it see these."""
        found = {ref.id for t in _output_tensors(given, []) if (ref := recorder.ref(t)) is not None}
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
            first = next(iter(_output_tensors(result, [])), None)
            ref = None if first is None else recorder.ref(first)
            if ref is not None:
                taps[f"{name}#{counts.setdefault(name, 0)}"] = ref
                counts[name] += 1

        return hook

    for name, module in model.named_modules():
        if name and not isinstance(module, torch.jit.ScriptModule):  # those take no hooks: the module above runs them
            stack.callback(module.register_forward_pre_hook(enter(name), with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(leave(name)).remove)
    return lambda: running[-1]


def _output_tensors(result: Any, notes: list[str]) -> Iterator[Tensor]:
    """Tensors of an output: lists, tuples, mappings and dataclasses are opened; other objects are noted."""
    if isinstance(result, Tensor):
        yield result
    elif isinstance(result, Mapping):
        for v in result.values():
            yield from _output_tensors(v, notes)
    elif isinstance(result, list | tuple):
        for v in result:
            yield from _output_tensors(v, notes)
    elif hasattr(result, "__dataclass_fields__"):
        for name in result.__dataclass_fields__:
            yield from _output_tensors(getattr(result, name), notes)
    elif result is not None and not isinstance(result, str | int | float | bool):
        notes.append(f"the {type(result).__name__} that the model also returns is not part of the function preserved")
