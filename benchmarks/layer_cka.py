"""Layer CKA: every block of a ResNet20 against every block of a ResNet32, on 2,000 CIFAR-10 images in batches of 250.

Compares ``compare`` (exact, all pairs of examples) and ``minibatch_cka`` with two forward passes alone, and with the
packages torch_cka and pytorch-cka where they are installed. Times are seconds, best of several; the limits are ratios
of one run, which a busy machine distorts.

    python benchmarks/layer_cka.py [--quick]
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
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from _timing import best_of, describe, sgemm_rate, verdict
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import intertwine as iw
from intertwine.features import Reading, collect, layers
from intertwine.lab import networks
from intertwine.similarity import minibatch_cka
from intertwine.similarity.kernels.linear import linear_gram

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


def rival(name: str, run: Callable[[], object], repeats: int) -> float | None:
    """Seconds of another package, its output hidden; ``None`` where it is not installed."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return best_of(run, repeats)
    except ImportError:
        print(f"{name}: not installed")
        return None


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


def measure(a: nn.Module, b: nn.Module, x: Tensor, batch: int, repeats: int) -> bool:
    """Time everything, print it, and say whether the budgets are met."""
    batches = list(x.split(batch))
    loader = DataLoader(TensorDataset(x), batch_size=batch)
    names_a, names_b = ([p.name for p in layers(net, x[:2]) if fnmatchcase(p.name, BLOCKS)] for net in (a, b))
    features = [f for net in (a, b) for f in collect(net, batches, BLOCKS).values()]
    sgemm = sgemm_rate()
    grams = best_of(lambda: [linear_gram(f) for f in features], repeats)
    work = sum(2.0 * len(x) ** 2 * f[0].numel() for f in features)
    rate = work / grams / max(sgemm, sgemm_rate())
    features.clear()
    passes = best_of(lambda: forward([a, b], batches), repeats)
    plain = {"null": 0, "bootstrap": 0, "measures": "linear_cka"}
    exact = best_of(lambda: iw.compare(a, b, batches, BLOCKS, **plain), repeats)
    spooled = best_of(lambda: iw.compare(a, b, batches, BLOCKS, reading=Reading(memory=BIT * len(x) ** 2), **plain), 1)
    checked = best_of(lambda: iw.compare(a, b, batches, BLOCKS, measures="linear_cka"), 1)
    mini = best_of(lambda: minibatch_cka(a, b, batches, BLOCKS, group=batch), repeats)
    theirs = rival("pytorch-cka", lambda: pytorch_cka(a, b, loader, names_a, names_b), repeats)
    oldest = rival("torch_cka", lambda: torch_cka(a, b, loader, names_a, names_b), 1)

    print(
        f"{len(names_a)} x {len(names_b)} blocks, {len(x)} images in batches of {batch}; sgemm {sgemm / 1e9:.0f} GF/s"
    )
    report("two forward passes alone", passes, passes)
    report("Gram matrices alone", grams, passes)
    report("compare, exact linear CKA", exact, passes)
    report("compare, features in temporary files", spooled, passes)
    report("compare, with chance levels and intervals", checked, passes)
    report("minibatch_cka", mini, passes)
    for name, seconds in (("pytorch-cka (minibatches)", theirs), ("torch_cka (minibatches)", oldest)):
        if seconds is not None:
            report(name, seconds, passes)
    limits = [
        ("Gram matrices, rate over sgemm", rate, GRAM_RATE),
        ("exact: (forward + 1.4 Grams) / total", (passes + OVERHEAD * grams) / exact, 1.0),
    ]
    if theirs is not None:
        limits.append(("minibatch: pytorch-cka / ours", theirs / mini, 1.0))
    for what, value, budget in limits:
        print(f"{what:<52}{value:8.2f}   budget >= {budget:.2f}   {verdict(value, budget)}")
    return all(value >= budget for _, value, budget in limits)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="500 images, best of 1; the budgets do not hold there")
    quick = parser.parse_args().quick
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    count, batch, repeats = (500, 125, 1) if quick else (2000, 250, 5)
    a, b = networks.build("resnet20").eval(), networks.build("resnet32").eval()
    print(describe())
    met = measure(a, b, images(count), batch, repeats)
    sys.exit(0 if met or quick else 1)


if __name__ == "__main__":
    main()
