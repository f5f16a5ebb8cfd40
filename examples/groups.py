# %% [markdown]
# # Intertwiner groups of activations
#
# Which linear maps pass through an activation, `σ(Ax) = φ(A) σ(x)`? For the usual activations the answer is proved; for
# a function of your own it is measured.

# %%
import torch
from torch import nn

import intertwine as iw
from intertwine import groups


def bent(x: torch.Tensor) -> torch.Tensor:
    return x * torch.tanh(x)


for activation in (nn.ReLU(), nn.LeakyReLU(-1.0), nn.Tanh(), nn.GELU(), "swiglu", bent):
    found = iw.intertwiner(activation, n=8)
    name = getattr(activation, "__name__", str(activation))
    print(f"{name:32} {found.group!r:22} {found.how:9} residual {found.residual:.0e}")

# %% [markdown]
# A random element of ReLU's group passes through ReLU; a random rotation does not.

# %%
x = torch.randn(100, 8, dtype=torch.float64)
for group in (groups.PositiveMonomial(8), groups.Orthogonal(8)):
    g = group.random(0)
    error = (torch.relu(g.apply(x)) - g.apply(torch.relu(x))).abs().max()
    print(f"{group!r}: |relu(g x) - g relu(x)| <= {error:.1e}")
