"""Tensors of one name in another layout: transposed, rotary dimensions in another order, heads repeated."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from ..layer_names import stem_of
from .layouts import rotary_order, rotary_part
from .rows import Reading, Rows, signature, unit_rows

_FAR = 0.5  # relative distance from which on another layout is looked for
_NEARER = 0.5  # share of that distance that another layout must fall below
_SAME_VALUES = 1 - 1e-5  # cosine of sorted absolute values of rows


def relaid_tensors(target: Mapping[str, Tensor], source: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, Rows]:
    """Tensors of the source that agree with those of their name only in another layout."""
    found = {}
    every = list(names)
    for name in every:
        x, y = target[name], source[name]
        if x.ndim == 2 and min(x.shape) > 1 and _distance(x, y) > _FAR:
            rows = _relaid(name, x.float(), y.float())
            if rows is not None:
                found[name] = rows
    for name in every:
        rows = found.get(f"{stem_of(name)}weight")
        if target[name].ndim == 1 and rows is not None and rows.order is not None:
            made = Rows((Reading(name, "whole"),), rows.order, tuple(target[name].shape), "whole")
            if _distance(target[name], made.make(source)) < _distance(target[name], source[name]):
                found[name] = made
    return found


def repeated_rows(name: str, x: Tensor, y: Tensor) -> Rows | None:
    """``x`` as rows of ``y``, each group of them several times, as where shared keys and values become one per head."""
    times, rest = divmod(len(x), len(y)) if x.ndim and len(y) else (0, 0)
    if times < 2 or rest or x.shape[1:] != y.shape[1:]:
        return None
    for size in (n for n in range(1, len(y) + 1) if len(y) % n == 0):
        order = torch.arange(len(y)).reshape(-1, size).repeat_interleave(times, 0).flatten()
        if torch.equal(x, y[order]):
            how = "rows" if x.ndim > 1 else "whole"
            return Rows((Reading(name, how),), order, tuple(x.shape), how)
    return None


def _relaid(name: str, x: Tensor, y: Tensor) -> Rows | None:
    shape, before = tuple(x.shape), _distance(x, y)
    if x.shape[0] == x.shape[1] and _distance(x, y.mT) < _NEARER * before:
        return Rows((Reading(name, "columns"),), None, shape)
    plain = rotary_part((unit_rows(x) @ unit_rows(y).mT).argmax(1))
    if plain is not None:
        order = rotary_order(len(x), *plain)
        if _distance(x, y[order]) < _NEARER * before:
            return Rows((Reading(name, "rows"),), order, shape)
    cosines, places = (unit_rows(signature(x)) @ unit_rows(signature(y)).mT).max(1)
    values = rotary_part(places) if bool((cosines > _SAME_VALUES).all()) else None
    return None if values is None else Rows((Reading(name, "rows"),), rotary_order(len(x), *values), shape)


def _distance(x: Tensor, y: Tensor) -> float:
    return float((x.float() - y.float()).norm() / x.float().norm().clamp_min(1e-30))
