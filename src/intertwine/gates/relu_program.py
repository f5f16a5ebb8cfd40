"""Captured ReLU networks: values that depend on the input, weights, gates, and activations that are not gates."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

from .._evaluation import check_module
from ..programs import Call, Program, Ref, capture, operations
from ..programs.operations import RELUS, aten, is_gate

RATIOS = {
    "gelu": "Φ(q), the normal distribution function",
    "silu": "sigmoid(q), a soft gate of steepness 1",
    "mish": "tanh(softplus(q))",
    "hardswish": "clamp(q + 3, 0, 6) / 6",
    "tanh": "tanh(q) / q",
    "elu": "1 above 0 and (exp(q) - 1) / q below",
    "celu": "1 above 0 and (exp(q) - 1) / q below",
    "selu": "a constant above 0 and a multiple of (exp(q) - 1) / q below",
    "hardtanh": "1 between its bounds and bound / q beyond",
    "erf": "erf(q) / q",
    "sin": "sin(q) / q",
}
"""Activations that are 0 at 0, with their gates ``act(q) / q``."""


def other_activation(name: str) -> str:
    """Message about an activation that is not a gate, by the name of its operation, such as ``"gelu"``."""
    if name in RATIOS:
        gate = (
            f"Its gate would be act(q) / q = {RATIOS[name]}: with it paths still add up to the output, but it is "
            "neither on/off nor invariant under scalings, so an overlap would count nothing "
            '(iw.gates.gate_patterns(..., others="ratio") gives it).'
        )
    elif name.startswith("rrelu"):
        gate = "Its slope is drawn anew for every unit in training: use nn.LeakyReLU with the mean of its bounds."
    elif name == "prelu":
        gate = "Its slope is a weight, which a gate of another network cannot hold: use nn.LeakyReLU."
    else:
        gate = "It is no gate: act(q) / q is not on/off, or not finite."
    return f"{gate} Train iw.gates.rectified(model), which has ReLUs instead and is another function."


OTHERS = {f"aten::{name}" for name in RATIOS}
_REFUSED = operations.OTHER_ACTIVATIONS | OTHERS | {"aten::exp"}
_AFFINE = operations.BATCH_NORMS | operations.REARRANGEMENTS | operations.PARTS | operations.REPEATS
_AFFINE |= operations.AVERAGE_POOLS | operations.GATHERS | operations.INTERPOLATIONS
_AFFINE |= aten("add sub rsub neg cat sum constant_pad_nd flip roll index_select")
"""Affine in everything that they read."""
_BILINEAR = aten("mul convolution addmm mm bmm")
"""Affine in what they multiply, if one factor depends on the input."""


@dataclass(frozen=True, kw_only=True, repr=False)
class ReluProgram(Program):
    """A program of one example, whose only input is the image and whose only output is the logits."""

    weights: Mapping[int, tuple[str, ...]]  # Values computed from parameters alone, with the names of those parameters
    gates: tuple[int, ...]  # Positions in ``calls`` of the calls that gate: ReLUs and max poolings
    names: tuple[str, ...]  # A name for each gate: its module, with ``#k`` if a module gates more than once

    @property
    def gate_calls(self) -> tuple[Call, ...]:
        """The calls that gate."""
        return tuple(self.calls[i] for i in self.gates)

    def shape(self, ref: Ref | None) -> tuple[int, ...]:
        """Shape of a value, for one example."""
        return () if ref is None else tuple(self.values[ref.id].shape)

    def check_output(self, output: int) -> None:
        """Check that the model returns ``(N, outputs)`` and ``output`` is one of them."""
        shape = self.shape(self.outputs[0])
        if len(shape) != 2 or not 0 <= output < shape[1]:
            raise ValueError(f"output must be one of the model's outputs (N, outputs). Got {output}, shape {shape}.")


def capture_relu(model: nn.Module, x: Tensor, others: bool = False) -> ReluProgram:
    """Capture ``model`` on the first example of ``x`` and check that it is made of gates and linear maps only.

    With ``others``, activations that have a gate ``act(q) / q`` count as gates too.

    Raises:
        ValueError: If the model has no ReLU, another activation, attention, or one parameter in two places.
    """
    check_input(model, x)
    gate = lambda call: is_gate(call) or (others and call.op in OTHERS)
    whole = capture(model, (x[:1],))
    if any(module.training for module in model.modules()):
        training = capture(model, (x[:1],), evaluation=False)
        for position in training.find(operations.is_random):  # dropout called as a function
            call = training.calls[position]
            raise ValueError(
                "model must be in evaluation mode, so that gates are a function of the input. Got random numbers, as "
                f"dropout draws them: {call.where} at {call.line}. Call model.eval() first."
            )
    _check_operations(whole, others)
    states = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    contents = {name: states[name].detach() for name in whole.states}
    # unread calls are left out (``max_pool1d`` squeezes positions that nobody asked for); gates run all the same
    program = replace(whole, calls=tuple(whole.live(gate)), contents=contents)
    is_parameter = lambda name: program.values[program.states[name].id].kind == "parameter"
    learnt = ((number, tuple(filter(is_parameter, names))) for number, names in program.computed.items())
    weights = {number: names for number, names in learnt if names}
    _check_numbers(program, gate)
    _check_linear(program, gate, x)
    _check_reuse(program, weights)
    gates = tuple(i for i in program.find(gate) if program.calls[i].inputs[0].id in program.varying)
    if not gates:
        raise ValueError(
            "model must have ReLUs, whose on/off states are the gates. Got a model without any: its output is linear "
            "in the input, and its one sub-network is always active."
        )
    if len(program.outputs) != 1 or program.values[program.outputs[0].id].shape[:1] != (1,):
        shapes = [program.values[r.id].shape for r in program.outputs]
        raise ValueError(f"model must return one tensor of shape (N, outputs). Got shapes {shapes} for one example.")
    parts = {f.name: getattr(program, f.name) for f in fields(program)}
    names = operations.gate_names([program.calls[i] for i in gates])
    return ReluProgram(**parts, weights=weights, gates=gates, names=names)


def check_input(model: nn.Module, x: Tensor) -> None:
    """Check that ``model`` is a module without active random parts and ``x`` a batch of examples."""
    check_module(model)
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise TypeError(
            f"x must be one floating-point tensor. Got {getattr(x, 'dtype', type(x).__name__)}. Paths begin at the "
            "numbers of one input: networks of tokens have none, and attention and layer norms no gates."
        )
    if x.dim() < 2 or x.numel() == 0:
        raise ValueError(f"x must have shape (N, C, *S) with at least one example. Got shape {tuple(x.shape)}.")
    if not torch.isfinite(x).all():
        raise ValueError("x must be finite. Got NaN or infinite entries.")
    for name, module in model.named_modules():
        random = isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0
        if module.training and (random or isinstance(module, nn.modules.batchnorm._BatchNorm)):
            raise ValueError(
                f"model must be in evaluation mode, so that gates are a function of the input. Got "
                f"{type(module).__name__} {name!r} in training mode. Call model.eval() first."
            )
    check_batch_norms(model)


def check_batch_norms(model: nn.Module) -> None:
    """Check that batch norms are linear in evaluation mode."""
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
            raise ValueError(
                f"batch norms must have running statistics, which make them linear in evaluation mode. Got "
                f"{type(module).__name__} {name!r} with track_running_stats=False."
            )


def reading(program: Program) -> Iterator[Call]:
    """The calls that read what depends on the input."""
    return (call for call in program.calls if any(r.id in program.varying for r in call.inputs))


def _check_operations(program: Program, others: bool) -> None:
    for call in reading(program):
        if call.op in operations.ATTENTION:
            raise ValueError(
                f"model must be a ReLU network. Got attention or a softmax ({call.where}): its mixing weights depend "
                "on the input, so there are no on/off paths. Take logits, or a part of the model without attention."
            )
        refused = _REFUSED - OTHERS if others else _REFUSED
        op = call.op.split(" ")[0]  # what it writes to may follow
        if op in refused or (op in RELUS and not is_gate(call)):
            raise ValueError(
                f"model must have ReLUs, leaky ReLUs or max poolings as its only nonlinearities. Got {call.where}. "
                + other_activation(op.removeprefix("aten::"))
            )
        if operations.normalises_by_input(call):
            raise ValueError(
                f"model must be linear between its gates. Got {call.where}, a norm by the statistics of its own input. "
                "Take batch norms, which use running statistics in evaluation mode."
            )
        if call.op.startswith("intertwine::"):
            raise ValueError(f"model must not write into activations in place or read them. Got this at {call.line}.")


def _check_numbers(program: Program, is_gate: Callable[[Call], bool]) -> None:
    for call in program.calls:
        if is_gate(call) and len(program.values[call.inputs[0].id].shape) < 2:
            raise ValueError(f"ReLUs must act on (N, C, *S). Got {call.where} at {call.line} on single numbers.")
        for out in () if is_gate(call) else call.outputs:
            if out is not None and out.id in program.varying and not program.values[out.id].dtype.is_floating_point:
                raise ValueError(
                    f"model must be linear between its gates. Got {call.where} at {call.line}, which makes "
                    "conditions or whole numbers of activations. Write what follows from them with ReLUs."
                )


def _check_linear(program: Program, is_gate: Callable[[Call], bool], like: Tensor) -> None:
    for call in reading(program):
        read = [r for r in dict.fromkeys(call.inputs) if r.id in program.varying]
        made = [out for out in call.outputs if out is not None]
        known = is_gate(call) or call.op in _AFFINE or (len(read) == 1 and call.op in _BILINEAR)
        if made and not known and not _is_affine(program, read, made, like):
            raise ValueError(
                f"model must be linear between its gates. Got {call.where} at {call.line}, which is not: products of "
                "activations, as attention and multiplicative gates make, and other functions than ReLUs and max "
                "poolings have no on/off paths. Write it with ReLUs, or take a part of the model without it."
            )


def _is_affine(program: Program, read: Sequence[Ref], made: Sequence[Ref], like: Tensor) -> bool:
    """Whether some values are affine functions of others, tested on random numbers of several sizes."""
    shapes = [program.values[r.id].shape for r in read]
    sizes = [math.prod(shape) for shape in shapes]

    def run(batch: Tensor) -> list[Tensor]:
        parts = ([part.view(shape) for part, shape in zip(row.split(sizes), shapes)] for row in batch)
        return [torch.stack(results) for results in zip(*(program.run(given, made, start=read) for given in parts))]

    generator = torch.Generator().manual_seed(1)
    trials = [torch.randn(4, sum(sizes), generator=generator).to(like) for _ in range(4)]
    finite = all(bool(y.isfinite().all()) for y in run(torch.cat([trials[0], 0 * trials[0]])))
    return finite and all(max(departures(run, x)) <= tolerance(x) for x in trials)


def _check_reuse(program: Program, weights: dict[int, tuple[str, ...]]) -> None:
    seen: dict[str, Call] = {}
    for call in reading(program):
        for name in dict.fromkeys(n for r in call.inputs for n in weights.get(r.id, ())):
            if name in seen:
                raise ValueError(
                    f"every parameter must be used once. Got {name} in {seen[name].where} and {call.where}: a path "
                    "would hold it twice, and values of different paths would no longer be independent."
                )
            seen[name] = call


def departures(f: Callable[[Tensor], list[Tensor]], x: Tensor) -> list[float]:
    """How far ``f`` is from affine, ``f(x + z) - f(x) - f(z) + f(0)``, as a share of an example's largest value.

    Each input of ``x`` is tested with a larger ``z`` than the one before: a kink shows far from 0, a wave near it.
    """
    scale = float(x.square().mean().sqrt()) or 1.0
    scales = torch.tensor([scale * 10.0**k for k in range(len(x))]).to(x).view(-1, *[1] * (x.dim() - 1))
    z = torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).to(x) * scales
    found = []
    for four in zip(f(x + z), f(x), f(z), f(torch.zeros_like(x))):
        both, one, other, none = (t.reshape(len(t), -1) for t in four)
        size = torch.stack([t.abs().amax(1) for t in (both, one, other, none)]).amax(0)
        off = (both - one - other + none).abs().amax(1) / size.clamp(min=torch.finfo(size.dtype).tiny)
        found.append(float(off.nan_to_num(0.0).max()))
    return found


def tolerance(x: Tensor) -> float:
    """Bound on accumulated rounding: accelerators round products to ten or eight bits."""
    exact = x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)
    return 1e-3 if exact else 5e-2


def is_plain(x: Tensor) -> bool:
    """Whether numbers can be inspected: nothing is compiled, transformed, captured or without content."""
    return (
        type(x) in (Tensor, nn.Parameter)
        and not x.is_meta
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
        and torch._C._functorch.peek_interpreter_stack() is None
        and _get_current_dispatch_mode() is None
    )
