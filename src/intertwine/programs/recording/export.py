"""The strict front-end: ``torch.export`` proves that the control flow is free of data, then its graph is recorded."""

import logging
import warnings
from contextlib import redirect_stderr
from io import StringIO
from typing import Any

import torch
from torch import fx, nn

from ..._nested import tensors_in
from ...errors import CaptureError
from ..calls import Ref
from ..program import Program
from .recorder import Recorder, WatchReads
from .run import finish, record_run
from .states import declare_states


def record_export(model: nn.Module, args: tuple, kwargs: dict[str, Any]) -> Program:
    """Export ``model`` and record its graph, so that both front-ends speak of the same operations."""
    logging.disable(logging.ERROR)  # a refusal is our one message, not pages of torch's log
    try:
        with torch.no_grad(), warnings.catch_warnings(), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            exported = torch.export.export(model, args, kwargs or None, strict=False)
    except Exception as error:
        if not _depends_on_data(error):
            record_run(model, args, kwargs)  # where nothing runs at all, this says so
        raise CaptureError(_refusal(error)) from error
    finally:
        logging.disable(logging.NOTSET)
    graph = exported.module(check_guards=False)
    recorder = Recorder()
    states, aliases = declare_states(recorder, graph)
    aliases |= _tied(model, states)
    inputs = tuple(recorder.declare(t, "input", str(i)) for i, t in enumerate(tensors_in([args, kwargs])))
    taps: dict[str, Ref] = {}
    try:
        with torch.no_grad(), WatchReads(recorder), recorder:
            result = _Follow(graph, recorder, taps).run(*tensors_in([args, kwargs]))
    finally:
        recorder.restore()
    return finish(recorder, states, aliases, inputs, result, taps, "export")


class _Follow(fx.Interpreter):
    """Runs an exported graph node by node, telling the recorder the module and line each node came from."""

    def __init__(self, graph: fx.GraphModule, recorder: Recorder, taps: dict[str, Ref]) -> None:
        super().__init__(graph)
        self._recorder, self._taps = recorder, taps

    def run_node(self, n: fx.Node) -> Any:
        """Run one node."""
        stack = [path for path, _ in (n.meta.get("nn_module_stack") or {}).values()]
        self._recorder.module = stack[-1] if stack else ""
        self._recorder.line = _line(n.meta.get("stack_trace") or "")
        result = super().run_node(n)
        if isinstance(result, torch.Tensor):
            for path in stack:
                ref = self._recorder.ref(result)
                if path and ref is not None:
                    self._taps[f"{path}#0"] = ref  # the last value inside a module is what it returned
        return result


def _tied(model: nn.Module, states: dict[str, Ref]) -> dict[str, str]:
    """Names that share a tensor in the model; export keeps one of them."""
    groups: dict[int, list[str]] = {}
    items = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    for name, tensor in items:
        groups.setdefault(id(tensor), []).append(name)
    aliases: dict[str, str] = {}
    for names in groups.values():
        kept = next((n for n in names if n in states), None)
        aliases |= {n: kept for n in names if kept is not None and n not in states}
    return aliases


def _line(trace: str) -> str:
    files = [line.strip() for line in trace.splitlines() if line.strip().startswith("File ")]
    own = [line for line in files if "/torch/" not in line] or files
    if not own:
        return ""
    path, number = own[-1].split('"')[1], own[-1].split("line ")[1].split(",")[0]
    return f"{path.rsplit('/', 1)[-1]}:{number}"


def _refusal(error: Exception) -> str:
    text = str(error)
    line = _line(text)
    first = next((part.strip() for part in text.splitlines() if part.strip()), type(error).__name__)
    place = f" at {line}" if line else ""
    cure = (
        "Its control flow depends on the data: front='record' certifies the path that the example takes."
        if _depends_on_data(error)
        else "front='record' follows a real run instead."
    )
    return (
        f"model must be exportable for front='export'. Got {type(error).__name__}{place}: {first[:200].rstrip('. ')}. "
        f"{cure}"
    )


def _depends_on_data(error: Exception) -> bool:
    return "data-dependent" in str(error) or "DataDependent" in type(error).__name__
