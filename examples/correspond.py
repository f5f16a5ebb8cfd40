# %% [markdown]
# # One network, four code bases
#
# A small transformer block, written four times: with torch's own layer, with packed weights and fused attention, with
# handwritten attention, and with 1x1 convolutions. `correspond` says which entries of one match which of another.

# %%
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intertwine as iw

torch.manual_seed(0)
WIDTH, HEADS = 16, 4


class Torch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.attention(x, x, x, need_weights=False)[0])


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.fc = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        return self.fc(self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)) + x)


class ByHand(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(4)])
        self.last = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.parts[:3])
        y = (q / (WIDTH // HEADS) ** 0.5 @ k.mT).softmax(-1) @ v
        return self.last(x + self.parts[3](y.transpose(1, 2).flatten(2)))


class Convolutions(ByHand):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.Conv1d(WIDTH, WIDTH, 1) for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x.mT).unflatten(1, (HEADS, -1)).mT for part in self.parts[:3])
        y = (q @ k.mT / (WIDTH // HEADS) ** 0.5).softmax(-1) @ v
        return self.last(x + self.parts[3](y.mT.flatten(1, 2)).mT)


x = torch.randn(2, 7, WIDTH)
model = Torch()
for other in (Packed(), ByHand(), Convolutions()):
    print(type(other).__name__)
    print(iw.correspond(model, other, x).summary())

# %% [markdown]
# The weights are carried over, and `same` recognises the network in the other code, even after a random symmetry.

# %%
other = Convolutions()
found = iw.correspond(model, other, x)
model.load_state_dict(found.convert(other.state_dict()))
sym = iw.symmetries(model, x)
moved = sym.act(sym.random(seed=1), model)
print(iw.same(moved, other, x).summary())

# %%
found
