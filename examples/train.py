"""Train two small CNNs on digits from different seeds, and read their checkpoints back.

Run: python examples/train.py [FOLDER]
"""

import sys
from pathlib import Path

from intertwine.lab import data, training


def main(folder):
    """Train, read back, and count agreements."""
    digits = data.load("digits")
    for seed in (0, 1):
        path = folder / f"digits_cnn-seed{seed}.safetensors"
        # The same call after a kill goes on where it was; after the end it returns the finished checkpoint.
        run = training.train("digits_cnn", digits, seed=seed, out=path)
        print(f"seed {seed}: test accuracy {run.card.metrics['test_accuracy']:.1%}, best epoch {run.card.best_epoch}")

    models = [training.load_checkpoint(folder / f"digits_cnn-seed{seed}.safetensors").eval() for seed in (0, 1)]
    agree = total = 0
    for inputs, _ in digits.loader("test"):
        first, second = (model(inputs).argmax(dim=1) for model in models)
        agree, total = agree + int((first == second).sum()), total + len(inputs)
    print(f"they agree on {agree / total:.1%} of the test images; are they the same inside? See examples/compare.py")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "checkpoints"))
