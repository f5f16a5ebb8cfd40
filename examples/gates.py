# %% [markdown]
# # What do the gates know?
#
# A ReLU network is a sum over paths: gates (which units are on) times weights. The gates can be frozen, replaced or
# made linear, and new weights can then be trained behind them.

# %%
import torch

import intertwine as iw
from intertwine.lab import data, training

digits = data.load("digits")
recipe = training.RECIPES["digits"].but(epochs=4)
run = training.train("digits_cnn", digits, recipe, seed=0, progress=False)


def accuracy(network) -> float:
    return training.train(network, digits, recipe, seed=0, progress=False).card.metrics["test_accuracy"]


print(f"network itself                {run.card.metrics['test_accuracy']:.1%}")
print(f"its gates, fresh weights      {accuracy(iw.gates.dgn(run.model, regime='fixed_learnt')):.1%}")
print(f"random gates, fresh weights   {accuracy(iw.gates.dgn(run.model, regime='fixed_random', seed=1)):.1%}")

# %% [markdown]
# In a deep *linearly* gated network (DLGN) every gate is linear in the image, so each gate looks for one picture.

# %%
linear = training.train(iw.gates.dlgn(run.model, input="ones"), digits, recipe, seed=0, progress=False)
print(f"DLGN(x, 1): linear gates      {linear.card.metrics['test_accuracy']:.1%}")
x, labels = next(iter(digits.loader("test", batch_size=200)))
maps = iw.gates.effective_maps(linear.model, x[:1], positions="centre")
print(maps)

# %% [markdown]
# What the gates share, and which paths contribute to an output.

# %%
study = iw.gates.examine(run.model, x, labels, digits.classes)
print(study)

# %% [markdown]
# A network from another seed has similar gates as a kernel, but few of its units match units of the first.

# %%
other = training.train("digits_cnn", digits, recipe, seed=1, progress=False).model
print(f"alignment with another seed's path kernel: {iw.gates.npk_alignment(run.model, other, x[:60]):.3f}")
print(iw.gates.match_gates(run.model, other, x))

# %% [markdown]
# In a trained network, the overlap of active sub-networks says which images the network treats alike.

# %%
log, _ = iw.gates.neural_path_kernel(run.model, x[:200], input="ones", log=True)
same = labels[:200, None] == labels[None, :200]
off_diagonal = ~torch.eye(200, dtype=torch.bool)
print(f"log overlap: same digit {log[same & off_diagonal].mean():.2f}, other digits {log[~same].mean():.2f}")

# %%
page = study.to_html("gates.html")
