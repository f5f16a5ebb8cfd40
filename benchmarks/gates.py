"""Speed and memory of path and tangent kernels, as ratios to naive versions measured in the same run.

python benchmarks/gates.py [--quick] [--device cuda]
"""

import argparse
import itertools
import subprocess
import sys
import time

import torch
from _timing import best_of as shortest
from _timing import describe, peak_memory, verdict
from torch import nn
from torch.func import functional_call, jacrev, vmap

import intertwine as iw
from intertwine.lab import networks


def best_of(work, repeats, device):
    """Shortest run: processor time on a CPU, which others may share, and time on the clock elsewhere."""
    return shortest(work, repeats, device, time.process_time if device == "cpu" else time.perf_counter)


def mlp(sizes, bias=False):
    """ReLU between linear layers."""
    layers = [m for a, b in itertools.pairwise(sizes[:-1]) for m in (nn.Linear(a, b, bias=bias), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(*sizes[-2:], bias=bias))


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
    """The kernel of a model, capture and gates included, against the same Gram products."""
    n = 500 if options.quick else 2000
    failed = 0
    for name, bias in (("a model's", False), ("with biases", True)):
        model, x = mlp([64] + [512] * 7 + [10], bias).to(options.device), torch.rand(n, 64, device=options.device)
        floats = [g.float() for g in iw.gates.gate_patterns(model, x).values()]
        out = torch.empty(n, n, device=options.device)
        naive = best_of(lambda f=floats, o=out: [torch.mm(g, g.T, out=o) for g in f], options.repeats, options.device)
        run = lambda m=model, x=x: iw.gates.neural_path_kernel(m, x)
        ours = best_of(run, options.repeats, options.device)
        failed += report(
            f"path kernel, {name}", ours, naive, ours / naive, "x of Grams, at most 0.85", naive * 0.85 / ours
        )
    return failed


def large_kernels(options):
    """10,000 inputs: the memory beside gates and result must not grow with them."""
    failed = 0
    for name in ("fully connected", "convolutions"):
        seconds, growth, needed = peak(f"large {name}")
        text = f"{growth:.2f} GiB, gates and kernel {needed:.2f}"
        failed += growth > needed + 0.75
        print(f"{'10,000 inputs, ' + name:34s} {seconds:9.1f} s   {text}  {verdict((needed + 0.75) / growth, 1.0)}")
    return failed


def tangent_memory(options):
    """CNNs on whole images: memory beyond the model's and the images', at budgets of 64 and 256 MiB.

    The small CNN is not judged: its kernel and the Jacobian of all images alone are a quarter of what the peer takes.
    """
    failed = 0
    for name, judged in (("small CNN", False), ("ResNet20", True)):
        ours, naive = peak(f"tangent {name}, ours"), peak(f"tangent {name}, naive")
        ratio = ours[1] / naive[1]
        text = f"{ours[1] * 1024:.0f} MiB in {ours[0]:.1f} s, vmap(jacrev) {naive[1] * 1024:.0f} in {naive[0]:.1f}"
        said = f"at most 0.25  {verdict(0.25 / ratio, 1.0)}" if judged else "not judged"
        print(f"{f'tangent memory, {name}':34s} {text}  {ratio:.2f} x, {said}")
        failed += judged and ratio > 0.25
    return failed


def peak(what):
    """Seconds, growth of the highest memory in GiB, and GiB that are needed, of a piece of work in its own process."""
    out = subprocess.run([sys.executable, __file__, "--peak", what], check=True, capture_output=True, text=True).stdout
    return tuple(map(float, out.split()))


def measure_peak(what):
    """What ``peak`` runs: a warm-up on one example, then the work."""
    torch.manual_seed(0)
    work, size = what.split(" ", 1)
    needed = 0.0
    if work == "large":
        fc = size == "fully connected"
        model = mlp([64] + [512] * 7 + [10]) if fc else flat_cnn()
        x = torch.rand(10_000, 64) if fc else torch.rand(10_000, 1, 8, 8)
        gates = 7 * 512 if fc else 2 * 8 * 16
        needed = (10_000**2 * 8 + 10_000 * gates) / 2**30
        run = lambda z: iw.gates.neural_path_kernel(model, z, log=fc)
        needed += 10_000**2 / 2**30 if fc else 0.0  # signs
    else:
        resnet = networks.build("resnet20").eval()
        model, x = resnet if size.startswith("ResNet20") else small_cnn(), torch.randn(64, 3, 32, 32)
        ours = lambda z: iw.gates.neural_tangent_kernel(model, z, memory=2**28 if model is resnet else 2**26)
        run = naive_tangent(model) if size.endswith("naive") else ours
    run(x[:1])
    before, start = peak_memory(), time.process_time()
    run(x)
    seconds = time.process_time() - start
    print(seconds, (peak_memory() - before) / 1024, needed)


def small_cnn():
    """Two convolutions of 32 channels on whole images."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(32, 10),
    ).eval()  # fmt: skip


def flat_cnn():
    """Convolutions without pooling over pairs of positions."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, 2, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Flatten(),
        nn.Linear(128, 10),
    ).eval()  # fmt: skip


def naive_tangent(model):
    """Jacobians by vmap(jacrev) in chunks of 8, contracted."""
    parameters = {n: p.detach() for n, p in model.named_parameters()}
    f = lambda p, example: functional_call(model, p, (example[None],))[0]  # in evaluation mode

    def run(x):
        jacobians = vmap(jacrev(f), (None, 0), chunk_size=8)(parameters, x)
        return sum(torch.einsum("nop,mkp->nmok", j.flatten(2), j.flatten(2)) for j in jacobians.values())

    return run


def tangent_kernel(name, model, x, least, options):
    """Full NTK against vmap(jacrev) in chunks of 8."""
    model, x = model.to(options.device).eval(), x.to(options.device)
    ours = best_of(lambda: iw.gates.neural_tangent_kernel(model, x), options.repeats, options.device)
    naive = naive_tangent(model)
    base = best_of(lambda: naive(x), options.repeats, options.device)
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
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        measure_peak(options.peak)
        return 0
    print(describe(options.device))
    torch.manual_seed(0)
    n, width, channels = (16, 64, 32) if options.quick else (64, 256, 256)
    deep = nn.Sequential(
        nn.Conv2d(3, channels, 3, 4, 1), nn.ReLU(), nn.Conv2d(channels, channels, 3, 4, 1), nn.ReLU(),
        nn.Conv2d(channels, channels, 3, 1, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(channels, 10),
    )  # fmt: skip
    images = torch.randn(n, 3, 32, 32)
    failed = path_kernel(options) + general_kernel(options)
    failed += tangent_kernel("fully connected", mlp([784, width, width, 10]), torch.randn(n, 784), 50, options)
    failed += tangent_kernel("small maps", deep, images[: n // 2], 10, options)
    failed += tangent_kernel("32x32 maps", small_cnn(), images, 0.8, options)
    if not options.quick and options.device == "cpu":
        failed += tangent_memory(options) + large_kernels(options)
    return 0 if options.quick else failed


if __name__ == "__main__":
    sys.exit(main() > 0)
