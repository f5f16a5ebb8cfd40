"""Lifting against ensembling: what one does with the gates of shallow linear features (paper 2, section 3.3).

"Using the gates to lift (instead of ensembling) the computations to the dual space in the value network is playing a
critical role, investigating which is an important future work." Print compares a deep network with an ensemble of
shallow ones, which differ in their gates, too. Here both uses are given the *same* layers of gates, each from one
linear map of the input. Laid depth-wise (lifted) they have the path kernel ``<x, y> prod_l <G_l(x), G_l(y)>``, as an
ensemble of networks with one layer of gates each ``<x, y> sum_l <G_l(x), G_l(y)>``; kernel regression is what
infinitely wide value networks learn. The gates are random, trained in a lifted network (DLGN-SF), or trained in the
members of an ensemble.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from intertwine.gates import dlgn_sf, gate_patterns, kernel_regression, product_kernel
from intertwine.lab.data import load
from intertwine.lab.experiments import Design, Experiment, Findings
from intertwine.lab.networks import build, gated_spec
from intertwine.lab.runs import Job
from intertwine.lab.training import load_checkpoint

SOURCES = ("random gates", "gates of a lifted network", "gates of an ensemble")
USES = ("lifted", "ensembled", "one layer")
LAYERS, LEARNT = 4, 0.3


def used(x: Tensor, gates: Sequence[Tensor], y: Tensor, gates_y: Sequence[Tensor]) -> dict[str, Tensor]:
    """Path kernels ``(N, M)`` of the same gates: laid depth-wise, as an ensemble, and of the first layer alone."""
    kernel = lambda one, two: product_kernel(x, one, y, two, progress=False)
    each = [kernel([a], [b]) for a, b in zip(gates, gates_y, strict=True)]
    return {"lifted": kernel(gates, gates_y), "ensembled": torch.stack(each).sum(0), "one layer": each[0]}


@torch.no_grad()
def gates_of(networks: Sequence[Any], x: Tensor) -> list[Tensor]:
    """Hard gates of every layer: of the maps of a DLGN-SF, or of the hidden layers of ReLU networks."""
    found: list[Tensor] = []
    for network in networks:
        own = network.cpu().eval()
        found += [q > 0 for q in own(x)] if hasattr(own, "maps") else list(gate_patterns(own, x).values())
    return found


class SameGates(Job):
    """One set of gates from every source, in every use."""

    lifted: str  # Checkpoint of a DLGN-SF
    members: tuple[str, ...]  # Checkpoints of networks with one hidden layer
    base: str  # The network of the DLGN-SF, fitted to the data
    data: str  # As ``lab.data.load`` takes it
    images: int  # Training images of the kernel regression, and test images
    seed: int  # Of the random gates

    def run(self, files: Path) -> list[dict[str, Any]]:
        """Accuracies of kernel regression, by source of the gates and use, and the mean similarity of test images."""
        data = load(self.data)
        (x, labels), (new, truth) = (data.loader(split).batch(slice(0, self.images)) for split in ("train", "test"))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            untrained = dlgn_sf(build(self.base), torch.zeros(1, *data.shape), seed=self.seed)
        members: list[nn.Module] = [load_checkpoint(path) for path in self.members]
        sources = [[untrained.gating], [load_checkpoint(self.lifted).gating], members]
        rows = []
        for source, networks in zip(SOURCES, sources):
            gates, gates_new = (gates_of(networks, images) for images in (x, new))
            square = used(x.flatten(1), gates, x.flatten(1), gates)
            across = used(new.flatten(1), gates_new, x.flatten(1), gates)
            for use in USES:
                reached = kernel_regression(square[use], labels).accuracy(across[use], truth)
                size = float(across[use].mean())
                rows += [{"statistic": use, "arm": source, "value": reached, "images": len(truth)},
                         {"statistic": f"kernel, {use}", "arm": source, "value": size}]  # fmt: skip
        return rows


def _plan(plan: Design) -> None:
    s = plan.setting
    width, seeds = s.by_scale((32, 3), (64, 8), (512, 8))
    base = "mlp:widths=" + "-".join([str(width)] * LAYERS)
    plan.baseline()
    lifted = plan.zoo("lifted", gated_spec("dlgn_sf", base), seeds)
    members = plan.zoo("members of the ensemble", f"mlp:widths={width}", seeds * LAYERS).members
    for k, one in enumerate(lifted.members):
        own = tuple(member.path.as_posix() for member in members[k * LAYERS : (k + 1) * LAYERS])
        plan.add(SameGates(lifted=one.path.as_posix(), members=own, base=s.fitted(base), data=s.data_spec,
                           images=s.by_scale(100, 1000, 5000), seed=s.seed + k), network=one.name)  # fmt: skip
    plan.note(f"{LAYERS} layers of {width} gates, each from one linear map of the image. Print compares C1GAP-16-ENS "
              "with VGG-16-DLGN-SF, about 10 points: see p2-table3.")  # fmt: skip


def _analyse(found: Findings) -> None:
    by = {use: {source: found.values.sample(use, source) for source in SOURCES} for use in USES}
    for use, one in by.items():
        found.show(use, one)
    more = {source: by["lifted"][source] - by["ensembled"][source] for source in SOURCES}
    found.show("lifted - ensembled", more)
    guard = found.guard("lifted", "members of the ensemble", least=LEARNT)
    for source, gap in more.items():
        found.state(f"{source}: lifting is better than ensembling the same gates", {source: gap}, above=0, guard=guard)
    alone = {source: by["ensembled"][source] - by["one layer"][source] for source in SOURCES}
    found.state("an ensemble is better than one of its layers", alone, above=0, guard=guard)
    found.accuracies()


_TITLE, _FROM = "Gates lifted to depth, or ensembled", "left open by paper 2, section 3.3"
STUDIES = (Experiment("open-lifting", _TITLE, _FROM, _plan, _analyse),)
