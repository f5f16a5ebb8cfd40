"""Stitching many families at one layer, against one run of the trunk and as many tails measured in the same run.

python benchmarks/stitching.py [--quick] [--device cuda]
"""

import argparse
import sys

import torch
import torch.nn.functional as F
from _timing import best_of, describe, verdict

from intertwine.lab import networks
from intertwine.stitching import Pair, Recipe, family_of, recalibrate, stream_moments, train_layers

FAMILIES = ("g_relu", "g_relu", "g_relu", "softsort", "full", "rank-1", "rank-4", "lasso")


def setup(spec, layer, options):
    """A pair of networks with random weights, cut; some batches of made images."""
    torch.manual_seed(0)
    a, b = (networks.build(spec).eval().to(options.device) for _ in range(2))
    batches = [
        (torch.randn(32, 3, 32, 32, device=options.device), torch.randint(0, 10, (32,), device=options.device))
        for _ in range(2 if options.quick else 8)
    ]
    pair = Pair(a, b, batches[0])
    return a, b, pair, pair.cut(layer), batches


def stitched(cut, families=FAMILIES):
    """One network for each family, at its random start."""
    layers = [family_of(name, cut.tap.c_in, cut.tap.c_out, seed=i) for i, name in enumerate(families)]
    return [cut.stitch(layer.to(next(cut.tail.buffers()).device)) for layer in layers]


def tails_alone(nets, crossings, labels, project):
    """What must be done for k tails whose inputs are there already: forwards, backwards, SGD, and the projection."""
    for net in nets:
        net.train()
        optimizer = torch.optim.SGD(net.trainable(), lr=1e-3, momentum=0.9)
        for crossing, y in zip(crossings, labels):
            optimizer.zero_grad()
            (F.cross_entropy(net.finish(crossing), y) + net.layer.regulariser()).backward()
            optimizer.step()
            if project:
                net.layer.after_step(1e-3)


def training(name, spec, layer, options):
    """One epoch of all families at once, whole."""
    _, _, _, cut, batches = setup(spec, layer, options)
    inputs, labels = [x for x, _ in batches], [y for _, y in batches]
    crossings = [cut.trunk(x) for x in inputs]
    nets, recipe = stitched(cut), Recipe(epochs=1, head_start=0, keep="last")  # judging comes once per epoch
    time = lambda work: best_of(work, options.repeats, options.device)
    trunk = time(lambda: [cut.trunk(x) for x in inputs])
    tails = time(lambda: tails_alone(nets, crossings, labels, True))
    whole = time(lambda: train_layers(nets, batches, recipe))
    separate = time(lambda: [train_layers([net], batches, recipe) for net in nets])
    ratio = whole / (trunk + tails)
    print(
        f"{name:28s} {len(nets)} families: {whole:6.2f} s; trunk {trunk:5.2f} s, tails {tails:6.2f} s; one by one "
        f"{separate:6.2f} s; {ratio:5.2f} of trunk and tails, at most 1.10  {verdict(1.1 / ratio, 1.0)}"
    )
    return ratio > 1.1


def closed_form(name, spec, layer, options):
    """Moments and the closed forms of all families, against one pass of both networks over the data."""
    a, b, pair, cut, batches = setup(spec, layer, options)
    nets = stitched(cut)

    def passes():
        with torch.no_grad():
            for x, _ in batches:
                a(x), b(x)

    def fit():
        (moments,) = stream_moments(pair, [cut], batches)[0]
        for net in nets:
            net.layer.start(moments)

    base = best_of(passes, options.repeats, options.device)
    ours = best_of(fit, options.repeats, options.device)
    anew = best_of(lambda: recalibrate(nets, batches), options.repeats, options.device)
    print(
        f"{name:28s} {len(nets)} closed forms: {ours:6.2f} s; one pass {base:6.2f} s; {ours / base:5.2f} of a pass, at "
        f"most 1.20  {verdict(1.2 * base / ours, 1.0)}; batch norm of all anew {anew:6.2f} s"
    )
    return ours > 1.2 * base


def main():
    """Print the table; return how many lines miss their budget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer batches; budgets are for the full run")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print(describe(options.device))
    failed = 0
    for name, spec, layer in (
        ("resnet20 at layer1.2.relu2", "resnet20", "layer1.2.relu2"),
        ("resnet20 at layer3.0.relu2", "resnet20", "layer3.0.relu2"),
        ("myrtle_cnn at relu3", "myrtle_cnn", "relu3"),
    ):
        failed += training(name, spec, layer, options) + closed_form(name, spec, layer, options)
    return 0 if options.quick else failed


if __name__ == "__main__":
    sys.exit(main() > 0)
