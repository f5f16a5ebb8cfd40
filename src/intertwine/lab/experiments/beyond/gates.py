"""Open ends of paper 2, section 3.3: ReLUs in the gating network, its depth, and what its gates learn.

1. DGN and DLGN differ only by the ReLUs of the gating network, and 2 points of accuracy lie between them. Does width
   close the gap?
2. Linear gating networks compute no more in many layers than in one, yet a deep one is said to be about 6 points better
   than single maps (DLGN-SF). Is it, at other depths of the value network?
3. "Is DLGN a universal spectral approximator": do linear gates learn what a kernel needs? Asked of the neural path
   kernel of the gates alone (constant inputs) on new examples: its alignment with the labels, the share of the labels
   that lies in its leading eigenvectors, and the accuracy of kernel regression, each before and after training.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from ....gates import GatedNetwork, kernel_regression, neural_path_kernel
from ....gates.kernels import kernel_alignment
from ....gates.kernels.kernel_regression import RIDGES
from ...data import load
from ...networks import build, fit_to, gated_spec
from ...runs import Job
from ...training import recipe_for, train
from ..estimates import of_runs
from ..experiment import Experiment, Measured, Setting, trained_from
from ..paper2.tables import Accuracy
from ..reproduction import Reproduction, Row
from ..verdicts import Claim, Trained, claim

_LEADING = 10  # eigenvectors: as many as classes
_POINT = 1.0
_FOLDS = 5


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
    """One gated network: the kernel of its gates before and after training."""

    gpus: ClassVar[float] = 0.25

    network: str  # Built-in network, fitted to the data
    data: str  # As ``lab.data.load`` takes it
    examples: int | None  # Training images of the network
    fitted: int  # Of these, those of the kernel regression
    tested: int  # Test images
    recipe: dict[str, Any]  # Settings that differ from the recipe for this data
    seed: int  # Of weights and order
    device: str = "auto"  # Where the network is trained

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
    ridges = RIDGES if labels.bincount().min() >= _FOLDS else (1e-3,)  # too few of a class to choose by folds
    return {
        "alignment": kernel_alignment(own, same @ same.T),
        "energy": label_energy(own, truth, _LEADING),
        "regression": kernel_regression(kernel(x), labels, strengths=ridges).accuracy(kernel(new, x), truth),  # type: ignore[arg-type]
    }


def _spectral(setting: Setting) -> Measured:
    width, examples, seeds = setting.by_scale((32, 400, 2), (64, 5000, 6), (512, None, 5))
    recipe = setting.by_scale({"epochs": 3, "batch_size": 64}, {"epochs": 8, "batch_size": 128}, {})
    few = setting.by_scale(100, 1000, 5000)
    return _spectra(setting, f"mlp:widths={width}-{width}-{width}", seeds, examples, few, recipe)


def _spectral_cnn(setting: Setting) -> Measured:
    """On digits: the kernel of a convolutional network takes ``N^2 P^2`` operations for ``P`` pixels."""
    width, few, seeds = setting.by_scale((8, 24, 2), (8, 100, 5), (16, 200, 5))
    recipe = {"epochs": setting.by_scale(2, 40, 40), "batch_size": 64, "learning_rate": 1e-2}  # at 10 some do not learn
    setting = replace(setting, data="digits")
    found = _spectra(setting, f"c4gap:width={width}", seeds, setting.by_scale(200, None, None), few, recipe)
    return replace(found, facts={"data": "digits"})


def _spectra(
    setting: Setting, base: str, seeds: int, examples: int | None, few: int, recipe: dict[str, Any]
) -> Measured:
    """One architecture and its gated counterparts; ``few`` images are fitted, and as many tested."""
    networks = {
        "network": base,
        "DGN(x, 1)": gated_spec("dgn", base, input="ones"),
        "DLGN(x, 1)": gated_spec("dlgn", base, input="ones"),
        "DLGN-SF(x, 1)": gated_spec("dlgn_sf", base, input="ones"),
    }
    spectra = [
        GateSpectrum(
            network=network, data=setting.data_spec, examples=examples, fitted=few, tested=few, recipe=recipe,
            seed=setting.seed + k, device=setting.device,
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
    rows += [_row(name, [v["accuracy"] for v in every], _ACCURACY) for name, every in found.items()]
    of = lambda name, when, what: [v[when][what] for v in found[name]]
    linear, bent = "DLGN(x, 1)", "DGN(x, 1)"
    for what, words in _SPECTRUM.items():
        after = of(linear, "after", what)
        rows.append(_row(words, _gaps(after, of(linear, "before", what)), _RISES))
        rows.append(_row(words, _gaps(of(bent, "after", what), after), _FURTHER))
    notes = [
        f"{base} and its gated counterparts with constant input, {seeds} seeds; intervals are over seeds. Kernels of "
        f"gates alone on {few} test images, regression from as many training images.",
        f"Share of labels: in the {_LEADING} leading eigenvectors of the centred kernel.",
    ]
    return Measured(rows, notes)


def _judge_spectral(found: Reproduction) -> list[Claim]:
    table = found.table
    networks = Trained({k: e for k, e in table[_ACCURACY].items() if k != "DLGN-SF(x, 1)"}, _least(found, _LEARNT))
    rises, further = table.get(_RISES, {}), table.get(_FURTHER, {})
    return [
        *(claim(f"training turns linear gates towards the labels: {w} rises", {"after - before": e}, above=0,
                trained=networks)
          for w, e in rises.items()),
        *(claim(f"gates behind ReLUs turn further: {w} of DGN ends above DLGN's", {"DGN - DLGN": e}, above=0,
                trained=networks)
          for w, e in further.items()),
    ]  # fmt: skip


def _gaps(later: Sequence[float], earlier: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(later, earlier)]


_ACCURACY, _LEARNT = "networks, test accuracy", 0.3  # fully connected networks of CIFAR-10 images: three times chance
_RISES, _FURTHER = "rise of DLGN(x, 1) by training", "DGN(x, 1) above DLGN(x, 1) after training"

_SPECTRUM = {
    "alignment": "alignment with the labels",
    "energy": "share of labels in leading eigenvectors",
    "regression": "accuracy of kernel regression",
}


def _gap(setting: Setting) -> Measured:
    widths = setting.by_scale((4, 8), (8, 16, 32), (32, 128, 512))
    arms = {
        "DNN": "c4gap:width={}",
        **{f"{k}(x, 1)": f"{k.lower()}:base=c4gap,width={{}},input=ones" for k in ("DGN", "DLGN")},
    }
    found = _accuracies(setting, {(arm, w): text.format(w) for arm, text in arms.items() for w in widths})
    rows = [_row(f"width {w}", found[arm, w], f"{arm}: accuracy") for arm in arms for w in widths]
    rows += [_row(f"width {w}", _gaps(found["DGN(x, 1)", w], found["DLGN(x, 1)", w]), _POINTS) for w in widths]
    return Measured(rows, _notes(setting, "C4GAP"))


def _judge_gap(found: Reproduction) -> list[Claim]:
    gaps = found.table[_POINTS]
    networks = _widest(found, "DNN: accuracy")
    first, *_, last = gaps.values()
    return [
        claim("ReLUs in the gating network help at every width", gaps, above=0, trained=networks),
        claim("width closes the gap: in the widest network it is smaller by a point than in the narrowest",
              {"narrowest - widest": first - last}, above=_POINT, trained=networks),
    ]  # fmt: skip


def _least(found: Reproduction, else_: float) -> float:
    """Accuracy from which networks count as trained: that of digits, else a modest one."""
    return trained_from(found) if found.facts.get("data") == "digits" else else_


def _widest(found: Reproduction, group: str) -> Trained:
    """The networks at the last point of a group of accuracies in percent."""
    *_, last = found.table[group].values()
    return Trained({group.partition(":")[0]: last.times(0.01)}, _least(found, 0.5))


_POINTS, _DEEPER = "DGN - DLGN, points", "deep - single maps, points"


def _depth(setting: Setting) -> Measured:
    width = setting.by_scale(8, 16, 128)
    deep = {"c4gap": f"base=c4gap,width={width}", "MLP of 2 layers": "base=mlp/widths=64-64"}
    deep["MLP of 5 layers"] = "base=mlp/widths=64-64-64-64-64"
    deep["VGG-16"] = f"base=vgg16,width={setting.by_scale(4, 8, 64)}"  # the paper's own case
    kinds = {"deep": "dlgn", "single maps": "dlgn_sf"}
    found = _accuracies(
        setting,
        {(words, name): f"{kind}:{base},input=ones" for words, kind in kinds.items() for name, base in deep.items()},
    )
    rows = [_row(name, found[words, name], f"{words}: accuracy") for words in kinds for name in deep]
    rows += [_row(name, _gaps(found["deep", name], found["single maps", name]), _DEEPER) for name in deep]
    return Measured(rows, _notes(setting, f"C4GAP of width {width}, fully connected networks of width 64, VGG-16"))


def _judge_depth(found: Reproduction) -> list[Claim]:
    text = "a deep linear gating network is better than single maps"
    return [
        claim(f"{name}: {text}{' (print: about 6 points on CIFAR-100)' if name == 'VGG-16' else ''}",
              {_DEEPER: e}, above=0,
              trained=Trained({name: found.table["deep: accuracy"][name].times(0.01)}, _least(found, _LEARNT)))
        for name, e in found.table[_DEEPER].items()
    ]  # fmt: skip


def _accuracies(setting: Setting, networks: Mapping[Any, str]) -> dict[Any, list[float]]:
    """Accuracies of every network in percent, trained alike from the same seeds."""
    seeds, examples = setting.by_scale((2, 128), (6, None), (5, None))
    epochs = setting.by_scale(2, 20, None)
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
    return Row.of(what, of_runs(values), group=group)


def _notes(setting: Setting, what: str) -> list[str]:
    made = {
        "smoke": "128 digits, 2 epochs",
        "small": "digits, 20 epochs",
        "paper": "CIFAR-10",
    }
    return [f"{what}; {made[setting.scale]}; the same seeds for all, intervals over seeds. Accuracies in %."]


_PAPERS = "left open by paper 2, section 3.3"

EXPERIMENTS = (
    Experiment("open-spectral", "Do linear gates learn the kernel?", _PAPERS, _spectral, _judge_spectral),
    Experiment("open-spectral-cnn", "Do linear gates of a convolutional network?", _PAPERS, _spectral_cnn,
               _judge_spectral, data=False),
    Experiment("open-dgn-dlgn-gap", "The gap between DGN and DLGN by width", _PAPERS, _gap, _judge_gap,
               digits=("smoke", "small")),
    Experiment("open-gating-depth", "The depth of linear gating networks", _PAPERS, _depth, _judge_depth,
               digits=("smoke", "small")),
)  # fmt: skip
