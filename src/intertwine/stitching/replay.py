"""Running a part of a captured program again: any batch size, other weights, gradients, batch norm in either mode.

A program is one run on a few examples, and its numbers hold the batch size in places (``view(x, [2, 512])``). Two runs,
on two and on three examples, show where: an integer that differs grows with the batch, ``base + slope N``. A third run
on five examples must then be reproduced, or the model is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._evaluation import evaluating
from ..errors import CaptureError
from ..features.batches import call, device_of, head, size
from ..programs import Call, Program, Ref, capture

__all__ = ["PerExample", "Recording", "Replay", "first_output", "flat_inputs", "record"]

_SIZES = (2, 3, 5)  # two runs to find the batch size in the program, one to check it
BATCH_NORMS = {
    "aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::miopen_batch_norm",
    "aten::_native_batch_norm_legit_no_training", "aten::_batch_norm_no_update",
}  # fmt: skip
_VIEWS = {"aten::view", "aten::_unsafe_view"}  # of memory that may be laid out otherwise in a replay


class PerExample(NamedTuple):
    """A whole number that grows with the batch: ``base + slope N``."""

    base: int
    slope: int

    def at(self, n: int) -> int:
        """Its value for ``n`` examples."""
        return self.base + self.slope * n


@dataclass(frozen=True)
class Growing:
    """A constant that grows with the batch: block ``k`` of ``N`` along an axis is ``first + k step``.

    Attributes:
        axis: The axis.
        first: The first block.
        step: What each block adds; ``None`` where all are equal.
    """

    axis: int
    first: Tensor
    step: Tensor | None

    def at(self, n: int) -> Tensor:
        """Its value for ``n`` examples."""
        blocks = self.first.unsqueeze(self.axis)
        blocks = blocks.expand(*(n if d == self.axis else -1 for d in range(blocks.ndim)))
        if self.step is not None:
            count = torch.arange(n, device=self.first.device).view(-1, *[1] * (blocks.ndim - self.axis - 1))
            blocks = blocks + self.step.unsqueeze(self.axis) * count
        return blocks.flatten(self.axis, self.axis + 1).to(self.first.dtype)


@dataclass(frozen=True)
class Recording:
    """A program for any batch size.

    Attributes:
        program: The run on two examples.
        calls: Its calls, with ``PerExample`` in the place of numbers that grow with the batch.
        growing: Constants that grow with the batch, such as ``arange(N)`` and repeated masks.
        activations: Values that depend on the input.
        trained: Those of them that depend on a parameter or buffer too.
        states: Copies of parameters and buffers, by value: a model that is trained on changes nothing here.
    """

    program: Program
    calls: tuple[Call, ...]
    growing: Mapping[int, Growing]
    activations: frozenset[int]
    trained: frozenset[int]
    states: Mapping[int, Tensor]

    def ancestors(self, wanted: Iterable[int], stop: Iterable[int] = ()) -> list[Call]:
        """The calls that compute ``wanted``, in order, without going behind ``stop``."""
        needed, known, found = set(wanted) - set(stop), set(stop), []
        for step in reversed(self.calls):
            if any(out is not None and out.id in needed for out in step.outputs):
                found.append(step)
                needed |= {ref.id for ref in step.inputs} - known
        return found[::-1]

    def descendants(self, value: int) -> frozenset[int]:
        """Values that depend on ``value``, itself left out."""
        reached = {value}
        for step in self.calls:
            if any(ref.id in reached for ref in step.inputs):
                reached |= {out.id for out in step.outputs if out is not None}
        return frozenset(reached - {value})


def record(model: nn.Module, batch: Any, name: str = "model") -> Recording:
    """Capture a model for any batch size, and check the replay on a batch that was not used for it.

    Args:
        model: Any module; unchanged afterwards.
        batch: A tensor, a tuple ``(inputs, labels, ...)`` or a dict of keyword arguments; a few examples suffice.
        name: What the model is called in messages.

    Returns:
        The recording.

    Raises:
        CaptureError: If the run depends on the number of examples in another way, draws random numbers in evaluation
            mode, or writes into parts of its activations.
    """  # noqa: DOC502 - raised by what it calls
    two, three = (_capture(model, batch, n) for n in _SIZES[:2])
    _check_same_run(two, three, name)
    calls = tuple(replace(x, args=_generic(x.args, y.args)) for x, y in zip(two.calls, three.calls))
    activations = _reached(two, (ref.id for ref in two.inputs))
    trained = _reached(two, (ref.id for ref in two.states.values())) & activations
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    states = {ref.id: tensors[key].detach().clone() for key, ref in two.states.items()}
    recording = Recording(two, calls, _growing(two, three, name), activations, trained, states)
    _check_replay(model, recording, batch, name)
    return recording


class Replay(nn.Module):
    """Some calls of a recording as a module: values in, values out.

    Weights are those of the recording, shared by all replays of it and never written. Running statistics of batch norms
    are each replay's own: in training mode (``train()``) a batch norm uses the batch's statistics and updates its
    copies, as ``nn.BatchNorm2d`` does; dropout stays off.

    Args:
        recording: Of a model.
        inputs: Values that ``forward`` receives, in order.
        outputs: Values that it returns.

    Attributes:
        momentum: Of the running statistics; ``"recorded"`` for each layer's own, ``None`` for a plain average over all
            batches since ``reset_norms``.
        norms: Number of batch norms among the calls.

    Raises:
        CaptureError: If a call cannot be run again.
    """

    batches: Tensor

    def __init__(self, recording: Recording, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        super().__init__()
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.momentum: float | str | None = "recorded"
        calls = recording.ancestors(self.outputs, self.inputs)
        live = _varying(calls, recording.activations | recording.growing.keys())
        norms = [c for c in live if c.op in BATCH_NORMS and c.args["running_mean"] is not None]
        statistics = {c.args[key].id for c in norms for key in ("running_mean", "running_var")}
        self.norms, self._statistics = len(norms), tuple(f"v{i}" for i in sorted(statistics))
        used = {ref.id for c in live for ref in c.inputs}
        self._growing = {i: one for i, one in recording.growing.items() if i in used}
        self._steps = tuple(_Step.of(c, recording.program) for c in live)
        self._last = _last_uses(live, {*self.outputs})
        for i, tensor in _fixed_values(recording, calls, live).items():
            self.register_buffer(f"v{i}", tensor.clone() if i in statistics else tensor)
        self.register_buffer("batches", torch.zeros((), dtype=torch.long))

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        """Run the calls.

        Args:
            *values: The inputs; the first axis of the first one is the batch.

        Returns:
            The outputs.
        """
        n = values[0].shape[0]
        known = dict(zip(self.inputs, values))
        if self.training and self.norms:
            self.batches += 1
        for step, done in zip(self._steps, self._last):
            step.run(self, known, n)
            for i in done:
                known.pop(i, None)
        return tuple(known[i] for i in self.outputs)

    def fork(self) -> Self:
        """The same calls with statistics of their own; weights are shared."""
        twin = type(self).__new__(type(self))
        nn.Module.__init__(twin)
        for key in ("inputs", "outputs", "momentum", "norms", "_statistics", "_growing", "_steps", "_last"):
            setattr(twin, key, getattr(self, key))
        for key, tensor in self._buffers.items():
            own = key in self._statistics or key == "batches"
            twin.register_buffer(key, tensor.clone() if own and tensor is not None else tensor)
        return twin.train(self.training)

    def reset_norms(self) -> None:
        """Forget the running statistics: mean 0, variance 1."""
        for c in (step for step in self._steps if step.norm):
            self._buffers[f"v{c.tensors['running_mean'].id}"].zero_()  # type: ignore[union-attr]
            self._buffers[f"v{c.tensors['running_var'].id}"].fill_(1)  # type: ignore[union-attr]
        self.batches.zero_()

    def statistics(self) -> dict[str, Tensor]:
        """Copies of all running statistics, by an internal name."""
        return {key: self._buffers[key].clone() for key in (*self._statistics, "batches")}  # type: ignore[union-attr]

    def load_statistics(self, statistics: Mapping[str, Tensor]) -> None:
        """Take running statistics that ``statistics`` gave for the same calls.

        Args:
            statistics: Names to tensors.

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

    def _momentum(self, recorded: float) -> float:
        chosen = recorded if self.momentum == "recorded" else self.momentum
        return float(chosen) if chosen else 1 / max(int(self.batches), 1)  # 0 or None: a plain average

    def _tensor(self, ref: Ref, known: Mapping[int, Tensor], n: int) -> Tensor:
        if ref.id in known:
            return known[ref.id]
        if ref.id in self._growing:
            return self._growing[ref.id].at(n).to(next(iter(known.values())).device)
        tensor = self._buffers[f"v{ref.id}"]
        assert tensor is not None
        return tensor


@dataclass(frozen=True)
class _Step:
    """One call, ready to run: what is filled in at every run is kept apart from what never changes."""

    func: Callable[..., Any]
    plain: Mapping[str, Any]
    filled: Mapping[str, Any]
    outputs: tuple[Ref | None, ...]
    norm: bool

    @classmethod
    def of(cls, c: Call, program: Program) -> _Step:
        func = F.batch_norm if c.op in BATCH_NORMS else _functional(c)
        args = _norm_arguments(c) if c.op in BATCH_NORMS else dict(c.args)
        if c.op in _VIEWS:
            func, args = torch.reshape, {"input": args["self"], "shape": args["size"]}
        filled = {key: value for key, value in args.items() if any(True for _ in _leaves(value))}
        plain = {key: value for key, value in args.items() if key not in filled}
        norm = c.op in BATCH_NORMS and args["running_mean"] is not None
        return cls(func, plain, filled, c.outputs, norm)

    @property
    def tensors(self) -> dict[str, Ref]:
        return {key: value for key, value in self.filled.items() if isinstance(value, Ref)}

    def run(self, replay: Replay, known: dict[int, Tensor], n: int) -> None:
        args = {key: _fill(value, replay, known, n) for key, value in self.filled.items()}
        args |= self.plain
        if self.norm:
            args["training"] = replay.training
            args["momentum"] = replay._momentum(args["momentum"]) if replay.training else 0.0
        for ref, tensor in zip(self.outputs, _flatten(self.func(**args))):
            if ref is not None and tensor is not None:
                known[ref.id] = tensor


def flat_inputs(batch: Any, device: torch.device | None = None) -> tuple[Tensor, ...]:
    """The input tensors of a batch in the order in which a program counts them.

    Args:
        batch: A tensor, a tuple ``(inputs, labels, ...)`` or a dict of keyword arguments.
        device: Where they go; ``None`` leaves them.

    Returns:
        The tensors.
    """
    inputs = head(batch, size(batch))
    return tuple(t if device is None else t.to(device) for t in _tensors(inputs))


def first_output(result: Any) -> Tensor:
    """The tensor that counts as the output of a model: the first of what it returns."""
    return next(_tensors(result))


def _take(value: Any, n: int, examples: int) -> Any:
    """``n`` examples; the first come again where there are too few."""
    if isinstance(value, Tensor):
        rows = torch.arange(n, device=value.device) % examples
        return value[rows] if value.ndim and value.shape[0] == examples else value
    if isinstance(value, Mapping):
        return {key: _take(item, n, examples) for key, item in value.items()}
    return tuple(_take(item, n, examples) for item in value) if isinstance(value, tuple) else value


def _examples(batch: Any, n: int) -> Any:
    """A batch of ``n`` examples: a mapping, or a tuple of one that holds the positional arguments."""
    examples = size(batch)
    return _take(head(batch, examples), n, examples)


def _capture(model: nn.Module, batch: Any, n: int) -> Program:
    """A run on ``n`` examples, with random numbers that belong to ``n``: what a model draws differs between sizes."""
    inputs, device = _examples(batch, n), device_of(model)
    named = isinstance(inputs, Mapping)
    args = () if named else inputs[0] if isinstance(inputs[0], tuple) else inputs
    kwargs = {key: _to(value, device) for key, value in inputs.items()} if named else {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(n)
        return capture(model, tuple(_to(value, device) for value in args), kwargs)


def _to(value: Any, device: torch.device | None) -> Any:
    return value.to(device) if isinstance(value, Tensor) and device is not None else value


def _check_same_run(two: Program, three: Program, name: str) -> None:
    """Both runs must have made the same calls on the same values.

    Raises:
        CaptureError: If they did not.
    """
    same = len(two.calls) == len(three.calls) and all(
        x.op == y.op and x.inputs == y.inputs and x.outputs == y.outputs for x, y in zip(two.calls, three.calls)
    )
    if not same:
        ours, theirs = ([c.where for c in p.calls] for p in (two, three))
        where = next((x for x, y in zip(ours, theirs) if x != y), "the end")
        raise CaptureError(
            f"{name} must make the same calls for every number of examples. Got runs on {_SIZES[0]} and {_SIZES[1]} "
            f"examples that differ at {where}."
        )


def _generic(x: Any, y: Any) -> Any:
    """``x`` with ``PerExample`` where ``y``, of one example more, holds another whole number."""
    if isinstance(x, Mapping):
        return {key: _generic(value, y[key]) for key, value in x.items()}
    if isinstance(x, list | tuple) and not isinstance(x, PerExample):
        return [_generic(a, b) for a, b in zip(x, y)]
    if isinstance(x, int) and not isinstance(x, bool) and isinstance(y, int) and x != y:
        slope = (y - x) // (_SIZES[1] - _SIZES[0])
        return PerExample(x - slope * _SIZES[0], slope)
    return x


def _growing(two: Program, three: Program, name: str) -> dict[int, Growing]:
    """Constants that change between the runs, which must do so by equal steps along one axis.

    Raises:
        CaptureError: If one changes in another way.
    """
    found: dict[int, Growing] = {}
    for i, (x, y) in enumerate(zip(two.values, three.values)):
        if x.kind != "constant" or x.data is None or y.data is None or _equal(x.data, y.data):
            continue
        one = _steps(x.data, y.data)
        if one is None or not (_equal(one.at(_SIZES[0]), x.data) and _equal(one.at(_SIZES[1]), y.data)):
            users = [c.where for c in two.calls if any(ref.id == i for ref in c.inputs)]
            raise CaptureError(
                f"{name} must use the same constants for every batch. Got one that changes with the number of examples "
                f"or at random, in {users[0] if users else 'an unused place'}. Random numbers belong in training only."
            )
        found[i] = one
    return found


def _steps(x: Tensor, y: Tensor) -> Growing | None:
    axes = [d for d, (a, b) in enumerate(zip(x.shape, y.shape)) if a != b]
    if x.ndim != y.ndim or len(axes) != 1 or x.shape[axes[0]] * _SIZES[1] != y.shape[axes[0]] * _SIZES[0]:
        return None
    (axis,) = axes
    size = x.shape[axis] // _SIZES[0]
    first, second = (y.narrow(axis, k * size, size) for k in (0, 1))
    return Growing(axis, first, None if _equal(first, second) else second - first)


def _equal(x: Tensor, y: Tensor) -> bool:
    return x.shape == y.shape and torch.equal(x.nan_to_num(), y.nan_to_num())


def _reached(program: Program, start: Iterator[int] | Iterable[int]) -> frozenset[int]:
    reached = set(start)
    for c in program.calls:
        if any(ref.id in reached for ref in c.inputs):
            reached |= {out.id for out in c.outputs if out is not None}
    return frozenset(reached)


def _check_replay(model: nn.Module, recording: Recording, batch: Any, name: str) -> None:
    """The replay must give what the model gives on a batch of another size.

    Raises:
        CaptureError: If it does not.
    """
    inputs = _examples(batch, _SIZES[2])
    device, program = device_of(model), recording.program
    replay = Replay(recording, [r.id for r in program.inputs], [program.outputs[0].id]).eval()
    with evaluating(model), torch.no_grad():
        truth = first_output(call(model, inputs, device))
        found = replay(*flat_inputs(inputs, device))[0]
    close = found.shape == truth.shape and bool((found - truth).abs().max() <= 1e-3 * truth.abs().max().clamp_min(1e-6))
    if not close:
        raise CaptureError(
            f"{name} must do the same with {_SIZES[2]} examples as with {_SIZES[0]}. Got another output when its calls "
            "were run again: it depends on the number of examples, or on what the examples are."
        )


def _varying(calls: list[Call], activations: frozenset[int]) -> list[Call]:
    """The calls to run for every batch: those on the input, and those that depend on the number of examples alone."""
    changing, live = set(activations), []
    for c in calls:
        grows = any(isinstance(leaf, PerExample) for leaf in _leaves(list(c.args.values())))
        if grows or any(ref.id in changing for ref in c.inputs):
            live.append(c)
            changing |= {out.id for out in c.outputs if out is not None}
    return live


def _fixed_values(recording: Recording, calls: list[Call], live: list[Call]) -> dict[int, Tensor]:
    """What the live calls read that does not depend on the input: states, constants, and tensors made of them."""
    made: dict[int, Tensor] = dict(recording.states)
    device = next((t.device for t in made.values()), None)
    for i, value in enumerate(recording.program.values):
        if value.kind == "constant" and value.data is not None and i not in recording.growing:
            made[i] = value.data if device is None else value.data.to(device)
    used = {ref.id for c in live for ref in c.inputs} - {out.id for c in live for out in c.outputs if out is not None}
    running = {id(c) for c in live}
    with torch.no_grad():
        for c in (c for c in calls if id(c) not in running):
            results = _flatten(_functional(c)(**{key: _fill_from(value, made) for key, value in c.args.items()}))
            made |= {ref.id: t for ref, t in zip(c.outputs, results) if ref is not None and t is not None}
    return {i: t for i, t in made.items() if i in used and i not in recording.activations}


def _last_uses(live: list[Call], kept: set[int]) -> list[tuple[int, ...]]:
    """For every call, the values that nothing needs after it."""
    seen, found = set(kept), []
    for c in reversed(live):
        ids = {ref.id for ref in c.inputs} | {o.id for o in c.outputs if o is not None}
        found.append(tuple(ids - seen))
        seen |= ids
    return found[::-1]


def _functional(c: Call) -> Callable[..., Any]:
    """The operation without writing into its arguments.

    Raises:
        CaptureError: If there is none.
    """
    if c.op.startswith("intertwine::") or c.func is None or c.op.endswith("(writes its argument)"):
        raise CaptureError(
            f"a stitched model must not write into parts of its activations. Got {c.where} at {c.line}. Make the "
            "change on a copy, or by torch.cat."
        )
    if not any(a.alias_info is not None and a.alias_info.is_write for a in c.func._schema.arguments):
        return c.func
    space, _, name = c.func._schema.name.partition("::")
    packet = getattr(getattr(torch.ops, space), name.removesuffix("_"), None)
    overload = c.func._schema.overload_name or "default"
    if packet is None or overload not in packet.overloads():
        raise CaptureError(f"operations in place must have a form that writes nothing. Got {c.where} at {c.line}.")
    return getattr(packet, overload)


def _norm_arguments(c: Call) -> dict[str, Any]:
    """Arguments of ``F.batch_norm``, from those of any backend's operation."""
    a = c.args
    return {
        "input": a["input"], "running_mean": a["running_mean"], "running_var": a["running_var"],
        "weight": a["weight"], "bias": a["bias"], "training": bool(a.get("training", False)),
        "momentum": a.get("momentum", a.get("exponential_average_factor")), "eps": a.get("eps", a.get("epsilon")),
    }  # fmt: skip


def _leaves(value: Any) -> Iterator[Any]:
    """Tensors and growing numbers inside an argument."""
    if isinstance(value, Ref | PerExample):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)


def _fill(value: Any, replay: Replay, known: Mapping[int, Tensor], n: int) -> Any:
    if isinstance(value, Ref):
        return replay._tensor(value, known, n)
    if isinstance(value, PerExample):
        return value.at(n)
    return [_fill(item, replay, known, n) for item in value] if isinstance(value, list | tuple) else value


def _fill_from(value: Any, made: Mapping[int, Tensor]) -> Any:
    if isinstance(value, Ref):
        return made[value.id]
    return [_fill_from(item, made) for item in value] if isinstance(value, list | tuple) else value


def _flatten(result: Any) -> list[Tensor | None]:
    if isinstance(result, Tensor) or result is None:
        return [result]
    return [t for item in result for t in _flatten(item)] if isinstance(result, list | tuple) else []


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif hasattr(value, "__dataclass_fields__"):
        for key in value.__dataclass_fields__:
            yield from _tensors(getattr(value, key))
