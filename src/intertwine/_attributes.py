"""Attributes of a model other than parameters and buffers: counters, lists, caches. A run leaves them as they were.

A cache computed from weights is stale in a copy of the model that has other weights. The places where a run puts such
tensors are recorded (``Kept.filled``) and emptied in the copy (``forget``).
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

Plain = bool | int | float | str | None
_ATOMS = (bool, int, float, complex, str, bytes, type(None), type, ModuleType, FunctionType, MethodType,
          BuiltinFunctionType, torch.dtype, torch.device, torch.Size)  # fmt: skip
_PLAIN = frozenset((*_ATOMS, Tensor, nn.Parameter))  # the same by exact type: most attributes are one of these
_OPEN = frozenset((dict, OrderedDict, list, tuple, set))  # or one of these
_REGISTERED = ("'_parameters'", "'_buffers'", "'_modules'")
_MISSING = object()


@dataclass(frozen=True)
class Cache:
    """A place where a run put tensors that it computed from parameters or inputs."""

    module: str  # Qualified name of the module that holds it
    # The attribute and the keys inside it, down to the container; empty for the module's own attributes
    path: tuple[str, ...]
    made: tuple[str, ...]  # Keys that the run added
    before: tuple[str, ...] = ()  # Keys that were there already
    empty: tuple[tuple[str, Plain], ...] = ()  # Keys that held no tensor, with the number or text that they held


@dataclass(slots=True)
class _Container:
    """A container of other things by key, with what it held."""

    parent: "_Container | None"  # The container around it; None for a module
    key: Any  # Its key in the parent, or the module's name
    holder: Any
    held: dict[Any, Any]

    @property
    def place(self) -> tuple[str, ...]:
        """Module, attribute, keys."""
        return (self.key,) if self.parent is None else (*self.parent.place, repr(self.key))

    def restore(self) -> None:
        now = _items(self.holder)
        if now.keys() != self.held.keys() or any(now[k] is not v for k, v in self.held.items()):
            _refill(self.holder, self.held)


class Kept:
    """Contents of a model's attributes, all the way down through lists, dicts and plain objects.

    Args:
        model: The model. Its hooks count among its attributes, its training flags do not.
    """

    def __init__(self, model: nn.Module) -> None:
        self._containers = list(_containers(model))
        self._states = {id(t) for t in [*model.parameters(), *model.buffers()]}
        self._versions = [(t, t._version) for t in [*model.parameters(), *model.buffers()] if not t.is_inference()]
        rare = (value for value in self.held() if type(value) not in _PLAIN)  # checking each against a class is slow
        self._generators = [(g, g.get_state()) for g in rare if isinstance(g, torch.Generator)]

    def restore(self) -> None:
        """Restore every container and generator to what it held."""
        for container in self._containers:
            container.restore()
        for generator, state in self._generators:
            generator.set_state(state)

    def overwritten(self) -> bool:
        """Whether a parameter or buffer was written in place since: the attributes may then describe its new values."""
        return any(tensor._version != version for tensor, version in self._versions)

    def tensors(self) -> Iterator[Tensor]:
        """Tensors that are neither parameters nor buffers."""
        return (t for t in self.held() if isinstance(t, Tensor) and id(t) not in self._states)

    def filled(self, derived: Callable[[Tensor], bool]) -> tuple[Cache, ...]:
        """Places that now hold other tensors of which ``derived`` says that a run computed them."""
        return tuple(cache for container in self._containers for cache in _filled(container, derived))

    def empty(self, chosen: Callable[[tuple[str, ...]], bool], delete: bool) -> list[tuple[str, ...]]:
        """Take the tensors at ``chosen`` places out of the attributes and what they hold; ``restore`` puts them back.

        With ``delete``, an attribute without a default on its class is deleted; otherwise it becomes ``None``.
        """
        places = []
        for container in self._containers:
            if len(container.place) == 2 and container.place[1] in _REGISTERED:
                continue
            for key, value in reversed(container.held.items()):
                place = (*container.place, repr(key))
                if self._is_cached(value) and chosen(place):
                    places.append(place)
                    _take_out(container.holder, key, delete)
        return places

    def _is_cached(self, value: Any) -> bool:
        found = value if isinstance(value, tuple) else (value,)
        tensors = [t for t in found if isinstance(t, Tensor) and t.is_floating_point() and id(t) not in self._states]
        return bool(found) and len(tensors) == len(found)

    def holds(self, place: tuple[str, ...]) -> bool:
        """Whether a place holds a tensor now."""
        at: Any = next(c.holder for c in self._containers if c.place == place[:1])
        for step in place[1:]:
            at = next((v for k, v in _items(at).items() if repr(k) == step), None)
        return any(True for _ in _tensors(at))

    def held(self) -> Iterator[Any]:
        """Everything that was held, one item at a time."""
        for container in self._containers:
            for value in container.held.values():
                yield from value if isinstance(value, tuple | set | frozenset) else (value,)


def forget(model: nn.Module, caches: Iterable[Cache]) -> None:
    """Empty a model's caches of tensors computed from its weights; the model fills them again when it runs."""
    modules = dict(model.named_modules())
    for cache in caches:
        holder: Any = modules.get(cache.module)
        for step in cache.path:
            holder = next((v for k, v in _items(holder).items() if repr(k) == step), None)
        others = bool(cache.path) and cache.path[0] not in _REGISTERED  # keys may name devices, dtypes, shapes
        empty = dict(cache.empty)
        for key, value in reversed(_items(holder).items()):
            name = repr(key)
            if not any(True for _ in _tensors(value)):
                continue
            if name in empty:
                _inside(holder)[key] = empty[name]
            elif name in cache.made or (others and name not in cache.before):
                del _inside(holder)[key]


def unattached(model: nn.Module) -> dict[int, Any]:
    """Memo for ``copy.deepcopy``: tensors that a run with gradients left in attributes, detached from its graph."""
    held = (t for t in Kept(model).held() if isinstance(t, Tensor))
    return {id(t): t.detach().clone() for t in held if not t.is_leaf}


def _containers(model: nn.Module) -> Iterator[_Container]:
    waiting: list[tuple[_Container | None, Any, Any]] = [(None, name, module) for name, module in model.named_modules()]
    waiting.reverse()
    seen: set[int] = set()
    while waiting:
        parent, key, holder = waiting.pop()
        if id(holder) in seen or (parent is not None and isinstance(holder, nn.Module)):
            continue
        seen.add(id(holder))
        found = _Container(parent, key, holder, _items(holder))
        if not isinstance(holder, tuple):
            yield found
        waiting += [(found, k, v) for k, v in found.held.items() if _opens(v)]


def _opens(value: Any) -> bool:
    """Whether a value may hold other things that a run changes."""
    if type(value) in _PLAIN or type(value) in _OPEN:
        return type(value) in _OPEN
    if isinstance(value, (*_ATOMS, Tensor, nn.Module, torch.Generator)):
        return False
    return isinstance(value, dict | list | tuple | set | deque) or isinstance(getattr(value, "__dict__", None), dict)


def _items(holder: Any) -> dict[Any, Any]:
    """Contents of a container, by key."""
    if isinstance(holder, dict):
        return dict(dict.items(holder))
    if isinstance(holder, nn.Module):
        return {k: v for k, v in holder.__dict__.items() if k != "training"}
    if isinstance(holder, list | tuple | deque):
        return dict(enumerate(holder))
    if isinstance(holder, set):
        return {id(v): v for v in holder}
    return dict(getattr(holder, "__dict__", {}))


def _refill(holder: Any, held: dict[Any, Any]) -> None:
    if isinstance(holder, list):
        holder[:] = held.values()
    elif isinstance(holder, deque | set):
        holder.clear()
        holder.extend(held.values()) if isinstance(holder, deque) else holder.update(held.values())
    elif isinstance(holder, dict):
        base: Any = OrderedDict if isinstance(holder, OrderedDict) else dict
        base.clear(holder)
        for key, value in held.items():
            base.__setitem__(holder, key, value)
    else:
        own = holder.__dict__
        for key in _items(holder):
            if key not in held:
                del own[key]
        own.update(held)


def _inside(holder: Any) -> Any:
    """The object in which a container keeps its contents by key."""
    return holder if isinstance(holder, dict | list | deque) else holder.__dict__


def _take_out(holder: Any, key: Any, delete: bool) -> None:
    """Reset a place to what it may have been before it was filled: no key, no item, the default or ``None``."""
    if delete or isinstance(holder, dict | list | deque) or hasattr(type(holder), str(key)):
        del _inside(holder)[key]
    else:
        holder.__dict__[key] = None


def _filled(container: _Container, derived: Callable[[Tensor], bool]) -> Iterator[Cache]:
    """Caches that a run put into a container, or into containers that replaced others there."""
    made, empty = [], []
    for key, value in _items(container.holder).items():
        before = container.held.get(key, _MISSING)
        if value is before or not any(derived(t) for t in _tensors(value)):
            continue
        if before is _MISSING:
            made.append(repr(key))
        elif isinstance(before, Plain):
            empty.append((repr(key), before))
        elif _opens(before):
            keys = tuple(map(repr, _items(before)))
            yield Cache(container.place[0], (*container.place[1:], repr(key)), (), keys)
    if made or empty:
        keys = tuple(map(repr, container.held)) if len(container.place) > 1 else ()
        yield Cache(container.place[0], container.place[1:], tuple(made), keys, tuple(empty))


def _tensors(value: Any) -> Iterator[Tensor]:
    """Tensors inside a value that is not a module."""
    seen: set[int] = set()
    waiting = [value]
    while waiting:
        at = waiting.pop()
        if id(at) in seen:
            continue
        seen.add(id(at))
        if isinstance(at, Tensor):
            yield at
        elif _opens(at):
            waiting += _items(at).values()
