"""Open ends of paper 2, section 3.3: ReLUs in the gating network, its depth, and what its gates learn.

1. DGN and DLGN differ only by the ReLUs of the gating network, and 2 points of accuracy lie between them. Does width
   close the gap?
2. Linear gating networks compute no more in many layers than in one, yet a deep one is said to be about 6 points better
   than single maps (DLGN-SF). Is it, at other depths of the value network?
3. "Is DLGN a universal spectral approximator": do linear gates learn what a kernel needs? Asked of the neural path
   kernel of the gates alone (constant inputs) on new examples: its alignment with the labels, the share of the labels
   that lies in its leading eigenvectors, and the accuracy of kernel regression, each before and after training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from ....gates import GatedNetwork, kernel_regression, neural_path_kernel
from ....gates.kernels import kernel_alignment
from ...data import load
from ...networks import build, fit_to, gated_spec
from ...runs import Job
from ...training import recipe_for, train
from ..experiment import Experiment, Setting
from ..paper2.tables import Accuracy, interval
from ..reproduction import Claim, Reproduction, Row

__all__ = ["EXPERIMENTS", "GateSpectrum", "label_energy"]

_LEADING = 10  # eigenvectors: as many as classes
_POINT = 1.0


def label_energy(kernel: Tensor, labels: Tensor, leading: int) -> float:
    """Share of the labels, centred and one-hot, that lies in a kernel's leading eigenvectors.

    Args:
        kernel: Symmetric ``(N, N)``; it is centred first.
        labels: Classes ``(N,)``.
        leading: Number of eigenvectors, of the largest eigenvalues.

    Returns:
        ``|V^T Y|^2 / |Y|^2``, 0 to 1.

    Examples:
        >>> import torch
        >>> labels = torch.tensor([0, 0, 1, 1])
        >>> signs = torch.tensor([1.0, 1.0, -1.0, -1.0])
        >>> round(label_energy(signs.outer(signs), labels, 1), 6)
        1.0
    """
    k = kernel.double()
    k = k - k.mean(0) - k.mean(1, keepdim=True) + k.mean()
    targets = torch.nn.functional.one_hot(labels).to(k)
    targets = targets - targets.mean(0)
    vectors = torch.linalg.eigh(k).eigenvectors[:, -leading:]
    return float((vectors.T @ targets).square().sum() / targets.square().sum())


class GateSpectrum(Job):
    """One gated network: the kernel of its gates before and after training.

    Attributes:
        network: Built-in network, fitted to the data.
        data: As ``lab.data.load`` takes it.
        examples: Training images of the network.
        fitted: Of these, those of the kernel regression.
        tested: Test images.
        recipe: Settings that differ from the recipe for this data.
        seed: Of weights and order.
        device: Where the network is trained.
    """

    gpus: ClassVar[float] = 0.25

    network: str
    data: str
    examples: int | None
    fitted: int
    tested: int
    recipe: dict[str, Any]
    seed: int
    device: str = "auto"

    def run(self, files: Path) -> dict[str, Any]:
        """Train, or go on training.

        Returns:
            Test ``accuracy``, and ``before`` and ``after`` it the ``alignment`` of the kernel with that of the labels,
            their ``energy`` in its leading eigenvectors, and the accuracy of ``regression``.
        """
        data = load(self.data).first(self.examples)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            start = build(fit_to(self.network, data.shape, len(data.classes))).eval()
        recipe = recipe_for(data.shape).but(**self.recipe)
        done = train(
            self.network, data, recipe, seed=self.seed, out=files / "network.safetensors", device=self.device,
            progress=False,
        )  # fmt: skip
        x, labels = data.loader("train").batch(slice(0, self.fitted))
        new, truth = data.loader("test").batch(slice(0, self.tested))
        spectrum = lambda model: _spectrum(model, x, labels, new, truth)
        accuracy = float(done.card.metrics["test_accuracy"] or 0.0)
        return {"accuracy": accuracy, "before": spectrum(start), "after": spectrum(done.model.cpu().eval())}


def _spectrum(model: Any, x: Tensor, labels: Tensor, new: Tensor, truth: Tensor) -> dict[str, float]:

    if isinstance(model, GatedNetwork):
        model.gate = "hard"  # paths are on or off
    kernel = lambda a, b=None: neural_path_kernel(model, a, b, input="ones")
    own: Any = kernel(new)
    same: Any = torch.nn.functional.one_hot(truth).to(own)
    return {
        "alignment": kernel_alignment(own, same @ same.T),
        "energy": label_energy(own, truth, _LEADING),
        "regression": kernel_regression(kernel(x), labels).accuracy(kernel(new, x), truth),  # type: ignore[arg-type]
    }


def _spectral(setting: Setting) -> Reproduction:

    width, examples, seeds = setting.by_scale((32, None, 2), (64, 5000, 3), (512, None, 5))
    base = f"mlp:widths={width}-{width}-{width}"
    networks = {
        "network": base,
        "DGN(x, 1)": gated_spec("dgn", base, input="ones"),
        "DLGN(x, 1)": gated_spec("dlgn", base, input="ones"),
        "DLGN-SF(x, 1)": gated_spec("dlgn_sf", base, input="ones"),
    }
    recipe = setting.by_scale({"epochs": 10, "batch_size": 64}, {"epochs": 8, "batch_size": 128}, {})
    spectra = [
        GateSpectrum(
            network=network, data=setting.data_spec, examples=examples, fitted=setting.by_scale(200, 1000, 5000),
            tested=setting.by_scale(200, 1000, 5000), recipe=recipe, seed=setting.seed + k, device=setting.device,
        )
        for network in networks.values()
        for k in range(seeds)
    ]  # fmt: skip
    values = setting.run(spectra)
    found = {name: values[k * seeds : (k + 1) * seeds] for k, name in enumerate(networks)}
    rows = [
        _row(name, [v[when][what] for v in every], f"{when} training, {words}")
        for what, words in _SPECTRUM.items()
        for when in ("before", "after")
        for name, every in found.items()
    ]
    rows += [_row(name, [v["accuracy"] for v in every], "networks, test accuracy") for name, every in found.items()]
    of = lambda name, when, what: [v[when][what] for v in found[name]]
    linear, bent = "DLGN(x, 1)", "DGN(x, 1)"
    claims = [
        _above(f"training turns linear gates towards the labels: {words} rises", of(linear, "after", what),
               of(linear, "before", what))
        for what, words in _SPECTRUM.items()
    ]  # fmt: skip
    claims += [
        _above(f"gates behind ReLUs turn further: {words} of DGN ends above DLGN's", of(bent, "after", what),
               of(linear, "after", what))
        for what, words in _SPECTRUM.items()
    ]  # fmt: skip
    notes = [
        f"{base} and its gated counterparts with constant input, {seeds} seeds; intervals are over seeds. Kernels of "
        f"gates alone on {spectra[0].tested} test images, regression from {spectra[0].fitted} training images.",
        f"Share of labels: in the {_LEADING} leading eigenvectors of the centred kernel.",
    ]
    return Reproduction(
        "open-spectral", "Do linear gates learn the kernel?", _PAPERS, setting.scale, rows, claims, notes=notes
    )


_SPECTRUM = {
    "alignment": "alignment with the labels",
    "energy": "share of labels in leading eigenvectors",
    "regression": "accuracy of kernel regression",
}


def _gap(setting: Setting) -> Reproduction:
    widths = setting.by_scale((4, 8), (4, 8, 16), (32, 128, 512))
    arms = {
        "DNN": "c4gap:width={}",
        **{f"{k}(x, 1)": f"{k.lower()}:base=c4gap,width={{}},input=ones" for k in ("DGN", "DLGN")},
    }
    found = _accuracies(setting, {(arm, w): text.format(w) for arm, text in arms.items() for w in widths})
    rows = [_row(f"width {w}", found[arm, w], f"{arm}, accuracy") for arm in arms for w in widths]
    gaps = {w: [a - b for a, b in zip(found["DGN(x, 1)", w], found["DLGN(x, 1)", w])] for w in widths}
    rows += [_row(f"width {w}", gap, "DGN - DLGN, points") for w, gap in gaps.items()]
    mean = {w: sum(gap) / len(gap) for w, gap in gaps.items()}
    detail = ", ".join(f"{gap:+.1f} at width {w}" for w, gap in mean.items())
    narrow, wide = mean[widths[0]], mean[widths[-1]]
    claims = [
        Claim("ReLUs in the gating network help at every width", all(gap > 0 for gap in mean.values()), detail),
        Claim("width closes the gap: in the widest network it is smaller by a point than in the narrowest",
              None if narrow <= 0 else wide < narrow - _POINT, detail),
    ]  # fmt: skip
    return Reproduction(
        "open-dgn-dlgn-gap", "The gap between DGN and DLGN by width", _PAPERS, setting.scale, rows, claims,
        notes=_notes(setting, "C4GAP"),
    )  # fmt: skip


def _depth(setting: Setting) -> Reproduction:
    width = setting.by_scale(8, 8, 128)
    deep = {"c4gap": f"base=c4gap,width={width}", "MLP of 2 layers": "base=mlp/widths=64-64"}
    deep["MLP of 5 layers"] = "base=mlp/widths=64-64-64-64-64"
    kinds = {"deep": "dlgn", "single maps": "dlgn_sf"}
    found = _accuracies(
        setting,
        {(words, name): f"{kind}:{base},input=ones" for words, kind in kinds.items() for name, base in deep.items()},
    )
    rows = [_row(name, found[words, name], f"{words}, accuracy") for words in kinds for name in deep]
    claims = []
    for name in deep:
        gap = [a - b for a, b in zip(found["deep", name], found["single maps", name])]
        rows.append(_row(name, gap, "deep - single maps, points"))
        mean, low, high = interval(gap)
        spread = "" if low is None or high is None else f", from {low:+.1f} to {high:+.1f}"
        claims.append(Claim(f"{name}: a deep linear gating network is better than single maps (print: about 6 points, "
                            "VGG-16 on CIFAR-100)", mean > 0, f"{mean:+.1f} points{spread}"))  # fmt: skip
    return Reproduction(
        "open-gating-depth", "The depth of linear gating networks", _PAPERS, setting.scale, rows, claims,
        notes=_notes(setting, f"C4GAP of width {width}, fully connected networks of width 64"),
    )  # fmt: skip


def _accuracies(setting: Setting, networks: Mapping[Any, str]) -> dict[Any, list[float]]:
    """Accuracies of every network in percent, trained alike from the same seeds."""
    seeds, examples = setting.by_scale((1, 600), (3, 2000), (5, None))
    epochs = setting.by_scale(10, 6, None)
    shorter = {"epochs": epochs, "learning_rate": 3e-3, "batch_size": 64} if epochs else {}
    jobs = [
        Accuracy(
            network=text, data=setting.data_spec, examples=examples, base_recipe="c4gap", recipe=shorter,
            seed=setting.seed + k, device=setting.device,
        )
        for text in networks.values()
        for k in range(seeds)
    ]  # fmt: skip
    values = setting.run(jobs)
    return {key: values[i * seeds : (i + 1) * seeds] for i, key in enumerate(networks)}


def _row(what: str, values: Sequence[float], group: str) -> Row:
    mean, low, high = interval(values)
    return Row(what, mean, None, low, high, group=group)


def _above(text: str, later: Sequence[float], earlier: Sequence[float]) -> Claim:
    """Whether something is more on average over seeds, and how sure that is, seed by seed."""
    mean, low, high = interval([a - b for a, b in zip(later, earlier)])
    spread = "" if low is None or high is None else f", from {low:+.3f} to {high:+.3f}"
    return Claim(text, mean > 0, f"{mean:+.3f}{spread}")


def _notes(setting: Setting, what: str) -> list[str]:
    made = {
        "smoke": "600 digits, one seed",
        "small": "2,000 training images of CIFAR-10, 6 epochs",
        "paper": "CIFAR-10",
    }
    return [f"{what}; {made[setting.scale]}; the same seeds for all, intervals over seeds. Accuracies in %."]


_PAPERS = "left open by paper 2, section 3.3"

EXPERIMENTS = (
    Experiment("open-spectral", "Do linear gates learn the kernel?", _PAPERS, _spectral),
    Experiment("open-dgn-dlgn-gap", "The gap between DGN and DLGN by width", _PAPERS, _gap),
    Experiment("open-gating-depth", "The depth of linear gating networks", _PAPERS, _depth),
)
