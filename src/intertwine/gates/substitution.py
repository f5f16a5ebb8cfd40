"""Gates in place of every ReLU and max pooling while a network runs: read, or replaced by given ones.

``Program.run`` is not used: gated networks are trained, dropout included, by the code of their modules.
"""

import math
from collections.abc import Callable
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..programs import Call
from ..programs.operations import ATTENTION, OTHER_ACTIVATIONS, OWN_STATISTICS, is_gate, slope_of
from .relu_program import other_activation

_GATES: dict[str, tuple[str, dict[str, Any]]] = {
    "relu": ("aten::relu", {}),
    "leaky_relu": ("aten::leaky_relu", {"negative_slope": 0.01}),
    **dict.fromkeys(("abs", "absolute", "__abs__"), ("aten::abs", {})),
    **dict.fromkeys(("clamp", "clip"), ("aten::clamp", {"min": None, "max": None})),
    "clamp_min": ("aten::clamp_min", {"min": None}),
}
"""Functions that may be gates, as operations with default arguments."""
_MAX_POOLS = {
    f"{kind}max_pool{k}d": getattr(F, f"{kind}max_pool{k}d_with_indices")
    for kind in ("", "adaptive_")
    for k in (1, 2, 3)
}
_names = lambda ops: {op.removeprefix("aten::") for op in ops}
# functions are seen before they become operations: what torch writes in Python has its own name
_REFUSED = _names(OTHER_ACTIVATIONS) | {
    "prelu", "relu6", "log_sigmoid", "softsign", "tanhshrink", "threshold", "_threshold", "clamp_max", "maximum",
    "minimum",
}  # fmt: skip
_NORMS = _names(OWN_STATISTICS) | {"instance_norm", "normalize", "local_response_norm"}
_ATTENTION = _names(ATTENTION) | {"softmin", "log_softmax", "multi_head_attention_forward"}
_ATTENTION |= {"_native_multi_head_attention"}


class _Mode(TorchFunctionMode):
    """Sees every ReLU and max pooling that a network calls, in whatever form."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        written = bool(kwargs.get("inplace")) or (name.endswith("_") and not name.startswith("__"))
        q = args[0] if args else kwargs.get("input", kwargs.get("self"))
        gate = _as_call(name, args, kwargs)
        if gate is not None and is_gate(gate):
            slope = float(slope_of(gate))  # a call that overwrites its input does so here too: others may read that
            return q.copy_(self.relu(q.clone(), slope)) if written else self.relu(q, slope)
        if gate is not None or name in _REFUSED | _NORMS | _ATTENTION:
            _refuse(name)
        if name in _MAX_POOLS:
            options = {k: v for k, v in kwargs.items() if k not in ("input", "return_indices")}
            return self.max_pool(q, lambda t: _MAX_POOLS[name](t, *args[1:], **options))
        return func(*args, **kwargs)

    def relu(self, q: Tensor, slope: float) -> Tensor:
        """Replacement of a ReLU, or of two slopes: 1 above 0 and another below."""
        return _two_slopes(q, slope)

    def max_pool(self, x: Tensor, pool: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Tensor:
        """Replacement of a max pooling."""
        return pool(x)[0]


class Read(_Mode):
    """Collects pre-activations."""

    def __init__(self, linear: bool) -> None:
        super().__init__()
        self.linear = linear
        self.found: list[Tensor] = []

    def relu(self, q: Tensor, slope: float) -> Tensor:
        """The activation, or in a linear gating network the pre-activation itself."""
        self.found.append(q)
        return q.clone() if self.linear else _two_slopes(q, slope)  # what follows may overwrite it

    def max_pool(self, x: Tensor, pool: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Tensor:
        """The maxima; their positions are collected."""
        if self.linear:
            raise ValueError(
                "a linear gating network must have no max pooling. Got a call of F.max_pool; use the "
                "nn.MaxPool modules, which dlgn replaces by averages."
            )
        result, taken = pool(x)
        self.found.append(taken)
        return result


class Applied(_Mode):
    """Multiplies by given gates."""

    def __init__(self, gates: list[Tensor]) -> None:
        super().__init__()
        self.gates, self.next = gates, 0

    def relu(self, q: Tensor, slope: float) -> Tensor:
        """The pre-activation times the next gate; with two slopes, times what lies between them."""
        gate = self._take()
        if gate.shape != q.shape or gate.dtype == torch.long:
            raise ValueError(
                f"gates must have the shape of the layer that they gate, {tuple(q.shape[1:])}. Got "
                f"{tuple(gate.shape[1:])}; a permutation may only exchange layers of equal shape "
                "(iw.gates.gate_permutations lists them)."
            )
        return q * (slope + (1 - slope) * gate if slope else gate)

    def max_pool(self, x: Tensor, pool: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Tensor:
        """The values at the positions that the next gate took."""
        taken = self._take()
        return x.flatten(2).gather(2, taken.flatten(2)).view(taken.shape)

    def _take(self) -> Tensor:
        self.next += 1
        if self.next > len(self.gates):
            raise ValueError(f"gating and value networks must have the same gates. Got {len(self.gates)} and more.")
        return self.gates[self.next - 1]


def _two_slopes(q: Tensor, slope: float) -> Tensor:
    return torch.where(q > 0, q, slope * q) if slope else torch.relu(q)


def _refuse(name: str) -> NoReturn:
    """Explain why a nonlinearity without gates cannot be used."""
    if name in _ATTENTION:
        why = "Its mixing weights depend on the input, so there are no on/off paths. Take a model without attention."
    elif name in _NORMS:
        why = "It divides by what it computes from the input, and is not linear once gates are fixed. Use batch norms."
    else:
        why = other_activation(name)
    raise ValueError(f"model must have ReLUs as its only nonlinearities. Got {name}. {why}")


def _as_call(name: str, args: Any, kwargs: Any) -> Call | None:
    """A function's call as that of an operation, if it may be a gate; bounds given as tensors are not numbers."""
    known = _GATES.get(name if name.startswith("__") else name.removesuffix("_"))
    if known is None:
        return None
    op, defaults = known
    given = {**defaults, **dict(zip(defaults, args[1:])), **{k: v for k, v in kwargs.items() if k in defaults}}
    return Call(op, {k: math.nan if isinstance(v, Tensor) else v for k, v in given.items()}, ())
