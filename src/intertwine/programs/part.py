"""Parts of a captured program as modules: values in, values out."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Self

import torch
from torch import Tensor, nn

from ..features.norm_statistics import NormStatistics
from .calls import Call, Ref
from .liveness import last_reads
from .per_example import grows
from .program import Program
from .steps import Step


class Part(nn.Module):
    """Some calls of a program as a module, from some of its values to others, for any batch size.

    What does not depend on the input is computed once. Weights are those that the program holds, shared by all parts of
    it and never written; running statistics of batch norms are its own. In training mode a batch norm uses the batch's
    statistics and updates its copies, as ``nn.BatchNorm2d`` does; dropout stays off. It starts in evaluation mode.

    Args:
        program: From ``capture_dynamic``.
        inputs: Values that ``forward`` receives, in order; the program's inputs if ``None``.
        outputs: Values that it returns; the program's outputs if ``None``.

    Attributes:
        norms: Number of batch norms among the calls.

    Raises:
        CaptureError: If a call cannot be run again.
    """

    batches: Tensor

    def __init__(
        self, program: Program, inputs: Sequence[Ref] | None = None, outputs: Sequence[Ref] | None = None
    ) -> None:
        super().__init__()
        self.inputs = program.inputs if inputs is None else tuple(inputs)
        self.outputs = program.outputs if outputs is None else tuple(outputs)
        self._measured: NormStatistics | None = None
        calls = [program.calls[i] for i in program.ancestors(self.outputs, self.inputs)]
        live = _live(calls, program.varying | program.growing.keys())
        self._steps = tuple(Step.of(call) for call in live)
        norms = [step for step in self._steps if step.norm]
        statistics = {step.filled[key].id for step in norms for key in ("running_mean", "running_var")}
        self.norms, self._statistics = len(norms), tuple(f"v{i}" for i in sorted(statistics))
        used = {ref.id for call in live for ref in call.inputs}
        self._growing = {i: one for i, one in program.growing.items() if i in used}
        self._last = last_reads(live, self.outputs)
        for i, tensor in _fixed(program, calls, live).items():
            self.register_buffer(f"v{i}", tensor.clone() if i in statistics else tensor)
        self.register_buffer("batches", torch.zeros((), dtype=torch.long))
        self.eval()

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        """Run the calls."""
        n, device = values[0].shape[0], values[0].device
        known = {ref.id: value for ref, value in zip(self.inputs, values)}

        def fetch(ref: Ref) -> Tensor:
            if ref.id in known:
                return known[ref.id]
            if ref.id in self._growing:
                return self._growing[ref.id].at(n).to(device)
            return self._buffers[f"v{ref.id}"]  # type: ignore[return-value]

        training = self.training or self._measured is not None
        if self.training and self._measured is None and self.norms:
            self.batches += 1
        for step, done in zip(self._steps, self._last):
            step.run(known, fetch, n, self._momentum if training else None)
            if step.norm and self._measured is not None:
                x = fetch(step.filled["input"])
                self._measured.add(*self._running(step), x.numel() // x.shape[1])
            for i in done:
                known.pop(i, None)
        return tuple(known[ref.id] for ref in self.outputs)

    def fork(self) -> Self:
        """The same calls with statistics of their own; weights are shared."""
        twin = type(self).__new__(type(self))
        nn.Module.__init__(twin)
        for key in ("inputs", "outputs", "norms", "_measured", "_statistics", "_growing", "_steps", "_last"):
            setattr(twin, key, getattr(self, key))
        for key, tensor in self._buffers.items():
            own = key in self._statistics or key == "batches"
            twin.register_buffer(key, tensor.clone() if own and tensor is not None else tensor)
        return twin.train(self.training)

    @contextmanager
    def measuring_norms(self) -> Iterator[None]:
        """Batch norms normalise by their batch in the block, and hold the moments of all examples afterwards."""
        norms = [step for step in self._steps if step.norm]
        with NormStatistics(self._running(step) for step in norms) as self._measured:
            try:
                yield
            finally:
                self._measured = None

    def statistics(self) -> dict[str, Tensor]:
        """Copies of all running statistics, by an internal name."""
        return {key: self._buffers[key].clone() for key in (*self._statistics, "batches")}  # type: ignore[union-attr]

    def load_statistics(self, statistics: Mapping[str, Tensor]) -> None:
        """Take running statistics that ``statistics`` gave for the same calls.

        Raises:
            ValueError: If they are of other batch norms.
        """
        own = {*self._statistics, "batches"}
        if statistics and set(statistics) != own:
            raise ValueError(f"statistics must be of the same {self.norms} batch norms. Got those of another tail.")
        for key, tensor in statistics.items():
            self._buffers[key].copy_(tensor)  # type: ignore[union-attr]

    def extra_repr(self) -> str:
        """How many calls."""
        return f"{len(self._steps)} calls, {self.norms} batch norms"

    def _running(self, step: Step) -> tuple[Tensor, Tensor]:
        """Running mean and variance of a batch norm."""
        mean, variance = (self._buffers[f"v{step.filled[key].id}"] for key in ("running_mean", "running_var"))
        assert mean is not None
        assert variance is not None
        return mean, variance

    def _momentum(self, recorded: float) -> float:
        if self._measured is not None:
            return 1.0
        return recorded or 1 / max(int(self.batches), 1)  # without one: a plain average over all batches


def _live(calls: Sequence[Call], varying: frozenset[int]) -> list[Call]:
    """The calls to run for every batch: those on the input, and those that depend on the number of examples alone."""
    changing, live = set(varying), []
    for call in calls:
        if grows(call.growing) or any(ref.id in changing for ref in call.inputs):
            live.append(call)
            changing |= {out.id for out in call.outputs if out is not None}
    return live


def _fixed(program: Program, calls: Sequence[Call], live: Sequence[Call]) -> dict[int, Tensor]:
    """What the live calls read that does not depend on the input: states, constants, and tensors made of them."""
    made = {program.states[name].id: tensor for name, tensor in program.contents.items()}
    device = next((tensor.device for tensor in made.values()), None)
    for i, value in enumerate(program.values):
        if value.kind == "constant" and value.data is not None and i not in program.growing and i not in made:
            made[i] = value.data if device is None else value.data.to(device)
    running = {id(call) for call in live}
    with torch.no_grad():
        for call in (call for call in calls if id(call) not in running):
            Step.of(call).run(made, lambda ref: made[ref.id], 0)
    own = {out.id for call in live for out in call.outputs if out is not None}
    used = {ref.id for call in live for ref in call.inputs} - own - program.varying
    return {i: tensor for i, tensor in made.items() if i in used}
