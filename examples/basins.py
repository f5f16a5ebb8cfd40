# %% [markdown]
# # Two transformers in one basin
#
# Train one architecture from two seeds. Both networks are good, but the network halfway between their weights is not.
# For ReLU networks most of this loss barrier comes from the order of the units: permute them, and it nearly vanishes.
# For transformers it does not. How much of their barrier is a choice of coordinates, and of which coordinates?
#
# The networks are two small GPTs that write Python character by character, trained on modules of the standard library.
#

# %%
import inspect
import time
from importlib import import_module

import torch
import transformers
from torch import nn

import intertwine as iw
from intertwine.matching import Learned

LENGTH, STARTED = 64, time.perf_counter()
modules = [
    "argparse", "doctest", "inspect", "pickle", "pydoc", "smtplib", "subprocess", "threading", "typing",
    "unittest.mock", "tarfile",
]  # fmt: skip
*sources, unseen = (inspect.getsource(import_module(name)) for name in modules)
letters = [chr(k) for k in (10, *range(32, 127))]
place = {letter: k for k, letter in enumerate(letters)}
written, unseen = (torch.tensor([place[c] for c in text if c in place]) for text in ("".join(sources), unseen))


def pieces(text, size, seed):
    """Characters ``(size, LENGTH)``, and the characters that follow each of them."""
    starts = torch.randint(len(text) - LENGTH, (size,), generator=torch.Generator().manual_seed(seed))
    some = text[starts[:, None] + torch.arange(LENGTH + 1)]
    return some[:, :-1], some[:, 1:]


def trained(seed, steps=400, rate=5e-3):
    torch.manual_seed(seed)
    sizes = {"vocab_size": len(letters), "n_positions": LENGTH, "n_embd": 64, "n_layer": 2, "n_head": 4}
    still = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **still, **ends, use_cache=False))
    adam = torch.optim.AdamW(model.parameters(), rate)
    cycle = torch.optim.lr_scheduler.OneCycleLR(adam, rate, steps, pct_start=0.1)
    for step in range(steps):
        x, y = pieces(written, 32, 10_000 * seed + step)
        adam.zero_grad()
        nn.functional.cross_entropy(model(x).logits.flatten(0, 1), y.flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        cycle.step()
    return model.eval()


a, b = trained(0), trained(1)
tokens, _ = pieces(written, 2, 0)
test = [pieces(unseen, 64, -1 - k) for k in range(4)]
print(f"{len(written):,} characters to train on; module {modules[-1]} to test on")

# %% [markdown]
# ## The barrier
#
# The loss on the straight line between the two networks, in nats per character. For comparison: guessing uniformly
# among the 96 characters has a loss of 4.56.

# %%
direct = iw.barrier(a, b, test, points=5, alignment=None)
print(*(f"{ratio:.0%} of B: {loss:.2f}" for ratio, loss in zip(direct.ratios, direct.curves[0].loss)), sep="\n")

# %% [markdown]
# ## What may be moved
#
# `symmetries` finds what can be done to the weights without changing the function. In the network as it is, the gains
# of the layer norms tie the stream to its axes: its units may only be permuted, while each head has bases of its own.

# %%
print(iw.symmetries(a, tokens))

# %% [markdown]
# The gains can be folded into the maps that read them. A layer norm without gains depends only on a length and a mean,
# so the stream may be *rotated* if the vector of ones stays fixed. `align` folds first and searches this larger group.

# %%
turned = iw.align(a, b, tokens)
print(turned)

# %% [markdown]
# Both networks still compute the same functions: `turned.a` is A folded, `turned.apply(b)` is B folded and moved.

# %%
iw.testing.assert_same_function(a, turned.a, tokens)
iw.testing.assert_same_function(b, turned.apply(b), tokens)

# %% [markdown]
# ## The ladder
#
# The group grows from rung to rung: permutations alone; then the maps of heads; then the rotation of the stream. None
# of these uses data. The last rung does: from there it continues by gradient, on the loss of the networks in between.

# %%
batches = [pieces(written, 128, 2_000_000), *(pieces(written, 16, 2_000_001 + k) for k in range(200))]
rungs = {
    "permutations": iw.align(a, b, tokens, kinds=("permutation", "sign")),
    "and maps of heads": iw.align(a, b, tokens, sym=iw.symmetries(a, tokens)),
    "and the rotation": turned,
    "and learned, 150 steps": iw.align(a, b, tokens, Learned(steps=150), batches),
}
heights = {"nothing": direct.before}
for name, found in rungs.items():
    path = iw.barrier(a, b, test, points=5, alignment=found)
    heights[name] = path.after
for name, height in heights.items():
    print(f"{name:24} barrier {height:.3f}")

# %%
path

# %% [markdown]
# ## A network in between
#
# The midpoint of the last rung is again a GPT-2 of the same architecture: `from_pretrained` reads it.

# %%
transformers.utils.logging.disable_progress_bar()
merged = iw.merge(a, b, rungs["and learned, 150 steps"], repair=False)
folder = iw.merging.export(merged, "merged")
again = transformers.GPT2LMHeadModel.from_pretrained(folder)
iw.testing.assert_same_function(merged, again, tokens)

# %% [markdown]
# ## The finding

# %%
whole = heights["nothing"]
left = lambda name: f"{heights[name] / whole:.0%}"
print(
    f"Of a barrier of {whole:.2f} nats, permutations leave {left('permutations')}; with the maps of heads "
    f"{left('and maps of heads')} are left, with one rotation of the stream {left('and the rotation')}, "
    f"and after learning {left('and learned, 150 steps')}. The rest was a choice of coordinates."
)
print(f"All of this took {time.perf_counter() - STARTED:.0f} seconds.")

# %%
page = turned.to_html("basins.html")
