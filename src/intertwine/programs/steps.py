"""Steps of the interpreter: one call of a program as a function of tensors that writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .._nested import map_tensors
from ..errors import CaptureError
from .calls import Call, PerExample, Ref, grows, refs
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
        norm = call.op in BATCH_NORMS
        operation: Callable[..., Any]
        if norm:
            operation, args = F.batch_norm, _norm_arguments(args)
        elif call.op in SCALED_DOT_PRODUCTS:
            operation, args = _attend, _attention_arguments(args)
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

        ``fetch`` gives a value's tensor; in ``training`` batch norms use the batch's statistics and update the running
        ones, in place; ``handler`` runs in place of the operation.
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
    """Results of one call alone, for given tensors by number."""
    known: dict[int, Tensor] = {}
    Step.of(call).run(known, lambda ref: tensors[ref.id], 0, handler=handler)
    return [known[out.id] for out in call.made if out.id in known]


def float64_handler(call: Call, operation: Callable[..., Any], args: dict[str, Any]) -> Any:
    """A handler that computes in float64: casts are left out, integers stay as they are."""
    if call.op == "aten::_to_copy":
        return args["self"]
    return operation(**map_tensors(args, lambda t: t.double() if t.is_floating_point() else t))


def _functional(call: Call) -> Callable[..., Any]:
    """The operation without writing into its arguments."""
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


def _norm_arguments(a: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of ``F.batch_norm``, from those of any backend's operation."""
    return {
        "input": a["input"], "running_mean": a.get("running_mean"), "running_var": a.get("running_var"),
        "weight": a["weight"], "bias": a["bias"], "training": bool(a.get("training", False)),
        "momentum": a.get("momentum", a.get("exponential_average_factor")), "eps": a.get("eps", a.get("epsilon")),
    }  # fmt: skip


def _attention_arguments(a: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of attention, from those of any backend's operation: one that was recorded elsewhere runs here too."""
    return {
        "query": a["query"], "key": a["key"], "value": a["value"], "attn_mask": a.get("attn_mask", a.get("attn_bias")),
        "is_causal": bool(a.get("is_causal", False)), "scale": a.get("scale"),
    }  # fmt: skip


def _attend(query: Tensor, key: Tensor, value: Tensor, **how: Any) -> Tensor:
    """Attention; several heads may read one key, which kernels see by themselves and torch must be told."""
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
