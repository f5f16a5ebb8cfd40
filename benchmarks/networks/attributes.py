"""Everything that a module holds, so that a change can be seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["changed", "snapshot"]

Snapshot = dict[str, Any]


@dataclass
class Held:
    """A tensor, and what it held."""

    tensor: Tensor
    value: Tensor


def snapshot(model: nn.Module) -> Snapshot:
    """All attributes of all modules: tensors by object and value, containers by their items, the rest by object."""
    return {
        f"{name}.{key}": _held(value, 3)
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if key != "_modules"
    }


def changed(before: Snapshot, after: Snapshot) -> list[str]:
    """Names of the attributes that are new, gone, or different."""
    names = [*before, *(n for n in after if n not in before)]
    return [n for n in names if n not in before or n not in after or not _same(before[n], after[n])]


def _held(value: object, depth: int) -> object:
    if isinstance(value, Tensor):
        return Held(value, value.detach().clone())
    if isinstance(value, dict) and depth:
        return {k: _held(v, depth - 1) for k, v in value.items()}
    if isinstance(value, list | tuple) and depth:
        return [_held(v, depth - 1) for v in value]
    if isinstance(value, set):
        return set(value)
    return value


def _same(a: object, b: object) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b))
    if isinstance(a, Held) and isinstance(b, Held):
        return a.tensor is b.tensor and torch.equal(a.value, b.value)
    if isinstance(a, str | int | float | bool | set):
        return type(a) is type(b) and a == b
    return a is b
