"""Gates of a ReLU network: the on/off state of every ReLU, and the choice of every max pooling, for each input."""

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from .._evaluation import evaluating
from .networks.gated import GatedNetwork
from .relu_program import MAX_POOLS, OTHERS, ReluProgram, capture_relu, gate_calls, slope_of

__all__ = ["gate_patterns", "is_zero_clamp", "observe", "structure"]


def gate_patterns(
    model: nn.Module, x: Tensor, batch_size: int = 500, *, others: Literal["refuse", "sign", "ratio"] = "refuse"
) -> dict[str, Tensor]:
    """Gates of every ReLU and max pooling: ``G(q) = 1{q > 0}`` (P2 section 2.2.1).

    Args:
        model: A ReLU network, in evaluation mode, or a gated network: the gates that its value network is given.
        x: Inputs ``(N, C, *S)``.
        batch_size: Examples that run at once.
        others: What to do about GELU, SiLU, tanh and the like. ``"ratio"`` gives ``act(q) / q``, with which paths still
            add up to the output, but which is neither on/off nor kept by rescaling units; ``"sign"`` gives
            ``1{q > 0}``, which is kept, but says only where the unit would be on if it were a ReLU.

    Returns:
        Module name (with ``#k`` where a module gates more than once) to gates ``(N, C, *S)``: bool for ReLUs; numbers
        from 0 to 1 for soft gates; 1 or the other slope for leaky and parametric ReLUs and absolute values (-1); for
        max pooling the flat position within the channel that each output took.

    Raises:
        ValueError: If ``others`` is none of the three.

    Examples:
        >>> model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 1))
        >>> with torch.no_grad():
        ...     _ = model[0].weight.copy_(torch.eye(2))
        >>> gate_patterns(model, torch.tensor([[1.0, -1.0]]))
        {'1': tensor([[ True, False]])}
    """
    if others not in ("refuse", "sign", "ratio"):
        raise ValueError(f'others must be "refuse", "sign" or "ratio". Got {others!r}.')
    program = capture_relu(structure(model, "x")[0], x, others=others != "refuse")
    return dict(zip(program.names, observe(model, program, x, batch_size, ratio=others == "ratio")))


def structure(model: nn.Module, input: str) -> tuple[nn.Module, str]:
    """The network whose weights make the paths, and what it is given: ones where that is asked for or its own way."""
    if not isinstance(model, GatedNetwork):
        return model, input
    return model.value, "ones" if input == "ones" else model.input


def observe(
    model: nn.Module, program: ReluProgram, x: Tensor, batch_size: int = 500, ratio: bool = False
) -> list[Tensor]:
    """Gates of all examples, one tensor for each gate of ``program``, in its order.

    Of a gated network, the gates that its value network uses.

    Raises:
        ValueError: If the model takes another path through its code for some of the examples.
    """
    if isinstance(model, GatedNetwork):
        return _gates_of(model, program, x, batch_size)
    batches: list[list[Tensor]] = []
    expected = [(call.op, program.program.values[call.inputs[0].id].shape[1:]) for call in gate_calls(program)]
    for start in range(0, len(x), batch_size):
        with evaluating(model), torch.no_grad(), _Observer({op for op, _ in expected}, ratio) as seen:
            model(x[start : start + batch_size])
        if seen.found != expected:
            raise ValueError(
                "model must run the same gates for every example. Got another sequence of ReLUs and poolings in the "
                f"batch that starts at example {start}."
            )
        batches.append(seen.gates)
    return [torch.cat(parts) for parts in zip(*batches)]


def _gates_of(network: GatedNetwork, program: ReluProgram, x: Tensor, batch_size: int) -> list[Tensor]:
    with evaluating(network), torch.no_grad():
        batches = [network.gates(x[i : i + batch_size]) for i in range(0, len(x), batch_size)]
    whole = [torch.cat(parts) for parts in zip(*batches)]
    slopes = [slope_of(call.op, (), call.args) for call in gate_calls(program)]
    return [_sloped(g, slope, network.gate == "hard") for g, slope in zip(whole, slopes)]


def _sloped(gate: Tensor, slope: float, hard: bool) -> Tensor:
    """What the value network multiplies by: the gate, or between the slope and 1."""
    if gate.dtype == torch.long:
        return gate
    if slope:
        return slope + (1 - slope) * gate
    return gate.bool() if hard else gate


class _Observer(TorchDispatchMode):
    """Notes the gates of a run, in order."""

    def __init__(self, ops: set[str], ratio: bool) -> None:
        super().__init__()
        self.ops, self.ratio = ops, ratio
        self.gates: list[Tensor] = []
        self.found: list[tuple[str, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        op = func._schema.name.removesuffix("_")
        if op not in self.ops or not is_zero_clamp(op, args, kwargs):
            return func(*args, **kwargs)
        q = args[0] if args else kwargs["self"]
        self.found.append((op, q.shape[1:]))
        if op in MAX_POOLS:
            result = func(*args, **kwargs)
            self.gates.append(result[1])
            return result
        on, slope = q > 0, slope_of(op, args, kwargs)
        if op in OTHERS and self.ratio:
            self.gates.append(_ratio(func, q, args, kwargs))
        elif isinstance(slope, Tensor) or slope != 0:
            self.gates.append(
                torch.where(on, torch.ones_like(q), torch.as_tensor(slope, dtype=q.dtype, device=q.device))
            )
        else:
            self.gates.append(on)
        return func(*args, **kwargs)  # last, because it may overwrite q


def _ratio(func: Any, q: Tensor, args: Any, kwargs: Any) -> Tensor:
    """``act(q) / q``, at 0 the limit."""
    near = torch.where(q == 0, torch.full_like(q, 1e-4), q)  # a new tensor, which func may overwrite
    return func(near.clone(), *args[1:], **{k: v for k, v in kwargs.items() if k != "self"}) / near


def is_zero_clamp(op: str, args: Any, kwargs: Any) -> bool:
    """Whether a call is a ReLU if it is a clamp; other operations pass."""
    if op not in ("aten::clamp", "aten::clamp_min"):
        return True
    lower = args[1] if len(args) > 1 else kwargs.get("min")
    upper = args[2] if len(args) > 2 else kwargs.get("max")
    return lower == 0 and upper is None
