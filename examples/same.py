# %% [markdown]
# # Are these two checkpoints the same network?
#
# Many different weights compute the same function: hidden units may be permuted and rescaled, attention heads may be
# swapped and may change their bases. `same` searches this group for the element that explains the difference.

# %%
import copy

import torch
from torch import nn

import intertwine as iw


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))


x = torch.randn(16, 8)
model = network(0)
sym = iw.symmetries(model, x)
print(sym.summary())

# %% [markdown]
# We compare it with three others: a disguised copy (a random element of the group, then a cast to bfloat16), a copy
# with a small change of all weights, and an unrelated network.

# %%
disguised = sym.act(sym.random(seed=1), model).bfloat16().float()
tuned = copy.deepcopy(model)
with torch.no_grad():
    for p in tuned.parameters():
        p.add_(0.02 * torch.randn_like(p))

for name, other in {"disguised": disguised, "fine-tuned": tuned, "stranger": network(1)}.items():
    match = iw.same(model, other, x)
    print(f"{name:10}  {match.verdict}, residual {match.residual:.3f}")

# %% [markdown]
# The match contains the element that was found. Acting with it maps one network onto the other.

# %%
match = iw.same(model, disguised, x)
match

# %%
page = match.to_html("same.html")
