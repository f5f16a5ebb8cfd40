# %% [markdown]
# # Was this checkpoint derived from that one?
#
# `lineage` gives a p-value for the claim that two networks were trained independently, from weights alone. Here one
# network is fine-tuned, laundered (units permuted, rescaled) and pruned; another one is a stranger.

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
# In place the p-value is exact. Once units were moved it needs a yardstick: other seeds, known to be independent.

# %%
seeds = [network(100 + seed) for seed in range(8)]
others = {"fine-tuned": tuned(a), "laundered": sym.act(sym.random(seed=1), tuned(a)), "stranger": network(1)}
for name, b in others.items():
    print(f"{name:10}  {iw.lineage(a, b, x, independent=seeds).headline}")

# %% [markdown]
# A network with fewer units: the wider one keeps those that have a partner, and the test stays exact.

# %%
pruned = iw.exchange.prune_channels(sym, "0.weight[0]", [k for k in range(32) if k % 4], others["fine-tuned"], x)
found = iw.lineage(a, pruned, x)
print(found)
print(found.notes[0])

# %% [markdown]
# Many checkpoints at once: families, merges with both parents, and directions where the weights rule out the reverse.

# %%
average = copy.deepcopy(a)
with torch.no_grad():
    for p, q, r in zip(average.parameters(), a.parameters(), others["fine-tuned"].parameters()):
        p.copy_(0.5 * q + 0.5 * r)
tree = iw.lineage_tree({"base": a, **others, "average": average, "cast": copy.deepcopy(a).bfloat16().float()}, x)
tree.to_html("lineage.html")
print(tree.summary())
