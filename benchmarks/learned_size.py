"""Memory and time of an alignment of two GPT-2s that is learned: ``python benchmarks/learned_size.py [--layers 12]``.

They are drawn, not trained: what a step costs does not hang on the weights. The default alignment comes first, with
its own seconds; the peak is that of the process, with both networks and everything that torch loads in it. ``--steps``
learned ones follow, of batches of 4 x 128 tokens, and are told by the step; measurements of the barrier count extra.
"""

import argparse
import resource
import time

import torch
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel

import intertwine as iw
from intertwine.matching import Learned


def peak() -> float:
    """Most memory of this process so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def main() -> None:
    """Measure, and print one line a stage."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--steps", type=int, default=4)
    asked = parser.parse_args()
    config = GPT2Config(n_layer=asked.layers, use_cache=False)
    networks = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        networks.append(GPT2LMHeadModel(config).eval())
    a, b = networks
    tokens = torch.randint(config.vocab_size, (asked.steps + 1, 4, 129))
    loader = [(batch[:, :-1], batch[:, 1:]) for batch in tokens]
    loss = lambda output, batch: F.cross_entropy(output.logits.flatten(0, 1), batch[1].flatten())
    size = sum(p.numel() for p in a.parameters())
    print(f"{size / 1e6:.0f} M parameters each; {peak():.2f} GB with both", flush=True)
    start = time.perf_counter()
    iw.align(a, b, tokens[0, :2, :16])
    print(f"default: {time.perf_counter() - start:.0f} s, peak {peak():.2f} GB", flush=True)
    seconds = []
    for steps in (1, asked.steps):
        start = time.perf_counter()
        iw.align(a, b, tokens[0, :2, :16], method=Learned(steps=steps, every=steps, loss=loss), loader=loader)
        seconds.append(time.perf_counter() - start)
        print(f"learned, {steps} steps: {seconds[-1]:.0f} s, peak {peak():.2f} GB", flush=True)
    print(f"one step: {(seconds[1] - seconds[0]) / max(asked.steps - 1, 1):.1f} s", flush=True)


if __name__ == "__main__":
    main()
