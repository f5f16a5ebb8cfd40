"""Rows of tensors among those of another checkpoint: known orders (rotary, repeated), other layouts of one name."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

_LEAST = 1e-30


@dataclass(frozen=True)
class Reading:
    """One way to read a tensor as rows.

    Attributes:
        name: Name of the tensor.
        how: ``"rows"`` along its first axis; ``"columns"`` of a matrix; ``"last"``, along its last axis.
    """

    name: str
    how: str


@dataclass(frozen=True, eq=False)
class Rows:
    """A tensor made of rows of others."""

    views: tuple[Reading, ...]  # What holds the rows, one after the other
    order: Tensor | None  # Which of them it takes, in its own order; ``None`` for all as they lie
    shape: tuple[int, ...]  # Its shape
    how: str = "rows"  # How its own rows are read

    def make(self, state: Mapping[str, Tensor]) -> Tensor:
        """The tensor, from those of the other checkpoint."""
        if len(self.shape) <= 1 or self.views[0].how == "whole":
            x = torch.cat([state[v.name].reshape(-1) for v in self.views])
            return (x if self.order is None else x[self.order]).reshape(self.shape)
        x = torch.cat([view(state[v.name], v.how) for v in self.views])
        x = x if self.order is None else x[self.order]
        return (x.mT if self.how == "columns" else x).reshape(self.shape)


def stem_of(name: str) -> str:
    """The name without its last word, which a weight and its bias share.

    Examples:
        >>> stem_of("h.0.mlp.weight"), stem_of("attn.in_proj_bias")
        ('h.0.mlp.', 'attn.in_proj_')
    """
    return re.sub(r"[A-Za-z0-9]+$", "", name)


def view(x: Tensor, how: str) -> Tensor:
    """A tensor as rows; axes of size one are left out."""
    x = x.squeeze() if x.ndim > 2 else x
    x = x if x.ndim > 1 else x.reshape(1, -1)
    if how == "columns":
        return x.mT
    return x.flatten(1) if how == "rows" else x.reshape(-1, x.shape[-1])


def ways(shape: tuple[int, ...]) -> Iterator[tuple[str, int, int]]:
    """Views that tell of a tensor of some shape: how, number of rows, entries of each."""
    sizes = [n for n in shape if n > 1] if len(shape) > 2 else list(shape)
    if len(sizes) < 2:
        return
    yield "rows", sizes[0], prod(sizes[1:])
    if len(sizes) == 2:
        yield "columns", sizes[1], sizes[0]
    else:
        yield "last", prod(sizes[:-1]), sizes[-1]


def unit_rows(x: Tensor) -> Tensor:
    """Rows of length one; rows of zeros stay."""
    x = x.float()
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min(_LEAST)


def signature(x: Tensor) -> Tensor:
    """Rows as sorted absolute values: the same whatever permutes their entries or flips signs."""
    return x.float().abs().sort(-1).values


_LEAST_HEAD = 4  # with two dimensions pairs and halves are the same


def rotary_order(rows: int, head: int, pairs: bool) -> Tensor:
    """Old row at each new place, where rotary dimensions are stored in another layout.

    Args:
        rows: Number of rows, of all heads.
        head: Dimensions of one head.
        pairs: From halves ``(x_0, x_1, ..., y_0, y_1, ...)`` to pairs ``(x_0, y_0, x_1, y_1, ...)``; else from pairs to
            halves, as the conversion of Llama weights to transformers does.

    Examples:
        >>> rotary_order(4, 4, pairs=False).tolist(), rotary_order(4, 4, pairs=True).tolist()
        ([0, 2, 1, 3], [0, 2, 1, 3])
        >>> rotary_order(6, 6, pairs=False).tolist()
        [0, 2, 4, 1, 3, 5]
    """
    shape = (2, head // 2) if pairs else (head // 2, 2)
    within = torch.arange(head).reshape(shape).mT.flatten()
    return (torch.arange(rows // head)[:, None] * head + within).flatten()


def head_sizes(rows: int) -> Iterator[int]:
    """Sizes that heads of so many rows may have."""
    yield from (h for h in range(_LEAST_HEAD, rows + 1, 2) if rows % h == 0)


def rotary_part(order: Tensor) -> tuple[int, bool] | None:
    """Head size and direction of the rotary conversion in an order of rows, heads permuted or not.

    Returns:
        The size, and whether halves became pairs; ``None`` where the order is no such conversion.
    """
    n = len(order)
    for head in head_sizes(n):
        blocks = order.reshape(-1, head)
        if not bool((blocks // head == blocks[:, :1] // head).all()):
            continue
        for pairs in (False, True):
            if bool((blocks % head == rotary_order(head, head, pairs)).all()):
                return head, pairs
    return None


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
