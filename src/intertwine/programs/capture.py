"""Capture of a model's run as a program."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from threading import Lock
from typing import Any

import torch
from torch import nn

from .._attributes import Kept
from .._evaluation import alone, check_module, evaluating, in_usual_mode
from ..errors import CaptureError
from .program import Program
from .recording.run import check_states, record_run

__all__ = ["capture"]


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
        model: Any module; its mode, hooks, parameters, buffers and all other attributes are as before afterwards, and
            it runs as if it had cached nothing before. On the meta device nothing is computed.
        args: Positional arguments of its ``forward``.
        kwargs: Keyword arguments.
        answers: What the first yes-or-no questions that the code asks of tensors are answered, instead of the truth.
        evaluation: Whether it runs in evaluation mode; else its modules keep the modes that they have.

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
    """Capture a run without the caches of earlier ones.

    Tensors in attributes, which are neither parameters nor buffers, are taken out. Those that the run puts back are
    caches; with the others (constants of the model) it is run again.
    """
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


class _Switch:
    """A process-wide switch, off as long as one of several threads needs it off."""

    def __init__(self, read: Callable[[], bool], write: Callable[[bool], None]) -> None:
        self._read, self._write = read, write
        self._lock, self._users, self._before = Lock(), 0, True

    @contextmanager
    def off(self) -> Iterator[None]:
        """Off in the block; restored when the last block ends."""
        with self._lock:
            if not self._users:
                self._before = self._read()
                self._write(False)
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._write(self._before)


_FASTPATH = _Switch(torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled)
_MKLDNN = _Switch(torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled)


@contextmanager
def _quiet(model: nn.Module, evaluation: bool) -> Iterator[None]:
    """Evaluation mode where wanted, and no fused kernels that would hide what a layer does; restored afterwards."""
    # mkldnn runs a whole recurrent layer as one operation
    recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
    mode = evaluating if evaluation else alone
    with mode(model), _FASTPATH.off(), _MKLDNN.off() if recurrent else nullcontext():
        yield
