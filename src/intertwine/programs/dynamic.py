"""Capture for any batch size: finds the numbers and constants of a run that grow with the batch.

Arguments of a recorded run hold the batch size as a number (``view(x, [2, 512])``). Runs on two and on three examples
tell which: an integer that differs grows with the batch, ``base + slope N``. The program must then reproduce a third
run on five examples, or the model is refused.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from .._evaluation import alone, evaluating, in_usual_mode
from .._examples import arguments
from .._nested import map_leaves, map_tensors, tensors_in
from .._random import seeded
from ..errors import CaptureError
from ..features.batches import call, device_of, head, size
from .calls import Call, Growing, PerExample, grows
from .capture import capture
from .program import Program
from .recording.run import output_tensors

_SIZES = (2, 3, 5)  # two runs to find the batch size in the program, one to check it


@in_usual_mode
def capture_dynamic(model: nn.Module, batch: Any, name: str = "model") -> Program:
    """Capture a model's run as a program for any batch size, and check it on a batch that was not used for it.

    Args:
        model: Any module; unchanged afterwards. It runs in evaluation mode.
        batch: A tensor, a tuple ``(inputs, labels, ...)`` or a dict of keyword arguments; a few examples suffice.
        name: Name of the model in messages.

    Returns:
        The run on two examples, with copies of the model's parameters and buffers.

    Raises:
        CaptureError: If the run depends on the number of examples in another way, draws random numbers in evaluation
            mode, or writes into parts of its activations.
    """  # noqa: DOC502 - raised by what it calls
    two, three = (_captured(model, batch, n) for n in _SIZES[:2])
    _check_same_run(two, three, name)
    states = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    program = replace(
        two,
        calls=tuple(_with_growing(x, y) for x, y in zip(two.calls, three.calls)),
        contents={key: states[key].detach().clone() for key in two.states},
        growing=_growing(two, three, name),
        dynamic=True,
        given=map_leaves(head(batch, 1), lambda _: None),
    )
    _check_program(model, program, batch, name)
    return program


def flat_inputs(batch: Any, program: Program, device: torch.device | None = None) -> tuple[Tensor, ...]:
    """The input tensors of a batch in the order of a program's inputs, whatever the order of its keys.

    Args:
        batch: A tensor, a tuple ``(inputs, labels, ...)`` or a dict of keyword arguments.
        program: Result of ``capture_dynamic``.
        device: Device to move them to; ``None`` leaves them where they are.

    Raises:
        ValueError: If a mapping has keys other than those of the batch that the program was captured on.
    """  # noqa: DOC502 - raised by the order
    inputs = _in_order(head(batch, size(batch)), program.given)
    return tuple(t if device is None else t.to(device) for t in tensors_in(inputs))


def _in_order(value: Any, like: Any) -> Any:
    """Containers with their keys in the order of another's."""
    if isinstance(value, Mapping) and isinstance(like, Mapping):
        if value.keys() != like.keys():
            ours, theirs = (", ".join(map(repr, keys)) for keys in (like, value))
            raise ValueError(f"batches must have the keys of the first one, {ours}. Got {theirs}.")
        return {key: _in_order(value[key], one) for key, one in like.items()}
    if isinstance(value, list | tuple) and isinstance(like, list | tuple) and len(value) == len(like):
        return [*map(_in_order, value, like)]
    return value


def first_output(result: Any) -> Tensor:
    """The tensor that counts as a model's output: the first one that it returns."""
    return next(output_tensors(result))


@torch.no_grad()
def check_path(model: nn.Module, program: Program, batch: Any, output: Tensor, name: str = "model") -> None:
    """Check that a model whose control flow depends on data takes the captured path on a batch.

    Args:
        model: The captured model.
        program: Its program; nothing is run if it never takes a number out of a tensor.
        batch: Inputs, as in ``capture_dynamic``.
        output: The first output of the program for them.
        name: Name of the model in messages.

    Raises:
        RuntimeError: If the model gives another output.
    """
    if not program.reads:
        return
    with evaluating(model):
        truth = first_output(call(model, head(batch, size(batch)), device_of(model)))
    if not torch.allclose(output, truth, rtol=1e-3, atol=1e-3 * _largest(truth)):
        raise RuntimeError(
            f"{name} must do the same on all data as on the first batch. Got another path of its control flow "
            f"({program.reads[0]} takes a number out of a tensor). Give batches that take one path, such as all padded "
            "or none."
        )


def _examples(batch: Any, n: int) -> Any:
    """A batch of ``n`` examples as ``head`` gives it; the first ones are repeated if there are too few."""
    examples = size(batch)

    def take(x: Tensor) -> Tensor:
        return x[torch.arange(n, device=x.device) % examples] if x.ndim and x.shape[0] == examples else x

    return map_tensors(head(batch, examples), take)


def _captured(model: nn.Module, batch: Any, n: int) -> Program:
    """A run on ``n`` examples, with random numbers specific to ``n``: what a model draws differs between sizes."""
    inputs, device = _examples(batch, n), device_of(model)
    moved = map_tensors(inputs if isinstance(inputs, Mapping) else inputs[0], lambda x: x.to(device or x.device))
    with alone(model), seeded(n, device):
        return capture(model, *arguments(moved))


def _check_same_run(two: Program, three: Program, name: str) -> None:
    """Check that both runs made the same calls on the same values."""
    made = lambda program: [(c.op, c.inputs, c.outputs) for c in program.calls]
    if made(two) != made(three):
        ours, theirs = ([c.where for c in p.calls] for p in (two, three))
        where = next((x for x, y in zip(ours, theirs) if x != y), "the end")
        raise CaptureError(
            f"{name} must make the same calls for every number of examples. Got runs on {_SIZES[0]} and {_SIZES[1]} "
            f"examples that differ at {where}."
        )


def _with_growing(two: Call, three: Call) -> Call:
    """A call on two examples with those of its arguments that grow with the batch."""
    found = {key: _generic(value, three.args[key]) for key, value in two.args.items()}
    return replace(two, growing={key: value for key, value in found.items() if grows(value)})


def _generic(x: Any, y: Any) -> Any:
    """``x`` with ``PerExample`` where ``y``, of one more example, holds another whole number."""
    if isinstance(x, Mapping):
        return {key: _generic(value, y[key]) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return [_generic(a, b) for a, b in zip(x, y)]
    if isinstance(x, int) and not isinstance(x, bool) and isinstance(y, int) and x != y:
        slope = (y - x) // (_SIZES[1] - _SIZES[0])
        return PerExample(x - slope * _SIZES[0], slope)
    return x


def _growing(two: Program, three: Program, name: str) -> dict[int, Growing]:
    """Constants that change between the runs; they must do so by equal steps along one axis."""
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


def _largest(x: Tensor) -> float:
    """Size of the largest finite number; outputs may be infinite, for example where logits are masked."""
    return float(x.abs().where(x.isfinite(), 0).max())


def _equal(x: Tensor, y: Tensor) -> bool:
    return x.shape == y.shape and torch.equal(x.nan_to_num(), y.nan_to_num())


def _check_program(model: nn.Module, program: Program, batch: Any, name: str) -> None:
    """Check that the program gives what the model gives on a batch of another size."""
    inputs = _examples(batch, _SIZES[2])
    device = device_of(model)
    with evaluating(model), torch.no_grad():
        truth = first_output(call(model, inputs, device))
        (found,) = program.run(flat_inputs(inputs, program, device), program.outputs[:1])
    if found.shape != truth.shape or not torch.allclose(found, truth, 0.0, 1e-3 * max(_largest(truth), 1e-6)):
        raise CaptureError(
            f"{name} must do the same with {_SIZES[2]} examples as with {_SIZES[0]}. Got another output when its calls "
            "were run again: it depends on the number of examples, or on what the examples are."
        )
