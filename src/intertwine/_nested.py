"""Nested inputs and outputs: values within mappings, lists and tuples, and dataclasses where they are asked for.

Values sorted by key.

``torch.utils._pytree`` opens other things: no subclass of a list and no mapping that is not registered with it, such as
what tokenizers return, but caches of keys and values, which no output is judged by.
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
    """Everything inside that is no container, in order.

    Args:
        value: Mappings, lists and tuples within each other.
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
    """What a model is judged by: of a Hugging Face output with logits these and what else is no hidden state.

    Hidden states, attentions and outputs of parts are left out; a base model's output and any other stay whole.
    """
    if not (isinstance(output, Mapping) and is_dataclass(output) and any("logits" in name for name in output)):
        return output
    plain = lambda name, value: isinstance(value, Tensor) and "hidden_state" not in name
    return {name: value for name, value in output.items() if "logits" in name or plain(name, value)}


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same mappings, lists and tuples, of the same classes, around changed values."""
    if isinstance(value, Mapping):
        return with_items(value, {key: map_leaves(item, change) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return with_items(value, [map_leaves(item, change) for item in value])
    return change(value)


def with_items(value: Any, items: Any) -> Any:
    """A container like ``value`` around other items; one of a class with its own constructor becomes a plain one."""
    if isinstance(value, Mapping):
        twin = copy.copy(value) if isinstance(value, dict | UserDict) else {}  # others may share what they hold
        for key, item in items.items():  # some classes have no update
            twin[key] = item
        return twin
    return getattr(value, "_make", list if isinstance(value, list) else tuple)(items)  # named tuples by their fields


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same containers around changed tensors; other values stay."""
    return map_leaves(value, lambda leaf: change(leaf) if isinstance(leaf, Tensor) else leaf)


def by_key(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The values of every key, keys and values in the order in which they came first."""
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found
