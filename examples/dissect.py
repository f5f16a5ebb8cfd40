"""Is the neuron basis special? A plain CNN with and without its last ReLU, on generated images.

Run it with ``python examples/dissect.py``; a small version takes a minute. ``--full`` runs all five networks from three
seeds, as the tables in the documentation do, in about a quarter of an hour.
"""

import argparse
from pathlib import Path

from intertwine.dissection import Criterion
from intertwine.lab.data import GeneratedConcepts
from intertwine.lab.experiments.paper1.dissection import PAPER, SITUATIONS, dissect_situations, summarise


def main() -> None:
    """Train, dissect, print a table, and write one page for each place."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--out", type=Path, default=None, help="folder for the pages")
    options = parser.parse_args()
    train = GeneratedConcepts(1000 if options.full else 200, size=48)
    test = GeneratedConcepts(300 if options.full else 60, size=48, seed=1)
    found = dissect_situations(
        train,
        test,
        seeds=range(3 if options.full else 2),
        situations=SITUATIONS if options.full else SITUATIONS[:2],
        epochs=10 if options.full else 3,
        rotations=(0, 0.25, 0.5, 0.75, 1) if options.full else (0, 1),
        rotation_seeds=3 if options.full else 2,
        criterion=Criterion(quantile=0.01, empty="drop"),
        pictures=8 if options.out else 0,
        progress=True,
    )
    print(f"{'network':24}{'place':8}{'power':>6}{'share of detectors':>28}{'different':>11}")
    for row in summarise(found):
        share = f"{row['share']:.3f} ({row['low']:.3f} to {row['high']:.3f})"
        print(f"{row['situation']:24}{row['place']:8}{row['alpha']:6g}{share:>28}{row['unique']:11.1f}")
    for (situation, place), results in found.items():
        last = next(r for r in summarise({(situation, place): results}))
        print(f"{situation}, {place}: {last['verdict']} here; the paper: {PAPER[situation]}")
        if options.out:
            results[0].to_html(options.out / f"{situation.replace(' ', '-')}-{place}.html")


if __name__ == "__main__":
    main()
