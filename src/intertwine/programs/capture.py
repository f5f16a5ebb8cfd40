"""Capture of a model's run as a program."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from .._attributes import Kept
from .._evaluation import alone, check_module, evaluating, in_usual_mode
from ..errors import CaptureError
from .program import Program
from .recording.caches import capture_cold
from .recording.fused_kernels import FASTPATH, MKLDNN
from .recording.run import record_run
from .recording.states import check_states

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
            return capture_cold(kept, lambda: record_run(model, args, dict(kwargs or {}), answers))
        finally:
            kept.restore()


@contextmanager
def _quiet(model: nn.Module, evaluation: bool) -> Iterator[None]:
    """Evaluation mode where wanted, and no fused kernels that would hide what a layer does; restored afterwards."""
    # mkldnn runs a whole recurrent layer as one operation
    recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
    mode = evaluating if evaluation else alone
    with mode(model), FASTPATH.off(), MKLDNN.off() if recurrent else nullcontext():
        yield
