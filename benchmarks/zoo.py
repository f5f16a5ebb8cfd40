"""Training k = 16 networks at once against one after the other: every engine, and what the kind of network chooses.

Budget on a CPU: the choice is never below 0.95 x the plain loop, at least 2 x for an MLP, 1.4 x for the digits CNN; on
a GPU at least 3 x for both. Throughput of optimizer steps, best of several, the loop measured before and after.
"""

import argparse
import copy

import torch
from _timing import best_of, describe, verdict

from intertwine.lab import networks
from intertwine.lab.training import RECIPES
from intertwine.lab.training.engines import ENGINES, Engine, agrees, engine_for

K = 16
CASES = (  # network, shape of an input, batch, budget on a CPU and on a GPU
    ("mlp", (1, 8, 8), 32, 2.0, 3.0),
    ("mlp", (1, 8, 8), 128, 2.0, 3.0),
    ("digits_cnn", (1, 8, 8), 32, 1.4, 3.0),
    ("digits_cnn", (1, 8, 8), 128, 1.4, 3.0),
    ("myrtle_cnn:base=16", (3, 32, 32), 32, 0.95, 0.95),
    ("resnet20", (3, 32, 32), 32, 0.95, 0.95),
)


def seconds(name, nets, inputs, targets, repeats):
    """Best time of a step of all networks."""
    engine = Engine([copy.deepcopy(n) for n in nets], RECIPES["digits"], name)
    best = best_of(lambda: engine.step(inputs, targets, 1e-4), repeats, inputs.device)
    engine.close()
    return best


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="", help="cases whose name holds this")
    options = parser.parse_args()
    print(describe(options.device))
    for spec, shape, batch, on_cpu, on_gpu in CASES:
        if options.only not in spec:
            continue
        nets = [networks.build(spec).to(options.device).train() for _ in range(K)]
        inputs = torch.randn(K, batch, *shape, device=options.device)
        targets = torch.randint(0, 10, (K, batch), device=options.device)
        loop = seconds("in turn", nets, inputs, targets, options.repeats)
        able = [n for n in ENGINES if n == "in turn" or agrees(n, nets, inputs[0])]
        found = {n: seconds(n, nets, inputs, targets, options.repeats) for n in able}
        loop = min(loop, found["in turn"])
        chosen = engine_for(nets, inputs[0])
        gains = ", ".join(f"{name} {loop / value:.2f}" for name, value in found.items() if name != "in turn")
        gain = loop / found[chosen] if chosen != "in turn" else 1.0
        budget = on_cpu if options.device == "cpu" else on_gpu
        print(
            f"{f'{K} x {spec}, batch {batch}':34s} {gains}; chosen: {chosen} {gain:.2f} x (budget {budget})  "
            f"{verdict(gain, budget)}"
        )


if __name__ == "__main__":
    main()
