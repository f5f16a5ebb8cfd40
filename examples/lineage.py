# %% [markdown]
# # Was this checkpoint derived from that one?
#
# `lineage` tests whether two networks were trained independently and gives a p-value, from weights alone. Here one
# network is fine-tuned, laundered (its units permuted and rescaled) and pruned; another network is unrelated.

# %%
import copy

import torch
from torch import nn

import intertwine as iw


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))


def tuned(model: nn.Module) -> nn.Module:
    other = copy.deepcopy(model)
    with torch.no_grad():
        for p in other.parameters():
            p.add_(0.02 * torch.randn_like(p))
    return other


x = torch.randn(16, 8)
a = network(0)
sym = iw.symmetries(a, x)

# %% [markdown]
# If units are in place, the p-value is exact. Once they were moved, seeds known to be independent calibrate it.

# %%
seeds = [network(100 + seed) for seed in range(8)]
others = {"fine-tuned": tuned(a), "laundered": sym.act(sym.random(seed=1), tuned(a)), "stranger": network(1)}
for name, b in others.items():
    print(f"{name:10}  {iw.lineage(a, b, x, independent=seeds).headline}")

# %% [markdown]
# A network with fewer units: of the wider one only units that have a partner are used, and the test stays exact.

# %%
pruned = iw.exchange.prune_channels(sym, "0.weight[0]", [k for k in range(32) if k % 4], others["fine-tuned"], x)
found = iw.lineage(a, pruned, x)
print(found)
print(found.notes[0])

# %% [markdown]
# Many checkpoints at once: families, merges with both parents, and the direction of descent where the weights tell it.

# %%
average = copy.deepcopy(a)
with torch.no_grad():
    for p, q, r in zip(average.parameters(), a.parameters(), others["fine-tuned"].parameters()):
        p.copy_(0.5 * q + 0.5 * r)
tree = iw.lineage_tree({"base": a, **others, "average": average, "cast": copy.deepcopy(a).bfloat16().float()}, x)
tree.to_html("lineage.html")
print(tree.summary())
