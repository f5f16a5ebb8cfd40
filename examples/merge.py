# %% [markdown]
# # Merge two networks
#
# The mean of two trained networks is a poor network, because their units are in different orders. `align` brings the
# second into the basis of the first without changing its function; then the mean works.

# %%
import torch
from torch import nn

import intertwine as iw
from intertwine.features.evaluate import evaluate
from intertwine.lab import data

digits = data.load("digits")
batches, test = digits.loader("train", batch_size=64), digits.loader("test")


def trained(seed: int, width: int = 64) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(10):
        for x, y in batches:
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimiser.step()
    return model.eval()


a, b = trained(0), trained(1)
alignment = iw.align(a, b, torch.zeros(2, 1, 8, 8))
print(alignment)

# %% [markdown]
# With a loader, `merge` also resets the statistics of the merged features (REPAIR), which helps deeper networks.

# %%
networks = {
    "a": a,
    "b": b,
    "mean of both": iw.merge(a, b, None, repair=False),
    "merged": iw.merge(a, b, alignment, repair=False),
    "merged and repaired": iw.merge(a, b, alignment, loader=batches),
}
for name, model in networks.items():
    print(f"{name:20} {evaluate(model, test).accuracy:.1%}")

# %% [markdown]
# The barrier is read from the loss on the straight line between the two, before and after alignment.

# %%
path = iw.barrier(a, b, test, points=11, alignment=alignment)
print(path)

# %%
path

# %%
page = alignment.to_html("align.html")
