"""The calibrated null of lineage over all pairs of small networks: how often do strangers get a small p-value?

Networks of three kinds are trained on digits from some seeds each, and every two of a kind are matched. The likenesses
of one network to the others are taken nine at a time, and each of nine is tested against the other eight::

    python benchmarks/lineage_pairs.py --write

The tests share networks, so that they are not independent of each other; the shares of small p-values are unbiased.
"""

import argparse
import json
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path

import torch
from networks.seeds import KINDS, Kind, trained
from torch import nn

import intertwine as iw
from intertwine.provenance.after_matching import likeness, log_chance
from intertwine.provenance.comparable import compared
from intertwine.symmetry.action import tensors_of

ROOT = Path(__file__).parent.parent
_NINE = 9  # one that is tested, and eight that calibrate


def _perceptron(*widths: int) -> nn.Module:
    layers = [m for i, o in pairwise(widths) for m in (nn.Linear(i, o), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def _convolutions() -> nn.Module:
    first, second = (nn.Conv2d(i, o, 3, 2, 1) for i, o in ((1, 6), (6, 8)))
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), nn.Linear(32, 10)
    )


_MLP, _CNN = KINDS["MLP on digits"], KINDS["CNN with batch norm on digits"]
SMALL = {
    "MLP 64-8-10": (replace(_MLP, make=lambda: _perceptron(64, 8, 10)), 57),
    "CNN of 6 and 8 channels": (replace(_CNN, make=_convolutions), 46),
    "MLP 64-24-24-10": (replace(_MLP, make=lambda: _perceptron(64, 24, 24, 10)), 46),
}


def shares(kind: Kind, count: int, cache: Path) -> dict[tuple[int, int], float]:
    """Likeness of every two networks, from the cache where it is there."""
    if not cache.is_file():
        models = []
        for seed in range(count):
            torch.manual_seed(seed)
            models.append(kind.make())
        states = [tensors_of(model.eval()) for model in trained(kind, models, 0, kind.steps)]
        sym = iw.symmetries(models[0].eval(), kind.example)
        found = {f"{i},{j}": likeness(compared(sym, states[i], states[j])) for i, j in combinations(range(count), 2)}
        cache.parent.mkdir(parents=True, exist_ok=True)
        cache.write_text(json.dumps({pair: x.explained for pair, x in found.items()}))
    known = json.loads(cache.read_text())
    return {(int(i), int(j)): x for pair, x in known.items() for i, j in [pair.split(",")]}


def tests(pairs: dict[tuple[int, int], float], count: int) -> list[float]:
    """The p-values of all tests."""
    found = []
    for i in range(count):
        row = [pairs[min(i, j), max(i, j)] for j in range(count) if j != i]
        random.Random(i).shuffle(row)
        for nine in (row[k : k + _NINE] for k in range(0, len(row) - _NINE + 1, _NINE)):
            found += [math.exp(log_chance(x, nine[:k] + nine[k + 1 :])) for k, x in enumerate(nine)]
    return found


def rows(cache: Path) -> Iterator[str]:
    """One row for each kind."""
    yield "| networks | pairs | explained, median and most | tests | at or below 1e-2 | at or below 1e-3 | smallest p |"
    yield "|---|---|---|---|---|---|---|"
    for name, (kind, count) in SMALL.items():
        pairs = shares(kind, count, cache / f"pairs-{name.replace(' ', '-')}.json")
        p, share = tests(pairs, count), torch.tensor([*pairs.values()])
        few = [f"{sum(x <= level for x in p)} ({sum(x <= level for x in p) / len(p):.2%})" for level in (1e-2, 1e-3)]
        seen = f"{float(share.median()):.1%}, {float(share.max()):.1%}"
        yield f"| {name} | {len(pairs):,} | {seen} | {len(p):,} | {few[0]} | {few[1]} | {min(p):.1e} |"


def main() -> None:
    """Print the table; with ``--write`` also put it into the documentation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "lineage", help="folder for likenesses")
    parser.add_argument("--write", action="store_true", help="replace the table in docs/benchmarks.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    page, mark, table = ROOT / "docs" / "benchmarks.md", "lineage pairs", ""
    for row in rows(options.cache):
        print(row, flush=True)
        table += f"{row}\n"
    if options.write:
        before, _, rest = page.read_text().partition(f"<!-- {mark} -->\n")
        _, _, after = rest.partition(f"<!-- end {mark} -->")
        page.write_text(f"{before}<!-- {mark} -->\n{table}<!-- end {mark} -->{after}")


if __name__ == "__main__":
    main()
