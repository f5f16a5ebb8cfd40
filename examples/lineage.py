"""Tell a fine-tuned network, a laundered one and a stranger apart, with p-values."""

import copy

import torch
from torch import nn

import intertwine as iw


def network(seed: int) -> nn.Module:
    """A small network of its own."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))


def tuned(model: nn.Module) -> nn.Module:
    """The network after a small change of all weights."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for p in other.parameters():
            p.add_(0.02 * torch.randn_like(p))
    return other


x = torch.randn(16, 8)
a = network(0)
sym = iw.symmetries(a, x)
seeds = [network(100 + seed) for seed in range(8)]  # known to be independent of a
others = {"fine-tuned": tuned(a), "laundered": sym.act(sym.random(seed=1), tuned(a)), "stranger": network(1)}
for name, b in others.items():
    print(f"{name:10}  {iw.lineage(a, b, x, independent=seeds).headline}")
