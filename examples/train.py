# %% [markdown]
# # Train two networks and read them back
#
# The lab has the papers' networks, data sets and one training loop. After a kill, the same call resumes training; once
# training has ended, it returns the finished checkpoint, with a card that says how it was made.

# %%
from pathlib import Path

from intertwine.lab import data, training

folder = Path("checkpoints")
digits = data.load("digits")
recipe = training.RECIPES["digits"].but(epochs=6)
for seed in (0, 1):
    run = training.train("digits_cnn", digits, recipe, seed=seed, out=folder / f"digits_cnn-seed{seed}.safetensors")
    print(f"seed {seed}: test accuracy {run.card.metrics['test_accuracy']:.1%}, best epoch {run.card.best_epoch}")

# %%
models = [training.load_checkpoint(folder / f"digits_cnn-seed{seed}.safetensors").eval() for seed in (0, 1)]
agree = total = 0
for inputs, _ in digits.loader("test"):
    first, second = (model(inputs).argmax(dim=1) for model in models)
    agree, total = agree + int((first == second).sum()), total + len(inputs)
print(f"they agree on {agree / total:.1%} of the test images; are they the same inside? See the example compare")
