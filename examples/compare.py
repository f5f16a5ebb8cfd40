# %% [markdown]
# # Compare two networks, layer by layer
#
# Two networks of one architecture, trained from different seeds on the same task: which of their layers hold the same
# features, and is that more than chance? Then a disguised copy, which no single neuron gives away.

# %%
import torch
from torch import nn

import intertwine as iw
from intertwine.lab import data

digits = data.load("digits")
images, labels = digits.train.inputs.float(), digits.train.labels


def trained(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 10))
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(200):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimiser.step()
    return model.eval()


a, b = trained(0), trained(1)

# %% [markdown]
# `compare` takes the two models and batches of inputs. The measures have symmetries of their own: a score of 1 says
# "equal up to this group". Brackets hold confidence intervals; `chance` is what shuffled examples would give,
# `untrained` what two networks with fresh weights get.

# %%
batches = digits.test.inputs.float().split(100)
comparison = iw.compare(a, b, batches)
print(comparison)

# %%
comparison

# %% [markdown]
# A copy with permuted and rescaled hidden units computes the same function. Measures that know the symmetries of ReLU
# see that nothing changed (1.000); those of other groups see only part of it.

# %%
sym = iw.symmetries(a, batches[0])
twin = sym.act(sym.random(seed=0), a)
print(iw.compare(a, twin, batches))

# %% [markdown]
# The whole comparison is one page that can be sent to somebody: all matrices, all numbers.

# %%
page = comparison.to_html("compare.html")
