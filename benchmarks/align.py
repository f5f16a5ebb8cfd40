"""Alignment: how much of a planted copy each solver recovers under noise, and how fast weights are matched.

    python benchmarks/align.py recovery    # share of recovered units, objective and time by noise and solver
    python benchmarks/align.py speed       # VGG16, ResNet18 and ResNet20 against the package rebasin
    python benchmarks/align.py large       # ResNet-50 and ViT-S: a planted copy and another seed

Recovery: ``b`` is a random symmetric copy of a random network, plus Gaussian noise of ``noise`` times each tensor's
standard deviation. A unit counts as recovered if it is put where it came from. The residual networks have a stream of
30 or 50 units that one input and one output hardly tell apart, in the manner of git-re-basin's issue 8, where
coordinate descent from the identity (here ``published``) recovers 10 planted copies of 100.

Speed: process time, one thread, permutations alone, ours the best of five. ``plain`` is coordinate descent with every
cost computed anew. The draw that tells the likeness by chance is left out, which no peer has.

Large: everything that ``align(a, b, inputs)`` does, the search for the symmetry and the likeness by chance included,
under the whole group; process time on one thread.
"""

import argparse
import copy
import time

import torch
from torch import nn

import intertwine as iw
from intertwine.matching import align
from intertwine.matching.coordinates.networks import Networks
from intertwine.matching.solvers.coordinate_descent import descend
from intertwine.symmetry.transformation import identity

from _timing import best_of  # isort: skip
from same_sizes import ROWS  # isort: skip
from weight_matching import git_rebasin  # isort: skip
from weight_matching import rebasin as package  # isort: skip

NOISES = (0.0, 0.1, 0.3, 0.5, 1.0)


class Residual(nn.Module):
    """Blocks ``x + W2 relu(W1 x)`` between two linear maps, from one input to one output."""

    def __init__(self, width: int, hidden: int, blocks: int = 2) -> None:
        super().__init__()
        self.first = nn.Linear(1, width, bias=False)
        self.up = nn.ModuleList(nn.Linear(width, hidden, bias=False) for _ in range(blocks))
        self.down = nn.ModuleList(nn.Linear(hidden, width, bias=False) for _ in range(blocks))
        self.last = nn.Linear(width, 1, bias=False)

    def forward(self, x):
        """One number for each number."""
        x = torch.relu(self.first(x))
        for up, down in zip(self.up, self.down):
            x = torch.relu(x + down(torch.relu(up(x))))
        return self.last(x)


def mlp() -> nn.Module:
    """A network whose first layer sees ten inputs."""
    return nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))


NETWORKS = {"MLP 64-64": mlp, "residual d=30": lambda: Residual(30, 50), "residual d=50": lambda: Residual(50, 100)}
SOLVERS = {
    "published": ("weights", {"identity": True}),
    "weights": ("weights", {}),
    "frank-wolfe": ("frank-wolfe", {}),
    "sinkhorn": ("sinkhorn", {}),
}


def recovery(seeds: int) -> None:
    """Print one row per network, noise and solver."""
    print("| network | noise | solver | units recovered | objective / planted | seconds |\n|---|---|---|---|---|---|")
    for name, maker in NETWORKS.items():
        for noise in NOISES:
            for solver in SOLVERS:
                rows = [_recovered(maker, noise, solver, seed) for seed in range(seeds)]
                share, ratio, seconds = (sum(column) / seeds for column in zip(*rows))
                print(
                    f"| {name} | {noise} | {solver} | {100 * share:.0f} % | {ratio:.4f} | {seconds:.2f} |", flush=True
                )


def _recovered(maker, noise: float, solver: str, seed: int) -> tuple[float, float, float]:
    torch.manual_seed(seed)
    a = maker()
    x = torch.randn(4, next(a.parameters()).shape[1])
    sym = iw.symmetries(a, x)
    planted = sym.random(seed=seed + 1, kinds=["permutation"] if solver == "published" else None)
    b = copy.deepcopy(sym.act(planted, a))
    with torch.no_grad():
        for tensor in b.parameters():
            tensor += noise * tensor.std() * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(seed))
    method, options = SOLVERS[solver]
    kinds = ["permutation"] if solver == "published" else None
    task = Networks(a, b, sym, sym, kinds or ("permutation", "scale", "sign", "linear"))
    stated = task.problem()
    started = time.process_time()
    if options.get("identity"):
        found = descend(stated, identity(stated.sym), torch.Generator().manual_seed(seed))
        g, objective = stated.lift(found.g), found.history[-1]
    else:
        alignment = align(a, b, x, method=method, kinds=kinds, sym=sym, seed=seed)
        g, objective = alignment.transformation, alignment.objective
    seconds = time.process_time() - started
    total = g @ planted
    best = stated.objective((~planted).restrict(kinds=["permutation", "sign"]))
    units = sum(e.permutation.numel() for e in total.elements.values())
    right = sum(int((e.permutation == torch.arange(e.permutation.shape[-1])).sum()) for e in total.elements.values())
    return right / units, objective / best, seconds


def speed(names: list[str], rebasin: bool) -> None:
    """Print process times to convergence."""
    from intertwine.lab import networks

    torch.set_num_threads(1)
    print("| network | ours, s | sweeps | plain, s | rebasin, s | rebasin / ours | objective / plain |")
    print("|---" * 7 + "|")
    for name in names:
        torch.manual_seed(0)
        a, b = networks.build(name).eval(), networks.build(name).eval()
        x = torch.randn(2, 3, 32, 32)
        sym = iw.symmetries(a, x)
        found = align(a, b, x, sym=sym, kinds=["permutation"])
        ours = best_of(lambda a=a, b=b, x=x, sym=sym: align(a, b, x, sym=sym, kinds=["permutation"], chance=False))
        _, reached, plain = git_rebasin(Networks(a, b, sym, sym, ("permutation",)))
        peer = package(a, b, x)[1] if rebasin else float("nan")
        print(
            f"| {name} | {ours:.2f} | {len(found.history) - 1} | {plain:.2f} | {peer:.1f} | {peer / ours:.1f} | "
            f"{found.objective / reached:.4f} |",
            flush=True,
        )


def large(names: list[str]) -> None:
    """Print process times of whole alignments, and how far a planted copy is from its origin before and after."""
    print("| network | weights | copy: distance | after | s | another seed: distance | after | s | budget, s |")
    print("|---" * 9 + "|")
    for name in names:
        torch.manual_seed(0)
        a, inputs = ROWS[name][0]()
        other, _ = ROWS[name][0]()
        sym = iw.symmetries(a, inputs)
        weights = sum(p.numel() for p in a.parameters())
        cells = [_timed(a, b, inputs) for b in (sym.act(sym.random(seed=1), a), other)]
        print(f"| {name} | {weights:,} | {' | '.join(cells)} | 60 |", flush=True)


def _timed(a: nn.Module, b: nn.Module, inputs) -> str:
    started = time.process_time()
    found = align(a, b, inputs)
    return f"{found.before:.3f} | {found.after:.1e} | {time.process_time() - started:.1f}"


def main() -> None:
    """Run one of the benchmarks, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["recovery", "speed", "large"], help="all by default")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--networks", nargs="+", default=["vgg16", "resnet18", "resnet20"])
    parser.add_argument("--large", nargs="+", choices=ROWS, default=["ResNet-50", "ViT-S/16"])
    parser.add_argument("--no-rebasin", action="store_true", help="leave the peer out")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.what in (None, "recovery"):
        recovery(chosen.seeds)
    if chosen.what in (None, "speed"):
        speed(chosen.networks, not chosen.no_rebasin)
    if chosen.what in (None, "large"):
        large(chosen.large)


if __name__ == "__main__":
    main()
