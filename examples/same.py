"""Tell a disguised copy from a fine-tuned network and from a stranger."""

import copy

import torch
from torch import nn

import intertwine as iw


def network(seed: int) -> nn.Module:
    """A small network of its own."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))


x = torch.randn(16, 8)
model = network(0)
sym = iw.symmetries(model, x)

disguised = sym.act(sym.random(seed=1), model).bfloat16().float()
tuned = copy.deepcopy(model)
with torch.no_grad():
    for p in tuned.parameters():
        p.add_(0.02 * torch.randn_like(p))

for name, other in {"disguised": disguised, "fine-tuned": tuned, "stranger": network(1)}.items():
    match = iw.same(model, other, x)
    print(f"{name:10}  {match.verdict}, residual {match.residual:.3f}")
