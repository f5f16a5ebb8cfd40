# %% [markdown]
# # The symmetries of a network
#
# `symmetries` runs the model once and finds how its weights may change while its function stays the same. It needs no
# specification of the architecture, and gives a reason for everything that may not move.

# %%
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

# %% [markdown]
# Acting with an element of the group gives a twin: different weights, the same function.

# %%
g = sym.random(seed=1)
twin = sym.act(g, model)
print(g)
print(f"largest change of a weight: {(twin[0].weight - model[0].weight).abs().max():.2f}")
print(f"largest change of an output, relative: {iw.testing.function_error(model, twin, x):.1e}")

# %% [markdown]
# `verify` checks the claim numerically, space by space, and checks that a *larger* group would change the function.

# %%
sym.verify(model, x)

# %% [markdown]
# The same for a transformer: heads may be permuted, and within each head keys and queries may change basis together.

# %%
layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0, activation="gelu", norm_first=True)
encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()
of_encoder = iw.symmetries(encoder, torch.randn(2, 5, 32))
print(of_encoder.summary())

# %%
page = of_encoder.to_html("symmetries.html")
