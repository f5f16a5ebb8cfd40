"""Sums of signals, and products with constants and parameters."""

from dataclasses import replace
from typing import Any

import torch

from .....programs import Call
from ..moments import Signal, Source, Term, add, multiply, renewed, settle
from ..tile import Tile, refuse
from .registry import register_kernel_rule


@register_kernel_rule("aten::add", "aten::sub", "aten::rsub")
def plus(tile: Tile, call: Call, signal: Signal) -> Signal:
    """A sum of activations, biases and constants."""
    sign = float(call.args["alpha"] * (1 if call.op == "aten::add" else -1))
    first, second = ("other", "self") if call.op == "aten::rsub" else ("self", "other")
    operands = [(call.args[first], 1.0), (call.args[second], sign)]
    total, *others = [_times(tile, tile.signals[v.id], f) for v, f in operands if tile.is_activation(v)]
    for other in others:
        if (other.channels, other.space, other.flat) != (total.channels, total.space, total.flat):
            refuse(call, "a sum of activations of different shapes")
        total = add(total, other, tile.layout)
    for value, factor in operands:
        if not tile.is_activation(value):
            total = _shifted(tile, call, total, value, factor)
    return total


@register_kernel_rule("aten::neg")
def negative(tile: Tile, call: Call, signal: Signal) -> Signal:
    """The same with the other sign."""
    return _times(tile, signal, -1.0)


@register_kernel_rule("aten::mul", "aten::div")
def scale(tile: Tile, call: Call, signal: Signal) -> Signal:
    """A product with a constant, or with one parameter for each channel."""
    other = call.args["other"]
    if tile.is_activation(other):
        other = call.args["self"]
        if call.op == "aten::div":
            refuse(call, "a division by an activation")
    if tile.is_weight(other):
        if call.op == "aten::div" or not tile.is_per_channel(other, signal):
            refuse(call, "a parameter that multiplies anything but channels")
        return renewed(signal)
    value = tile.constant(call, other, signal)
    return multiply(signal, *tile.masks(1 / value if call.op == "aten::div" else value), tile.layout)


def _times(tile: Tile, signal: Signal, factor: float) -> Signal:
    if factor == 1.0:
        return signal
    shape = (1, signal.channels, signal.positions)
    value = torch.full(shape, factor, dtype=torch.float64, device=tile.layout.device)
    return multiply(signal, *tile.masks(value), tile.layout)


def _shifted(tile: Tile, call: Call, total: Signal, value: Any, factor: float) -> Signal:
    """A signal plus a bias for each channel, or a constant of the model."""
    if not tile.is_weight(value):
        masks = tile.masks(tile.constant(call, value, total) * factor)
        term = Term(tile.constant_source(total.positions), *masks)
        return add(settle(total, tile.layout), replace(total, terms=(term,)), tile.layout)
    if not tile.is_per_channel(value, total):
        refuse(call, "a parameter added that is not one for each channel")
    return add(total, replace(total, terms=(Term(Source(tile.layout.ones(total.positions))),)), tile.layout)
