"""Speed of path and tangent kernels, as ratios to naive versions measured in the same run.

python benchmarks/gates.py [--quick] [--device cuda]
"""

import argparse
import itertools
import sys

import torch
from _timing import best_of, describe, verdict
from torch import nn
from torch.func import functional_call, jacrev, vmap

import intertwine as iw


def mlp(sizes):
    """ReLU between linear layers without biases."""
    layers = [m for a, b in itertools.pairwise(sizes[:-1]) for m in (nn.Linear(a, b, bias=False), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(*sizes[-2:], bias=False))


def path_kernel(options):
    """Fully connected, depth 8, width 512: against the full Gram products alone, with gates given."""
    n = 500 if options.quick else 2000
    x = torch.rand(n, 64, device=options.device)
    gates = [torch.rand(n, 512, device=options.device) > 0.5 for _ in range(7)]
    floats = [g.float() for g in gates]
    out = torch.empty(n, n, device=options.device)
    naive = best_of(lambda: [torch.mm(g, g.T, out=out) for g in floats], options.repeats, options.device)
    failed = 0
    for name, log in (("product", False), ("log domain", True)):
        ours = best_of(lambda log=log: iw.gates.product_kernel(x, gates, log=log), options.repeats, options.device)
        failed += report(
            f"path kernel, {name}", ours, naive, ours / naive, "x of Grams, at most 0.85", naive * 0.85 / ours
        )
    return failed


def general_kernel(options):
    """The general kernel, capture and gates included, against the same Gram products."""
    n = 500 if options.quick else 2000
    model, x = mlp([64] + [512] * 7 + [10]).to(options.device), torch.rand(n, 64, device=options.device)
    floats = [g.float() for g in iw.gates.gate_patterns(model, x).values()]
    out = torch.empty(n, n, device=options.device)
    naive = best_of(lambda: [torch.mm(g, g.T, out=out) for g in floats], options.repeats, options.device)
    ours = best_of(lambda: iw.gates.neural_path_kernel(model, x), options.repeats, options.device)
    return report("path kernel, any network", ours, naive, ours / naive, "x of Grams, no budget", 1.0)


def tangent_kernel(name, model, x, least, options):
    """Full NTK against vmap(jacrev) in chunks of 8."""
    model, x = model.to(options.device).eval(), x.to(options.device)
    parameters = {n: p.detach() for n, p in model.named_parameters()}
    f = lambda p, example: functional_call(model, p, (example[None],))[0]

    def naive():
        jacobians = vmap(jacrev(f), (None, 0), chunk_size=8)(parameters, x)
        return sum(torch.einsum("nop,mkp->nmok", j.flatten(2), j.flatten(2)) for j in jacobians.values())

    ours = best_of(lambda: iw.gates.neural_tangent_kernel(model, x), options.repeats, options.device)
    base = best_of(naive, 1, options.device)
    return report(
        f"tangent kernel, {name}", ours, base, base / ours, f"x faster, at least {least}", base / ours / least
    )


def report(name, ours, naive, ratio, unit, margin):
    """Print a line; return 1 where the budget is missed."""
    print(f"{name:34s} {ours * 1e3:9.1f} ms  naive {naive * 1e3:9.1f} ms  {ratio:8.2f} {unit}  {verdict(margin, 1.0)}")
    return margin < 1


def main():
    """Print the table; return how many lines miss their budget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes; budgets are for the full run")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print(describe(options.device))
    torch.manual_seed(0)
    n, width, channels = (16, 64, 32) if options.quick else (64, 256, 256)
    deep = nn.Sequential(
        nn.Conv2d(3, channels, 3, 4, 1), nn.ReLU(), nn.Conv2d(channels, channels, 3, 4, 1), nn.ReLU(),
        nn.Conv2d(channels, channels, 3, 1, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(channels, 10),
    )  # fmt: skip
    small = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip
    images = torch.randn(n, 3, 32, 32)
    failed = path_kernel(options) + general_kernel(options)
    failed += tangent_kernel("fully connected", mlp([784, width, width, 10]), torch.randn(n, 784), 50, options)
    failed += tangent_kernel("small maps", deep, images[: n // 2], 10, options)
    failed += tangent_kernel("32x32 maps", small, images, 0.8, options)
    return 0 if options.quick else failed


if __name__ == "__main__":
    sys.exit(main() > 0)
