"""k networks of one architecture as one network: grouped convolutions, wide batch norms, batched linear layers.

The channels of the networks lie side by side, ``(N, k C, H, W)``. A convolution with k times as many groups keeps them
apart, and so does whatever acts on each channel alone: batch norm, activations, pooling.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

# They act on each channel by itself, or keep the order of the channels.
_CHANNELWISE = (
    nn.ReLU, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.ELU, nn.Tanh, nn.Sigmoid, nn.Identity,
    nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.Flatten,
)  # fmt: skip


class Ungroupable(ValueError):
    """An architecture whose networks cannot be laid side by side."""


class GroupedLinear(nn.Module):
    """k linear layers side by side, ``(N, k F) -> (N, k G)``."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.networks = len(layers)
        self.weight = nn.Parameter(torch.cat([layer.weight.detach() for layer in layers]))
        biased = layers[0].bias is not None
        self.bias = nn.Parameter(torch.cat([layer.bias.detach() for layer in layers])) if biased else None

    def forward(self, x: Tensor) -> Tensor:
        """Each network's features through its own layer."""
        k, n = self.networks, len(x)
        weight = self.weight.view(k, -1, self.weight.shape[1])
        features = x.reshape(n, k, -1).transpose(0, 1)
        if self.bias is None:
            out = torch.bmm(features, weight.transpose(1, 2))
        else:
            out = torch.baddbmm(self.bias.view(k, 1, -1), features, weight.transpose(1, 2))
        return out.transpose(0, 1).reshape(n, -1)


class PerNetwork(nn.Module):
    """A layer without parameters that mixes the channels of one network: each network's are an example of their own."""

    def __init__(self, layer: nn.Module, networks: int) -> None:
        super().__init__()
        self.layer, self.networks = copy.deepcopy(layer), networks

    def forward(self, x: Tensor) -> Tensor:
        """The layer on ``(N k, C, *S)``."""
        return self.layer(x.unflatten(1, (self.networks, -1)).flatten(0, 1)).unflatten(0, (len(x), -1)).flatten(1, 2)


def group_networks(networks: Sequence[nn.Module]) -> nn.Module:
    """One network ``(N, k C, H, W) -> (N, k classes)`` of k; its tensors are theirs, joined along their first axis.

    What a forward method does between its layers cannot be seen here: compare the outputs before relying on them. A
    layer without a counterpart raises ``Ungroupable``.
    """
    grouped = _group(networks)
    if grouped is not None:
        return grouped
    whole = copy.deepcopy(networks[0])
    for name in [name for name, _ in whole.named_modules()]:
        if name and (found := _group([n.get_submodule(name) for n in networks])) is not None:
            whole.set_submodule(name, found)
    return whole


def ungrouped(state: dict[str, Tensor], k: int, member: int) -> dict[str, Tensor]:
    """The state dict of one network out of that of ``group_networks``."""
    own = {name: t if t.ndim == 0 else t.chunk(k)[member] for name, t in state.items()}
    return {name: t.detach().clone(memory_format=torch.contiguous_format) for name, t in own.items()}


def _group(layers: Sequence[nn.Module]) -> nn.Module | None:
    """The counterpart of k layers; ``None`` for containers, whose children are grouped one by one."""
    first, k = layers[0], len(layers)
    if isinstance(first, nn.Conv2d):
        if first.padding_mode != "zeros":
            raise Ungroupable(f"convolutions must be padded with zeros. Got padding_mode={first.padding_mode!r}.")
        channels, window = (k * first.in_channels, k * first.out_channels), (first.kernel_size, first.stride)
        settings: Any = (*channels, *window, first.padding, first.dilation, k * first.groups, first.bias is not None)
    elif isinstance(first, nn.BatchNorm1d | nn.BatchNorm2d):
        settings = (k * first.num_features, first.eps, first.momentum, first.affine, first.track_running_stats)
    elif isinstance(first, nn.Linear):
        return GroupedLinear(layers)  # type: ignore[arg-type]
    elif isinstance(first, _CHANNELWISE):
        return copy.deepcopy(first)
    elif [*first.parameters(recurse=False), *first.buffers(recurse=False)]:
        raise Ungroupable(f"layers must be ones that can lie side by side. Got {type(first).__name__}.")
    else:
        return None if list(first.children()) else PerNetwork(first, k)
    with torch.device("meta"):
        wide = (nn.Conv2d if isinstance(first, nn.Conv2d) else type(first))(*settings)
    states = [layer.state_dict() for layer in layers]
    joined = {
        name: t.clone() if t.ndim == 0 else torch.cat([state[name] for state in states])
        for name, t in states[0].items()
    }
    wide.load_state_dict(joined, assign=True)
    return wide
