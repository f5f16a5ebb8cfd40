"""Barriers of pairs of networks as the group grows, from nothing over permutations to bases learned on data.

    python benchmarks/basins.py DATA [--pairs char-gpt gpt gpt:384 llama bert vit t5 mlp] [--rows none default learned]
        [--kept FOLDER] [--steps 2400] [--seeds 1] [--seed 0] [--draws 3] [--state FOLDER] [--figure ladder.svg]

DATA holds ``char-gpt/{a,b}.safetensors``, ``char-gpt/config.json``, ``text/tinyshakespeare.txt`` and ``cifar10``. The
other pairs (``basin_pairs.py``) are trained here, a minute each, and kept in a folder; ``gpt:384`` is one of three
layers and that width, which takes longer, and ``--seeds`` the number of pairs of each kind; ``--seed`` is that of every
search. The barrier is the largest of the quarter, half and three-quarter points above the line between the losses, over
6 batches of 64 of the data kept for tests; ``--draws`` takes as many draws of these batches, for the spread. Methods
with data read the rest alone; ``no labels`` is ``learned`` on 192 inputs of it, answered by the networks themselves.
Seconds are process time on one thread, the symmetry's search included. With ``--state`` what is learned stands in files
there, from which the same call goes on after it was broken off (and its seconds are those since). ``--figure`` draws
the rows that were measured last.
"""

import argparse
import copy
import time
from dataclasses import replace
from pathlib import Path

import torch
from basin_pairs import Batch, Pair, called, pairs
from torch import nn
from torch.nn import functional as F

import intertwine as iw
from intertwine.matching import Learned

PERMUTATIONS = ("permutation", "sign")


@torch.no_grad()
def loss(model: nn.Module, data: list[Batch]) -> float:
    """Mean cross-entropy."""
    return sum(float(F.cross_entropy(called(model, x).flatten(0, -2), y.flatten())) for x, y in data) / len(data)


@torch.no_grad()
def barrier(a: nn.Module, b: nn.Module, data: list[Batch]) -> float:
    """The largest height of three points above the line."""
    middle, one, other = copy.deepcopy(a), a.state_dict(), b.state_dict()
    ends, heights = (loss(a, data), loss(b, data)), []
    for t in (0.25, 0.5, 0.75):
        middle.load_state_dict({name: torch.lerp(x, other[name], t) for name, x in one.items()})
        heights.append(loss(middle, data) - (1 - t) * ends[0] - t * ends[1])
    return max(heights)


def ladder(pair: Pair, steps: int, rate: float, state: Path | None) -> dict[str, dict]:
    """What each row tells ``align``."""
    plenty = [*pair.batches(1, 128, 1), *pair.batches(steps, 16, 2)]  # the first one is held out
    some, few = pair.batches(8, 64, 3), [*pair.batches(1, 64, 1), *pair.batches(8, 16, 2)]
    learned = Learned(steps=steps, rate=rate, checkpoint=state and str(state))
    return {
        "permutations": {"kinds": PERMUTATIONS},
        "permutations, head maps": {"sym": True},
        "default": {},
        "frank-wolfe": {"method": "frank-wolfe"},
        "sinkhorn": {"method": "sinkhorn"},
        "activations": {"method": "activations", "loader": some},
        "mixed": {"method": "mixed", "loader": some},
        "straight-through": {"method": "straight-through", "loader": some},
        "no labels": {"method": replace(learned, checkpoint=None), "loader": [(x,) for x, _ in few]},
        "learned": {"method": learned, "loader": plenty},
    }


def draw(found: dict[str, list[float]], path: Path) -> None:
    """The ladder: the barrier of each row, a dot for each draw of the batches."""
    import matplotlib
    from matplotlib import pyplot

    matplotlib.rcParams.update({"svg.hashsalt": "basins", "svg.fonttype": "none", "font.size": 9})
    figure, axes = pyplot.subplots(figsize=(6.4, 0.34 * len(found) + 0.8))
    for k, heights in enumerate(found.values()):
        axes.barh(k, sum(heights) / len(heights), color="#3b7dd8", alpha=0.5)
        axes.plot(heights, [k] * len(heights), ".", color="#22426e")
        axes.text(max(heights) + 0.02, k, f"{sum(heights) / len(heights):.3f}", va="center")
    axes.set_yticks(range(len(found)), list(found))
    axes.invert_yaxis()
    axes.set_xlabel("barrier (nats above the line)")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")


def measured(
    pair: Pair, a: nn.Module, b: nn.Module, chosen: argparse.Namespace, state: Path | None
) -> dict[str, list[float]]:
    """The barriers of all rows that were asked for, one line each."""
    inputs = pair.batches(1, 2, 0)[0][0]
    tests = [pair.batches(6, 64, seed, train=False) for seed in range(chosen.draws)]
    rows, found = ladder(pair, chosen.steps, chosen.rate, state), {}
    for name in chosen.rows:
        started = time.process_time()
        if name == "none":
            one, other = a, b
        else:
            options = dict(rows[name])
            if options.pop("sym", False):  # nothing is folded: the stream is permuted, heads have bases
                options["sym"] = iw.symmetries(a, inputs)
            aligned = iw.align(a, b, inputs, seed=chosen.seed, chance=False, **options)
            one, other = aligned.a, aligned.apply(b)
        seconds = time.process_time() - started
        heights = found[name] = [barrier(one, other, test) for test in tests]
        print(f"| {name} | {', '.join(f'{height:.3f}' for height in heights)} | {seconds:.1f} |", flush=True)
        if name == "learned":
            held = [f"{-height:.3f}" for height in aligned.history[:: max(1, len(aligned.history) // 12)]]
            print(f"\nheld out along {chosen.steps} steps: {', '.join(held)}\n", flush=True)
    return found


def main() -> None:
    """Print one table for each pair."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--pairs", nargs="+", default=["char-gpt"])
    parser.add_argument("--rows", nargs="+", default=["none", "permutations", "permutations, head maps", "default"])
    parser.add_argument("--kept", type=Path, default=Path("basins"))
    parser.add_argument("--steps", type=int, default=Learned.steps)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draws", type=int, default=1)
    parser.add_argument("--rate", type=float, default=Learned.rate)
    parser.add_argument("--state", type=Path)
    parser.add_argument("--figure", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    every = pairs(chosen.data)
    for name in chosen.pairs:
        kind, *width = name.split(":")
        pair, folder = every[kind](*map(int, width)), chosen.data if name == "char-gpt" else chosen.kept
        found: dict[str, list[float]] = {}
        for first in range(0, 2 * chosen.seeds, 2):
            a, b = (pair.trained(seed, folder / name / f"{seed}.safetensors") for seed in (first, first + 1))
            ends = [loss(model, pair.batches(6, 64, 0, train=False)) for model in (a, b)]
            print(
                f"\n{name} from seed {first}: losses {ends[0]:.3f} and {ends[1]:.3f}\n\n| method | barrier | seconds |"
                "\n|---|---|---|",
                flush=True,
            )
            state = chosen.state and chosen.state / f"{name}-{first}-{chosen.steps}.safetensors"
            for row, heights in measured(pair, a, b, chosen, state).items():
                found.setdefault(row, []).extend(heights)
    if chosen.figure is not None:
        draw(found, chosen.figure)


if __name__ == "__main__":
    main()
