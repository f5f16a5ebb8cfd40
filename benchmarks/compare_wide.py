"""``compare`` with its default measures on random networks of GPT-2 small's widths, and what everything would take.

Process time in one thread. With fewer than twelve blocks the total for twelve is told from them: where work is saved,
all of it grows with the number of blocks. Singular values of one pair of layers are timed beside it: everything would
take 41 of them for each pair, and one for each pair of untrained networks. The budget is 30 minutes of one core for
twelve blocks on 8,192 tokens, which is what the command line reads.

    python benchmarks/compare_wide.py --blocks 1
"""

import argparse
import sys
import time

import torch
from _timing import describe, verdict
from transformers import GPT2Config, GPT2LMHeadModel

import intertwine as iw
from intertwine.features import Reading

BLOCKS, TOKENS, LENGTH, BUDGET = 12, 8192, 128, 30.0  # minutes


def network(blocks: int, seed: int) -> GPT2LMHeadModel:
    """A GPT-2 small with fewer blocks and random weights."""
    torch.manual_seed(seed)
    return GPT2LMHeadModel(GPT2Config(n_layer=blocks)).eval()


def main() -> int:
    """Time a comparison, and tell what twelve blocks take."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=BLOCKS)
    parser.add_argument("--memory", default="6GB")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(describe())
    a, b = network(asked.blocks, 0), network(asked.blocks, 1)
    tokens = torch.randint(50257, (TOKENS // LENGTH, LENGTH), generator=torch.Generator().manual_seed(2))
    loader = [{"input_ids": part} for part in tokens.split(8)]
    start = time.process_time()
    found = iw.compare(a, b, loader, progress=False, reading=Reading(memory=asked.memory, work=1.0))
    minutes = (time.process_time() - start) / 60 * BLOCKS / asked.blocks
    print(found.summary())
    matrix = torch.randn(3072, 3072, dtype=torch.float64)
    start = time.process_time()
    torch.linalg.svdvals(matrix)
    hours = (time.process_time() - start) * (41 + 4) * BLOCKS**2 / 3600
    print(f"{BLOCKS} blocks: {minutes:.0f} minutes, budget {BUDGET:.0f}: {verdict(BUDGET, minutes)}")
    print(f"Singular values of all pairs of the wide layers would take {hours:.0f} hours.")
    return int(minutes > BUDGET)


if __name__ == "__main__":
    sys.exit(main())
