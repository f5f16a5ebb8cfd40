"""Weight matching beside its peers: objective on parameters, barrier and time, over networks, seeds and training.

One command fills the table in ``docs/benchmarks.md``::

    python benchmarks/weight_matching.py --write

Permutations alone. The objective is ``Σ <a, g b>`` over parameters, computed alike for all: ours by default, the
package ``rebasin``, and Git Re-Basin's descent (Ainsworth et al. 2023, algorithm 1: from the identity, one layer after
another in random order, every cost from scratch, until nothing gains). Networks are as initialised, or trained for a
few hundred steps on scikit-learn's digits (enlarged to the network's input), or on CIFAR-10 with ``--data
cifar10:PATH``. The barrier is that of the mean cross-entropy half-way, batch norms recalibrated.
"""

import argparse
import copy
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intertwine as iw
from intertwine.lab import data
from intertwine.lab.networks import cifar_resnet
from intertwine.matching import align
from intertwine.matching.coordinates.networks import Networks
from intertwine.matching.coordinates.problem import Row
from intertwine.matching.costs import Costs
from intertwine.matching.solvers.steps import monomial_step
from intertwine.symmetry.transformation import identity, with_parts

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
HEADER = (
    "| network | seed | identity | ours | `rebasin` | Git Re-Basin | barrier: direct | ours | `rebasin` | Git Re-Basin "
    "| seconds: ours | `rebasin` | Git Re-Basin |\n|" + "---|" * 13
)


def mlp() -> nn.Module:
    """Two hidden layers of 128 units."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(192, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )


def vgg11(norms: bool, width: int = 16) -> nn.Module:
    """VGG11 at a quarter of its width."""
    layers: list[nn.Module] = []
    before = 3
    for factor in (1, 0, 2, 0, 4, 4, 0, 8, 8, 0, 8, 8, 0):
        if not factor:
            layers.append(nn.MaxPool2d(2))
            continue
        norm = [nn.BatchNorm2d(factor * width)] if norms else []
        layers += [nn.Conv2d(before, factor * width, 3, padding=1), *norm, nn.ReLU()]
        before = factor * width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(before, 10))


# name -> how to build it, size of its images, steps and learning rate of its training
CASES: dict[str, tuple[Callable[[], nn.Module], int, int, float]] = {
    "MLP": (mlp, 8, 400, 1e-3),
    "VGG11": (lambda: vgg11(norms=False), 32, 150, 1e-3),
    "VGG11 with BN": (lambda: vgg11(norms=True), 32, 150, 1e-3),
    "ResNet20": (lambda: cifar_resnet(20, option="B"), 16, 100, 3e-3),
    "ResNet20 x4": (lambda: cifar_resnet(20, option="B", width=64), 8, 60, 1e-3),
}


def batches(source: str, size: int, split: str, batch: int = 64, limit: int = 1024) -> list[tuple[Tensor, Tensor]]:
    """Images of three channels and that size, in batches."""
    found, seen = [], 0
    for x, y in data.load(source).loader(split, batch_size=batch):
        wide = F.interpolate(x.float(), (size, size), mode="bilinear", antialias=True).expand(-1, 3, -1, -1)
        found.append((wide.contiguous(), y))
        seen += len(y)
        if seen >= limit:
            break
    return found


def trained(model: nn.Module, source: str, size: int, steps: int, rate: float, seed: int) -> nn.Module:
    """The model after some steps of Adam on shuffled batches."""
    loader = batches(source, size, "train")
    order = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    model.train()
    for step in range(steps):
        if step % len(loader) == 0:
            shuffled = torch.randperm(len(loader), generator=order).tolist()
        x, y = loader[shuffled[step % len(loader)]]
        optimiser.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimiser.step()
    return model.eval()


def git_rebasin(
    networks: Networks, seed: int = 0, tolerance: float = 1e-6
) -> tuple[iw.symmetry.Transformation, float, float]:
    """Coordinate descent from the identity that computes every cost anew: the element, objective and process time."""
    started = time.process_time()
    stated = networks.problem()
    costs, generator = Costs(stated, identity(stated.sym)), torch.Generator().manual_seed(seed)
    before = -float("inf")
    while stated.objective(costs.g) > before:
        before = stated.objective(costs.g)
        for index in torch.randperm(len(stated.sym.spaces), generator=generator).tolist():
            space = stated.sym.spaces[index]
            order, _ = monomial_step(from_scratch(costs, space.name), space.group.signs, space.group.permutes)
            step = with_parts(identity(stated.sym), space.name, permutation=order)
            if (gain := costs.gain(step)) > tolerance * abs(before):
                costs.move(step, gain)
    return stated.lift(costs.g), stated.objective(costs.g), time.process_time() - started


def from_scratch(costs: Costs, space: str) -> dict[Row, Tensor]:
    """The inner products of all units of a space with everything else in place."""
    found: dict[Row, Tensor] = {}
    for m in costs.problem.members[space]:
        ours, theirs = (m.view(m.block.read(x)) for x in (costs.problem.a[m.tensor], costs.present(m.tensor)))
        found[m.row] = found.get(m.row, 0) + ours @ theirs.mT
    return found


def rebasin(a: nn.Module, b: nn.Module, x: Tensor) -> tuple[nn.Module, float]:
    """The network that the package ``rebasin`` makes of ``b``, and its process time."""
    from rebasin import PermutationCoordinateDescent

    started = time.process_time()
    moved = copy.deepcopy(b)
    PermutationCoordinateDescent(copy.deepcopy(a), moved, x, logging_level="ERROR").rebasin()
    return moved.eval(), time.process_time() - started


def objective(a: nn.Module, b: nn.Module) -> float:
    """``Σ <a, b>`` over parameters."""
    theirs = dict(b.named_parameters())
    return sum(float((p.double() * theirs[name].double()).sum()) for name, p in a.named_parameters())


def barrier(a: nn.Module, b: nn.Module, loader: list[tuple[Tensor, Tensor]]) -> float:
    """Loss half-way above the mean of the ends, batch norms recalibrated where there are any."""
    found = iw.barrier(a, b, loader, points=3, alignment=None)
    variants = {c.recalibrated: c.above_chord(found.ratios)[1] for c in found.curves}
    return variants.get(True, variants[False])


def row(name: str, seed: int, source: str | None) -> tuple[str, bool]:
    """One line of the table, and whether ours is at or above every peer."""
    make, size, steps, rate = CASES[name]
    sides = []
    for k in range(2):
        torch.manual_seed(2 * seed + k)
        model = make().eval()
        sides.append(trained(model, source, size, steps, rate, 2 * seed + k) if source else model)
    a, b = sides
    x = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    sym = iw.symmetries(a, x)
    started = time.process_time()
    found = align(a, b, x, sym=sym, kinds=["permutation"])
    seconds = [time.process_time() - started]
    theirs, spent = rebasin(a, b, x)
    seconds.append(spent)
    element, _, spent = git_rebasin(Networks(a, b, sym, sym, ("permutation",)), seed)
    seconds.append(spent)
    moved = [b, found.apply(b), theirs, sym.act(element, b)]
    # The package leaves running statistics where they were: on VGG11 with BN its outputs err by 0.5 to 0.8, and by 2e-7
    # once they follow the gains; hence it is not held to keep the function.
    for other in (moved[1], moved[3]):
        iw.testing.assert_same_function(b, other, x)
    values = [objective(a, other) for other in moved]
    loader = batches(source, size, "test", limit=512) if source else []
    heights = [f"{barrier(a, other, loader):.3f}" if source else "" for other in moved]
    cells = [f"{v:.2f}" for v in values] + heights + [f"{s:.2f}" for s in seconds]
    best = values[1] >= max(values) - 1e-6 * abs(values[1])
    return f"| {name}, {'trained' if source else 'initialised'} | {seed} | {' | '.join(cells)} |", best


def rows(names: list[str], seeds: int, sources: list[str | None]) -> Iterator[tuple[str, bool]]:
    """All lines of the table."""
    for source in sources:
        for name in names:
            for seed in range(seeds):
                yield row(name, seed, source)


def main() -> None:
    """Print the table; with ``--write`` also put it into the documentation."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--data", default="digits", help="what networks are trained on: digits, or cifar10:PATH")
    parser.add_argument("--quick", action="store_true", help="initialised networks only, one seed")
    parser.add_argument("--write", action="store_true", help="replace the table in docs/benchmarks.md")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(HEADER, flush=True)
    lines, best = [HEADER], []
    seeds, sources = (1, [None]) if chosen.quick else (chosen.seeds, [None, chosen.data])
    for line, above in rows(chosen.networks, seeds, sources):
        lines.append(line)
        best.append(above)
        print(line, flush=True)
    lines += ["", f"Ours is at or above every peer's objective in {sum(best)} of {len(best)} cases."]
    print(lines[-1])
    if chosen.write:
        before, _, rest = PAGE.read_text().partition("<!-- weight matching -->\n")
        _, _, after = rest.partition("<!-- end weight matching -->")
        table = "\n".join(lines)
        PAGE.write_text(f"{before}<!-- weight matching -->\n{table}\n<!-- end weight matching -->{after}")


if __name__ == "__main__":
    main()
