"""Inputs of layers and gradients at their outputs: a tangent kernel is made of their Grams."""

from collections.abc import Collection
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["Layer", "LayerRun", "gram", "record_layers"]


@dataclass(frozen=True)
class Layer:
    """What one layer saw in a run.

    Attributes:
        inputs: For each call ``(n, D, P)``: what the weights multiply at each position (windows unfolded).
        signals: For each call ``(n, O, C, P)``: gradients of the outputs at the layer's own output.
        weight: Whether the weight is differentiated.
        bias: Whether the bias is.
        elementwise: The weight is one gain for each channel, so that ``D = C``.
    """

    inputs: tuple[Tensor, ...]
    signals: tuple[Tensor, ...]
    weight: bool
    bias: bool
    elementwise: bool = False
    groups: int = 1

    def kernel(self, other: "Layer", kind: str, memory: float) -> Tensor:
        """The layer's part of the kernel between two runs."""
        parts = []
        if self.bias:
            parts.append(gram(self._bias_jacobian(), other._bias_jacobian(), kind))
        if self.weight and self.elementwise:
            parts.append(gram(self._gain_jacobian(), other._gain_jacobian(), kind))
        elif self.weight and self._ghost_is_cheaper(other, kind):
            parts += [
                _ghost(a, s, b, t, kind)
                for a, s in zip(self.inputs, self.signals)
                for b, t in zip(other.inputs, other.signals)
            ]
        elif self.weight:
            parts.append(self._direct(other, kind, memory))
        return sum(parts[1:], parts[0])

    def jacobian(self) -> Tensor:
        """Gradients of the outputs by all of the layer's chosen parameters ``(n, O, parameters)``."""
        parts = [self._bias_jacobian()] if self.bias else []
        if self.weight and self.elementwise:
            parts.append(self._gain_jacobian())
        elif self.weight:
            channels, d = self.signals[0].shape[2], self.inputs[0].shape[1] // self.groups
            size = channels // self.groups
            parts += [self._block(start, start + size, d, size) for start in range(0, channels, size)]
        return torch.cat(parts, 2) if len(parts) > 1 else parts[0]

    def is_better_kept_whole(self, n: int, m: int, kind: str) -> bool:
        """Whether between ``n`` and ``m`` examples its inputs and signals are worth more than its Jacobian."""
        return self.weight and not self.elementwise and self._pairs_are_cheaper(n, m, len(self.inputs) ** 2, kind)

    def bytes_kept(self, n: int, m: int, kind: str) -> float:
        """Bytes for each example of what must be kept of the layer."""
        if self.is_better_kept_whole(n, m, kind):
            return sum(t.nbytes for t in (*self.inputs, *self.signals)) / len(self.signals[0])
        outputs, channels = self.signals[0].shape[1:3]
        width = 1 if self.elementwise else self.inputs[0].shape[1] // self.groups
        return self.signals[0].element_size() * outputs * channels * (self.weight * width + self.bias)

    def _bias_jacobian(self) -> Tensor:
        return reduce(torch.add, (s.sum(-1) for s in self.signals))

    def _gain_jacobian(self) -> Tensor:
        return reduce(torch.add, ((s * a[:, None]).sum(-1) for a, s in zip(self.inputs, self.signals)))

    def _ghost_is_cheaper(self, other: "Layer", kind: str) -> bool:
        return self._pairs_are_cheaper(
            len(self.inputs[0]), len(other.inputs[0]), len(self.inputs) * len(other.inputs), kind
        )

    def _pairs_are_cheaper(self, n: int, m: int, calls: int, kind: str) -> bool:
        """Compare operations: two Grams over pairs of positions, or per-example gradients and one Gram of them."""
        if self.groups > 1:
            return False
        _, outputs, channels, p = self.signals[0].shape
        d = self.inputs[0].shape[1]
        pairs = outputs**2 if kind == "full" else outputs
        ghost = calls * n * m * p * p * (d + pairs * channels)
        direct = (n + m) * len(self.inputs) * outputs * channels * d * p + n * m * pairs * channels * d
        return ghost <= direct

    def _direct(self, other: "Layer", kind: str, memory: float) -> Tensor:
        """Per-example gradients of some output channels at a time."""
        n, outputs, channels, _ = self.signals[0].shape
        d = self.inputs[0].shape[1] // self.groups
        size = channels // self.groups
        row = outputs * (n + other.signals[0].shape[0]) * d * self.signals[0].element_size()
        step = max(1, min(size, int(memory / (2 * row))))
        total: Tensor | None = None
        starts = [(c, g) for g in range(self.groups) for c in range(g * size, (g + 1) * size, step)]
        for c, g in starts:
            stop = min(c + step, (g + 1) * size)
            block = self._block(c, stop, d, size)
            part = gram(block, block if other is self else other._block(c, stop, d, size), kind)
            total = part if total is None else total + part
        return torch.zeros(()) if total is None else total

    def _block(self, start: int, stop: int, d: int, size: int) -> Tensor:
        group = start // size
        parts = (
            s[:, :, start:stop].flatten(1, 2) @ a[:, group * d : (group + 1) * d].transpose(1, 2)
            for a, s in zip(self.inputs, self.signals)
        )
        return reduce(torch.add, parts).view(len(self.signals[0]), -1, (stop - start) * d)


@dataclass(frozen=True)
class LayerRun:
    """All layers of one run, in a fixed order, and the names of the chosen parameters that each covers."""

    layers: tuple[Layer, ...]
    names: tuple[frozenset[str], ...]
    examples: Tensor

    @property
    def covered(self) -> frozenset[str]:
        """Names of all."""
        return frozenset().union(*self.names)

    def zeros(self, other: "LayerRun", kind: str) -> Tensor:
        """The kernel of no layers."""
        n, outputs = self.examples.shape
        shape = {"full": (outputs, outputs), "per_output": (outputs,), "trace": ()}[kind]
        return self.examples.new_zeros(n, len(other.examples), *shape)


def record_layers(model: nn.Module, x: Tensor, outputs: int, chosen: Collection[str]) -> LayerRun:
    """Run ``model`` once forwards and once backwards for each output, and keep what its layers saw."""
    layers = {n: m for n, m in model.named_modules() if _covered(n, m, chosen) and _is_alone(n, m, model)}
    seen: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in layers}
    handles = [m.register_forward_hook(_keep(seen[name])) for name, m in layers.items()]
    try:
        with torch.enable_grad():
            out = model(x)
    finally:
        for handle in handles:
            handle.remove()
    used = {name: calls for name, calls in seen.items() if calls and all(r.requires_grad for _, r in calls)}
    results = [r for calls in used.values() for _, r in calls]
    gradients = [
        torch.autograd.grad(out[:, o].sum(), results, retain_graph=True, allow_unused=True) if results else ()
        for o in range(outputs)
    ]
    found, covered, at = [], [], 0
    for name, calls in used.items():
        signals = []
        for _, result in calls:
            grads = [g[at] if g[at] is not None else torch.zeros_like(result) for g in gradients]
            signals.append(torch.stack([_channels_first(layers[name], g) for g in grads], 1))
            at += 1
        names = _covered(name, layers[name], chosen)
        covered.append(frozenset(names))
        found.append(_layer(name, layers[name], [a for a, _ in calls], signals, names))
    return LayerRun(tuple(found), tuple(covered), out.detach())


def _is_alone(name: str, module: nn.Module, model: nn.Module) -> bool:
    """Whether no other module holds the same parameters, and the layer is computed in the way that is known here."""
    own = {id(p) for p in module.parameters(recurse=False)}
    shared = any(id(p) in own for n, m in model.named_modules() if m is not module for p in m.parameters(recurse=False))
    return not shared and not nn.utils.parametrize.is_parametrized(module)


def _covered(name: str, module: nn.Module, chosen: Collection[str]) -> set[str]:
    """Names of the chosen parameters that a layer of a known kind holds."""
    if type(module) not in (nn.Linear, nn.Conv1d, nn.Conv2d, nn.BatchNorm1d, nn.BatchNorm2d):
        return set()
    prefix = f"{name}." if name else ""
    return {f"{prefix}{n}" for n, _ in module.named_parameters(recurse=False) if f"{prefix}{n}" in chosen}


def _keep(calls: list[tuple[Tensor, Tensor]]) -> Any:
    def hook(module: nn.Module, args: Any, result: Tensor) -> Tensor:
        calls.append((args[0].detach(), result))
        return result.clone()  # so that an activation in place does not overwrite what is differentiated

    return hook


def _channels_first(module: nn.Module, t: Tensor) -> Tensor:
    """``(n, C, P)``."""
    if isinstance(module, nn.Linear):
        return t.reshape(len(t), -1, t.shape[-1]).transpose(1, 2)
    return t.flatten(2) if t.dim() > 2 else t[..., None]


def _layer(name: str, module: nn.Module, inputs: list[Tensor], signals: list[Tensor], names: set[str]) -> Layer:
    weight, bias = (any(n.rpartition(".")[2] == part for n in names) for part in ("weight", "bias"))
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        normal = [_channels_first(module, _normalised(module, a)) for a in inputs]
        return Layer(tuple(normal), tuple(signals), weight, bias, elementwise=True)
    if isinstance(module, nn.Linear):
        return Layer(tuple(_channels_first(module, a) for a in inputs), tuple(signals), weight, bias)
    unfolded = tuple(_windows(module, a) for a in inputs)  # type: ignore[arg-type]
    return Layer(unfolded, tuple(signals), weight, bias, groups=int(module.groups))  # type: ignore[arg-type]


def _normalised(module: nn.modules.batchnorm._BatchNorm, x: Tensor) -> Tensor:
    return F.batch_norm(x, module.running_mean, module.running_var, eps=module.eps)


def _windows(module: nn.Conv1d | nn.Conv2d, x: Tensor) -> Tensor:
    """What each output position sees, ``(n, C_in * window, P)``."""
    padded = module.padding_mode != "zeros"
    if padded:
        x = F.pad(x, module._reversed_padding_repeated_twice, mode=module.padding_mode)
    padding: Any = (0,) * len(module.kernel_size) if padded else module.padding
    if isinstance(padding, str):
        total = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size)]
        sides = (
            [s for t in reversed(total) for s in (t // 2, t - t // 2)] if padding == "same" else [0] * 2 * len(total)
        )
        x, padding = F.pad(x, sides), (0,) * len(total)
    options = [module.kernel_size, module.dilation, padding, module.stride]
    if isinstance(module, nn.Conv1d):
        x, options = x[:, :, None], [(fill, *o) for o, fill in zip(options, (1, 1, 0, 1))]
    return F.unfold(x, *options)


def gram(a: Tensor, b: Tensor, kind: str) -> Tensor:
    """Contract ``(n, O, P)`` with ``(m, O, P)``."""
    if kind == "trace":
        return a.flatten(1) @ b.flatten(1).T
    if kind == "per_output":
        return (a.transpose(0, 1) @ b.permute(1, 2, 0)).permute(1, 2, 0)
    return (a.flatten(0, 1) @ b.flatten(0, 1).T).view(*a.shape[:2], *b.shape[:2]).transpose(1, 2)


def _ghost(a: Tensor, s: Tensor, b: Tensor, t: Tensor, kind: str) -> Tensor:
    """``sum over p, q of <a_p, b_q> <s_p, t_q>``: no gradient of a weight is ever made."""
    n, outputs, channels, p = s.shape
    m, q = len(b), b.shape[2]
    if p == q == 1:  # a linear layer: one product for all pairs of outputs
        shape = (n, m) if kind == "trace" else (n, m, 1) if kind == "per_output" else (n, m, 1, 1)
        return gram(s[..., 0], t[..., 0], kind).mul_((a[..., 0] @ b[..., 0].T).view(shape))
    inputs = (a.transpose(1, 2).reshape(n * p, -1) @ b.transpose(0, 1).reshape(b.shape[1], m * q)).view(n, p, m, q)
    left = s.permute(1, 0, 3, 2).reshape(outputs, n * p, channels)
    right = t.permute(1, 2, 0, 3).reshape(outputs, channels, m * q)
    if kind == "full":
        grid = [[_meet(inputs, left[o] @ right[k]) for k in range(outputs)] for o in range(outputs)]
        return torch.stack([torch.stack(row, -1) for row in grid], -2)
    each = [_meet(inputs, left[o] @ right[o]) for o in range(outputs)]
    return torch.stack(each, -1) if kind == "per_output" else sum(each[1:], each[0])


def _meet(inputs: Tensor, signals: Tensor) -> Tensor:
    return torch.einsum("npmq,npmq->nm", inputs, signals.view(inputs.shape))
