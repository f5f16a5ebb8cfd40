"""Tangent kernel of one layer, from its inputs and the gradients at its outputs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor

_BLOCKS = 8  # of rows, so that 9/16 of a symmetric kernel are computed
_MANY = 128  # rows below which blocks are not worth it


@dataclass(frozen=True)
class Layer:
    """What one layer saw in a run."""

    # For each call ``(n, D, P)``: what the weights multiply at each position (windows unfolded)
    inputs: tuple[Tensor, ...]
    signals: tuple[Tensor, ...]  # For each call ``(n, O, C, P)``: gradients of the outputs at the layer's own output
    weight: bool  # Whether the weight is differentiated
    bias: bool  # Whether the bias is
    elementwise: bool = False  # The weight is one gain for each channel, so that ``D = C``
    groups: int = 1  # Of a convolution

    @property
    def channels(self) -> int:
        """Channels of the layer's output."""
        return self.signals[0].shape[2]

    @property
    def parameters_per_channel(self) -> int:
        """Chosen parameters that lead to one channel of the output."""
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
        if not self.elementwise and self.weight and self._pairs_are_cheaper(n, m, calls, kind):
            parts = [
                _ghost(a, s, b, t, kind)
                for a, s in zip(self.inputs, self.signals)
                for b, t in zip(other.inputs, other.signals)
            ]
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

    def is_better_kept_whole(self, n: int, m: int, kind: str) -> bool:
        """Whether between ``n`` and ``m`` examples its inputs and signals are worth more than its Jacobian."""
        return self.weight and not self.elementwise and self._pairs_are_cheaper(n, m, len(self.inputs) ** 2, kind)

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


def join_outputs(runs: Sequence[Layer]) -> Layer:
    """One layer with the signals of all outputs, from one for each output."""
    return replace(runs[0], signals=tuple(torch.cat(parts, 1) for parts in zip(*(run.signals for run in runs))))


class KernelSum:
    """A tangent kernel that grows layer by layer, held in the layout in which products of Jacobians fall out.

    Args:
        kind: ``"full"``, ``"per_output"`` or ``"trace"``.
        outputs: Outputs of the network.
        n: Examples on the left.
        m: Examples on the right; ``None`` where they are the same, and one triangle is enough.
        like: A tensor of the kernel's dtype and device.
    """

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
    """``sum over p, q of <a_p, b_q> <s_p, t_q>``: no gradient of a weight is ever made."""
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
