"""Barriers of two character GPTs as the group grows, from nothing over permutations to bases learned on data.

    python benchmarks/basins.py DATA [--rows none default learned] [--steps 2400] [--draws 3] [--figure ladder.svg]

DATA holds ``char-gpt/{a,b}.safetensors``, ``char-gpt/config.json`` and ``text/tinyshakespeare.txt``. The barrier is the
largest of the quarter, half and three-quarter points above the line between the losses, over 6 batches of 64 x 64
characters of the last tenth of the text; ``--draws`` takes as many draws of these batches, for the spread. Methods with
data read the first nine tenths alone. Seconds are process time on one thread, the symmetry's search included.
``--figure`` draws the rows that were measured.
"""

import argparse
import copy
import json
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import intertwine as iw
from intertwine.matching import Learned

PERMUTATIONS = ("permutation", "sign")
LENGTH = 64


def network(folder: Path, name: str) -> nn.Module:
    """One of the two networks."""
    from safetensors.torch import load_file
    from transformers import GPT2Config, GPT2LMHeadModel

    config = json.loads((folder / "config.json").read_text()) | {"use_cache": False}
    model = GPT2LMHeadModel(GPT2Config(**config))
    model.load_state_dict(load_file(folder / f"{name}.safetensors"), strict=False)
    model.tie_weights()
    return model.eval()


def batches(tokens: torch.Tensor, count: int, size: int, seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Random windows of a text, each with the characters that follow."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        starts = torch.randint(len(tokens) - LENGTH, (size,), generator=generator).tolist()
        windows = torch.stack([tokens[i : i + LENGTH + 1] for i in starts])
        found.append((windows[:, :-1], windows[:, 1:]))
    return found


@torch.no_grad()
def loss(model: nn.Module, data: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """Mean cross-entropy."""
    return sum(float(F.cross_entropy(model(x).logits.flatten(0, 1), y.flatten())) for x, y in data) / len(data)


@torch.no_grad()
def barrier(a: nn.Module, b: nn.Module, data: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """The largest height of three points above the line."""
    middle, one, other = copy.deepcopy(a), a.state_dict(), b.state_dict()
    ends, heights = (loss(a, data), loss(b, data)), []
    for t in (0.25, 0.5, 0.75):
        middle.load_state_dict({name: torch.lerp(x, other[name], t) for name, x in one.items()})
        heights.append(loss(middle, data) - (1 - t) * ends[0] - t * ends[1])
    return max(heights)


def ladder(train: torch.Tensor, steps: int, rate: float) -> dict[str, dict]:
    """What each row tells ``align``."""
    plenty = [*batches(train, 1, 128, 1), *batches(train, steps, 16, 2)]  # the first one is held out
    some = batches(train, 8, 64, 3)
    return {
        "permutations": {"kinds": PERMUTATIONS},
        "permutations, head maps": {"sym": True},
        "default": {},
        "frank-wolfe": {"method": "frank-wolfe"},
        "sinkhorn": {"method": "sinkhorn"},
        "activations": {"method": "activations", "loader": some},
        "mixed": {"method": "mixed", "loader": some},
        "straight-through": {"method": "straight-through", "loader": some},
        "learned": {"method": Learned(steps=steps, rate=rate), "loader": plenty},
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


def main() -> None:
    """Print one line per row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--rows", nargs="+", default=["none", "permutations", "permutations, head maps", "default"])
    parser.add_argument("--steps", type=int, default=Learned.steps)
    parser.add_argument("--draws", type=int, default=1)
    parser.add_argument("--rate", type=float, default=Learned.rate)
    parser.add_argument("--figure", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    text = (chosen.data / "text" / "tinyshakespeare.txt").read_text()
    places = {character: k for k, character in enumerate(sorted(set(text)))}
    tokens = torch.tensor([places[character] for character in text])
    cut = int(0.9 * len(tokens))
    a, b = (network(chosen.data / "char-gpt", name) for name in "ab")
    x = {"input_ids": tokens[None, :16].repeat(2, 1)}
    tests = [batches(tokens[cut:], 6, 64, seed) for seed in range(chosen.draws)]
    rows, measured = ladder(tokens[:cut], chosen.steps, chosen.rate), {}
    print("| method | barrier | seconds |\n|---|---|---|")
    for name in chosen.rows:
        started = time.process_time()
        if name == "none":
            one, other = a, b
        else:
            options = dict(rows[name])
            if options.pop("sym", False):  # nothing is folded: the stream is permuted, heads have bases
                options["sym"] = iw.symmetries(a, x)
            found = iw.align(a, b, x, chance=False, **options)
            one, other = found.a, found.apply(b)
        seconds = time.process_time() - started
        heights = measured[name] = [barrier(one, other, test) for test in tests]
        print(f"| {name} | {', '.join(f'{height:.3f}' for height in heights)} | {seconds:.1f} |", flush=True)
    if chosen.figure is not None:
        draw(measured, chosen.figure)


if __name__ == "__main__":
    main()
