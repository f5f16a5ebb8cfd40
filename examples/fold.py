# %% [markdown]
# # Fold a network
#
# Gains of norms, biases of values and the mean of a stream are conventions: networks that differ only in these can
# compute the same function. `iw.fold` brings them to a standard form, in which weights can be read directly.

# %%
import torch
from torch import nn

import intertwine as iw
from intertwine.lab import data


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        y = self.norm1(x)
        q, k, v = (f(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.o(y.transpose(1, 2).flatten(-2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Reader(nn.Module):
    """A transformer that reads the rows of an image."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed, self.place = nn.Linear(8, width), nn.Parameter(0.1 * torch.randn(8, width))
        self.blocks = nn.Sequential(Block(width, 4), Block(width, 4))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.embed(x.squeeze(1)) + self.place)).mean(1))


torch.manual_seed(0)
digits = data.load("digits")
model = Reader()
optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
for _ in range(3):
    for x, y in digits.loader("train", batch_size=64):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
model.eval()

# %%
example, _ = next(iter(digits.loader("test", batch_size=100)))
folded = iw.fold(model, example)
print(folded)

# %% [markdown]
# Now every gain is one and every bias of values is zero. What is written to the stream has mean zero; layer norms
# subtract the mean in any case.

# %%
before, after = model.blocks[0], folded.model.blocks[0]
for name, tensors in {
    "gain": (before.norm1.weight, after.norm1.weight),
    "bias of values": (before.v.bias, after.v.bias),
    "mean written by the MLP": (before.down.weight.mean(0), after.down.weight.mean(0)),
}.items():
    small, large = (f"{float(t.detach().min()):8.1e} to {float(t.detach().max()):8.1e}" for t in tensors)
    print(f"{name:24} before {small}   after {large}")

# %% [markdown]
# The function is the same on every input.

# %%
iw.testing.assert_same_function(model, folded.model, torch.rand(50, 1, 8, 8))
folded
