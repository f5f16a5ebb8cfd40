"""Lineage: is the p-value uniform for independent networks, and small for derived ones, laundered or not?

One command fills the tables in ``docs/benchmarks.md``::

    python benchmarks/lineage.py --data DIR --write

Networks of four kinds are trained from 2,017 seeds each. The null pairs each network with the next one: given the
first, the second one's p-value depends on the order of the second's units alone, which is uniformly random, so the
2,016 p-values are independent of each other and Kolmogorov and Smirnov's test holds. (All pairs of fewer networks are
pairwise independent only.) Derived networks are fine-tuned for a tenth of the steps, then laundered. Beside it stands
the statistic of the independence tests for language models: the rank correlation of the best assignment of rows with
the identity, layer by layer, combined by Fisher's rule.
"""

import argparse
import copy
import json
import math
import sys
from collections.abc import Iterable
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from networks import seeds as nets_of
from networks.seeds import KINDS, Kind, seeds, trained
from torch import Tensor, nn

import intertwine as iw
from intertwine.provenance.after_matching import likeness, log_chance
from intertwine.provenance.comparable import compared
from intertwine.provenance.units import ordered_spaces, resized, views
from intertwine.symmetry.action import act_, tensors_of
from intertwine.symmetry.blocks import blocks
from intertwine.symmetry.coupling import kept_rows
from intertwine.symmetry.spaces import axis_size

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

from model_tracing import layerwise_p  # noqa: E402

State = dict[str, Tensor]
GROUP = 10  # networks of one test of the calibrated null: one, another, and eight that calibrate


def symmetry(name: str) -> iw.Symmetry:
    """The symmetry of a kind."""
    return iw.symmetries(KINDS[name].make().eval(), KINDS[name].example)


def log_p(sym: iw.Symmetry, a: nn.Module | State, b: nn.Module | State) -> float:
    """The exact test in place."""
    states = (x if isinstance(x, dict) else tensors_of(x) for x in (a, b))
    return compared(sym, *states).in_place().log_p or 0.0


def uniformity(values: list[float]) -> tuple[float, float]:
    """Kolmogorov-Smirnov distance and its p-value."""
    from scipy.stats import kstest

    test = kstest(values, "uniform")
    return float(test.statistic), float(test.pvalue)


def interval(count: int, rate: float) -> tuple[int, int]:
    """The 99 % interval of a binomial count."""
    from scipy.stats import binom

    return int(binom.ppf(0.005, count, rate)), int(binom.ppf(0.995, count, rate))


def counted_below(values: list[float], level: float) -> str:
    """How many p-values are at or below a level, with the 99 % interval of as many uniform ones."""
    return f"{sum(v <= level for v in values)} ({'{} to {}'.format(*interval(len(values), level))})"


def null_rows(options: argparse.Namespace) -> Iterable[str]:
    """The exact null: each network with the next."""
    yield "| networks | independent pairs | KS distance | KS p | at or below 1e-2 (99 % interval) | at or below 1e-3 |"
    yield "|---|---|---|---|---|---|"
    for name in options.only:
        sym, models = symmetry(name), seeds(name, options.seeds, options.cache)
        values = [math.exp(log_p(sym, a, b)) for a, b in pairwise(models)]
        distance, p = uniformity(values)
        few = [counted_below(values, x) for x in (1e-2, 1e-3)]
        yield f"| {name} | {len(values):,} | {distance:.4f} | {p:.2f} | {few[0]} | {few[1]} |"


def shares_of(sym: iw.Symmetry, models: list[nn.Module], cache: Path) -> list[float]:
    """Likeness of each network to the first, from the cache where it is there."""
    if not cache.is_file():
        base, *rest = [tensors_of(m) for m in models]
        cache.write_text(json.dumps([likeness(compared(sym, base, c)).explained for c in rest]))
    found: list[float] = json.loads(cache.read_text())
    return found


def calibration_rows(options: argparse.Namespace) -> Iterable[str]:
    """The calibrated null: groups of ten seeds, where each of nine is tested against the other eight."""
    yield "| networks | groups | one test of each at or below 1/9 | tests | below 1e-2 | below 1e-3 | smallest p |"
    yield "|---|---|---|---|---|---|---|"
    for name in options.only:
        sym, first, every = symmetry(name), [], []
        models = seeds(name, GROUP * options.groups, options.cache)
        for start in range(0, len(models), GROUP):
            shares = shares_of(sym, models[start : start + GROUP], options.cache / f"{name}-shares-{start}.json")
            p = [math.exp(log_chance(x, shares[:k] + shares[k + 1 :])) for k, x in enumerate(shares)]
            first.append(p[0])
            every += p
        top = counted_below(first, 1 / (GROUP - 1) + 1e-9)
        row = [len(first), top, len(every), *(counted_below(every, x) for x in (1e-2, 1e-3)), f"{min(every):.1e}"]
        yield f"| {name} | {' | '.join(map(str, row))} |"


def changes(kind: Kind, bases: list[nn.Module]) -> dict[str, list[nn.Module]]:
    """Networks derived from others."""
    found = {
        "fine-tuned for 10 % of the steps": trained(kind, bases, 1000, kind.steps // 10),
        "trained again for all steps": trained(kind, bases, 2000, kind.steps),
        "trained again at 10 x the rate": trained(kind, bases, 3000, kind.steps, 10.0),
    }
    for size in (1.0, 2.0, 4.0):
        made = found.setdefault(f"noise of {size:g} standard deviations", [copy.deepcopy(b) for b in bases])
        torch.manual_seed(int(size))
        with torch.no_grad():
            for p in (p for model in made for p in model.parameters()):
                p.add_(size * p.std().nan_to_num() * torch.randn_like(p))
    return found


def power_rows(options: argparse.Namespace) -> Iterable[str]:
    """Power in place, beside that of the rank correlation."""
    yield "| networks | change | power at 1e-6 | of the rank correlation | power at 1e-3 | of the rank correlation |"
    yield "|---|---|---|---|---|---|"
    for name in options.only:
        sym, bases = symmetry(name), seeds(name, options.power, options.cache)
        for change, others in changes(KINDS[name], bases).items():
            pairs = [(log_p(sym, a, b), layerwise_p(a.state_dict(), b.state_dict())) for a, b in zip(bases, others)]
            shares = [sum(p[k] <= math.log(x) for p in pairs) / len(pairs) for x in (1e-6, 1e-3) for k in (0, 1)]
            yield f"| {name} | {change} | " + " | ".join(f"{s:.3g}" for s in shares) + " |"


def hidden(sym: iw.Symmetry) -> list[str]:
    """Spaces inside a block: what few matrices carry, and what no other space lies in."""
    outer = {parent for s in sym.spaces for parent in s.parents}
    carried = {
        s.name: sum(any(s.name in b.spaces for b in blocks(x)) for x in sym.layouts.values() if len(x.axes) > 1)
        for s in sym.spaces
    }
    return [s.name for s in ordered_spaces(sym) if not s.parents and s.name not in outer and carried[s.name] <= 2]


def padded(sym: iw.Symmetry, state: State, seed: int) -> State:
    """A quarter more units in every hidden space: what writes them is random, what reads them is zero."""
    g = torch.Generator().manual_seed(seed)
    for space in hidden(sym):
        size = sym.space(space).size
        wide = resized(sym, {s.name: s.size + (s.size // 4 if s.name == space else 0) for s in sym.spaces})
        for name, axes in kept_rows(wide, space, range(size)).items():
            for dim, rows in axes.items():
                x = state[name]
                shape = [*x.shape[:dim], axis_size(wide.layouts[name].axes[dim]), *x.shape[dim + 1 :]]
                new = x.std() * torch.randn(shape, generator=g) if dim == 0 else torch.zeros(shape)
                state = {**state, name: (new.abs() if "var" in name else new).index_copy(dim, rows, x)}
        sym = wide
    return state


def pruned(sym: iw.Symmetry, state: State, seed: int) -> State:
    """The quarter of the units of every hidden space that have the smallest weights cut out."""
    for space in hidden(sym):
        size = sym.space(space).size
        total = sum(v.rows(state[n]).square().sum((0, 2)) for n in sym.layouts for v in views(sym, n, [space]))
        kept = total.topk(size - size // 4).indices.sort().values
        for name, axes in kept_rows(sym, space, kept.tolist()).items():
            for dim, rows in axes.items():
                state = {**state, name: state[name].index_select(dim, rows)}
        sym = resized(sym, {s.name: len(kept) if s.name == space else s.size for s in sym.spaces})
    return state


def moved(sym: iw.Symmetry, state: State, seed: int, kinds: list[str] | None = None) -> State:
    """The network after a random element of its group, in its own width and depth."""
    shapes = compared(sym, state, state).padded().sym
    g = shapes.random(seed=seed, kinds=kinds)
    return act_(shapes, g, {n: t.clone() for n, t in state.items()})


def rounded(sym: iw.Symmetry, state: State, seed: int) -> State:
    """Eight bits for every row of a matrix, and back."""
    found = dict(state)
    for name, x in state.items():
        if x.ndim > 1:
            step = x.flatten(1).abs().amax(1).reshape(-1, *[1] * (x.ndim - 1)) / 127
            found[name] = (x / step.clamp_min(1e-12)).round() * step
    return found


def cast(sym: iw.Symmetry, state: State, seed: int, dtype: torch.dtype) -> State:
    """Half precision and back."""
    return {n: x.to(dtype).to(x.dtype) if x.is_floating_point() else x for n, x in state.items()}


def noisy(sym: iw.Symmetry, state: State, seed: int) -> State:
    """Noise of a hundredth of each tensor."""
    g = torch.Generator().manual_seed(seed)
    return {
        n: x + 0.01 * x.std() * torch.randn(x.shape, generator=g) if x.is_floating_point() and x.ndim else x
        for n, x in state.items()
    }


def sparse(sym: iw.Symmetry, state: State, seed: int) -> State:
    """The smaller half of the entries of every matrix set to zero."""
    return {n: x * (x.abs() >= x.abs().median()) if x.ndim > 1 else x for n, x in state.items()}


def new_head(sym: iw.Symmetry, state: State, seed: int) -> State:
    """Another last layer."""
    g = torch.Generator().manual_seed(seed)
    last = [n for n, x in state.items() if x.ndim > 1][-1]
    return {**state, last: state[last].std() * torch.randn(state[last].shape, generator=g)}


def layers(order: tuple[int, ...], sym: iw.Symmetry, state: State, seed: int) -> State:
    """Blocks dropped or repeated."""
    kept = {n: x for n, x in state.items() if not n.startswith("blocks.")}
    for place, k in enumerate(order):
        start = f"blocks.{k}."
        kept |= {f"blocks.{place}.{n.removeprefix(start)}": x for n, x in state.items() if n.startswith(start)}
    return kept


def folded(sym: iw.Symmetry, state: State, seed: int) -> State:
    """Gains of norms put into the matrices that read them."""
    found = dict(state)
    for name in (n for n in state if n.rpartition(".")[0].endswith(("before", "between", "norm"))):
        place = name.removesuffix("before.weight").removesuffix("between.weight").removesuffix("norm.weight")
        readers = {"before": "qkv", "between": ["up"], "norm": ["head"]}[name.split(".")[-2]]
        found[name] = torch.ones_like(state[name])
        found |= {f"{place}{r}.weight": state[f"{place}{r}.weight"] * state[name] for r in readers}
    return found


ONE = {  # function kept
    "permuted": partial(moved, kinds=["permutation"]),
    "rescaled": partial(moved, kinds=["scale"]),
    "signs flipped": partial(moved, kinds=["sign"]),
    "bases of heads changed": partial(moved, kinds=["linear"]),
    "all of these": moved,
    "a quarter more units, all moved": lambda sym, x, k: moved(sym, padded(sym, x, k), k),
    "gains of norms folded, all moved": lambda sym, x, k: moved(sym, folded(sym, x, k), k),
}
NEARLY = {
    "cast to bfloat16, all moved": lambda sym, x, k: moved(sym, cast(sym, x, k, torch.bfloat16), k),
    "cast to float16, all moved": lambda sym, x, k: moved(sym, cast(sym, x, k, torch.float16), k),
    "eight bits and back, all moved": lambda sym, x, k: moved(sym, rounded(sym, x, k), k),
    "noise of 1 %, all moved": lambda sym, x, k: moved(sym, noisy(sym, x, k), k),
    "moved, noise, eight bits, bfloat16": lambda sym, x, k: cast(
        sym, rounded(sym, noisy(sym, moved(sym, x, k), k), k), k, torch.bfloat16
    ),
}
CHANGED = {
    "half of the weights pruned, all moved": lambda sym, x, k: moved(sym, sparse(sym, x, k), k),
    "a quarter of the units pruned, all moved": lambda sym, x, k: moved(sym, pruned(sym, x, k), k),
    "another head, all moved": lambda sym, x, k: moved(sym, new_head(sym, x, k), k),
    "a layer dropped, all moved": lambda sym, x, k: moved(sym, layers((1,), sym, x, k), k),
    "a layer repeated, all moved": lambda sym, x, k: moved(sym, layers((0, 0, 1), sym, x, k), k),
}


def laundering_rows(options: argparse.Namespace) -> Iterable[str]:
    """Power after laundering: the first of each ten networks, with the next eight to calibrate."""
    yield "| fine-tuned, then | function | networks | in place at 1e-6 | in place or calibrated at 1e-6 | at 1e-3 |"
    yield "|---|---|---|---|---|---|"
    for name in options.only:
        kind, sym = KINDS[name], symmetry(name)
        models, found = seeds(name, GROUP * options.derived, options.cache), {}
        for k, tuned in enumerate(trained(kind, models[::GROUP], 1000, kind.steps // 10)):
            some, start = models[GROUP * k : GROUP * (k + 1)], GROUP * k
            shares = shares_of(sym, some, options.cache / f"{name}-shares-{start}.json")[: GROUP - 2]
            cache = options.cache / f"{name}-laundered-{start}.json"
            if not cache.is_file():
                networks = [tensors_of(m) for m in some[: GROUP - 1]]
                cache.write_text(json.dumps(laundered(sym, networks, tensors_of(tuned), shares, 100 + k)))
            for change, pair in json.loads(cache.read_text()).items():
                found.setdefault(change, []).append(pair)
        for said, table in (("kept", ONE), ("nearly kept", NEARLY), ("changed", CHANGED)):
            for change in (c for c in table if c in found):
                power = [
                    sum(p[j] <= math.log(x) for p in found[change]) / len(found[change])
                    for j, x in ((0, 1e-6), (1, 1e-6), (1, 1e-3))
                ]
                count = f"{len(found[change])} of {name}"
                yield f"| {change} | {said} | {count} | " + " | ".join(f"{x:.2f}" for x in power) + " |"


def laundered(
    sym: iw.Symmetry, networks: list[State], b: State, shares: list[float], seed: int
) -> dict[str, tuple[float, float]]:
    """For every change of ``b`` the logarithms of its p-value in place, and of the best one.

    The first of the networks is its origin; ``shares`` are the likenesses of the others to it, where all are as wide.
    """
    a, *rest = networks
    found = {}
    for change, make in {**ONE, **NEARLY, **CHANGED}.items():
        if fits(change, sym, b):
            pair = compared(sym, a, make(sym, b, seed))
            place, after = pair.in_place().log_p or 0.0, 0.0
            if place > math.log(1e-6):
                sizes = pair.widths.sizes
                if any(sizes[1][space] < size for space, size in sizes[0].items()):
                    known = [likeness(compared(sym, a, c, sizes[1])).explained for c in rest]
                else:
                    known = shares
                after = log_chance(likeness(pair).explained, known) + math.log(2)
            found[change] = place, min(place, after)
    return found


def fits(change: str, sym: iw.Symmetry, state: State) -> bool:
    """Whether a kind of networks can be laundered so."""
    if "layer" in change or "gains" in change:
        return "blocks.1.up.weight" in state
    groups = [s.group for s in sym.spaces]
    wanted = {"rescaled": any(g.scales for g in groups), "signs flipped": any(g.signs for g in groups)}
    wanted["bases of heads changed"] = any(g.mixes for g in groups)
    return wanted.get(change, True)


def attack_rows(options: argparse.Namespace) -> Iterable[str]:
    """What hides a descent, and what it costs in accuracy."""
    yield "| networks | attack | accuracy | p in place |"
    yield "|---|---|---|---|"
    for name in options.only:
        kind, sym = KINDS[name], symmetry(name)
        base = seeds(name, 1, options.cache)[0]
        torch.manual_seed(77)
        fresh, noise = kind.make(), changes(kind, [base])["noise of 4 standard deviations"]
        made = {
            "none": [base],
            "distilled into a fresh network": trained(kind, [fresh], 7, kind.steps, teacher=base),
            "trained 4 times as long": trained(kind, [base], 8, 4 * kind.steps),
            "trained 4 times as long at 10 x the rate": trained(kind, [base], 9, 4 * kind.steps, 10.0),
            "noise of 4 standard deviations, trained again": trained(kind, noise, 10, kind.steps),
        }
        inputs, labels = (x[:1000] for x in kind.data())
        for attack, (b,) in made.items():
            with torch.no_grad():
                accuracy = float((b(inputs).argmax(-1) == labels).float().mean())
            p = "" if b is base else f"1e{log_p(sym, base, b) / math.log(10):.1f}"
            yield f"| {name} | {attack} | {accuracy:.1%} | {p} |"


TABLES = {
    "null": null_rows, "power": power_rows, "attacks": attack_rows, "laundering": laundering_rows,
    "calibration": calibration_rows,
}  # fmt: skip


def main() -> None:
    """Print the tables; with ``--write`` also put them into the documentation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=nets_of.DATA, help="folder with cifar10 and text")
    parser.add_argument("--seeds", type=int, default=2017, help="networks of each kind for the exact null")
    parser.add_argument("--power", type=int, default=100, help="networks that others are derived from")
    parser.add_argument("--derived", type=int, default=20, help="networks that are laundered")
    parser.add_argument("--groups", type=int, default=60, help="groups of ten networks for the calibrated null")
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "lineage", help="folder for trained networks")
    parser.add_argument("--only", nargs="*", choices=KINDS, default=list(KINDS), help="kinds of networks")
    parser.add_argument("--tables", nargs="*", choices=TABLES, default=list(TABLES), help="which tables")
    parser.add_argument("--write", action="store_true", help="replace the tables in docs/benchmarks.md")
    options = parser.parse_args()
    nets_of.DATA = options.data
    torch.set_num_threads(1)
    page = ROOT / "docs" / "benchmarks.md"
    for name in options.tables:
        table = ""
        print(f"\n{name}")
        for row in TABLES[name](options):
            print(row, flush=True)
            table += f"{row}\n"
        if options.write:
            before, _, rest = page.read_text().partition(f"<!-- lineage {name} -->\n")
            _, _, after = rest.partition(f"<!-- end lineage {name} -->")
            page.write_text(f"{before}<!-- lineage {name} -->\n{table}<!-- end lineage {name} -->{after}")


if __name__ == "__main__":
    main()
