"""Section 2.2.4 of the second paper: fixed random gates, infinite width, fixed learnt gates, the network itself."""

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

from ....gates import dgn, kernel_regression, neural_path_kernel, neural_tangent_kernel
from ....gates.kernels import convolutional_tangent_kernel
from ...data import DataSplits, load
from ...networks import build, fit_to
from ...runs import Job
from ...training import RECIPES, train
from ...training.digest import digest
from ..estimates import exact, of_runs
from ..experiment import Experiment, Measured, Setting, trained_from
from ..printed import FIG_2_CHAIN
from ..reproduction import Reproduction, Row
from ..verdicts import Claim, Trained, claim

_FROZEN = "whether fixed gating networks ended as they began"
_NEAR = 2.0  # points
_ORDER = ("FR gates", "FR gates, NPK", "NTK at the start", "CNTK-GAP", "FL gates, NPK", "FL gates", "network")


class Chain(Job):
    """One seed of the chain: a network, both of its fixed-gates networks, and kernels, on the same examples."""

    gpus: ClassVar[float] = 0.5

    network: str  # Built-in network without batch norm, fitted to the data
    data: str  # As ``lab.data.load`` takes it
    examples: int | None  # Training examples of everything
    tested: int | None  # Test examples of the kernels; ``None`` for no kernels, which cost ``N^2 P^2`` for ``P`` pixels
    pool: int  # Images are averaged over squares of so many pixels first
    recipe: dict[str, Any]  # Settings that differ from the recipe ``cnn_gap``
    seed: int  # Of weights, order and folds
    device: str = "auto"  # Where

    def run(self, files: Path) -> dict[str, Any]:
        """Train the three networks, or go on training them, and fit the kernel methods.

        Returns:
            Accuracies in percent by name, and under ``frozen`` whether the fixed gating networks ended as they began.
        """
        data, recipe = _pooled(load(self.data).first(self.examples), self.pool), RECIPES["cnn_gap"].but(**self.recipe)
        how: dict[str, Any] = {"seed": self.seed, "device": self.device, "progress": False}
        learnt = train(self.network, data, recipe, out=files / "network.safetensors", **how)
        found: dict[str, Any] = {"network": 100 * (learnt.card.metrics["test_accuracy"] or 0.0), "frozen": True}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            start = build(fit_to(self.network, data.shape, len(data.classes)))
        for name, model, regime in (("FR gates", start, "fixed_random"), ("FL gates", learnt.model, "fixed_learnt")):
            fixed = dgn(model, regime=regime, seed=self.seed)  # type: ignore[arg-type]
            before = digest(fixed.gating)
            file = files / f"{regime}.safetensors"
            run = train(fixed, data, recipe, name=f"{self.network} with {name}", out=file, **how)
            found[name] = 100 * (run.card.metrics["test_accuracy"] or 0.0)
            found["frozen"] &= digest(run.model.get_submodule("gating")) == before
            if self.tested:
                found[f"{name}, NPK"] = self._of_kernel(data, lambda x, y, m=run.model: _path_kernel(m, x, y))
        if self.tested:
            found["NTK at the start"] = self._of_kernel(data, lambda x, y: _tangent_kernel(start, x, y))
            found["CNTK-GAP"] = self._of_kernel(data, _convolutional_kernel)
        return found

    def _of_kernel(self, data: DataSplits, kernel: Any) -> float:
        """Accuracy of ridge regression, its strength chosen among the training examples."""
        x, labels = data.loader("train").batch(slice(None))
        new, truth = data.loader("test").batch(slice(0, self.tested))
        fit = kernel_regression(kernel(x, None), labels, seed=self.seed)
        return 100 * fit.accuracy(kernel(new, x), truth)


def _pooled(data: DataSplits, size: int) -> DataSplits:
    if size == 1:
        return data

    scale = 1 if data.train.inputs.dtype.is_floating_point else 255
    small = lambda split: replace(split, inputs=avg_pool2d(split.inputs.to("cpu").float() / scale, size))
    train, validation, test = map(small, (data.train, data.validation, data.test))
    return replace(data, name=f"{data.name}/{size}", train=train, validation=validation, test=test)


def _path_kernel(model: nn.Module, x: Tensor, y: Tensor | None) -> Any:

    return neural_path_kernel(model, x, y)


def _tangent_kernel(model: nn.Module, x: Tensor, y: Tensor | None) -> Tensor:

    return neural_tangent_kernel(model, x, y, kind="trace")


def _convolutional_kernel(x: Tensor, y: Tensor | None) -> Tensor:

    return convolutional_tangent_kernel(x, depth=4, y=y)


def _chain(setting: Setting) -> Measured:
    width, examples, seeds = setting.by_scale((8, 120, 2), (32, 800, 6), (64, None, 5))
    tested, pool = setting.by_scale((40, 4), (359, 2), (None, 1))
    recipe = setting.by_scale({"epochs": 4, "learning_rate": 3e-3}, {"epochs": 60, "learning_rate": 1e-3}, {})
    values = setting.run([
        Chain(
            network=f"cnn_gap:width={width}", data=setting.data_spec, examples=examples, tested=tested, pool=pool,
            recipe=recipe, seed=setting.seed + k, device=setting.device,
        )
        for k in range(seeds)
    ])  # fmt: skip
    names = [name for name in _ORDER if name in values[0]]
    rows = [Row.of(name, of_runs(v[name] for v in values), FIG_2_CHAIN.get(name)) for name in names]
    rows.append(Row.of("all of them", exact(all(v["frozen"] for v in values)), group=_FROZEN))
    how = RECIPES["cnn_gap"].but(**recipe)
    shrunk = f"pooled over {pool} x {pool} pixels, " if pool > 1 else ""
    notes = [
        f"CNN-GAP of width {width}, {how.epochs} epochs of {examples or 'all'} images, {shrunk}{seeds} seeds. "
        "Accuracies in %.",
        "Gates are hard; the paper's figure 2 has soft ones of (1 + 0.1) sigmoid(4 q) for decoupled learning.",
        *([] if tested else ["Kernels need N^2 P^2 operations and are left out at this scale."]),
    ]
    return Measured(rows, notes)


def _judge(found: Reproduction) -> list[Claim]:
    by = found.table[""]
    networks = Trained({"network": by["network"].times(0.01)}, trained_from(found))
    below = [
        ("FR gates", "FL gates"),
        ("FR gates", "CNTK-GAP"),
        ("CNTK-GAP", "FL gates"),
        ("FR gates, NPK", "FL gates, NPK"),
    ]
    claims = [
        claim(f"{low} <= {high}", {f"{high} - {low}": by[high] - by[low]}, above=0, trained=networks)
        for low, high in below
        if low in by and high in by
    ]
    near = claim("FL gates come within 2 points of the network itself (print: 0.6)",
                 {"network - FL gates": by["network"] - by["FL gates"]},
                 above=-_NEAR, below=_NEAR, trained=networks)  # fmt: skip
    frozen = found.table.get(_FROZEN, {})
    return [*claims, near, claim("gating networks that are fixed do not change", frozen, above=0.5, check=True)]


EXPERIMENTS = (
    Experiment(
        "p2-chain",
        "Fixed random gates, kernels, fixed learnt gates, the network",
        "paper 2, section 2.2.4",
        _chain,
        _judge,
        digits=("smoke", "small"),
    ),
)
