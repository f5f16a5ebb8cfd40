# %% [markdown]
# # Is the neuron basis special?
#
# Units of a CNN against pixel-labelled concepts, in the network's own basis and after a random rotation of it. If units
# name concepts only in their own basis, that basis is special. Generated images, so nothing is downloaded; this small
# run shows the procedure, `intertwine reproduce fig3-dissection` runs the paper's situations.

# %%
from intertwine.dissection import Bases, Criterion
from intertwine.lab.data import GeneratedConcepts
from intertwine.lab.experiments.paper1.dissection import SITUATIONS, dissect_situations, summarise

found = dissect_situations(
    GeneratedConcepts(200, size=48),
    GeneratedConcepts(60, size=48, seed=1),
    seeds=range(2),
    situations=SITUATIONS[:2],
    epochs=3,
    bases=Bases((0, 1), seeds=2),
    criterion=Criterion(quantile=0.01, empty="drop"),
    pictures=8,
)

# %%
print(f"{'network':26}{'place':8}{'power':>6}  {'share of detectors':24}{'different':>9}")
for row in summarise(found):
    share = f"{row['share'].value:.3f} ({row['share'].low:.3f} to {row['share'].high:.3f})"
    print(f"{row['situation']:26}{row['place']:8}{row['alpha']:6g}  {share:24}{row['unique']:9.1f}")

# %% [markdown]
# `power` is how far the basis was rotated: 0 is the network's own, 1 a random orthogonal matrix. `different` counts
# concepts that some unit detects. A page for the first network shows the units with the images they like best.

# %%
page = next(iter(found.values()))[0].to_html("dissect.html")
