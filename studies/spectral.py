"""Is a DLGN "a universal spectral approximator" (paper 2, section 3.3): do linear gates learn what a kernel needs?

Asked of the neural path kernel of the gates alone (constant inputs) on new examples: its alignment with the labels, the
share of the labels that lies in its leading eigenvectors, and the accuracy of kernel regression, each before and after
training; of fully connected networks, and of a convolutional one on digits, whose kernel takes ``N^2 P^2`` operations
for ``P`` pixels.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from intertwine.gates import GatedNetwork, kernel_regression, neural_path_kernel
from intertwine.lab.data import load
from intertwine.lab.experiments import Design, Experiment, Findings
from intertwine.lab.networks import build, gated_spec
from intertwine.lab.runs import Job
from intertwine.lab.statistics import independent
from intertwine.lab.training import load_checkpoint

LEADING = 10  # eigenvectors: as many as classes
RIDGE = (1e-3,)
LEARNT = 0.3  # fully connected networks of CIFAR-10 images: three times chance
PARTS = ("alignment with the labels", "share of labels in leading eigenvectors", "accuracy of kernel regression")
LINEAR, BENT = "DLGN(x, 1)", "DGN(x, 1)"


def alignment(kernel: Tensor, other: Tensor) -> float:
    """Cosine of two matrices."""
    return float((kernel * other).sum() / (kernel.norm() * other.norm()))


def label_energy(kernel: Tensor, labels: Tensor, leading: int) -> float:
    """Share ``|V^T Y|^2 / |Y|^2`` of the labels, centred and one-hot, in a centred kernel's leading eigenvectors."""
    k = kernel.double()
    k = k - k.mean(0) - k.mean(1, keepdim=True) + k.mean()
    targets = one_hot(labels).to(k)
    targets = targets - targets.mean(0)
    vectors = torch.linalg.eigh(k).eigenvectors[:, -leading:]
    return float((vectors.T @ targets).square().sum() / targets.square().sum())


class GateSpectrum(Job):
    """One network: the kernel of its gates before and after training."""

    checkpoint: str  # After training
    network: str  # Built anew for the gates before it
    data: str  # As ``lab.data.load`` takes it
    images: int  # Training images of the kernel regression, and test images
    seed: int  # Of the weights before training

    def run(self, files: Path) -> list[dict[str, Any]]:
        """Every part of the kernel, before and after."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            start = build(self.network)
        data, rows = load(self.data), []
        (x, labels), (new, truth) = (data.loader(split).batch(slice(0, self.images)) for split in ("train", "test"))
        for when, model in (("before", start), ("after", load_checkpoint(self.checkpoint))):
            model = model.cpu().eval()
            if isinstance(model, GatedNetwork):
                model.gate = "hard"  # paths are on or off
            own, known, across = (neural_path_kernel(model, *of, input="ones", progress=False)
                                  for of in ((new,), (x,), (new, x)))  # fmt: skip
            same = one_hot(truth).to(own)
            reached = kernel_regression(known, labels, strengths=RIDGE).accuracy(across, truth)
            found = alignment(own, same @ same.T), label_energy(own, truth, LEADING), reached
            rows += [{"statistic": f"{part}, {when}", "value": value, "images": len(truth) if part == PARTS[2] else 0}
                     for part, value in zip(PARTS, found)]  # fmt: skip
        return rows


def _enter(plan: Design, base: str, seeds: int, images: int, **recipe: Any) -> None:
    s = plan.setting
    plan.baseline()
    arms = {"network": base, **{arm: gated_spec(kind, base, input="ones") for arm, kind in (
        (BENT, "dgn"), (LINEAR, "dlgn"), ("DLGN-SF(x, 1)", "dlgn_sf"))}}  # fmt: skip
    for arm, network in arms.items():
        zoo = plan.zoo(arm, network, seeds, s.recipe(base, **recipe))
        for member in zoo.members:
            plan.add(GateSpectrum(checkpoint=member.path.as_posix(), network=zoo.network, data=s.data_spec,
                                  images=images, seed=int(member.name)), arm, member.name)  # fmt: skip
    plan.note(f"Kernels of gates alone on {images} test images, regression from as many training images.")


def _plan(plan: Design) -> None:
    width, seeds, images = plan.setting.by_scale((32, 2, 100), (64, 8, 1000), (512, 8, 5000))
    _enter(plan, f"mlp:widths={width}-{width}-{width}", seeds, images)


def _plan_cnn(plan: Design) -> None:
    width, seeds, images, epochs = plan.setting.by_scale((8, 2, 24, 2), (8, 8, 100, 40), (16, 8, 200, 40))
    _enter(plan, f"c4gap:width={width}", seeds, images, epochs=epochs, learning_rate=1e-2)  # at less some do not learn


def _analyse(found: Findings) -> None:
    arms, guard = found.values.arms(f"{PARTS[0]}, after"), found.guard("network", BENT, LINEAR, least=LEARNT)
    sample = lambda part, when, arm: found.values.sample(f"{part}, {when}", arm)
    for part in PARTS:
        for when in ("before", "after"):
            found.show(f"{when} training, {part}", {arm: sample(part, when, arm) for arm in arms})
        after = sample(part, "after", LINEAR)
        found.state(f"training turns linear gates towards the labels: {part} rises",
                    {"after - before": after - sample(part, "before", LINEAR)}, above=0, guard=guard)  # fmt: skip
        further = {"DGN - DLGN": independent((1, sample(part, "after", BENT)), (-1, after))}
        found.state(f"gates behind ReLUs turn further: {part} of DGN ends above DLGN's", further, above=0, guard=guard)
    found.accuracies()


_FROM, _CNN = "left open by paper 2, section 3.3", "Do linear gates of a convolutional network?"
STUDIES = (
    Experiment("open-spectral", "Do linear gates learn the kernel?", _FROM, _plan, _analyse),
    Experiment("open-spectral-cnn", _CNN, _FROM, _plan_cnn, _analyse, digits=("smoke", "small", "paper")),
)
