# %% [markdown]
# # What changed between these two checkpoints?
#
# `diff` first removes what keeps the function (swapped heads, permuted units), then lists what remains, by tensor.

# %%
import copy

import torch
from torch import nn

import intertwine as iw

torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
base = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()
with torch.no_grad():
    for parameter in base.parameters():
        parameter.add_(0.05 * torch.randn_like(parameter))  # layers start as copies of each other
x = torch.randn(2, 5, 32)
sym = iw.symmetries(base, x)

# %% [markdown]
# An update of rank 4, hidden by a random permutation of units and heads.

# %%
tuned = sym.act(sym.random(seed=1, kinds=["permutation"]), base)
with torch.no_grad():
    for block in tuned.layers:
        block.linear1.weight += 0.01 * torch.randn(64, 4) @ torch.randn(4, 32)
found = iw.diff(base, tuned, x)
found.to_html("diff.html")
print(found)

# %% [markdown]
# A cast alone.

# %%
print(iw.diff(base, copy.deepcopy(base).bfloat16().float(), x))

# %% [markdown]
# The same weights as other code would store them: with other names, and with query, key and value in separate tensors.

# %%
stored = {}
for name, tensor in base.state_dict().items():
    if "in_proj" in name:
        for part, piece in zip("qkv", tensor.chunk(3)):
            stored[name.replace("layers", "h").replace("self_attn.in_proj_", f"attn.{part}.")] = piece
    else:
        stored[name.replace("layers", "h")] = tensor
print(iw.diff(stored, base, x))
