"""Barriers between networks trained on digits from different seeds, before and after alignment.

Five pairs of ten networks for each architecture, 25 points on each path, scored on the test split; batch norms are
recalibrated on the training split. Intervals are over networks. Networks are trained on the spot and kept in --cache.

``--methods rebasin`` is the package of that name (permutations, matched by weights), scored in the same way.

Run: OMP_NUM_THREADS=1 python benchmarks/barrier.py [--pairs 5] [--methods weights,activations,mixed] [--data digits]
     [--first-seed 0] [--models "mlp:widths=128-128;digits_cnn;digits_cnn:bn=false"]
"""

import argparse
import copy
import tempfile
import time
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace

import torch

from intertwine.lab import data as lab_data
from intertwine.lab import training
from intertwine.lab.networks import build, fit_to
from intertwine.merging import PathOptions, barriers

MODELS = "mlp:widths=128-128;digits_cnn;digits_cnn:bn=false"


def networks(spec, splits, seeds, cache):
    """A trained network of each seed."""
    found = []
    for seed in seeds:
        path = Path(cache) / f"{spec.replace(':', '_').replace(',', '_')}-{splits.name}-{seed}.safetensors"
        training.train(spec, splits, seed=seed, out=path)
        model = build(fit_to(spec, splits.shape, len(splits.classes)))
        found.append(training.load_checkpoint(path, model).requires_grad_(requires_grad=False))
    return found


def said(found, path, recalibrated, measure="loss"):
    """A mean with its interval over networks."""
    heights = found.heights(path, recalibrated, measure)
    if not heights:
        return "-"
    interval = found.interval(path, recalibrated, measure)
    return f"{fmean(heights):.3f}" + ("" if interval is None else f" [{max(interval.low, 0):.3f}, {interval.high:.3f}]")


def by_rebasin(a, b, example):
    """What the package ``rebasin`` makes of b, as ``barriers`` takes an alignment."""
    from rebasin import PermutationCoordinateDescent

    moved = copy.deepcopy(b)
    PermutationCoordinateDescent(copy.deepcopy(a), moved, example, logging_level="ERROR").rebasin()
    return SimpleNamespace(apply=lambda _: moved, method="rebasin")


def row(spec, method, kinds, models, pairs, splits, points):
    """One line of the table."""
    start = time.process_time()
    test, train = splits.loader("test"), splits.loader("train", batch_size=500)
    example = test.batch(slice(0, 2))[0]
    peer = [by_rebasin(models[i], models[j], example) for i, j in pairs] if method == "rebasin" else None
    found = barriers(
        models,
        test,
        points,
        pairs,
        alignments=peer or method,
        options=PathOptions(calibration=train, example_inputs=example, kinds=kinds),
    )
    best = ("aligned", True) in found.variants
    before, after = (fmean(found.heights(path, best)) for path in ("direct", "aligned"))
    cells = [spec, method, "all" if kinds is None else "permutations"]
    cells += [said(found, path, again) for again in (False, True) for path in ("direct", "aligned")]
    cells += [f"{after / before:.1%}", said(found, "aligned", best, "accuracy"), f"{time.process_time() - start:.0f} s"]
    return cells


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=MODELS, help="networks, joined by semicolons")
    parser.add_argument("--methods", default="weights,activations,mixed")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--points", type=int, default=25)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--cache", default=str(Path(tempfile.gettempdir()) / "intertwine-barrier"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    splits = lab_data.load(options.data)
    pairs = [(2 * k, 2 * k + 1) for k in range(options.pairs)]
    heads = ["network", "method", "kinds", "before", "after", "before, BN recal.", "after, BN recal.", "after/before"]
    heads += ["accuracy barrier", "processor time"]
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
    for spec in options.models.split(";"):
        seeds = range(options.first_seed, options.first_seed + 2 * options.pairs)
        models = networks(spec, splits, seeds, options.cache)
        for method in options.methods.split(","):
            for kinds in ({"permutation"}, None)[: 1 if method == "rebasin" else 2]:
                print(
                    "| " + " | ".join(row(spec, method, kinds, models, pairs, splits, options.points)) + " |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
