"""Nested inputs and outputs: values within mappings, lists and tuples, and dataclasses where they are asked for.

``torch.utils._pytree`` opens other things: no subclass of a list and no mapping that is not registered with it, such as
what tokenizers return, but caches of keys and values, which no output is judged by.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor


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


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same mappings, lists and tuples, of the same classes, around changed values."""
    if isinstance(value, Mapping):
        twin = copy.copy(value) if isinstance(value, MutableMapping) else dict(value)
        for key, item in value.items():
            twin[key] = map_leaves(item, change)
        return twin
    if isinstance(value, list | tuple):
        make = getattr(value, "_make", type(value))  # named tuples are made of their fields
        return make(map_leaves(item, change) for item in value)
    return change(value)


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same containers around changed tensors; other values stay."""
    return map_leaves(value, lambda leaf: change(leaf) if isinstance(leaf, Tensor) else leaf)
