# %% [markdown]
# # Which measure sees what?
#
# We compare one layer with a twin that an element of ReLU's group makes of it, a rotation, a noisy copy, a layer with
# other weights and an unrelated layer. In calibrated scores 0 is chance, and 1 is equal up to the measure's own group.

# %%
import torch

from intertwine import groups
from intertwine.similarity.inference import infer

g = torch.Generator().manual_seed(0)
signal = torch.randn(150, 20, generator=g)
layer = (signal @ torch.randn(20, 32, generator=g)).relu()
others = {
    "twin in G_ReLU": groups.PositiveMonomial(32).random(generator=1).apply(layer),
    "rotated": groups.Orthogonal(32).random(generator=1).apply(layer),
    "with noise": layer + layer.std() * torch.randn(150, 32, generator=g),
    "other weights": (signal @ torch.randn(20, 32, generator=g)).relu(),
    "unrelated": torch.randn(150, 32, generator=g).relu(),
}

# %%
names = ("orthogonal_procrustes", "g_relu_procrustes", "linear_cka", "g_relu_cka", "laplace_cka", "rsa", "mutual_knn")
print(f"{'calibrated score':24}" + "".join(f"{name:>16}" for name in others))
for name in names:
    scores = [infer(layer, other, name, null=39, bootstrap=19).calibrated for other in others.values()]
    print(f"{name:24}" + "".join(f"{score:16.2f}" for score in scores))

# %% [markdown]
# A measure answers up to its own group: `orthogonal_procrustes` and linear CKA cannot tell a rotation from the layer
# itself. Measures of ReLU's group can, and they recognise the twin that the others miss.
