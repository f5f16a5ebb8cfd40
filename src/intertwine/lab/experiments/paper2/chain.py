"""Section 2.2.4 of the second paper: fixed random gates, infinite width, fixed learnt gates, the network itself.

A kernel method with a thousand examples cannot be compared with a network trained on all of them. So there are two
chains: networks on all training images, and networks and kernel methods on the same few examples, pooled. Further
networks with few examples are tested on all test images, without kernels, which take far longer.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ....gates import dgn, kernel_regression, neural_path_kernel, neural_tangent_kernel
from ....gates.kernels.wide_limits import convolutional_tangent_kernel
from ...data import DataSplits, load
from ...networks import build, fit_to
from ...statistics import Guard
from ...training import RECIPES, Recipe, choose_device, digest, fast_precision, train
from ..experiment import Experiment, Findings
from ..plan import BASELINE, DataJob, Design, accuracy_rows, blocks, logistic_regression, row
from ..reproduction import FIG_2_CHAIN

_NEAR = 0.02  # accuracy within which networks are near
_TRAINED = 0.5  # accuracy from which networks without batch norm count as trained
_ORDER = ("FR gates", "FR gates, NPK", "NTK at the start", "CNTK-GAP", "FL gates, NPK", "FL gates", "network")
_FEW = "few examples, "
_ALONE = f"{_FEW}networks alone, "


class Chain(DataJob):
    """One seed of the chain: a network, its two networks with fixed gates, and kernels, on the same examples."""

    network: str  # Built-in network without batch norm, fitted to the data
    examples: int | None  # Training examples, drawn anew for every seed; all of them if ``None``
    tested: int | None  # Test examples of networks and kernels; ``None`` for all of them and no kernels
    pool: int  # Side of the squares of pixels over which images are averaged first
    recipe: dict[str, Any]  # Settings of the training recipe
    prefix: str  # Prefix of the names of arms
    seed: int  # Of examples, weights, order and folds

    def run(self, files: Path) -> list[dict[str, Any]]:
        """Train the three networks, or resume their training, and fit the kernel methods."""
        data, recipe = self._data(), Recipe(**self.recipe)
        how: dict[str, Any] = {"seed": self.seed, "device": self.device, "progress": False}
        learnt = train(self.network, data, recipe, out=files / "network.safetensors", **how)
        rows = self._named("network", accuracy_rows(learnt.model, data))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            start = build(fit_to(self.network, data.shape, len(data.classes)))
        for name, model, regime in (("FR gates", start, "fixed_random"), ("FL gates", learnt.model, "fixed_learnt")):
            fixed = dgn(model, regime=regime, seed=self.seed)  # type: ignore[arg-type]
            before = digest(fixed.gating)
            file = files / f"{regime}.safetensors"
            run = train(fixed, data, recipe, name=f"{self.network} with {name}", out=file, **how)
            kept = digest(run.model.get_submodule("gating")) == before
            rows += self._named(name, [*accuracy_rows(run.model, data), row("frozen", float(kept))])
            if self.tested:
                path = lambda x, y, m=run.model: neural_path_kernel(m.to(x.device), x, y)
                rows += self._of_kernel(f"{name}, NPK", data, path)
        if self.tested:
            tangent = lambda x, y: neural_tangent_kernel(start.to(x.device), x, y, kind="trace")
            rows += self._of_kernel("NTK at the start", data, tangent)
            rows += self._of_kernel("CNTK-GAP", data, lambda x, y: convolutional_tangent_kernel(x, depth=4, y=y))
        if self.prefix:
            rows += self._named(BASELINE, _accuracies(logistic_regression(data, 300)))
        return rows

    def _data(self) -> DataSplits:
        data = load(self.data)
        if self.examples:
            order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(self.seed))
            data = replace(data, train=data.train.take(order)).first(self.examples)
        if self.tested:
            data = replace(data, test=data.test.take(slice(0, self.tested)))
        return data.pooled(self.pool)

    def _named(self, name: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**row, "arm": f"{self.prefix}{name}"} for row in rows]

    def _of_kernel(
        self, name: str, data: DataSplits, kernel: Callable[[Tensor, Tensor | None], Any]
    ) -> list[dict[str, Any]]:
        """Rows of kernel ridge regression, its strength cross-validated: accuracy in blocks, and mean score."""
        device = choose_device(self.device)
        x, labels = (t.to(device) for t in data.loader("train").batch(slice(None)))
        new, truth = (t.to(device) for t in data.loader("test").batch(slice(None)))
        with torch.no_grad() if name == "CNTK-GAP" else torch.enable_grad():
            fit, between = kernel_regression(kernel(x, None), labels, seed=self.seed), kernel(new, x)
        scores = between.double() @ fit.weights.to(between.device)
        rows = _accuracies(scores.argmax(1) == truth.to(scores.device))
        of_truth = scores.gather(1, truth.to(scores.device)[:, None]).mean().item()
        return self._named(name, [*rows, row("score of the true class", of_truth)])


def _accuracies(right: Any) -> list[dict[str, Any]]:
    """Rows of accuracy, in the same blocks of test images as for networks."""
    return [row("accuracy", sum(own) / len(own), images=len(own), block=number)
            for number, part in blocks(len(right)) for own in [right[part].tolist()]]  # fmt: skip


def _plan(plan: Design) -> None:
    s = plan.setting
    first, seeds, some = s.by_scale((0, 2, 2), (6, 16, 8), (0, 5, 5))
    alone = s.by_scale(2, 16, 16)
    width, base = s.by_scale(8, 32, 64), RECIPES["cnn_gap"]
    large: dict[str, Any] = {"learning_rate": 3e-3, "batch_size": 64 if s.digits else 128, "schedule": "cosine"}
    fast = {"precision": fast_precision(s.device)}
    whole = base.but(**s.by_scale({"epochs": 4, **large}, {"epochs": 12, **large, **fast}, {}))
    half = s.by_scale(1, 2, 1)
    few = base.but(**s.by_scale({"epochs": 6, "learning_rate": 3e-3}, *[{"epochs": 60, "learning_rate": 1e-3}] * 2))
    examples, tested, pool = s.by_scale((120, 40, 4), (2000, 500, 4), (2000, 2000, 4))
    plan.baseline()
    for k in range(s.seed + first, s.seed + first + seeds):
        plan.add(Chain(network=f"cnn_gap:width={width}", examples=s.by_scale(400, None, None), pool=half, tested=None,
                       recipe=whole.to_dict(), prefix="", data=s.data_spec, seed=k, device=s.device),
                 network=k)  # fmt: skip
    after = s.seed + first + seeds  # new seeds
    for prefix, start, count in ((_FEW, s.seed + first, some), (_ALONE, after, alone)):
        for k in range(start, start + count):
            plan.add(Chain(network=f"cnn_gap:width={min(width, 32)}", examples=examples, pool=pool,
                           tested=tested if prefix == _FEW else None, recipe=few.to_dict(), prefix=prefix,
                           data=s.data_spec, seed=k, device=s.device), network=k)  # fmt: skip
    plan.note(
        f"CNN-GAP of width {width}, images pooled over {half} x {half} pixels, {whole.epochs} epochs in batches of "
        f"{whole.batch_size}, {seeds} seeds ({some} with few examples).",
        f"{_FEW.rstrip(', ').capitalize()}: {examples:,} training images, drawn anew for every seed, pooled over "
        f"{pool} x {pool} pixels, and {tested:,} test images, for networks of width {min(width, 32)}, trained "
        f"{few.epochs} epochs, and kernel methods. {alone} other seeds have networks alone, on all test images: they "
        "show whether fixed learnt gates are better than random ones and than logistic regression. The paper uses all "
        "examples for both; kernels need N^2 P^2 operations.",
        "Gates are hard; in the paper's figure 2 they are soft, (1 + 0.1) sigmoid(4 q), for decoupled learning.",
    )


def _guard(found: Findings, prefix: str = "", arm: str = "") -> Guard:
    """Guard: networks beat logistic regression on their own examples and test images, and are not all perfect."""
    if not prefix:
        return replace(found.guard("network", least=_TRAINED), ceiling=1.0)
    prefix = _ALONE if f"{_ALONE}{arm}" in found.values.arms("accuracy") else _FEW
    trivial = found.values.sample("accuracy", f"{prefix}{BASELINE}")
    more = (found.values.sample("accuracy", f"{prefix}{arm}") - trivial).estimate()
    return Guard({arm: replace(more, value=more.value + trivial.mean)}, trivial.mean, 1.0)


def _analyse(found: Findings) -> None:
    sample: Callable[[str], Any] = lambda arm: found.values.sample("accuracy", arm)
    known = found.values.arms("accuracy")
    printed: Mapping[str, Any] = {k: (v / 100, None) for k, (v, _) in FIG_2_CHAIN.items()}
    for prefix in ("", _FEW, _ALONE):
        title = prefix.rstrip(", ") or "all examples"
        found.show(title, {n: sample(prefix + n) for n in _ORDER if prefix + n in known}, {} if prefix else printed)
    floor = {"all examples": found.values.sample("accuracy", BASELINE, "logistic regression"),
             **{prefix.rstrip(", "): sample(prefix + BASELINE) for prefix in (_FEW, _ALONE)}}  # fmt: skip
    found.show("logistic regression", floor)
    pairs = (("FR gates", "FL gates"), ("FR gates", "CNTK-GAP"), ("CNTK-GAP", "FL gates"),
             ("FR gates, NPK", "FL gates, NPK"))  # fmt: skip
    chains = [("", "", pairs[0]), (_FEW, _ALONE, pairs[0]), *((_FEW, _FEW, pair) for pair in pairs[1:])]
    for said, prefix, (low, high) in chains:
        gain = sample(prefix + high) - sample(prefix + low)
        found.state(f"{said}{low} <= {high}", {f"{high} - {low}": gain}, above=0, guard=_guard(found, said, high))
    found.state("FL gates come within 2 points of the network itself (print: 0.6)",
                {"network - FL gates": sample("network") - sample("FL gates")}, within=_NEAR,
                guard=_guard(found))  # fmt: skip
    frozen = [found.values.sample("frozen", arm).mean for arm in found.values.arms("frozen")]
    found.fact("gating networks that are fixed do not change", min(frozen), above=0.99, check=True)


_TITLE = "Fixed random gates, kernels, fixed learnt gates, the network"
EXPERIMENTS = (Experiment("p2-chain", _TITLE, "paper 2, section 2.2.4", _plan, _analyse),)
