"""Inputs of layers and gradients at their outputs, whose Grams make up a tangent kernel.

Read by hooks and not by ``Program.run``: the kernel is for any module, also one that no program describes (its path
depends on the data, it writes into activations), and it must see weights that hooks compute.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from ..._evaluation import alone
from .layer_kernel import Layer, join_outputs


@dataclass(frozen=True)
class SeenLayer:
    """What one layer of a known kind was given in a run, and where the graph leaves it."""

    module: nn.Module  # The layer
    names: frozenset[str]  # The chosen parameters that it covers
    inputs: tuple[Tensor, ...]  # As :class:`Layer` holds them, for each call
    edges: tuple[GradientEdge, ...]  # Where gradients arrive, for each call
    shape: torch.Size  # Of the output

    def layer(self, gradients: Sequence[Tensor | None]) -> Layer:
        """The layer with the gradients of one output at each of its calls; ``None`` for 0."""
        zeros = lambda: self.inputs[0].new_zeros(self.shape)
        signals = (_channels_first(self.module, zeros() if g is None else g)[:, None] for g in gradients)
        weight, bias = (any(n.rpartition(".")[2] == part for n in self.names) for part in ("weight", "bias"))
        elementwise = isinstance(self.module, nn.modules.batchnorm._BatchNorm)
        return Layer(self.inputs, tuple(signals), weight, bias, elementwise, int(getattr(self.module, "groups", 1)))


@dataclass(frozen=True)
class LayerRun:
    """One run forwards, ready to go backwards from one output after the other."""

    outputs: Tensor  # Of the model ``(n, O)``
    seen: tuple[SeenLayer, ...]  # Its layers, in a fixed order

    def backward(self) -> Iterator[tuple[Layer, ...]]:
        """The layers with the signals of one output at a time, so that those of all are never held at once."""
        edges = [edge for layer in self.seen for edge in layer.edges]
        last = self.outputs.shape[1] - 1
        for o in range(last + 1 if edges else 0):
            total = self.outputs[:, o].sum()
            found = iter(torch.autograd.grad(total, edges, retain_graph=o < last, allow_unused=True))
            yield tuple(layer.layer([next(found) for _ in layer.edges]) for layer in self.seen)

    def layers(self) -> list[Layer]:
        """The layers with the signals of all outputs."""
        return [join_outputs(runs) for runs in zip(*self.backward())]


@dataclass(frozen=True)
class _Call:
    """One call of a layer."""

    given: Tensor
    edge: GradientEdge | None
    shape: torch.Size


def record_layers(model: nn.Module, x: Tensor, chosen: Collection[str]) -> LayerRun:
    """Run ``model`` once forwards and keep what its layers with chosen parameters were given."""
    layers = {n: m for n, m in model.named_modules() if _covered(n, m, chosen) and _is_alone(n, m, model)}
    calls: dict[str, list[_Call]] = {name: [] for name in layers}
    with alone(model), ExitStack() as hooks, torch.enable_grad():
        for name, layer in layers.items():
            hooks.callback(layer.register_forward_hook(_note(calls[name])).remove)
        out = model(x)
    singly = lambda call: call.edge is not None and len(call.given) == call.shape[0] == len(x)  # example by example
    seen = [_seen(n, layers[n], made, chosen) for n, made in calls.items() if made and all(map(singly, made))]
    return LayerRun(out, tuple(seen))


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


def _note(calls: list[_Call]) -> Any:
    def hook(module: nn.Module, args: Any, result: Tensor) -> Tensor | None:
        edge = get_gradient_edge(result) if result.requires_grad else None
        calls.append(_Call(args[0].detach(), edge, result.shape))
        return result.clone() if result._is_view() else None  # writing into a view would lead around the edge

    return hook


def _channels_first(module: nn.Module, t: Tensor) -> Tensor:
    """``(n, C, P)``."""
    if isinstance(module, nn.Linear):
        return t.reshape(len(t), -1, t.shape[-1]).transpose(1, 2)
    return t.flatten(2) if t.dim() > 2 else t[..., None]


def _seen(name: str, module: nn.Module, calls: list["_Call"], chosen: Collection[str]) -> SeenLayer:
    inputs = tuple(_multiplied(module, call.given) for call in calls)
    edges = tuple(call.edge for call in calls if call.edge is not None)
    return SeenLayer(module, frozenset(_covered(name, module, chosen)), inputs, edges, calls[0].shape)


def _multiplied(module: nn.Module, given: Tensor) -> Tensor:
    """What the weights multiply at each position ``(n, D, P)``."""
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return _channels_first(module, _normalised(module, given))
    if isinstance(module, nn.Conv1d | nn.Conv2d):
        return _windows(module, given)
    return _channels_first(module, given)


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
