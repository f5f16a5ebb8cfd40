# %% [markdown]
# # Prune channels that must go together
#
# Many layers write and read a residual stream, so a channel of the stream has to be removed from all of them at once.
# The symmetry of the network says which rows of which tensors these are.

# %%
import torch
from torch import nn

import intertwine as iw
from intertwine.features.evaluate import evaluate
from intertwine.lab import data


class Residual(nn.Module):
    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.first, self.norm1 = nn.Conv2d(channels, inner, 3, padding=1, bias=False), nn.BatchNorm2d(inner)
        self.second, self.norm2 = nn.Conv2d(inner, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)

    def forward(self, x):
        return x + self.norm2(self.second(torch.relu(self.norm1(self.first(x)))))


torch.manual_seed(0)
digits = data.load("digits")
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), Residual(16, 32), Residual(16, 32), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
    nn.Flatten(), nn.Linear(16, 10),
)  # fmt: skip


def train(network: nn.Module, epochs: int, rate: float) -> nn.Module:
    optimiser = torch.optim.Adam(network.train().parameters(), lr=rate)
    for _ in range(epochs):
        for x, y in digits.loader("train", batch_size=64):
            optimiser.zero_grad()
            nn.functional.cross_entropy(network(x), y).backward()
            optimiser.step()
    return network.eval()


train(model, 3, 1e-2)

# %%
example, _ = next(iter(digits.loader("test", batch_size=100)))
sym = iw.symmetries(model, example)
print(sym.mappings("torch-pruning"))

# %% [markdown]
# We remove the channels of smallest norm over all tensors that carry them: first inside each block, then in the stream.


# %%
def importance(space: str) -> torch.Tensor:
    size, state = sym.space(space).size, dict(model.named_parameters())
    norms = torch.zeros(size)
    for unit in range(size):
        for name, axes in iw.exchange.kept_rows(sym, space, [unit]).items():
            for axis, rows in axes.items() if name in state else ():
                norms[unit] += state[name].detach().index_select(axis, rows).square().sum()
    return norms


test = digits.loader("test")
rows = [("whole", model)]
for space in ("1.first.weight[0]", "2.first.weight[0]", "0.weight[0]"):
    keep = importance(space).topk(sym.space(space).size * 3 // 4).indices.tolist()
    rows.append((f"without a quarter of {space}", iw.prune_channels(sym, space, keep, model, example)))
for name, network in rows:
    weights = sum(p.numel() for p in network.parameters())
    before, after = evaluate(network, test).accuracy, evaluate(train(network, 1, 2e-3), test).accuracy
    print(f"{name:44} {weights:6,} weights, accuracy {before:.1%}, after one more epoch {after:.1%}")

# %% [markdown]
# Each result is compared in float64 with the whole network in which these channels are set to zero. If a norm runs over
# the channels, removing them changes the function in another way, and is refused.

# %%
normed = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 3))
x = torch.randn(5, 8)
try:
    iw.prune_channels(iw.symmetries(normed, x), "0.weight[0]", range(8), normed, x)
except iw.errors.VerificationError as error:
    print(error)
