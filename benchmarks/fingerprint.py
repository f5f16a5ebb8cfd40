"""How often fingerprints miss copies and take two networks for one: numbers of copies, and of networks of other seeds.

Forty random networks of three kinds, five or two random copies of each in float32, all pairs; differences are between
the numbers before they are rounded.

Run: OMP_NUM_THREADS=1 python benchmarks/fingerprint.py
"""

from itertools import combinations

import torch
from torch import nn

import intertwine as iw
from intertwine.symmetry.action import tensors_of
from intertwine.symmetry.gauge.fingerprint import fingerprint_state, invariants

NETWORKS = 40


def mlp():
    """16-24-16-10."""
    return nn.Sequential(
        nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 10)
    ), torch.zeros(2, 16)  # fmt: skip


def cnn():
    """Two convolutions of 8 and 12 channels with batch norms that have seen data."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 12, 3, padding=1), nn.BatchNorm2d(12),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 10),
    )  # fmt: skip
    for norm in (model[1], model[4]):
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.normal_(norm.bias)
        nn.init.normal_(norm.running_mean)
        nn.init.uniform_(norm.running_var, 0.5, 1.5)
    return model, torch.zeros(2, 3, 8, 8)


def encoder():
    """A transformer encoder layer of width 16, four heads."""
    return nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), torch.zeros(2, 5, 16)


def drawn(make, seed, dtype=torch.float32):
    """A random network, its symmetry, and its numbers."""
    torch.manual_seed(seed)
    model, x = make()
    model = model.eval().to(dtype)
    sym = iw.symmetries(model, x.to(dtype))
    return model, sym, invariants(sym, tensors_of(model))


def change(sym, model, numbers, seed):
    """A random copy's state, and how far its numbers are away."""
    state = tensors_of(sym.act(sym.random(seed=seed), model))
    return state, float((invariants(sym, state) - numbers).abs().max())


def main():
    """One row for each kind."""
    print("| networks | copies missed | collisions | copies differ by at most | nearest two networks |")
    print("|---|---|---|---|---|")
    for make, copies in ((mlp, 5), (cnn, 5), (encoder, 2)):
        numbers, marks, missed, worst = [], [], 0, 0.0
        for seed in range(NETWORKS):
            model, sym, found = drawn(make, seed)
            numbers.append(found)
            marks.append(fingerprint_state(sym, tensors_of(model)))
            for k in range(copies):
                state, apart = change(sym, model, found, 100 * seed + k)
                missed += fingerprint_state(sym, state) != marks[-1]
                worst = max(worst, apart)
        precise = max(change(sym, model, found, s)[1] for s in range(10)
                      for model, sym, found in [drawn(make, s, torch.float64)])  # fmt: skip
        nearest = min(float((a - b).abs().max()) for a, b in combinations(numbers, 2))
        alike = sum(a == b for a, b in combinations(marks, 2))
        print(
            f"| {make.__doc__.rstrip('.')} | {missed} of {NETWORKS * copies} | {alike} of "
            f"{NETWORKS * (NETWORKS - 1) // 2} pairs | {worst:.0e} (float64: {precise:.0e}) | {nearest:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
