"""Make a copy of a network with other weights and the same function, and prove it."""

import torch
from torch import nn

import intertwine as iw

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 8, 3, bias=False),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(2),
    nn.Flatten(),
    nn.Linear(32, 10),
).eval()
x = torch.randn(4, 1, 8, 8)

sym = iw.symmetries(model, x)
print(sym.summary())

g = sym.random(seed=1)
twin = sym.act(g, model)
print(g)
print(f"largest change of a weight: {(twin[0].weight - model[0].weight).abs().max():.2f}")
print(f"largest change of an output, relative: {iw.testing.function_error(model, twin, x):.1e}")
print(sym.verify(model, x))
