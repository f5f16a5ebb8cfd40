# %% [markdown]
# # Stitch: can one network read another's features?
#
# A stitched network is the trunk of A, a stitching layer and the tail of B. If a layer from a small family is enough,
# the features of the two networks agree up to that family. By Theorem 4.2, a map in ReLU's intertwiner group stitches a
# network to its disguised copy without loss.

# %%
from dataclasses import replace

import torch

import intertwine as iw
from intertwine.lab import data, training
from intertwine.stitching import RECIPES, StitchOptions

FAMILIES = ("identity", "g_relu", "rank-1", "rank-4", "full")
digits = data.load("digits")
recipe = replace(training.RECIPES["digits"], epochs=5)
a, b = (training.train("digits_cnn", digits, recipe=recipe, seed=seed, progress=False).model for seed in (0, 1))
loaders = {"loader": digits.loader("train", batch_size=32, shuffle=True), "eval_loader": digits.loader("test")}

# %% [markdown]
# First we stitch A to a copy with permuted and rescaled channels; the maps are fitted to the features alone.

# %%
symmetry = iw.symmetries(a, torch.randn(2, *digits.shape))
copy = symmetry.act(symmetry.random(seed=0), a)
options = StitchOptions(recalibration=False, names=("A", "copy"))
print(iw.stitch(a, copy, ["relu2"], FAMILIES, method="direct", options=options, **loaders))

# %% [markdown]
# Then we stitch A to an independently trained B, with maps trained on B's task.

# %%
schedule = replace(RECIPES["v1"], epochs=3, head_start=1)
found = iw.stitch(a, b, ["relu2"], FAMILIES, method=schedule, **loaders)
print(found)

# %%
page = found.to_html("stitch.html")
