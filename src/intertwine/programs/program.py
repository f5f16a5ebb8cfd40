"""One captured run of a model as a list of calls: who computed what, from which parameters, where in the code."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from .._attributes import Cache

__all__ = ["Call", "Program", "Ref", "Value"]


@dataclass(frozen=True)
class Ref:
    """A tensor value of a program, by its number."""

    id: int


@dataclass(frozen=True)
class Value:
    """What is known of one tensor value.

    Attributes:
        kind: Where it comes from. A constant depends on neither the state dict nor a user input.
        shape: Its shape.
        dtype: Its element type.
        name: Name of a parameter or buffer; position of an input.
        data: Contents of a constant (``None`` where they are unknown, as on the meta device).
        stride: How far its elements lie apart in memory, by dimension.
        offset: Where it begins in its storage.
    """

    kind: Literal["parameter", "buffer", "input", "constant", "result"]
    shape: tuple[int, ...]
    dtype: torch.dtype
    name: str = ""
    data: Tensor | None = None
    stride: tuple[int, ...] = ()
    offset: int = 0


@dataclass(frozen=True)
class Call:
    """One operation of the run.

    Attributes:
        op: Qualified name without overload, in-place underscore removed, such as ``"aten::add"``.
        args: Arguments by schema name, defaults filled in; tensors are ``Ref``.
        outputs: One ``Ref`` for every tensor returned (``None`` where the op returned none), lists flattened.
        func: The operation itself, for those who must evaluate it.
        module: Qualified name of the innermost module that ran it (``""`` at the top).
        line: ``"file.py:12"``, the innermost line outside torch.
    """

    op: str
    args: Mapping[str, Any]
    outputs: tuple[Ref | None, ...]
    func: Any = None
    module: str = ""
    line: str = ""

    @property
    def inputs(self) -> tuple[Ref, ...]:
        """Every tensor that the call reads."""
        return tuple(refs(self.args))

    @property
    def where(self) -> str:
        """The call in words: ``"relu in features.1"``."""
        name = self.op.removeprefix("aten::")
        return f"{name} in {self.module}" if self.module else name


@dataclass(frozen=True)
class Program:
    """One captured run.

    Attributes:
        values: Every tensor value; ``Ref.id`` is the index.
        calls: In the order in which they ran.
        inputs: Tensors that the user gave.
        outputs: Tensors that the model returned.
        states: State-dict name to value, for parameters and buffers (tied names once).
        aliases: Tied names to the name in ``states``.
        taps: Module name, with ``#k`` for the k-th call where there are several, to the first tensor that it returned.
        reads: Lines that took a number out of an activation; the run is certified for this path only where there are
            any.
        dtype: Lowest floating-point precision that was seen.
        notes: What a reader should know.
        front: ``"record"`` or ``"export"``.
        caches: Where the model keeps tensors that this run computed.
        visible: Name of every module that ran to the numbers of the values that its own code can see: what it and the
            modules that it called were given, returned or computed directly in it.
        answers: To the yes-or-no questions that the code asked of tensors, in order; ``None`` where it took other
            numbers out of them.
    """

    values: tuple[Value, ...]
    calls: tuple[Call, ...]
    inputs: tuple[Ref, ...]
    outputs: tuple[Ref, ...]
    states: Mapping[str, Ref]
    aliases: Mapping[str, str] = field(default_factory=dict)
    taps: Mapping[str, Ref] = field(default_factory=dict)
    reads: tuple[str, ...] = ()
    dtype: torch.dtype = torch.float32
    notes: tuple[str, ...] = ()
    front: str = "record"
    caches: tuple[Cache, ...] = ()
    visible: Mapping[str, frozenset[int]] = field(default_factory=dict)
    answers: tuple[bool, ...] | None = None

    def parameters_of(self, call: Call) -> tuple[str, ...]:
        """Parameters and buffers that ``call`` reads, directly or through tensors computed from parameters alone.

        A linear layer's product reads a transposed view of the weight: it reads the weight.
        """
        weights = self._weights()
        found: list[str] = []
        for ref in call.inputs:
            found += weights.get(ref.id, ())
        return tuple(dict.fromkeys(found))

    def before(self, tap: str) -> tuple[Call, ...]:
        """The calls that the value at ``tap`` depends on, in order. Unknown taps are a ``ValueError``."""
        wanted = {self._tap(tap).id}
        needed = []
        for call in reversed(self.calls):
            if any(out is not None and out.id in wanted for out in call.outputs):
                needed.append(call)
                wanted.update(ref.id for ref in call.inputs)
        return tuple(reversed(needed))

    def is_cut_vertex(self, tap: str) -> bool:
        """Whether everything that the outputs learn of the inputs passes the value at ``tap`` (which must exist)."""
        blocked = self._tap(tap).id
        reached = {ref.id for ref in self.inputs} - {blocked}
        for call in self.calls:
            if any(ref.id in reached for ref in call.inputs):
                reached.update(out.id for out in call.outputs if out is not None and out.id != blocked)
        return not any(ref.id in reached for ref in self.outputs)

    def _tap(self, tap: str) -> Ref:
        if tap not in self.taps:
            raise ValueError(f"tap must be a module call of this run, such as {list(self.taps)[:5]}. Got {tap!r}.")
        return self.taps[tap]

    def _weights(self) -> dict[int, tuple[str, ...]]:
        """Values computed from parameters and constants alone, with the parameters that they came from."""
        found: dict[int, tuple[str, ...]] = {ref.id: (name,) for name, ref in self.states.items()}
        for call in self.calls:
            sources = [found.get(r.id) for r in call.inputs if self.values[r.id].kind != "constant"]
            if sources and all(s is not None for s in sources):
                names = tuple(dict.fromkeys(n for s in sources if s for n in s))
                found.update({out.id: names for out in call.outputs if out is not None})
        return found


def refs(value: Any) -> Iterator[Ref]:
    """Every ``Ref`` inside nested arguments."""
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, Mapping):
        for v in value.values():
            yield from refs(v)
    elif isinstance(value, list | tuple):
        for v in value:
            yield from refs(v)
