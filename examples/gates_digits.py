"""Look inside the gates of a digits network: what they look for, who shares them, which paths make an output.

Train a small ReLU network and its deep linearly gated counterpart, take both apart, write one page.

Run: python examples/gates_digits.py
"""

from dataclasses import replace
from pathlib import Path

import intertwine as iw
from intertwine.lab import data, training


def main(out=Path("gates.html"), epochs=5):
    """Print what was found and write the page."""
    digits = data.load("digits")
    recipe = training.RECIPES["digits"].but(epochs=epochs)
    run = training.train("digits_cnn", digits, recipe, seed=0, progress=False)
    linear = training.train(iw.gates.dlgn(run.model, input="ones"), digits, recipe, seed=0, progress=False)
    for name, one in (("network", run), ("DLGN(x, 1)", linear)):
        print(f"{name:12s} test accuracy {one.card.metrics['test_accuracy']:.1%}")

    x, labels = next(iter(digits.loader("test", batch_size=10_000)))
    study = iw.gates.examine(run.model, x, labels, digits.classes)
    print(study)
    print(study.shared)

    # All gates of a DLGN are linear in the image: each looks for one picture.
    maps = iw.gates.effective_maps(linear.model, x[:1], positions="centre")
    print(maps)

    # Another seed: its gates are alike as a kernel, and few units are the same unit.
    other = training.train("digits_cnn", digits, recipe, seed=1, progress=False).model
    print(f"alignment with another seed's path kernel: {iw.gates.npk_alignment(run.model, other, x[:60]):.3f}")
    print(iw.gates.match_gates(run.model, other, x))

    print(f"wrote {replace(study, model='digits_cnn', features=maps).to_html(out)}")


if __name__ == "__main__":
    main()
