"""Which measure sees what? One layer against its twin, a rotation, a noisy copy, other weights, an unrelated layer.

Run it with ``python examples/similarity.py``; it takes a few seconds.
"""

import torch

from intertwine import groups
from intertwine.similarity.comparison.inference import infer

NAMES = ("orthogonal_procrustes", "g_relu_procrustes", "linear_cka", "g_relu_cka", "laplace_cka", "rsa", "mutual_knn")


def main() -> None:
    """Print a table of calibrated scores: 0 is chance, 1 is equal up to the measure's group."""
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
    print(f"{'calibrated score':24}" + "".join(f"{name:>16}" for name in others))
    for name in NAMES:
        scores = [infer(layer, other, name, permutations=39, draws=19).calibrated for other in others.values()]
        print(f"{name:24}" + "".join(f"{score:16.2f}" for score in scores))


if __name__ == "__main__":
    main()
