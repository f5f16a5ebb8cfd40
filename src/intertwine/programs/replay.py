"""Work on a GPU that is recorded once, as a CUDA graph, and launched whole: small networks wait for their launches."""

from collections.abc import Callable, Hashable, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from .._random import host_state

Work = Callable[..., tuple[Tensor | None, ...]]


class Replayed:
    """A function of tensors which, on a GPU and called often enough, is launched as one graph; elsewhere it is called.

    The work runs on a stream of its own: several go on side by side, until ``join``. It may write tensors in place
    (running statistics do so) and draw random numbers on the GPU, but must do the same operations at every call. Where
    it reads a number back from the GPU, or draws one on the host (as layers that are dropped at random do), it goes on
    being called.

    Args:
        work: From tensors to a tuple of tensors; what it returns holds until its next call.
    """

    calls_first: ClassVar[int] = 5  # of each kind: what libraries allocate and choose at their first calls is theirs

    def __init__(self, work: Work) -> None:
        self._work = work
        self._stream: torch.cuda.Stream | None = None
        self._seen: dict[Hashable, int] = {}
        self._steady = True
        self._recorded: dict[Hashable, tuple[torch.cuda.CUDAGraph, Sequence[Tensor], tuple[Tensor | None, ...]]] = {}

    def __call__(self, *inputs: Tensor, kind: Hashable = ()) -> tuple[Tensor | None, ...]:
        """The work on these inputs; calls of another ``kind``, or of other shapes, are recorded apart."""
        if inputs[0].device.type != "cuda":
            return self._work(*inputs)
        kind = (kind, *((x.shape, x.stride(), x.dtype) for x in inputs))
        self._stream = self._stream or torch.cuda.Stream(inputs[0].device)
        self._stream.wait_stream(torch.cuda.current_stream(inputs[0].device))
        with torch.cuda.stream(self._stream):
            self._seen[kind] = self._seen.get(kind, 0) + 1
            if self._steady and self._seen[kind] == self.calls_first + 1:
                self._record(kind, inputs)
            if kind not in self._recorded:
                found, drew = called(self._work, *inputs)
                self._steady = self._steady and not drew
                return found
            graph, own, outputs = self._recorded[kind]
            for kept, new in zip(own, inputs):
                kept.copy_(new)
            graph.replay()
            return outputs

    def join(self) -> None:
        """Let what is launched from here on wait for the work."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)

    def _record(self, kind: Hashable, inputs: Sequence[Tensor]) -> None:
        graph, own = torch.cuda.CUDAGraph(), [x.detach().clone() for x in inputs]
        try:
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                outputs = self._work(*own)
        except RuntimeError:  # something in it waits for the GPU
            return
        self._recorded[kind] = graph, own, outputs


def called(work: Work, *inputs: Tensor) -> tuple[tuple[Tensor | None, ...], bool]:
    """What the work gives, and whether it drew random numbers on the host: next time it may do other things."""
    before = host_state()
    found = work(*inputs)
    return found, before != host_state()
