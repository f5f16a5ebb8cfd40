"""Calls and values of a captured run: who computed what from what, and where in the code."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from .._nested import by_key, leaves


@dataclass(frozen=True)
class Ref:
    """A tensor value of a program, by its number."""

    id: int


@dataclass(frozen=True)
class Value:
    """One tensor value of a program."""

    # Where it comes from. A constant depends on neither the state dict nor a user input
    kind: Literal["parameter", "buffer", "input", "constant", "result"]
    shape: tuple[int, ...]  # Its shape
    dtype: torch.dtype  # Its element type
    name: str = ""  # Name of a parameter or buffer; position of an input
    data: Tensor | None = None  # Contents of a constant (``None`` where they are unknown, as on the meta device)
    stride: tuple[int, ...] = ()  # Distance of its elements in memory, by dimension
    offset: int = 0  # Where it begins in its storage
    source: "Call | None" = None  # The operation on other constants that made one of unknown contents
    drawn: bool = False  # Whether a constant was made of random numbers, which another run would draw anew


@dataclass(frozen=True)
class Call:
    """One operation of the run."""

    op: str  # Qualified name without overload, in-place underscore removed, such as ``"aten::add"``
    args: Mapping[str, Any]  # Arguments by schema name, defaults filled in; tensors are ``Ref``
    # One ``Ref`` for every tensor returned (``None`` where the op returned none), lists flattened
    outputs: tuple[Ref | None, ...]
    func: Any = None  # The operation itself, for callers that must evaluate it
    module: str = ""  # Qualified name of the innermost module that ran it (``""`` at the top)
    line: str = ""  # ``"file.py:12"``, the innermost line outside torch
    # The arguments that hold numbers which grow with the batch, with ``PerExample`` in their place; known if the
    # program was captured for any batch size
    growing: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def inputs(self) -> tuple[Ref, ...]:
        """Every tensor that the call reads."""
        return tuple(refs(self.args))

    @cached_property
    def made(self) -> tuple[Ref, ...]:
        """Every tensor that it returned."""
        return tuple(out for out in self.outputs if out is not None)

    @property
    def where(self) -> str:
        """The call in words: ``"relu in features.1"``."""
        name = self.op.removeprefix("aten::").removeprefix("intertwine::")
        return f"{name} in {self.module}" if self.module else name


def refs(value: Any) -> Iterator[Ref]:
    """Every ``Ref`` inside nested arguments."""
    return (leaf for leaf in leaves(value) if isinstance(leaf, Ref))


def needed(
    calls: Sequence[Call],
    wanted: Iterable[Ref],
    stop: Iterable[Ref] = (),
    kept: Callable[[Call], bool] = lambda call: False,
) -> tuple[int, ...]:
    """Positions of the calls that compute ``wanted``, in order, without going behind ``stop``; and of all ``kept``."""
    given = set(stop)
    missing, found = set(wanted) - given, []
    for position in range(len(calls) - 1, -1, -1):
        call = calls[position]
        if kept(call) or any(out in missing for out in call.outputs):
            found.append(position)
            missing.update(ref for ref in call.inputs if ref not in given)
    return tuple(reversed(found))


def reached(calls: Iterable[Call], start: Iterable[Ref]) -> frozenset[int]:
    """Numbers of the values that depend on ``start``, including ``start`` itself."""
    found = set(start)
    for call in calls:
        if any(ref in found for ref in call.inputs):
            found.update(call.made)
    return frozenset(ref.id for ref in found)


def last_reads(calls: Sequence[Call], kept: Iterable[Ref]) -> tuple[tuple[int, ...], ...]:
    """For every call, the numbers of the values that nothing reads after it, without ``kept``."""
    seen, found = set(kept), []
    for call in reversed(calls):
        here = {*call.inputs, *call.made}
        found.append(tuple(ref.id for ref in here - seen))
        seen |= here
    return tuple(reversed(found))


def readers(calls: Iterable[Call]) -> dict[int, list[Call]]:
    """Number of every value to the calls that read it, in order."""
    return by_key((ref.id, call) for call in calls for ref in dict.fromkeys(call.inputs))


def makers(calls: Iterable[Call]) -> dict[int, Call]:
    """Number of every value to the call that made it."""
    return {out.id: call for call in calls for out in call.made}


@dataclass(frozen=True)
class PerExample:
    """A whole number that grows with the batch: ``base + slope N``."""

    base: int
    slope: int

    def at(self, n: int) -> int:
        """Its value for ``n`` examples."""
        return self.base + self.slope * n


@dataclass(frozen=True)
class Growing:
    """A constant that grows with the batch: block ``k`` of ``N`` along an axis is ``first + k step``."""

    axis: int  # The axis
    first: Tensor  # The first block
    step: Tensor | None  # What each block adds; ``None`` if all are equal

    def at(self, n: int) -> Tensor:
        """Its value for ``n`` examples."""
        blocks = self.first.unsqueeze(self.axis)
        blocks = blocks.expand(*(n if d == self.axis else -1 for d in range(blocks.ndim)))
        if self.step is not None:
            count = torch.arange(n, device=self.first.device).view(-1, *[1] * (blocks.ndim - self.axis - 1))
            blocks = blocks + self.step.unsqueeze(self.axis) * count
        return blocks.flatten(self.axis, self.axis + 1).to(self.first.dtype)


def grows(argument: Any) -> bool:
    """Whether an argument holds a number that grows with the batch."""
    return any(isinstance(leaf, PerExample) for leaf in leaves(argument))
