"""Typed codec: dataclasses as plain JSON data, and back, by the annotations of their fields.

Numbers, text, tensors, data types, fractions, paths, enums, tuples, mappings, unions and dataclasses, nested in each
other, come back equal, NaN and infinities included. A tensor is written as nested lists if these determine its type and
shape (float64, int64, bool), with both beside them otherwise, or stored apart under its name. A value whose class is
not the annotation itself, but a member of a union or a subclass, names its class under ``"$type"``.
"""

import sys
import types
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from fractions import Fraction
from functools import cache
from inspect import get_annotations
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

UNSAVED: Mapping[str, Any] = {"saved": "never"}
"""``field(metadata=UNSAVED)``: a field with a default that is left out."""

APART: Mapping[str, Any] = {"saved": "apart"}
"""``field(metadata=APART)``: a field with a default whose tensors are stored apart; plain data leave it out."""

Tensors = dict[str, Tensor]
_NONFINITE, _CLASS = "$float", "$type"


class _NoTensorError(KeyError):
    """A tensor that was stored apart is not there."""


def encode(value: Any, hint: Any = Any, apart: Tensors | None = None, every: bool = False, name: str = "") -> Any:
    """Write a value as plain data: dicts with text as keys, lists, numbers, text, ``None``.

    ``hint`` is its annotation, ``Any`` for plain data. ``apart`` receives the tensors of fields marked ``APART`` under
    dotted names that begin with ``name``, or all tensors with ``every``; without ``apart`` such fields are left out.

    Raises:
        TypeError: If a value is of a kind that cannot be written.
    """  # noqa: DOC502 - raised by helpers
    if hint is Any:
        return _plain(value)
    if isinstance(value, Tensor):
        return _tensor_out(value, apart if every else None, name)
    if value is None or (isinstance(value, bool | str) and not isinstance(value, Enum)):
        return value
    kind, arguments = _parts(hint)
    if is_dataclass(value):
        data = _fields_of(value, apart, every, name)
        known = hint is type(value) or (kind is Union and _members(arguments) == [type(value)])
        return data if known else {_CLASS: type(value).__name__, **data}
    if kind is Union:
        return encode(value, _member(arguments, value), apart, every, name)
    for leaf, (write, _) in _LEAVES.items():
        if isinstance(value, leaf):
            return write(value)
    if isinstance(value, Mapping):
        _, of = arguments or (Any, Any)
        return {str(k): encode(v, of, apart, every, _join(name, k)) for k, v in value.items()}
    if isinstance(value, Sequence | Set):
        hints = _item_hints(kind, arguments, len(value))
        return [encode(v, h, apart, every, _join(name, i)) for i, (v, h) in enumerate(zip(value, hints, strict=True))]
    return _plain(value)


def decode(data: Any, hint: Any, tensors: Mapping[str, Tensor] | None = None) -> Any:
    """Read what ``encode`` wrote, by its annotation or dataclass.

    A field marked ``APART`` takes its default if ``tensors``, which holds what was stored apart, lacks its own.

    Raises:
        TypeError: If the data are not of the annotated kind.
        ValueError: If they are, but hold impossible values.
    """
    kind, arguments = _parts(hint)
    if kind is Any:
        return data
    if kind is Union:
        return _decode_union(data, arguments, tensors)
    if kind is Literal:
        if data not in arguments:
            raise ValueError(f"a value must be one of {arguments}. Got {data!r}.")
        return data
    if kind is Tensor:
        return _tensor_in(data, tensors or {})
    if is_dataclass(kind):
        return _dataclass_in(data, [kind], tensors)
    for leaf, (_, read) in _LEAVES.items():
        if isinstance(kind, type) and issubclass(kind, leaf):
            return read(data, kind)
    if kind in _ITEMS:
        _require(data, list)
        hints = _item_hints(kind, arguments, len(data))
        return _ITEMS[kind](decode(v, h, tensors) for v, h in zip(data, hints, strict=True))
    if isinstance(kind, type) and issubclass(kind, Mapping):
        _require(data, dict)
        of = arguments[1] if arguments else Any
        return {k: decode(v, of, tensors) for k, v in data.items()}
    if kind is float:
        _require(data, int, float)
        return data
    if kind in (int, str, bool, type(None)):
        _require(data, kind)
        return data
    raise TypeError(f"annotation must be of a kind that can be read. Got {hint!r}.")


def mark_nonfinite(data: Any) -> Any:
    """Plain data with NaN and infinities, which JSON cannot express, as ``{"$float": "nan"}``."""
    if isinstance(data, float) and (data != data or abs(data) == float("inf")):
        return {_NONFINITE: repr(float(data))}
    if isinstance(data, dict):
        return {k: mark_nonfinite(v) for k, v in data.items()}
    return [mark_nonfinite(v) for v in data] if isinstance(data, list) else data


def unmark_nonfinite(data: Any) -> Any:
    """The data that ``mark_nonfinite`` was given."""
    if isinstance(data, dict):
        if data.keys() == {_NONFINITE}:
            return float(data[_NONFINITE])
        return {k: unmark_nonfinite(v) for k, v in data.items()}
    return [unmark_nonfinite(v) for v in data] if isinstance(data, list) else data


@cache
def _hints(kind: type) -> dict[str, Any]:
    """The annotations of the fields that are saved; those of others may name what is imported for types only."""
    saved = {f.name for f in fields(kind) if f.metadata.get("saved") != "never"}
    found: dict[str, Any] = {}
    for base in kind.__mro__:
        own = {k: v for k, v in get_annotations(base).items() if k in saved and k not in found}
        holder = types.SimpleNamespace(__annotations__=own)
        found |= get_type_hints(holder, vars(sys.modules[base.__module__]))
    return found


def _saved(kind: Any) -> list[tuple[Field[Any], Any]]:
    hints = _hints(kind)
    return [(f, hints[f.name]) for f in fields(kind) if f.name in hints]


def _fields_of(value: Any, apart: Tensors | None, every: bool, name: str) -> dict[str, Any]:
    data = {}
    for f, hint in _saved(type(value)):
        stored = f.metadata.get("saved") == "apart"
        if not stored or apart is not None:
            inner = _join(name, f.name)
            data[f.name] = encode(getattr(value, f.name), hint, apart, every or stored, inner)
    return data


def _dataclass_in(data: Any, kinds: Sequence[Any], tensors: Mapping[str, Tensor] | None) -> Any:
    """One of several dataclasses, or of their subclasses; if there is only one, the data need not name it."""
    _require(data, dict)
    kind = kinds[0]
    if _CLASS in data or len(kinds) > 1:
        said = data.get(_CLASS)
        found = [k for kind in kinds for k in _subclasses(kind) if k.__name__ == said]
        if not found:
            raise ValueError(f"{_CLASS} must be a kind of {' or '.join(k.__name__ for k in kinds)}. Got {said!r}.")
        kind = found[0]
    values = {}
    for f, hint in _saved(kind):
        if f.name in data:
            try:
                values[f.name] = decode(data[f.name], hint, tensors)
            except _NoTensorError:
                if f.metadata.get("saved") != "apart":
                    raise
        elif f.default is MISSING and f.default_factory is MISSING:
            raise ValueError(f"{kind.__name__} must have all of its fields. Got no {f.name}.")
    unknown = data.keys() - {f.name for f, _ in _saved(kind)} - {_CLASS}
    if unknown:
        raise ValueError(f"{kind.__name__} must have only fields of its own. Got {', '.join(sorted(unknown))}.")
    return kind(**values)


def _decode_union(data: Any, arguments: tuple[Any, ...], tensors: Mapping[str, Tensor] | None) -> Any:
    if data is None and type(None) in arguments:
        return None
    members = _members(arguments)
    classes = [m for m in members if is_dataclass(m)]
    if classes and isinstance(data, dict):
        return _dataclass_in(data, classes, tensors)
    return decode(data, _member(arguments, data), tensors)


def _members(arguments: tuple[Any, ...]) -> list[Any]:
    return [a for a in arguments if a is not type(None)]


def _member(arguments: tuple[Any, ...], value: Any) -> Any:
    """The member of a union that a value belongs to, by its outermost type."""
    members = _members(arguments)
    if len(members) == 1:
        return members[0]
    for member in members:
        kind = _parts(member)[0]
        found = list if isinstance(value, list | tuple) and kind in _ITEMS else None
        if found or kind is Any or (isinstance(kind, type) and isinstance(value, kind)):
            return member
        if kind is Literal and value in get_args(member):
            return member
    if isinstance(value, int) and float in members:
        return float
    raise TypeError(f"value must be of {members}. Got {type(value).__name__}.")


def _subclasses(kind: type) -> list[type]:
    below: list[type] = kind.__subclasses__()
    return [kind, *(one for sub in below for one in _subclasses(sub))]


def _parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Parts of an annotation: ``tuple[int, ...]`` is ``tuple`` of ``(int, ...)``."""
    origin = get_origin(hint)
    return (Union if origin is types.UnionType else origin or hint), get_args(hint)


def _item_hints(kind: Any, arguments: tuple[Any, ...], count: int) -> Sequence[Any]:
    if not arguments:
        return [Any] * count
    if kind is tuple and arguments[-1:] != (...,):
        if len(arguments) != count:
            raise ValueError(f"a tuple must have {len(arguments)} entries. Got {count}.")
        return arguments
    return [arguments[0]] * count


def _tensor_out(x: Tensor, apart: Tensors | None, name: str) -> Any:
    if apart is not None:
        apart[name] = x
        return {"tensor": name}
    values = x.detach().cpu().tolist()
    if x.numel() and x.dtype in (torch.float64, torch.int64, torch.bool):
        return values
    flat = x.detach().cpu().flatten().tolist()
    return {"dtype": str(x.dtype).removeprefix("torch."), "shape": list(x.shape), "values": flat}


def _tensor_in(data: Any, tensors: Mapping[str, Tensor]) -> Tensor:
    if not isinstance(data, dict):
        return torch.tensor(data, dtype=torch.float64 if _is_float(data) else None)
    if "tensor" in data:
        if data["tensor"] not in tensors:
            raise _NoTensorError(data["tensor"])
        return tensors[data["tensor"]]
    return torch.tensor(data["values"], dtype=_dtype(data["dtype"])).reshape(data["shape"])


def _is_float(data: Any) -> bool:
    while isinstance(data, list):
        data = data[0]
    return isinstance(data, float)


def _dtype(name: Any, _: Any = None) -> torch.dtype:
    found = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(found, torch.dtype):
        raise ValueError(f"dtype must be the name of a torch type. Got {name!r}.")
    return found


def _plain(value: Any) -> Any:
    """Data that are plain already, tuples as lists and paths as text."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, Path):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"value must be plain data: numbers, text, lists and mappings. Got {type(value).__name__}.")


def _require(data: Any, *kinds: type) -> None:
    wrong = isinstance(data, bool) and bool not in kinds
    if wrong or not isinstance(data, kinds):
        raise TypeError(f"value must be of type {' or '.join(k.__name__ for k in kinds)}. Got {type(data).__name__}.")


def _join(name: str, key: Any) -> str:
    return f"{name}.{key}" if name else str(key)


# Types that are written as one text or number: how to write them, how to read them.
_LEAVES: dict[type, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    torch.dtype: (lambda v: str(v).removeprefix("torch."), _dtype),
    Fraction: (str, lambda data, kind: kind(data)),
    Path: (str, lambda data, kind: kind(data)),
    Enum: (lambda v: v.name, lambda data, kind: kind[data]),
}

_ITEMS: dict[Any, Callable[[Any], Collection[Any]]] = {
    tuple: tuple, list: list, Sequence: tuple, Collection: tuple, set: set, frozenset: frozenset, Set: frozenset,
}  # fmt: skip
