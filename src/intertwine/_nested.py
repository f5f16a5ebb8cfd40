"""Nested inputs and outputs: values in mappings, lists, tuples and, on request, dataclasses; and values by key.

``torch.utils._pytree`` differs: it opens no list subclass and no unregistered mapping, such as a tokenizer's output,
but it does open key-value caches, by which no output is judged.
"""

import copy
from collections import UserDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from torch import Tensor

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def leaves(value: Any, dataclasses: bool = False) -> Iterator[Any]:
    """Everything inside that is not a container, in order.

    Args:
        value: Nested mappings, lists and tuples.
        dataclasses: Whether dataclasses are containers too.

    Yields:
        The values.
    """
    if isinstance(value, Mapping):
        inner: Any = value.values()
    elif isinstance(value, list | tuple):
        inner = value
    elif dataclasses and is_dataclass(value) and not isinstance(value, type):
        inner = [getattr(value, field.name) for field in fields(value)]
    else:
        yield value
        return
    for item in inner:
        yield from leaves(item, dataclasses)


def tensors_in(value: Any, dataclasses: bool = False) -> Iterator[Tensor]:
    """Every tensor inside, in order."""
    return (leaf for leaf in leaves(value, dataclasses) if isinstance(leaf, Tensor))


def answers(output: Any) -> Any:
    """Part of an output that a model is judged by: of a Hugging Face output, logits and tensors but no hidden states.

    Hidden states, attentions and outputs of submodels are left out. An output without logits stays whole.
    """
    if not (isinstance(output, Mapping) and is_dataclass(output) and any("logits" in name for name in output)):
        return output
    plain = lambda name, value: isinstance(value, Tensor) and "hidden_state" not in name
    return {name: value for name, value in output.items() if "logits" in name or plain(name, value)}


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """Changed values in the same mappings, lists and tuples, of the same classes."""
    if isinstance(value, Mapping):
        return with_items(value, {key: map_leaves(item, change) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return with_items(value, [map_leaves(item, change) for item in value])
    return change(value)


def with_items(value: Any, items: Any) -> Any:
    """A container like ``value`` with other items; one of a class with its own constructor becomes a plain one."""
    if isinstance(value, Mapping):
        twin = copy.copy(value) if isinstance(value, dict | UserDict) else {}  # copies of others may share contents
        for key, item in items.items():  # some classes have no update
            twin[key] = item
        return twin
    return getattr(value, "_make", list if isinstance(value, list) else tuple)(items)  # named tuples by their fields


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Changed tensors in the same containers; other values stay."""
    return map_leaves(value, lambda leaf: change(leaf) if isinstance(leaf, Tensor) else leaf)


def by_key(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Values of every key; keys and values keep the order in which they came."""
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found
