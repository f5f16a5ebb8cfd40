# %% [markdown]
# # Compare two networks, layer by layer
#
# Two networks of one architecture are trained from different seeds on the same task. Which of their layers hold the
# same features, and by more than chance? Then we compare a disguised copy, which no single neuron gives away.

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
# `compare` takes the two models and batches of inputs. Each measure has its own symmetry group, and a score of 1 means
# "equal up to this group". Brackets hold confidence intervals; `chance` is the score with shuffled examples,
# `untrained` the score of two networks with fresh weights.

# %%
batches = digits.test.inputs.float().split(100)
comparison = iw.compare(a, b, batches)
print(comparison)

# %%
comparison

# %% [markdown]
# A copy with permuted and rescaled hidden units computes the same function. Measures that ignore the symmetries of ReLU
# see that nothing changed (1.000); measures of other groups recognise only part of it.

# %%
sym = iw.symmetries(a, batches[0])
twin = sym.act(sym.random(seed=0), a)
print(iw.compare(a, twin, batches))

# %% [markdown]
# The whole comparison fits on one page that you can share: all matrices, all numbers.

# %%
page = comparison.to_html("compare.html")
