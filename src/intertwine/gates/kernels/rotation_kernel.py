"""Theorem 3.2: with circular convolutions and global average pooling the path kernel is a sum over rotations."""

import itertools
import math
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor, nn

from ...programs import Call
from ..patterns import observe
from ..relu_program import POOLS, ReluProgram, capture_relu
from .gate_gram import gram

__all__ = ["rotation_kernel"]


def rotation_kernel(model: nn.Module, x: Tensor, input: str = "x") -> Tensor:
    """``NPK(x, x') = sum_r sum_i x(i) rot(x', r)(i) overlap(i, x, rot(x', r))`` (P2 theorem 3.2, lemma A.1).

    The pooling mask 1/d_in is left out: print counts it in the overlap and again in the constant. It holds for circular
    convolutions of stride 1 without biases, then a global average, then linear layers; with zero padding it is wrong,
    and such networks are refused: :func:`neural_path_kernel` sums over pairs of positions instead, at the same cost,
    and is what to use. This function states the theorem.

    Args:
        model: Such a network, in evaluation mode.
        x: Inputs ``(N, C, L)`` or ``(N, C, H, W)``.
        input: ``"x"`` or ``"ones"``.

    Returns:
        The kernel ``(N, N)``.

    Raises:
        ValueError: If ``input`` is unknown.

    Examples:
        >>> conv = nn.Conv1d(1, 2, 3, padding=1, padding_mode="circular", bias=False)
        >>> model = nn.Sequential(conv, nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(2, 1, bias=False))
        >>> x = torch.randn(3, 1, 6)
        >>> torch.allclose(rotation_kernel(model, x), rotation_kernel(model, x.roll(2, -1)))
        True
    """
    if input not in ("x", "ones"):
        raise ValueError(f'input must be "x" or "ones". Got {input!r}.')
    program = capture_relu(model, x)
    stages = _read(program)
    gates = observe(model, program, x)
    signal = x.double() if input == "x" else torch.ones_like(x, dtype=torch.float64)
    space = tuple(range(2, x.dim()))
    total = torch.zeros(len(x), len(x), dtype=torch.float64, device=x.device)
    for shift in itertools.product(*(range(s) for s in x.shape[2:])):
        back = tuple(-s for s in shift)  # rot(x, r)(i) = x(i + r)
        overlap = torch.ones(len(x), len(x), *x.shape[2:], dtype=torch.float64, device=x.device)
        for window, g in zip(reversed(stages.windows), reversed(gates[: len(stages.windows)])):
            both = torch.einsum("nc...,mc...->nm...", g.double(), g.roll(back, space).double())
            overlap = _enter(overlap * both, window)
        inner = torch.einsum("nc...,mc...->nm...", signal, signal.roll(back, space))
        total += (inner * overlap).flatten(2).sum(-1)
    for g in gates[len(stages.windows) :]:
        total *= gram(g, g)
    return total


def _enter(active: Tensor, window: tuple[int, ...]) -> Tensor:
    """Number of ways on from each position into a layer: it is read by the positions around it."""
    total = torch.zeros_like(active)
    dims = tuple(range(2, 2 + len(window)))
    for offset in itertools.product(*(range(-((k - 1) // 2), k // 2 + 1) for k in window)):
        total += active.roll(offset, dims)  # position q reads q + offset, so p goes to p - offset
    return total


@dataclass(frozen=True)
class _Stages:
    """Windows of the convolutions, each followed by a gate."""

    windows: tuple[tuple[int, ...], ...]


def _read(program: ReluProgram) -> _Stages:
    """Check that the network is one that the theorem speaks of.

    Raises:
        ValueError: If it is not.
    """
    windows: list[tuple[int, ...]] = []
    pooled, pending, linear = False, False, 0  # pending: weights that no ReLU has followed yet
    values = program.program.values
    space = values[program.program.inputs[0].id].shape[2:]
    for call in program.program.calls:
        if not any(r.id in program.activations for r in call.inputs):
            continue
        if call.op in _PASSED:
            if call.op == "aten::index_select" and not _is_circular(program, call):
                _refuse(call, "positions in another order")
            continue
        if call.op == "aten::convolution" and not pooled and not pending:
            _check_convolution(call, space, values[call.outputs[0].id].shape[2:] if call.outputs[0] else ())
            windows.append(tuple(values[call.args["weight"].id].shape[2:]))
            pending = True
        elif call.op == "aten::relu" and pending:
            pending = False
        elif call.op in POOLS and math.prod(values[call.outputs[0].id].shape[2:] if call.outputs[0] else ()) == 1:
            if pooled or pending or not windows:
                _refuse(call, "an average that does not follow the ReLU of the last convolution")
            pooled = True
        elif call.op == "aten::mm" and pooled and not pending:
            pending, linear = True, linear + 1
        else:
            _refuse(call, "a layer that is none of these, or stands elsewhere")
    if not linear or not pending:
        raise ValueError(
            "model must be convolutions, each followed by a ReLU, a global average, and linear layers with ReLUs "
            "between them. Got another end."
        )
    return _Stages(tuple(windows))


_PASSED = {"aten::index_select", "aten::view", "aten::squeeze", "aten::unsqueeze", "aten::_unsafe_view"}


def _is_circular(program: ReluProgram, call: Call) -> bool:
    index = program.program.values[call.args["index"].id].data
    size = program.program.values[call.args["self"].id].shape[call.args["dim"]]
    return index is not None and bool((index.diff() % size == 1 % size).all())


def _check_convolution(call: Call, space: tuple[int, ...], out: tuple[int, ...]) -> None:
    options = call.args
    if any(options["padding"]):
        _refuse(call, "zero padding, for which the sum over rotations is wrong")
    plain = all(s == 1 for s in [*options["stride"], *options["dilation"]]) and options["groups"] == 1
    if not plain or options["bias"] is not None or tuple(out) != tuple(space):
        _refuse(call, "a convolution with a stride, a dilation, groups, a bias or another size")


def _refuse(call: Call, what: str) -> NoReturn:
    """Say what the theorem does not cover.

    Raises:
        ValueError: Always.
    """
    raise ValueError(
        "model must be circular convolutions of stride 1, global average pooling and linear layers, without biases. "
        f"Got {what}: {call.where}. Use iw.gates.neural_path_kernel, which covers it."
    )
