"""Speed and memory of the Gram matrices behind G_ReLU-CKA and linear CKA.

Rates are 2 N^2 C H W / time, as a share of this machine's sgemm rate measured before and after in the same run; one
triangle suffices, so 2 is the ceiling.

    python benchmarks/max_kernel.py [--quick] [--device cuda]
"""

import argparse
import os
import sys

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # silences the memory profiler's own lines

import torch
from _timing import best_of, describe, sgemm_rate, verdict

from intertwine.similarity.measures.kernels import add_product, max_gram, mirror

# N, C, H = W (0: no spatial axes), budget
SHAPES = [
    (512, 64, 32, 1.0),
    (1024, 64, 16, 1.0),
    (4096, 64, 16, 1.0),
    (1024, 256, 8, 0.75),
    (2048, 512, 4, 0.6),
    (2048, 512, 0, 0.15),
]
QUICK = [(256, 32, 16, 1.0), (512, 64, 8, 0.75), (512, 128, 4, 0.6), (1024, 128, 0, 0.15)]
MEMORY_BUDGET = 64  # MB beside the Gram matrix


def main() -> int:
    """Print the table; return how many lines miss their budget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="small shapes, for a smoke test; budgets are for the full run"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print(describe(options.device))
    failed = 0
    titles = f"{'N':>6} {'C':>5} {'space':>7} {'sgemm GF/s':>11} {'ms':>9} {'ratio':>6} {'budget':>7} {'extra MB':>9}"
    print(titles + "  verdict")
    for n, c, side, budget in QUICK if options.quick else SHAPES:
        x = torch.randn(n, c, *[side] * (2 if side else 0), device=options.device)
        failed += line(x, budget, lambda x=x: max_gram(x), options)
    n = 512 if options.quick else 2000
    x = torch.randn(n, 8192, device=options.device)
    failed += line(x, 1.3, lambda: linear(x), options, "linear CKA")
    return failed if not options.quick else 0


def linear(x: torch.Tensor) -> torch.Tensor:
    """The symmetric product behind linear CKA."""
    gram = torch.zeros(len(x), len(x), device=x.device)
    add_product(gram, x)
    return mirror(gram)


def line(x: torch.Tensor, budget: float, work, options: argparse.Namespace, what: str = "max kernel") -> int:
    """Time one Gram matrix, print a line, return 1 if it misses its budget."""
    before = sgemm_rate(repeats=options.repeats, device=options.device)
    seconds = best_of(work, options.repeats, options.device)
    after = sgemm_rate(repeats=options.repeats, device=options.device)
    memory = extra_memory(work, len(x), options.device)
    sgemm = max(before, after)
    ratio = 2 * len(x) * x.numel() / seconds / sgemm
    ok = verdict(ratio, budget) if memory <= MEMORY_BUDGET else "FAIL"
    space = "x".join(map(str, x.shape[2:])) or "-"
    print(
        f"{len(x):6d} {x.shape[1]:5d} {space:>7} {sgemm / 1e9:11.1f} {seconds * 1e3:9.1f} {ratio:6.2f} {budget:7.2f} "
        f"{memory:9.1f}  {ok}  {what}",
        flush=True,
    )
    return ok == "FAIL"


def extra_memory(work, n: int, device: str) -> float:
    """Peak memory beside the Gram matrix in MB, as the allocator saw it."""
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        work()
        return (torch.cuda.max_memory_allocated() - held - 4 * n * n) / 2**20
    with torch.profiler.profile(profile_memory=True) as seen:
        work()
    held = peak = 0
    for event in seen.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return (peak - 4 * n * n) / 2**20


if __name__ == "__main__":
    sys.exit(main() > 0)
