"""Parts of a captured program as modules; on a GPU recorded once, as a CUDA graph, and launched as a whole."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from .._random import host_state
from ..features.moments import NormStatistics
from .calls import Call, Ref, grows
from .program import Handler, Program, Step

_RUNNING = ("running_mean", "running_var")


class Part(nn.Module):
    """Some calls of a program as a module, from some of its values to others, for any batch size.

    What does not depend on the input is computed once. Weights are the program's, shared by all its parts and never
    written; running statistics of batch norms are the part's own. In training mode a batch norm uses the batch's
    statistics and updates its copies, as ``nn.BatchNorm2d`` does; dropout stays off. It starts in evaluation mode.

    Args:
        program: Result of ``capture_dynamic``.
        inputs: Values that ``forward`` receives, in order; the program's inputs if ``None``.
        outputs: Values that it returns; the program's outputs if ``None``.

    Raises:
        CaptureError: If a call cannot be run again.
    """

    batches: Tensor

    def __init__(
        self, program: Program, inputs: Sequence[Ref] | None = None, outputs: Sequence[Ref] | None = None
    ) -> None:
        super().__init__()
        given = program.inputs if inputs is None else tuple(inputs)
        wanted = program.outputs if outputs is None else tuple(outputs)
        calls = [program.calls[i] for i in program.ancestors(wanted, given)]
        live = _live(calls, program.varying | program.growing.keys())
        fixed = _fixed(program, live, wanted)
        states = {f"v{i}": Ref(i) for i in fixed}
        self.program = Program(
            program.values, tuple(live), given, wanted, states, growing=program.growing, dynamic=True,
            given=program.given,
        )  # fmt: skip
        steps = {i: step for i, call in enumerate(live) if (step := Step.of(call)).norm}
        self._norms = {i: [f"v{step.filled[key].id}" for key in _RUNNING] for i, step in steps.items()}
        self._statistics = tuple(sorted({name for names in self._norms.values() for name in names}))
        self._measured: NormStatistics | None = None
        for name, ref in states.items():
            tensor = fixed[ref.id]
            self.register_buffer(name, tensor.clone() if name in self._statistics else tensor)
        self.register_buffer("batches", torch.zeros((), dtype=torch.long))
        self.eval()

    @property
    def inputs(self) -> tuple[Ref, ...]:
        """Values that ``forward`` receives, in order."""
        return self.program.inputs

    @property
    def outputs(self) -> tuple[Ref, ...]:
        """Values that it returns."""
        return self.program.outputs

    @property
    def norms(self) -> int:
        """Number of batch norms among the calls."""
        return len(self._norms)

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        """Run the calls."""
        states = {name: self.get_buffer(name) for name in self.program.states}
        if self._measured is None and not self.training:
            return self.program.run(values, states=states)
        if self._measured is None and self._norms:
            self.batches += 1
        handler = self._average if self._measured is None else self._measure
        handlers: dict[int, Handler] = dict.fromkeys(self._norms, handler)
        return self.program.run(values, states=states, handlers=handlers, training=True)

    def fork(self) -> Self:
        """The same calls with their own statistics; weights are shared."""
        twin = type(self).__new__(type(self))
        nn.Module.__init__(twin)
        for key in ("program", "_norms", "_measured", "_statistics"):
            setattr(twin, key, getattr(self, key))
        for key, tensor in self._buffers.items():
            own = key in self._statistics or key == "batches"
            twin.register_buffer(key, tensor.clone() if own and tensor is not None else tensor)
        return twin.train(self.training)

    @contextmanager
    def measuring_norms(self) -> Iterator[None]:
        """Let batch norms normalise by their batch in the block, and hold the moments of all examples afterwards."""
        norms = ((self.get_buffer(mean), self.get_buffer(variance)) for mean, variance in self._norms.values())
        with NormStatistics(norms) as self._measured:
            try:
                yield
            finally:
                self._measured = None

    def statistics(self) -> dict[str, Tensor]:
        """Copies of all running statistics, by an internal name."""
        return {key: self._buffers[key].clone() for key in (*self._statistics, "batches")}  # type: ignore[union-attr]

    def load_statistics(self, statistics: Mapping[str, Tensor]) -> None:
        """Load running statistics that ``statistics`` returned for the same calls.

        Raises:
            ValueError: If they belong to other batch norms.
        """
        own = {*self._statistics, "batches"}
        if statistics and set(statistics) != own:
            raise ValueError(f"statistics must be of the same {self.norms} batch norms. Got those of another tail.")
        for key, tensor in statistics.items():
            self._buffers[key].copy_(tensor)  # type: ignore[union-attr]

    def extra_repr(self) -> str:
        """Number of calls."""
        return f"{len(self.program.calls)} calls, {self.norms} batch norms"

    def _average(self, call: Call, operation: Callable[..., Any], args: dict[str, Any]) -> Tensor:
        """A batch norm in training mode; without a momentum it keeps a plain average over all batches."""
        momentum = args["momentum"] or 1 / max(int(self.batches), 1)
        normalised: Tensor = operation(**{**args, "momentum": momentum})
        return normalised

    def _measure(self, call: Call, operation: Callable[..., Any], args: dict[str, Any]) -> Tensor:
        """A batch norm whose batch statistics are taken over."""
        normalised: Tensor = operation(**{**args, "momentum": 1.0})
        assert self._measured is not None
        mean, variance = (args[key] for key in _RUNNING)
        self._measured.add(mean, variance, normalised.numel() // normalised.shape[1])
        return normalised


def _live(calls: Sequence[Call], varying: frozenset[int]) -> list[Call]:
    """The calls to run for every batch: those on the input, and those that depend on the number of examples alone."""
    changing, live = set(varying), []
    for call in calls:
        if grows(call.growing) or any(ref.id in changing for ref in call.inputs):
            live.append(call)
            changing |= {out.id for out in call.made}
    return live


def _fixed(program: Program, live: Sequence[Call], outputs: Sequence[Ref]) -> dict[int, Tensor]:
    """Values that live calls read, or that are outputs, and that do not depend on the input."""
    made = program.varying | program.growing.keys() | {out.id for call in live for out in call.made}
    read = dict.fromkeys(ref for call in live for ref in call.inputs)
    used = [ref for ref in read | dict.fromkeys(outputs) if ref.id not in made]
    with torch.no_grad():
        return {ref.id: tensor for ref, tensor in zip(used, program.run((), used, start=()))}


Work = Callable[..., tuple[Tensor | None, ...]]


class Replayed:
    """A function of tensors that, on a GPU and after enough calls, is launched as one graph; elsewhere it is called.

    The work runs on its own stream: several such functions run side by side, until ``join``. It may write tensors in
    place (running statistics do so) and draw random numbers on the GPU, but must do the same operations at every call.
    Work that reads a number back from the GPU, or draws one on the host (as layers that are dropped at random do), is
    always called instead.

    Args:
        work: Function from tensors to a tuple of tensors; what it returns is valid until its next call.
    """

    calls_first: ClassVar[int] = 5  # of each kind, in which libraries make their first allocations and choices

    def __init__(self, work: Work) -> None:
        self._work = work
        self._stream: torch.cuda.Stream | None = None
        self._seen: dict[Hashable, int] = {}
        self._steady = True
        self._recorded: dict[Hashable, tuple[torch.cuda.CUDAGraph, Sequence[Tensor], tuple[Tensor | None, ...]]] = {}

    def __call__(self, *inputs: Tensor, kind: Hashable = ()) -> tuple[Tensor | None, ...]:
        """The work on these inputs; calls of another ``kind``, or of other shapes, are recorded separately."""
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
        """Make whatever is launched from here on wait for the work."""
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
    """Results of the work, and whether it drew random numbers on the host: then it may do other things next time."""
    before = host_state()
    found = work(*inputs)
    return found, before != host_state()
