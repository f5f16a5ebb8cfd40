# %% [markdown]
# # Is the neuron basis special?
#
# We compare units of a CNN with pixel-labelled concepts, in the network's own basis and after a random rotation. If
# units detect concepts only in their own basis, that basis is special. Images are generated, so nothing is downloaded.
# This small run shows the procedure; `intertwine reproduce fig3-dissection` runs the paper's situations.

# %%
import torch

from intertwine.dissection import Bases, Criterion, dissect
from intertwine.lab.data import GeneratedConcepts
from intertwine.lab.networks import PlainCNN
from intertwine.lab.training.concepts import place_accuracy, train_on_concepts

train, test = GeneratedConcepts(200, size=48), GeneratedConcepts(60, size=48, seed=1)
found = {}
for last_relu in (True, False):
    torch.manual_seed(0)
    model = PlainCNN(len(train.concepts), last_relu)
    train_on_concepts(model, train, epochs=3)
    print(f"last ReLU {last_relu}: mean average precision {place_accuracy(model, test):.2f}")
    found[last_relu] = dissect(
        model,
        "features.relu4",
        test,
        Bases((0, 1), seeds=2),
        criterion=Criterion(quantile=0.01, empty="drop"),
        pictures=8,
    )

# %%
print(f"{'last ReLU':10}{'power':>6}  {'detectors':>9}{'different concepts':>20}")
for last_relu, result in found.items():
    for count, unique in zip(result.powers(), result.powers(unique=True)):
        print(f"{last_relu!s:10}{count.alpha:6g}  {count.mean:5.1f} of {result.units}{unique.mean:15.1f}")

# %% [markdown]
# `power` is how far the basis was rotated: 0 is the network's own basis, 1 a random rotation. A page for the first
# network shows the units with the images that activate them most.

# %%
page = found[True].to_html("dissect.html")
