"""Tangent kernel of one layer, from its inputs and the gradients at its outputs.

They are read by hooks rather than by ``Program.run``: the kernel also serves modules that no program describes.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from ..._evaluation import alone

_BLOCKS = 8  # blocks of rows, so that 9/16 of a symmetric kernel are computed
_MANY = 128  # rows below which blocks do not pay off


@dataclass(frozen=True)
class Layer:
    """Inputs and gradients of one layer in a run."""

    module: nn.Module  # The layer
    names: frozenset[str]  # The chosen parameters that it covers
    # For each call ``(n, D, P)``: what the weights multiply at each position (windows unfolded)
    inputs: tuple[Tensor, ...]
    edges: tuple[GradientEdge, ...]  # Where gradients arrive, for each call, before they do
    shape: torch.Size  # Shape of the output
    weight: bool  # Whether the weight is differentiated
    bias: bool  # Whether the bias is
    # For each call ``(n, O, C, P)``: gradients of the outputs at the layer's own output; empty before a backward pass
    signals: tuple[Tensor, ...] = ()

    @property
    def elementwise(self) -> bool:
        """Whether the weight is one gain for each channel, so that ``D = C``."""
        return isinstance(self.module, nn.modules.batchnorm._BatchNorm)

    @property
    def groups(self) -> int:
        """Groups of a convolution."""
        return int(getattr(self.module, "groups", 1))

    def signalled(self, gradients: Sequence[Tensor | None]) -> "Layer":
        """The layer with the gradients of one output at each of its calls; ``None`` for 0."""
        zeros = lambda: self.inputs[0].new_zeros(self.shape)
        signals = (_channels_first(self.module, zeros() if g is None else g)[:, None] for g in gradients)
        return replace(self, signals=tuple(signals), edges=())

    @property
    def channels(self) -> int:
        """Channels of the layer's output."""
        return self.signals[0].shape[2]

    @property
    def parameters_per_channel(self) -> int:
        """Number of chosen parameters that lead to one channel of the output."""
        width = 1 if self.elementwise else self.inputs[0].shape[1] // self.groups
        return self.weight * width + self.bias

    def jacobian(self, start: int, stop: int) -> Tensor:
        """Gradients by the parameters of channels ``start`` to ``stop``, ``(n, O, parameters)``: biases first."""
        parts = []
        if self.bias:
            parts.append(reduce(torch.add, (s[:, :, start:stop].sum(-1) for s in self.signals)))
        if self.weight and self.elementwise:
            calls = zip(self.inputs, self.signals)
            gains = ((s[:, :, start:stop] * a[:, None, start:stop]).sum(-1) for a, s in calls)
            parts.append(reduce(torch.add, gains))
        elif self.weight:
            parts += self._weight_jacobians(start, stop)
        return torch.cat(parts, 2) if len(parts) > 1 else parts[0]

    def kernel(self, other: "Layer", kind: str, memory: float) -> Tensor:
        """The layer's part of the kernel between two runs."""
        n, m, calls = len(self.inputs[0]), len(other.inputs[0]), len(self.inputs) * len(other.inputs)
        if self.pairs_are_cheaper(n, m, calls, kind):
            sides = (zip(run.inputs, run.signals) for run in (self, other))
            parts = [_ghost(a, s, b, t, kind) for (a, s), (b, t) in product(*sides)]
            if self.bias:
                left, right = (replace(run, weight=False).jacobian(0, self.channels) for run in (self, other))
                parts.append(contracted(left, right, kind))
            return sum(parts[1:], parts[0])
        size = self.signals[0].shape[1] * self.parameters_per_channel * self.signals[0].element_size()
        step = max(1, int(memory / (2 * size * (n + m))))
        parts = []
        for start in range(0, self.channels, step):
            left = self.jacobian(start, min(start + step, self.channels))
            right = left if other is self else other.jacobian(start, min(start + step, self.channels))
            parts.append(contracted(left, right, kind))
        return sum(parts[1:], parts[0])

    def _weight_jacobians(self, start: int, stop: int) -> Iterator[Tensor]:
        size, d = self.channels // self.groups, self.inputs[0].shape[1] // self.groups
        for group in range(start // size, (stop - 1) // size + 1):
            first, last = max(start, group * size), min(stop, (group + 1) * size)
            rows = slice(group * d, (group + 1) * d)
            parts = (
                s[:, :, first:last].flatten(1, 2) @ a[:, rows].transpose(1, 2)
                for a, s in zip(self.inputs, self.signals)
            )
            yield reduce(torch.add, parts).view(len(self.signals[0]), -1, (last - first) * d)

    def pairs_are_cheaper(self, n: int, m: int, calls: int, kind: str) -> bool:
        """Whether two Grams over pairs of positions need fewer operations than per-example gradients and one Gram."""
        if not self.weight or self.elementwise or self.groups > 1:
            return False
        _, outputs, channels, p = self.signals[0].shape
        d = self.inputs[0].shape[1]
        pairs = outputs**2 if kind == "full" else outputs
        ghost = calls * n * m * p * p * (d + pairs * channels)
        direct = (n + m) * len(self.inputs) * outputs * channels * d * p + n * m * pairs * channels * d
        return ghost <= direct


def join_outputs(runs: Sequence[Layer]) -> Layer:
    """One layer with the signals of all outputs, from one for each output."""
    return replace(runs[0], signals=tuple(torch.cat(parts, 1) for parts in zip(*(run.signals for run in runs))))


class KernelSum:
    """A tangent kernel between ``n`` and ``m`` (``None``: the same) examples, laid out as products of Jacobians are."""

    def __init__(self, kind: str, outputs: int, n: int, m: int | None, like: Tensor) -> None:
        self.kind, self.outputs, self.same = kind, outputs, m is None
        self.n, self.m = n, n if m is None else m
        rows = outputs if kind == "full" else 1
        self.sums = like.new_zeros(outputs if kind == "per_output" else 1, self.n * rows, self.m * rows)

    def add(self, left: Tensor, right: Tensor) -> None:
        """Add ``left right^T`` of Jacobians ``(n, O, P)`` and ``(m, O, P)``."""
        for total, a, b in zip(self.sums, self._matrices(left), self._matrices(right)):
            for i, j in self._blocks(len(a)):
                first = i if self.same else 0
                total[i:j, first:].addmm_(a[i:j], b[first:].T)

    def add_part(self, part: Tensor, i: int, j: int) -> None:
        """Add a tile in the layout of the result, from examples ``i`` and ``j`` on, and its mirror image."""
        self._place(i, j, part.shape[:2]).add_(part)
        if self.same and i != j:
            flipped = part.transpose(0, 1)
            self._place(j, i, flipped.shape[:2]).add_(flipped.transpose(2, 3) if self.kind == "full" else flipped)

    def result(self) -> Tensor:
        """The kernel ``(n, m, O, O)``, ``(n, m, O)`` or ``(n, m)``."""
        for total in self.sums:
            for i, j in self._blocks(len(total)):
                if self.same:
                    total[j:, i:j] = total[i:j, j:].T
        return self._view()

    def _view(self) -> Tensor:
        if self.kind == "full":
            return self.sums[0].view(self.n, self.outputs, self.m, self.outputs).transpose(1, 2)
        return self.sums.permute(1, 2, 0) if self.kind == "per_output" else self.sums[0]

    def _place(self, i: int, j: int, shape: Sequence[int]) -> Tensor:
        return self._view()[i : i + shape[0], j : j + shape[1]]

    def _blocks(self, rows: int) -> list[tuple[int, int]]:
        step = -(-rows // _BLOCKS) if self.same and rows >= _MANY else rows
        return [(i, min(i + step, rows)) for i in range(0, rows, step)]

    def _matrices(self, jacobian: Tensor) -> Sequence[Tensor]:
        if self.kind == "per_output":
            return jacobian.unbind(1)
        return [jacobian.flatten(0, 1) if self.kind == "full" else jacobian.flatten(1)]


def contracted(a: Tensor, b: Tensor, kind: str) -> Tensor:
    """The kernel of Jacobians ``(n, O, P)`` and ``(m, O, P)``."""
    if kind == "trace":
        return a.flatten(1) @ b.flatten(1).T
    if kind == "per_output":
        return (a.transpose(0, 1) @ b.permute(1, 2, 0)).permute(1, 2, 0)
    return (a.flatten(0, 1) @ b.flatten(0, 1).T).view(*a.shape[:2], *b.shape[:2]).transpose(1, 2)


def _ghost(a: Tensor, s: Tensor, b: Tensor, t: Tensor, kind: str) -> Tensor:
    """``sum over p, q of <a_p, b_q> <s_p, t_q>``: no gradient of a weight is ever formed."""
    n, outputs, channels, p = s.shape
    m, q = len(b), b.shape[2]
    if p == q == 1:  # a linear layer: one product for all pairs of outputs
        shape = (n, m) if kind == "trace" else (n, m, 1) if kind == "per_output" else (n, m, 1, 1)
        return contracted(s[..., 0], t[..., 0], kind).mul_((a[..., 0] @ b[..., 0].T).view(shape))
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


@dataclass(frozen=True)
class LayerRun:
    """One run forwards, ready to go backwards from one output after the other."""

    outputs: Tensor  # Of the model ``(n, O)``
    seen: tuple[Layer, ...]  # Its layers, in a fixed order

    def backward(self) -> Iterator[tuple[Layer, ...]]:
        """The layers with the signals of one output at a time, so that those of all are never held at once."""
        edges = [edge for layer in self.seen for edge in layer.edges]
        last = self.outputs.shape[1] - 1
        for o in range(last + 1 if edges else 0):
            total = self.outputs[:, o].sum()
            found = iter(torch.autograd.grad(total, edges, retain_graph=o < last, allow_unused=True))
            yield tuple(layer.signalled([next(found) for _ in layer.edges]) for layer in self.seen)

    def layers(self) -> list[Layer]:
        """The layers with the signals of all outputs."""
        return [join_outputs(runs) for runs in zip(*self.backward())]


_Call = tuple[Tensor, GradientEdge | None, torch.Size]  # what a layer was given, where gradients arrive, its shape


def record_layers(model: nn.Module, x: Tensor, chosen: Collection[str]) -> LayerRun:
    """Run ``model`` once forwards and keep what its layers with chosen parameters were given."""
    holders = Counter(id(p) for m in model.modules() for p in {*m.parameters(recurse=False)})
    alone_with = lambda m: all(holders[id(p)] == 1 for p in m.parameters(recurse=False))  # no other module holds them
    plain = lambda m: not nn.utils.parametrize.is_parametrized(m) and alone_with(m)
    layers = {n: m for n, m in model.named_modules() if _covered(n, m, chosen) and plain(m)}
    calls: dict[str, list[_Call]] = {name: [] for name in layers}
    with alone(model), ExitStack() as hooks, torch.enable_grad():
        for name, layer in layers.items():
            hooks.callback(layer.register_forward_hook(_note(calls[name]), with_kwargs=True).remove)
        out = model(x)
    # of layers that treat examples one by one
    singly = lambda given, edge, shape: edge is not None and len(given) == shape[0] == len(x)
    used = {layers[n]: (n, made) for n, made in calls.items() if made and all(singly(*call) for call in made)}
    seen = []
    for layer, (name, made) in used.items():
        names = frozenset(_covered(name, layer, chosen))
        inputs = tuple(_multiplied(layer, given) for given, _, _ in made)
        edges = tuple(edge for _, edge, _ in made if edge is not None)
        weight, bias = (any(n.rpartition(".")[2] == part for n in names) for part in ("weight", "bias"))
        seen.append(Layer(layer, names, inputs, edges, made[0][2], weight, bias))
    return LayerRun(out, tuple(seen))


def _covered(name: str, module: nn.Module, chosen: Collection[str]) -> set[str]:
    """Names of the chosen parameters that a layer of a known kind holds."""
    if type(module) not in (nn.Linear, nn.Conv1d, nn.Conv2d, nn.BatchNorm1d, nn.BatchNorm2d):
        return set()
    prefix = f"{name}." if name else ""
    return {f"{prefix}{n}" for n, _ in module.named_parameters(recurse=False) if f"{prefix}{n}" in chosen}


def _note(calls: list[_Call]) -> Any:
    def hook(module: nn.Module, args: Any, kwargs: Any, result: Tensor) -> Tensor | None:
        edge = get_gradient_edge(result) if result.requires_grad else None
        given = [*args, *kwargs.values()][0]
        calls.append((given.detach(), edge, result.shape))
        return result.clone() if result._is_view() else None  # writing into a view would bypass the edge

    return hook


def _channels_first(module: nn.Module, t: Tensor) -> Tensor:
    """``(n, C, P)``."""
    if isinstance(module, nn.Linear):
        return t.reshape(len(t), -1, t.shape[-1]).transpose(1, 2)
    return t.flatten(2) if t.dim() > 2 else t[..., None]


def _multiplied(module: nn.Module, given: Tensor) -> Tensor:
    """Values that the weights multiply at each position ``(n, D, P)``."""
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        given = F.batch_norm(given, module.running_mean, module.running_var, eps=module.eps)
    if isinstance(module, nn.Conv1d | nn.Conv2d):
        return _windows(module, given)
    return _channels_first(module, given)


def _windows(module: nn.Conv1d | nn.Conv2d, x: Tensor) -> Tensor:
    """Values that each output position sees, ``(n, C_in * window, P)``."""
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
