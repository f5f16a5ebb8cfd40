"""Can one network read another's features? Two digit classifiers, and a disguised copy of the first.

Run: python examples/stitch_digits.py [--full]
"""

import argparse
from dataclasses import replace

import torch

import intertwine as iw
from intertwine.lab import data, training
from intertwine.stitching import RECIPES, StitchOptions

FAMILIES = ("identity", "g_relu", "rank-1", "rank-4", "full")


def main() -> None:
    """Train, stitch, print two tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="longer training, all layers")
    options = parser.parse_args()
    digits = data.load("digits")
    recipe = training.RECIPES["digits"] if options.full else replace(training.RECIPES["digits"], epochs=8)
    a, b = (training.train("digits_cnn", digits, recipe=recipe, seed=seed, progress=False).model for seed in (0, 1))
    loaders = {
        "loader": digits.loader("train", batch_size=32, shuffle=True),
        "eval_loader": digits.loader("test"),
    }
    layers = ["relu1", "relu2", "relu3"] if options.full else ["relu2"]

    # A copy of A with channels permuted and rescaled: the same function, and other features at every layer.
    symmetry = iw.symmetries(a, torch.randn(2, *digits.shape))
    copy = symmetry.act(symmetry.random(seed=0), a)
    print("A into its disguised copy, by matching features alone (Theorem 4.2: a G_ReLU map costs nothing)\n")
    copied = StitchOptions(recalibration=False, names=("A", "copy"))
    print(iw.stitch(a, copy, layers, FAMILIES, method="direct", options=copied, **loaders))

    print("\nA into an independently trained B, maps trained on B's task\n")
    schedule = RECIPES["v1"] if options.full else replace(RECIPES["v1"], epochs=5, head_start=2)
    print(iw.stitch(a, b, layers, FAMILIES, method=schedule, **loaders))


if __name__ == "__main__":
    main()
