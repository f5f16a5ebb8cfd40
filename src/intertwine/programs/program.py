"""Captured programs: the calls of one run of a model, parts of which can be run again, call by call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .._attributes import Cache
from .._nested import map_tensors
from .._words import counted
from ..errors import CaptureError
from .calls import Call, Growing, PerExample, Ref, Value, grows, last_reads, needed, reached, refs
from .operations import BATCH_NORMS, MEMORY_VIEWS, SCALED_DOT_PRODUCTS, writes

Handler = Callable[[Call, Callable[..., Any], dict[str, Any]], Any]
"""``handler(call, operation, args)``, in place of ``operation(**args)``."""


@dataclass(frozen=True)
class Step:
    """One call, ready to run: arguments that never change are kept apart from those filled in at every run."""

    call: Call  # The call
    operation: Callable[..., Any]  # Its function
    plain: Mapping[str, Any]  # Arguments without tensors
    filled: Mapping[str, Any]  # Arguments with ``Ref`` and ``PerExample`` in them
    norm: bool  # Whether it is a batch norm with running statistics

    @classmethod
    def of(cls, call: Call) -> Step:
        """A call as a step."""
        args = {**call.args, **{key: value for key, value in call.growing.items() if key in call.args}}
        norm, a = call.op in BATCH_NORMS, args
        operation: Callable[..., Any]
        # norms and attention by what all backends have in common: a call recorded elsewhere runs here too
        if norm:
            momentum, eps = a.get("momentum", a.get("exponential_average_factor")), a.get("eps", a.get("epsilon"))
            args = {"input": a["input"], "weight": a["weight"], "bias": a["bias"], "momentum": momentum, "eps": eps}
            args |= {key: a.get(key) for key in ("running_mean", "running_var")}
            operation, args = F.batch_norm, {**args, "training": bool(a.get("training", False))}
        elif call.op in SCALED_DOT_PRODUCTS:
            args = {"attn_mask": a.get("attn_mask", a.get("attn_bias")), "is_causal": bool(a.get("is_causal", False))}
            operation, args = _attend, {**{key: a.get(key) for key in ("query", "key", "value", "scale")}, **args}
        elif call.op in MEMORY_VIEWS:
            operation, args = torch.reshape, {"input": args["self"], "shape": args["size"]}
        else:
            operation = _functional(call)
        filled = {key: value for key, value in args.items() if grows(value) or any(True for _ in refs(value))}
        plain = {key: value for key, value in args.items() if key not in filled}
        return cls(call, operation, plain, filled, norm and args["running_mean"] is not None)

    def run(
        self,
        known: dict[int, Tensor],
        fetch: Callable[[Ref], Tensor],
        n: int,
        training: bool = False,
        handler: Handler | None = None,
    ) -> None:
        """Run the call for ``n`` examples and put what it returns into ``known``, the values by number.

        ``fetch`` gives a value's tensor; in ``training``, batch norms use the batch's statistics and update the running
        ones in place; ``handler`` runs instead of the operation.
        """
        args = {**{key: _fill(value, fetch, n) for key, value in self.filled.items()}, **self.plain}
        if self.norm:
            args["training"] = training
            args["momentum"] = float(args["momentum"]) if training else 0.0
        result = self.operation(**args) if handler is None else handler(self.call, self.operation, args)
        for ref, tensor in zip(self.call.outputs, results(result)):
            if ref is not None and tensor is not None:
                known[ref.id] = tensor


def run_call(call: Call, tensors: Mapping[int, Tensor], handler: Handler | None = None) -> list[Tensor]:
    """Results of a single call, for given tensors by number."""
    known: dict[int, Tensor] = {}
    Step.of(call).run(known, lambda ref: tensors[ref.id], 0, handler=handler)
    return [known[out.id] for out in call.made if out.id in known]


def float64_handler(call: Call, operation: Callable[..., Any], args: dict[str, Any]) -> Any:
    """A handler that computes in float64: casts are left out, integers stay as they are."""
    if call.op == "aten::_to_copy":
        return args["self"]
    operation = multiply_by_group if call.op == "aten::_grouped_mm" else operation
    return operation(**map_tensors(args, lambda t: t.double() if t.is_floating_point() else t))


def multiply_by_group(self: Tensor, mat2: Tensor, offs: Tensor, bias: None = None, out_dtype: Any = None) -> Tensor:
    """``self[offs[e - 1] : offs[e]] @ mat2[e]`` for every ``e``, which torch has for lower precisions only."""
    ends = [0, *offs.tolist()]
    parts = [self[a:b] @ matrix for a, b, matrix in zip(ends, ends[1:], mat2)]
    return torch.cat([*parts, self.new_zeros(len(self) - ends[-1], mat2.shape[-1])])


def _functional(call: Call) -> Callable[..., Any]:
    """The operation in a form that does not write into its arguments."""
    if call.op.startswith("intertwine::") or call.func is None or call.op.endswith("(writes its argument)"):
        raise CaptureError(
            f"model must not write into parts of its activations. Got {call.where} at {call.line}. Make the change on "
            "a copy, or by torch.cat."
        )
    if not writes(call.func):
        return call.func
    space, _, name = call.func._schema.name.partition("::")
    packet = getattr(getattr(torch.ops, space), name.removesuffix("_"), None)
    overload = call.func._schema.overload_name or "default"
    if packet is None or overload not in packet.overloads():
        raise CaptureError(f"operations in place must have a form without writes. Got {call.where} at {call.line}.")
    return getattr(packet, overload)


def _attend(query: Tensor, key: Tensor, value: Tensor, **how: Any) -> Tensor:
    """Attention; kernels see that several heads read one key, but torch must be told."""
    grouped = query.ndim > 3 and query.shape[-3] != key.shape[-3]
    return F.scaled_dot_product_attention(query, key, value, **how, enable_gqa=grouped)


def _fill(value: Any, fetch: Callable[[Ref], Tensor], n: int) -> Any:
    if isinstance(value, Ref):
        return fetch(value)
    if isinstance(value, PerExample):
        return value.at(n)
    return [_fill(item, fetch, n) for item in value] if isinstance(value, list | tuple) else value


def results(result: Any) -> list[Tensor | None]:
    """Tensors that an operation returned, in the order of ``Call.outputs``."""
    if isinstance(result, Tensor) or result is None:
        return [result]
    return [t for item in result for t in results(item)] if isinstance(result, list | tuple) else []


@dataclass(frozen=True, repr=False)
class Program:
    """One captured run."""

    values: tuple[Value, ...]  # Every tensor value; ``Ref.id`` is the index
    calls: tuple[Call, ...]  # In the order in which they ran
    inputs: tuple[Ref, ...]  # Tensors that the user gave
    outputs: tuple[Ref, ...]  # Tensors that the model returned
    states: Mapping[str, Ref]  # State-dict name to value, for parameters and buffers (tied names once)
    aliases: Mapping[str, str] = field(default_factory=dict)  # Tied names to the name in ``states``
    # Module name, with ``#k`` for the k-th of several calls, to the first tensor that it returned; also the results of
    # nonlinearities that are called as functions, named as in ``features.layers``
    taps: Mapping[str, Ref] = field(default_factory=dict)
    # Lines that took a number out of an activation; if there are any, the run is certified for this path only
    reads: tuple[str, ...] = ()
    dtype: torch.dtype = torch.float32  # Lowest floating-point precision seen
    notes: tuple[str, ...] = ()  # Caveats for the reader
    caches: tuple[Cache, ...] = ()  # Where the model keeps tensors that this run computed
    # Name of every module that ran to the numbers of the values that its own code can see: what it and the modules that
    # it called were given, returned or computed directly in it
    visible: Mapping[str, frozenset[int]] = field(default_factory=dict)
    # Answers to the yes-or-no questions that the code asked of tensors, in order; ``None`` if it took other numbers out
    # of them
    answers: tuple[bool, ...] | None = None
    # Copies of parameters and buffers, by name, if they were kept: training the model further changes nothing here
    contents: Mapping[str, Tensor] = field(default_factory=dict)
    # Constants that grow with the batch, such as ``arange(N)`` and repeated masks, by number
    growing: Mapping[int, Growing] = field(default_factory=dict)
    dynamic: bool = False  # Whether it was captured for any batch size
    drawn: bool = False  # Whether the host drew random numbers, which another run would draw anew
    given: Any = None  # The containers of the inputs that it was captured on, for any batch size, without tensors

    def __repr__(self) -> str:
        calls, states = counted(len(self.calls), "call"), counted(len(self.states), "state")
        return f"{type(self).__name__}({calls}, {states}, {len(self.inputs)} in, {len(self.outputs)} out)"

    def summary(self) -> str:
        """One line for each call: numbers of the values that it returns and reads, its operation, module and line."""
        numbers = lambda refs: ", ".join(f"%{ref.id}" for ref in refs if ref is not None)
        lines = (f"{numbers(c.outputs)} = {c.op}({numbers(c.inputs)})  {c.module} {c.line}" for c in self.calls)
        return "\n".join(map(str.rstrip, lines))

    def run(
        self,
        inputs: Tensor | Sequence[Tensor],
        outputs: Sequence[Ref] | None = None,
        *,
        start: Sequence[Ref] | None = None,
        states: Mapping[str, Tensor] | None = None,
        handlers: Mapping[int, Handler] | None = None,
        training: bool = False,
    ) -> tuple[Tensor, ...]:
        """Run the program, or a part of it, again; gradients flow through it.

        Args:
            inputs: A tensor for each of ``start``, if any; the first axis of the first one is the batch.
            outputs: Values to return, of whatever depth; the program's own outputs if ``None``.
            start: Values that are given; the program's inputs if ``None``. Nothing before them is run.
            states: Tensors in place of parameters and buffers, by name; all that are read, if the program keeps no
                ``contents``.
            handlers: Position in ``calls`` to ``handler(call, operation, args)``, whose result takes the place of
                ``operation(**args)``. Calls that no output depends on do not run.
            training: Whether batch norms use the batch's statistics and update the running ones, in place.

        Raises:
            ValueError: If a state is missing or unknown, or an input has another shape than in the captured run, apart
                from the batch if the program was captured for any batch size.
            CaptureError: If a call writes into part of an activation.

        Examples:
            >>> from intertwine.programs import capture_dynamic, operations
            >>> model, x = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU()), torch.randn(7, 3)
            >>> program = capture_dynamic(model, x)
            >>> (gate,) = program.find(operations.is_gate)
            >>> q, y = program.run(x, [program.calls[gate].inputs[0], *program.outputs])
            >>> torch.equal(y, q.relu())
            True
            >>> open_gate = lambda call, operation, args: args["self"]
            >>> torch.equal(program.run(x, handlers={gate: open_gate})[0], q)
            True
        """  # noqa: DOC502 - raised by what it calls
        given = self.inputs if start is None else tuple(start)
        tensors = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
        wanted = self.outputs if outputs is None else tuple(outputs)
        if len(given) != len(tensors):
            raise ValueError(f"inputs must be {len(given)} tensors, one for each value given. Got {len(tensors)}.")
        free = 1 if self.dynamic else 0
        for shape, tensor in zip((self.values[ref.id].shape for ref in given), tensors):
            if len(shape) != tensor.ndim or shape[free:] != tuple(tensor.shape)[free:]:
                expected = ("N", *shape[1:]) if free else shape
                raise ValueError(
                    f"inputs must be shaped as in the captured run, {expected}. Got {tuple(tensor.shape)}."
                )
        known = {ref.id: tensor for ref, tensor in zip(given, tensors)}
        held = self._held(states or {})
        n = tensors[0].shape[0] if tensors else 0
        device = next((tensor.device for tensor in (*tensors, *held.values())), torch.device("cpu"))

        def fetch(ref: Ref) -> Tensor:
            if ref.id in self.growing and ref.id not in known:
                return self.growing[ref.id].at(n).to(device)
            if (found := known.get(ref.id, held.get(ref.id))) is not None:
                return found
            value = self.values[ref.id]
            if value.kind != "constant" or value.data is None:
                raise ValueError(f"states must hold all that is read. Got no {value.kind} {value.name!r}.")
            return value.data.to(device)

        for position, step, done in self._steps(wanted, given):
            step.run(known, fetch, n, training, (handlers or {}).get(position))
            for number in done:
                known.pop(number, None)
        return tuple(fetch(ref) for ref in wanted)

    def _steps(self, wanted: tuple[Ref, ...], given: tuple[Ref, ...]) -> tuple[tuple[int, Step, tuple[int, ...]], ...]:
        """Position, step, and numbers of values that nothing reads afterwards, for every call to run."""
        if (wanted, given) not in self._prepared:
            positions = needed(self.calls, wanted, given)
            calls = [self.calls[i] for i in positions]
            self._prepared[wanted, given] = tuple(zip(positions, map(Step.of, calls), last_reads(calls, wanted)))
        return self._prepared[wanted, given]

    @cached_property
    def _prepared(self) -> dict[tuple, tuple]:
        return {}

    def find(self, predicate: Callable[[Call], bool]) -> tuple[int, ...]:
        """Positions of the calls for which ``predicate`` holds, such as ``operations.is_gate``."""
        return tuple(i for i, call in enumerate(self.calls) if predicate(call))

    def live(self, kept: Callable[[Call], bool]) -> list[Call]:
        """The calls that the outputs depend on, and those ``kept`` with what they depend on."""
        return [self.calls[i] for i in needed(self.calls, self.outputs, kept=kept)]

    def ancestors(self, values: Iterable[Ref], stop: Iterable[Ref] = ()) -> tuple[int, ...]:
        """Positions of the calls that compute ``values``, in order, without going behind ``stop``."""
        return needed(self.calls, values, stop)

    def descendants(self, value: Ref) -> frozenset[int]:
        """Numbers of the values that depend on ``value``, without ``value`` itself."""
        return reached(self.calls, [value]) - {value.id}

    @cached_property
    def varying(self) -> frozenset[int]:
        """Numbers of the values that depend on an input."""
        return reached(self.calls, self.inputs)

    @cached_property
    def learned(self) -> frozenset[int]:
        """Numbers of the values that depend on a parameter or buffer."""
        return reached(self.calls, self.states.values())

    def parameters_of(self, call: Call) -> tuple[str, ...]:
        """Parameters and buffers that ``call`` reads, directly or through tensors computed from parameters alone."""
        return tuple(dict.fromkeys(name for ref in call.inputs for name in self.computed.get(ref.id, ())))

    def before(self, tap: str) -> tuple[Call, ...]:
        """The calls that the value at ``tap`` depends on, in order. Unknown taps are a ``ValueError``."""
        if tap not in self.taps:
            raise ValueError(f"tap must be a module call of this run, such as {list(self.taps)[:5]}. Got {tap!r}.")
        return tuple(self.calls[i] for i in self.ancestors([self.taps[tap]]))

    def _held(self, states: Mapping[str, Tensor]) -> dict[int, Tensor]:
        """Parameters and buffers by number."""
        held = {self.states[name].id: tensor for name, tensor in self.contents.items()}
        for name, tensor in states.items():
            known = self.aliases.get(name, name)
            if known not in self.states:
                raise ValueError(f"states must be parameters and buffers of the captured model. Got {name!r}.")
            held[self.states[known].id] = tensor
        return held

    @cached_property
    def computed(self) -> dict[int, tuple[str, ...]]:
        """Values computed from parameters, buffers and constants alone, with the states that they came from."""
        found: dict[int, tuple[str, ...]] = {ref.id: (name,) for name, ref in self.states.items()}
        for call in self.calls:
            sources = [found.get(r.id) for r in call.inputs if self.values[r.id].kind != "constant"]
            if sources and all(s is not None for s in sources):
                names = tuple(dict.fromkeys(n for s in sources if s for n in s))
                found.update({out.id: names for out in call.made})
        return found
