"""Layer CKA: every block of a ResNet20 against every block of a ResNet32, on 2,000 CIFAR-10 images in batches of 250.

Compares ``compare`` (exact, and estimated from blocks) with two forward passes alone, and with the
packages torch_cka and pytorch-cka where they are installed. Times are seconds, best of several; the limits are ratios
of one run, which a busy machine distorts, and ``pytorch-cka`` takes turns with the estimate.

    python benchmarks/layer_cka.py [--quick] [--minibatch]
"""

import argparse
import contextlib
import copy
import io
import os
import sys
import warnings
from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from _timing import best_in_turns, best_of, describe, sgemm_rate, verdict
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import intertwine as iw
from intertwine.features import Reading, collect, layers
from intertwine.lab import networks
from intertwine.similarity.measures.kernels import linear_gram

BLOCKS = "layer[0-9].[0-9]"
GRAM_RATE, OVERHEAD = 1.3, 1.4  # least rate of the Gram matrices over sgemm; most time in units of them
BIT = 100  # bytes of memory per pair of examples that force the features out of memory, but hold the Gram matrices


def images(count: int) -> Tensor:
    """CIFAR-10 test images where there are any, else noise of their size."""
    root = Path(os.environ.get("INTERTWINE_DATA", Path(__file__).parents[2] / "shared" / "data"))
    path = root / "cifar10" / "test.parquet"
    if not path.exists():
        print("data: noise (no CIFAR-10 parquet found)")
        return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    rows = pq.read_table(path, columns=["img"])["img"].slice(0, count).to_pylist()
    pixels = np.stack([np.asarray(Image.open(io.BytesIO(row["bytes"]))) for row in rows])
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).float().div(255).sub(0.5).contiguous()


def forward(models: list[nn.Module], batches: list[Tensor]) -> None:
    """Both networks on all images, nothing kept."""
    with torch.no_grad():
        for part in batches:
            for model in models:
                model(part)


def rivals() -> dict[str, Callable[..., None]]:
    """The other packages that are installed."""
    known = {"cka": ("pytorch-cka", pytorch_cka), "torch_cka": ("torch_cka", torch_cka)}
    for module, (name, _) in known.items():
        if find_spec(module) is None:
            print(f"{name}: not installed")
    return {name: run for module, (name, run) in known.items() if find_spec(module)}


def silent(run: Callable[[], object]) -> None:
    """Run with its output hidden."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        run()


def torch_cka(a: nn.Module, b: nn.Module, loader: DataLoader, names_a: list[str], names_b: list[str]) -> None:
    """The same pairs by torch_cka."""
    from torch_cka import CKA

    CKA(copy.deepcopy(a), copy.deepcopy(b), "a", "b", names_a, names_b).compare(loader)


def pytorch_cka(a: nn.Module, b: nn.Module, loader: DataLoader, names_a: list[str], names_b: list[str]) -> None:
    """The same pairs by pytorch-cka."""
    from cka import compute_cka

    compute_cka(a, b, loader, layers=names_a, model2_layers=names_b, progress=False)


def report(what: str, seconds: float, unit: float) -> None:
    """One line: seconds, and in units of the two forward passes."""
    print(f"{what:<52}{seconds:8.2f} s{seconds / unit:8.2f} x forward")


def measure_exact(a: nn.Module, b: nn.Module, batches: list[Tensor], repeats: int) -> list[tuple[str, float, float]]:
    """Time the exact estimator, print it, and return its budgets: what, value, least."""
    count = sum(map(len, batches))
    features = [f for net in (a, b) for f in collect(net, batches, BLOCKS).values()]
    sgemm = sgemm_rate()
    grams = best_of(lambda: [linear_gram(f) for f in features], repeats)
    work = sum(2.0 * count**2 * f[0].numel() for f in features)
    rate = work / grams / max(sgemm, sgemm_rate())
    features.clear()
    passes = best_of(lambda: forward([a, b], batches), repeats)
    plain = {"resampling": None, "measures": "linear_cka", "exact": True}
    exact = best_of(lambda: iw.compare(a, b, batches, BLOCKS, **plain), repeats)
    spooled = best_of(lambda: iw.compare(a, b, batches, BLOCKS, reading=Reading(memory=BIT * count**2), **plain), 1)
    checked = best_of(
        lambda: iw.compare(
            a, b, batches, BLOCKS, measures="linear_cka", resampling=iw.similarity.Resampling(untrained=0), exact=True
        ),
        1,
    )
    print(f"sgemm {sgemm / 1e9:.0f} GF/s")
    report("two forward passes alone", passes, passes)
    report("Gram matrices alone", grams, passes)
    report("compare, exact linear CKA", exact, passes)
    report("compare, features in temporary files", spooled, passes)
    report("compare, with chance levels and intervals", checked, passes)
    return [
        ("Gram matrices, rate over sgemm", rate, GRAM_RATE),
        ("exact: (forward + 1.4 Grams) / total", (passes + OVERHEAD * grams) / exact, 1.0),
    ]


def measure_minibatches(
    a: nn.Module, b: nn.Module, batches: list[Tensor], repeats: int
) -> list[tuple[str, float, float]]:
    """The same for the minibatch estimators, which take turns with the forward passes."""
    batch = len(batches[0])
    loader = DataLoader(TensorDataset(torch.cat(batches)), batch_size=batch)
    names = [[p.name for p in layers(net, batches[0]) if fnmatchcase(p.name, BLOCKS)] for net in (a, b)]
    runs = {
        "two forward passes alone": partial(forward, [a, b], batches),
        "compare": lambda: iw.compare(a, b, batches, BLOCKS, "linear_cka", resampling=None, exact=False),
    } | {name: partial(silent, partial(run, a, b, loader, *names)) for name, run in rivals().items()}
    seconds = dict(zip(runs, best_in_turns(list(runs.values()), repeats)))
    for name, spent in seconds.items():
        report(name, spent, seconds["two forward passes alone"])
    rival = seconds.get("pytorch-cka")
    return [] if rival is None else [("minibatch: pytorch-cka / ours", rival / seconds["compare"], 1.0)]


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="500 images, best of 1; the budgets do not hold there")
    parser.add_argument("--minibatch", action="store_true", help="the minibatch estimators only")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    count, batch, repeats = (500, 125, 1) if options.quick else (2000, 250, 5)
    a, b = networks.build("resnet20").eval(), networks.build("resnet32").eval()
    batches = list(images(count).split(batch))
    print(describe())
    print(f"blocks of a ResNet20 x blocks of a ResNet32, {count} images in batches of {batch}")
    limits = [] if options.minibatch else measure_exact(a, b, batches, repeats)
    limits += measure_minibatches(a, b, batches, repeats)
    for what, value, budget in limits:
        print(f"{what:<52}{value:8.2f}   budget >= {budget:.2f}   {verdict(value, budget)}")
    met = all(value >= budget for _, value, budget in limits)
    sys.exit(0 if met or options.quick else 1)


if __name__ == "__main__":
    main()
