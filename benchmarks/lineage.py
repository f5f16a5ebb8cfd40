"""Lineage: is the p-value uniform for independent networks, and small for derived ones, laundered or not?

One command fills the tables in ``docs/benchmarks.md``::

    python benchmarks/lineage.py --write

Networks of three kinds are trained on digits from many seeds. All pairs of seeds give the null: two pairs that share
no network, or one, have independent p-values, since each network's units stand in a random order of their own; so the
pairs are pairwise independent, which fixes the spread of their empirical distribution. Derived networks are fine-tuned
for a tenth of the steps, then laundered. Beside it stands the statistic of the independence tests for language models:
the rank correlation of the best assignment of rows with the identity, layer by layer, combined by Fisher's rule.
"""

import argparse
import copy
import math
import sys
from collections.abc import Callable, Iterable
from itertools import combinations, pairwise
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import intertwine as iw
from intertwine.provenance.in_place import in_place
from intertwine.provenance.laundered import _prediction, calibrated, likeness
from intertwine.symmetry.action import tensors_of

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

from model_tracing import layerwise_p  # noqa: E402

STEPS, FINE, BATCH = 200, 20, 64
GROUP = 64  # networks of which all pairs are taken: 2,016
IMAGES, LABELS = (torch.tensor(x) for x in load_digits(return_X_y=True))
IMAGES = (IMAGES / 16).float()


class Transformer(nn.Module):
    """Two blocks of attention over the rows of an image."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.read, self.places = nn.Linear(8, width), nn.Parameter(0.1 * torch.randn(8, width))
        layer = [nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True) for _ in range(2)]
        self.blocks, self.head = nn.ModuleList(layer), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images."""
        h = self.read(x.reshape(-1, 8, 8)) + self.places
        for block in self.blocks:
            h = block(h)
        return self.head(h.mean(1))


def mlp() -> nn.Module:
    """Two hidden layers."""
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))


def cnn() -> nn.Module:
    """Three convolutions."""
    widths, layers = (1, 8, 16, 16), [nn.Unflatten(1, (1, 8, 8))]
    for before, after in pairwise(widths):
        layers += [nn.Conv2d(before, after, 3, 1 + (before > 1), 1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 10))


FAMILIES: dict[str, Callable[[], nn.Module]] = {"MLP": mlp, "CNN with batch norm": cnn, "transformer": Transformer}


def trained(model: nn.Module, steps: int, seed: int, rate: float = 3e-3, targets: Tensor | None = None) -> nn.Module:
    """The model after some steps of Adam, on labels or on a teacher's logits."""
    g = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.train().parameters(), lr=rate)
    for _ in range(steps):
        rows = torch.randint(len(IMAGES), (BATCH,), generator=g)
        optimizer.zero_grad()
        logits = model(IMAGES[rows])
        wanted = LABELS[rows] if targets is None else targets[rows].softmax(-1)
        nn.functional.cross_entropy(logits, wanted).backward()
        optimizer.step()
    return model.eval()


def seeds(name: str, count: int, cache: Path) -> list[nn.Module]:
    """Networks of one kind, from the cache where they are there."""
    found = []
    for seed in range(count):
        torch.manual_seed(seed)
        model, file = FAMILIES[name](), cache / f"{name}-{seed}.pt"
        if file.is_file():
            model.load_state_dict(torch.load(file, weights_only=True))
        else:
            trained(model, STEPS, seed)
            torch.save(model.state_dict(), file)
        found.append(model.eval())
    return found


def log_p(sym: iw.Symmetry, a: nn.Module, b: nn.Module) -> float:
    """The exact test in place."""
    return in_place(sym, tensors_of(a), tensors_of(b)).log_p or 0.0


def uniformity(values: list[float]) -> tuple[float, float, int]:
    """Kolmogorov-Smirnov distance, its p-value, and how many lie at or below 1e-3."""
    from scipy.stats import kstest

    test = kstest(values, "uniform")
    return float(test.statistic), float(test.pvalue), sum(p <= 1e-3 for p in values)


def interval(count: int, rate: float = 1e-3) -> tuple[int, int]:
    """The 99 % interval of a binomial count."""
    from scipy.stats import binom

    return int(binom.ppf(0.005, count, rate)), int(binom.ppf(0.995, count, rate))


def null_rows(nets: dict[str, list[nn.Module]]) -> Iterable[str]:
    """The null: all pairs of seeds."""
    yield "| networks | pairs | KS distance | KS p | at or below 1e-3 (99 % interval) |"
    yield "|---|---|---|---|---|"
    for name, models in nets.items():
        sym = iw.symmetries(models[0], IMAGES[:4])
        for first in range(0, len(models), GROUP):
            group = models[first : first + GROUP]
            values = [math.exp(log_p(sym, a, b)) for a, b in combinations(group, 2)]
            distance, p, few = uniformity(values)
            low, high = interval(len(values))
            label = f"{name}, seeds {first} to {first + len(group) - 1}"
            yield f"| {label} | {len(values):,} | {distance:.4f} | {p:.2f} | {few} ({low} to {high}) |"


def changes(base: nn.Module, seed: int) -> dict[str, nn.Module]:
    """Networks derived from one."""
    noisy = {}
    for size in (1.0, 2.0, 4.0):
        noisy[f"noise of {size:g} standard deviations"] = copy.deepcopy(base)
        torch.manual_seed(seed)
        with torch.no_grad():
            for p in noisy[f"noise of {size:g} standard deviations"].parameters():
                p.add_(size * p.std().nan_to_num() * torch.randn_like(p))
    return {
        "fine-tuned for 10 % of the steps": trained(copy.deepcopy(base), FINE, 1000 + seed),
        "trained again for all steps": trained(copy.deepcopy(base), STEPS, 2000 + seed),
        "trained again at 10 x the rate": trained(copy.deepcopy(base), STEPS, 3000 + seed, 3e-2),
        **noisy,
    }


def power_rows(nets: dict[str, list[nn.Module]], count: int) -> Iterable[str]:
    """Power in place, beside that of the rank correlation."""
    yield "| networks | change | power at 1e-6 | of the rank correlation | power at 1e-3 | of the rank correlation |"
    yield "|---|---|---|---|---|---|"
    for name, models in nets.items():
        sym = iw.symmetries(models[0], IMAGES[:4])
        found: dict[str, list[tuple[float, float]]] = {}
        for seed, base in enumerate(models[:count]):
            for change, other in changes(base, seed).items():
                theirs = layerwise_p(base.state_dict(), other.state_dict())
                found.setdefault(change, []).append((log_p(sym, base, other), theirs))
        for change, pairs in found.items():
            shares = [sum(p[k] <= math.log(x) for p in pairs) / len(pairs) for x in (1e-6, 1e-3) for k in (0, 1)]
            yield f"| {name} | {change} | " + " | ".join(f"{s:.2f}" for s in shares) + " |"


def laundered(sym: iw.Symmetry, model: nn.Module, seed: int) -> dict[str, nn.Module]:
    """Copies that compute the same function, or nearly, in other weights."""

    def move(other: nn.Module, kinds: list[str] | None = None) -> nn.Module:
        return sym.act(sym.random(seed=seed, kinds=kinds), other)

    pruned, head = copy.deepcopy(model), copy.deepcopy(model)
    with torch.no_grad():
        for p in pruned.parameters():
            p.mul_(p.abs() >= p.abs().median())
        list(head.parameters())[-2].normal_(std=0.1)
    return {
        "cast to bfloat16": copy.deepcopy(model).bfloat16().float(),
        "half of the weights pruned": pruned,
        "rescaled": move(model, ["scale"]),
        "permuted": move(model, ["permutation"]),
        "permuted, rescaled, signs and bases of heads": move(model),
        "the same, and cast to bfloat16": move(model).bfloat16().float(),
        "the same, half of the weights pruned": move(pruned),
        "the same, with a new head": move(head),
    }


def laundering_rows(nets: dict[str, list[nn.Module]], count: int, independent: int) -> Iterable[str]:
    """Power after laundering."""
    yield "| networks | fine-tuned for 10 %, then | in place at 1e-6 | in place or calibrated at 1e-6 |"
    yield "|---|---|---|---|"
    for name, models in nets.items():
        sym = iw.symmetries(models[0], IMAGES[:4])
        found: dict[str, list[tuple[float, float]]] = {}
        for seed, base in enumerate(models[:count]):
            others = [tensors_of(c) for c in models[-independent:]]
            tuned = trained(copy.deepcopy(base), FINE, 1000 + seed)
            for kind, b in laundered(sym, tuned, seed).items():
                place, after = log_p(sym, base, b), math.inf
                if place > math.log(1e-6):
                    after = calibrated(sym, tensors_of(base), tensors_of(b), others).log_p + math.log(2)
                found.setdefault(kind, []).append((place, min(place, after)))
        for kind, pairs in found.items():
            shares = [sum(p[k] <= math.log(1e-6) for p in pairs) / len(pairs) for k in (0, 1)]
            yield f"| {name} | {kind} | " + " | ".join(f"{s:.2f}" for s in shares) + " |"


def calibration_rows(nets: dict[str, list[nn.Module]], bases: int, independent: int) -> Iterable[str]:
    """The null of the calibrated test."""
    yield "| networks | tests | KS p | at or below 1e-3 (99 % interval) | smallest p |"
    yield "|---|---|---|---|---|"
    for name, models in nets.items():
        sym, values = iw.symmetries(models[0], IMAGES[:4]), []
        for k, base in enumerate(models[:bases]):
            rest = [c for c in models if c is not base]
            shares = torch.tensor([likeness(sym, tensors_of(base), tensors_of(c)).explained for c in rest])
            order = shares[torch.randperm(len(rest), generator=torch.Generator().manual_seed(k))]
            groups = [g for g in order.split(independent + 1) if len(g) > independent]
            values += [math.exp(_prediction(float(g[0]), g[1:].tolist())) for g in groups]
        _, p, few = uniformity(values)
        low, high = interval(len(values))
        yield f"| {name} | {len(values)} | {p:.2f} | {few} ({low} to {high}) | {min(values):.1e} |"


def attack_rows(nets: dict[str, list[nn.Module]]) -> Iterable[str]:
    """What hides a descent, and what it costs in accuracy."""
    yield "| networks | attack | accuracy | p in place |"
    yield "|---|---|---|---|"
    for name, models in nets.items():
        base, sym = models[0], iw.symmetries(models[0], IMAGES[:4])
        torch.manual_seed(77)
        fresh = FAMILIES[name]()
        made = {
            "distilled into a fresh network": trained(fresh, STEPS, 7, targets=base(IMAGES).detach()),
            "trained 4 times as long": trained(copy.deepcopy(base), 4 * STEPS, 8),
            "trained 4 times as long at 10 x the rate": trained(copy.deepcopy(base), 4 * STEPS, 9, 3e-2),
            "noise of 4 standard deviations, trained again": trained(
                changes(base, 5)["noise of 4 standard deviations"], STEPS, 10
            ),
        }
        for attack, b in made.items():
            accuracy = float((b(IMAGES).argmax(1) == LABELS).float().mean())
            yield f"| {name} | {attack} | {accuracy:.1%} | 1e{log_p(sym, base, b) / math.log(10):.1f} |"


def main() -> None:
    """Print the tables; with ``--write`` also put them into the documentation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=64, help="networks of each kind; every 64 give 2,016 pairs")
    parser.add_argument("--derived", type=int, default=20, help="networks that others are derived from")
    parser.add_argument("--bases", type=int, default=4, help="networks that all others are matched to")
    parser.add_argument("--independent", type=int, default=8, help="networks that calibrate")
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "lineage", help="folder for trained networks")
    parser.add_argument("--only", nargs="*", default=list(FAMILIES), help="kinds of networks")
    parser.add_argument("--write", action="store_true", help="replace the tables in docs/benchmarks.md")
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    nets = {name: seeds(name, options.seeds, options.cache) for name in options.only}
    tables = {
        "null": null_rows(nets),
        "power": power_rows(nets, options.derived),
        "attacks": attack_rows(nets),
        "laundering": laundering_rows(nets, options.derived, options.independent),
        "calibration": calibration_rows(nets, options.bases, options.independent),
    }
    page = ROOT / "docs" / "benchmarks.md"
    for name, rows in tables.items():
        table = ""
        print(f"\n{name}")
        for row in rows:
            print(row, flush=True)
            table += f"{row}\n"
        if options.write:
            before, _, rest = page.read_text().partition(f"<!-- lineage {name} -->\n")
            _, _, after = rest.partition(f"<!-- end lineage {name} -->")
            page.write_text(f"{before}<!-- lineage {name} -->\n{table}<!-- end lineage {name} -->{after}")


if __name__ == "__main__":
    main()
