"""Tables I, II and III of the second paper: what constant inputs, permuted layers and linear gates cost."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from ...data import DataSplits, load
from ...networks import Ensemble, parse
from ...runs import Job
from ...training import RECIPES, accuracy, fast_precision, train
from ..experiment import Experiment, Setting
from ..reproduction import Claim, Reproduction, Row

__all__ = ["EXPERIMENTS", "Accuracy", "difference", "interval"]

COLUMNS = ("DNN", "DGN(x, x)", "DGN(x, 1)", "DLGN(x, x)", "DLGN(x, 1)")

# Test accuracies in percent, by data set; the paper's "+-" are over 5 runs, or over the 23 permutations.
TABLE_1 = {
    "cifar10": dict(zip(COLUMNS, (80.5, 77.4, 77.5, 75.4, 75.4))),
    "cifar100": dict(zip(COLUMNS, (51.8, 47.4, 47.3, 47.4, 48.0))),
}
TABLE_1_PERMUTED = {
    "cifar10": dict(zip(COLUMNS[1:], (77.3, 77.9, 75.9, 76.0))),
    "cifar100": dict(zip(COLUMNS[1:], (48.4, 49.2, 47.5, 48.4))),
}
TABLE_2 = {
    "cifar10": {
        "vgg16": dict(zip(COLUMNS, (93.6, 93.0, 93.0, 87.0, 87.0))),
        "resnet110": dict(zip(COLUMNS, (94.0, 93.3, 93.2, 87.9, 87.8))),
    },
    "cifar100": {
        "vgg16": dict(zip(COLUMNS, (73.4, 70.3, 70.5, 61.5, 61.5))),
        "resnet110": dict(zip(COLUMNS, (72.7, 70.8, 70.8, 62.3, 62.7))),
    },
}
_FEW = 10_000  # training images at the scale small
_COSTLESS = 1.0  # points: the largest spread that Table I prints


class Accuracy(Job):
    """One network, trained and tested.

    Attributes:
        network: Built-in network, fitted to the data; members of an ensemble are trained one by one.
        data: As ``lab.data.load`` takes it.
        examples: Training examples; all without.
        recipe: Settings that differ from the recipe ``base_recipe``.
        base_recipe: Name of a recipe.
        seed: Of weights and order.
        device: Where.
    """

    gpus: ClassVar[float] = 0.5

    network: str
    data: str
    examples: int | None
    recipe: dict[str, Any]
    base_recipe: str
    seed: int
    device: str = "auto"

    def run(self, files: Path) -> float:
        """Train, or go on training, and test.

        Returns:
            Test accuracy in percent.
        """
        data, recipe = load(self.data).first(self.examples), RECIPES[self.base_recipe].but(**self.recipe)
        train_one = lambda network, seed: train(
            network, data, recipe, seed=seed, out=files / f"{seed}.safetensors", device=self.device, progress=False
        )
        if not self.network.startswith("c1gap_ensemble"):
            return 100 * (train_one(self.network, self.seed).card.metrics["test_accuracy"] or 0.0)
        return self._ensemble(data, train_one)

    def _ensemble(self, data: DataSplits, train_one: Any) -> float:

        arguments = parse(self.network)[1]
        members = arguments.pop("members", 16)
        member = "c1gap:" + ",".join(f"{name}={value}" for name, value in arguments.items())
        models = [train_one(member, 1000 * self.seed + k).model for k in range(members)]
        return 100 * accuracy(Ensemble(models).eval(), data.loader("test"))


def interval(values: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Mean of independent runs and its 95 % interval, which one run has not.

    Examples:
        >>> [round(v, 2) for v in interval([1.0, 2.0, 3.0])]
        [2.0, -0.48, 4.48]
    """
    from scipy.stats import t

    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, None, None
    error = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values))
    half = float(t.ppf(0.975, len(values) - 1)) * error
    return mean, mean - half, mean + half


def difference(what: str, later: Sequence[float], earlier: Sequence[float], allowed: float = _COSTLESS) -> Claim:
    """Whether something costs no accuracy: less than ``allowed`` points, or less than its own standard error twice.

    Single runs on both sides have no standard error, and cannot tell.

    Examples:
        >>> difference("constant 1", [90.0, 91.0], [90.5, 90.5]).held
        True
    """
    gap = sum(later) / len(later) - sum(earlier) / len(earlier)
    error = math.sqrt(sum(_square_of_error(v) for v in (later, earlier)))
    fewest, most = sorted((len(later), len(earlier)))
    spread = "no standard error" if most < 2 else f"standard error {'at least ' if fewest < 2 else ''}{error:.2f}"
    detail = f"{gap:+.2f} points, {spread}, {len(later)} and {len(earlier)} runs"
    return Claim(f"{what} costs nothing", None if most < 2 else gap > -max(allowed, 2 * error), detail)


def _square_of_error(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return sum((v - mean) ** 2 for v in values) / max(len(values) - 1, 1) / len(values)


def _network(base: str, column: str, width: int | None, permutation: tuple[int, ...] | None = None) -> str:
    """Text for ``networks.build``."""
    shape = [] if width is None else [f"width={width}"]
    if column == "DNN":
        return ":".join(filter(None, [base, ",".join(shape)]))
    kind, _, given = column.partition("(")
    options = [f"base={base}", *shape, *(["input=ones"] if given.endswith("1)") else [])]
    if permutation is not None:
        options.append("permutation=" + "-".join(map(str, permutation)))
    return f"{kind.lower().replace('-', '_')}:{','.join(options)}"


def _jobs(setting: Setting, networks: Mapping[Any, str], runs: int, **how: Any) -> list[tuple[Any, Accuracy]]:
    """Every network from several seeds, with the keys of the networks."""
    return [
        (key, Accuracy(network=text, data=setting.data_spec, seed=setting.seed + k, device=setting.device, **how))
        for key, text in networks.items()
        for k in range(runs)
    ]


def _train(setting: Setting, jobs: Sequence[tuple[Any, Accuracy]]) -> dict[Any, list[float]]:
    """Accuracies of every network, in percent, over its seeds."""
    found: dict[Any, list[float]] = {}
    for (key, _), value in zip(jobs, setting.run([job for _, job in jobs])):
        found.setdefault(key, []).append(value)
    return found


def _rows(found: Mapping[str, Sequence[float]], paper: Mapping[str, float], group: str) -> list[Row]:
    rows = []
    for what, values in found.items():
        mean, low, high = interval(values)
        rows.append(Row(what, mean, paper.get(what), low, high, group=group))
    return rows


def _data_of(setting: Setting) -> tuple[str, str]:
    """The paper's data set that this run's numbers stand beside, and the other one."""
    chosen = setting.data_spec.partition(":")[0] == "cifar100"
    return ("cifar100", "cifar10") if chosen else ("cifar10", "cifar100")


def _not_run(tables: Mapping[str, Mapping[str, float]], data: str) -> list[Row]:
    """The paper's rows of the other data set."""
    return [
        Row(what, None, number, group=f"{group}, {data}")
        for group, table in tables.items()
        for what, number in table.items()
    ]


def _permutations(count: int) -> list[tuple[int, ...]]:
    """Some of the 23, far apart in their order: the reversal, then evenly through the list."""
    every = list(itertools.permutations(range(4)))[1:]
    return every if count >= len(every) else [every[-1 - k * len(every) // count] for k in range(count)]


def _table_1(setting: Setting) -> Reproduction:
    width, runs, count = setting.by_scale((8, 2, 2), (32, 2, 1), (128, 5, 23))
    recipe = setting.by_scale({"epochs": 10, "learning_rate": 3e-3}, {"epochs": 8, "learning_rate": 3e-3}, {})
    data, other = _data_of(setting)
    orders = _permutations(count)
    plain: dict[Any, str] = {c: _network("c4gap", c, width) for c in COLUMNS}
    permuted = {(c, order): _network("c4gap", c, width, order) for c in COLUMNS[1:] for order in orders}
    how: dict[str, Any] = {"base_recipe": "c4gap", "recipe": recipe | _fast(setting)}
    how["examples"] = setting.by_scale(None, _FEW, None)
    trained = _train(setting, _jobs(setting, plain, runs, **how) + _jobs(setting, permuted, 1, **how))
    found = {c: trained[c] for c in COLUMNS}
    moved = {c: [v for order in orders for v in trained[c, order]] for c in COLUMNS[1:]}
    claims = [
        difference(f"constant 1 in a {kind}", found[f"{kind}(x, 1)"], found[f"{kind}(x, x)"])
        for kind in ("DGN", "DLGN")
    ]
    claims += [difference(f"permuting the layers of gates of a {c}", moved[c], found[c]) for c in COLUMNS[1:]]
    share = 100 * interval(found["DLGN(x, 1)"])[0] / interval(found["DNN"])[0]
    claims.append(Claim("DLGN(x, 1) recovers most of the DNN's accuracy", share > 80, f"{share:.1f} % (print: 93.66)"))
    return Reproduction(
        "p2-table1", "C4GAP: constant inputs and permuted layers", "paper 2, Table I", setting.scale,
        rows=[
            *_rows(found, TABLE_1[data], "no permutation"),
            *_rows(moved, TABLE_1_PERMUTED[data], f"{count} permutations"),
            *_not_run({"no permutation": TABLE_1[other], "permuted": TABLE_1_PERMUTED[other]}, other),
        ],
        claims=claims, comparable=setting.scale == "paper", notes=_notes(setting, f"width {width}"),
    )  # fmt: skip


def _table_2(setting: Setting) -> Reproduction:
    runs, recipe = setting.by_scale(2, 1, 5), _shorter(setting)
    bases = setting.by_scale(("vgg16", "resnet20"), ("vgg16", "resnet20"), ("vgg16", "resnet110"))
    width = setting.by_scale(4, 8, None)
    networks = {(base, c): _network(base, c, width) for base in bases for c in COLUMNS}
    examples = setting.by_scale(None, _FEW, None)
    jobs = _jobs(setting, networks, runs, base_recipe="vgg_resnet", recipe=recipe, examples=examples)
    trained = _train(setting, jobs)
    rows, claims = [], []
    data, other = _data_of(setting)
    for base, name in zip(bases, TABLE_2[data]):
        found = {c: trained[base, c] for c in COLUMNS}
        rows += _rows(found, TABLE_2[data][name], name if base == name else f"{base} for {name}")
        claims += [
            difference(f"constant 1 in a {kind} of {base}", found[f"{kind}(x, 1)"], found[f"{kind}(x, x)"])
            for kind in ("DGN", "DLGN")
        ]
        share = 100 * interval(found["DLGN(x, 1)"])[0] / interval(found["DNN"])[0]
        claims.append(Claim(f"DLGN(x, 1) of {base} recovers most of the DNN", share > 80, f"{share:.1f} %"))
    return Reproduction(
        "p2-table2", "VGG-16 and ResNet-110, gated", "paper 2, Table II", setting.scale,
        rows=[*rows, *_not_run(TABLE_2[other], other)], claims=claims,
        comparable=setting.scale == "paper", notes=_notes(setting, f"width {width}" if width else "full width"),
    )  # fmt: skip


def _table_3(setting: Setting) -> Reproduction:
    width, members, runs = setting.by_scale((16, 4, 2), (16, 4, 1), (512, 16, 5))
    shorter = setting.by_scale({"epochs": 10, "learning_rate": 3e-3}, {"epochs": 10, "learning_rate": 3e-3}, {})
    shorter |= _fast(setting)
    examples = setting.by_scale(None, _FEW, None)
    small = {
        "C1GAP": f"c1gap:width={width}",
        "C4GAP-DLGN-SF(x, 1)": _network("c4gap", "DLGN-SF(x, 1)", width),
        "C4GAP-DLGN-SF(x, x)": _network("c4gap", "DLGN-SF(x, x)", width),
    }
    jobs = _jobs(setting, small, runs, base_recipe="c1gap", recipe=shorter, examples=examples)
    ensemble = {f"C1GAP-{members}-ENS": f"c1gap_ensemble:width={width},members={members}"}
    longer = {**shorter, "epochs": 2 * shorter["epochs"]} if "epochs" in shorter else shorter
    jobs += _jobs(setting, ensemble, 1, base_recipe="c1gap_long", recipe=longer, examples=examples)
    deep = {"VGG-16-DLGN-SF(x, 1)": _network("vgg16", "DLGN-SF(x, 1)", setting.by_scale(4, 8, None))}
    jobs += _jobs(setting, deep, runs, base_recipe="vgg_resnet", recipe=_shorter(setting), examples=examples)
    found = _train(setting, jobs)
    mean = {what: interval(values)[0] for what, values in found.items()}
    c1gap, c4gap, vgg, ens = (
        mean[k] for k in ("C1GAP", "C4GAP-DLGN-SF(x, 1)", "VGG-16-DLGN-SF(x, 1)", f"C1GAP-{members}-ENS")
    )
    claims = [
        Claim("C4GAP-DLGN-SF is better than C1GAP (print: about 10 points)", c4gap > c1gap, f"{c4gap - c1gap:+.1f}"),
        Claim("the ensemble is better than one member", ens > c1gap, f"{ens - c1gap:+.1f}"),
        Claim("VGG-16-DLGN-SF is better than the ensemble (print: about 10 points)", vgg > ens, f"{vgg - ens:+.1f}"),
    ]
    return Reproduction(
        "p2-table3", "Shallow features: depth of the value network", "paper 2, Table III", setting.scale,
        rows=_rows(found, {}, ""), claims=claims,
        notes=[*_notes(setting, f"C1GAP and C4GAP of width {width}"), "The table itself is an image in our copy."],
    )  # fmt: skip


def _shorter(setting: Setting) -> dict[str, Any]:
    """Table II's recipe at scale: fewer iterations; digits in halved batches, neither moved nor mirrored."""
    length = setting.by_scale(120, 400, 64_000)
    if setting.scale == "paper":
        return {}
    boundaries = (max(length // 160, 1), length // 2, 3 * length // 4)
    changes: dict[str, Any] = {"iterations": length, "boundaries": boundaries}
    return (
        changes
        | _fast(setting)
        | ({"translate": 0, "flip": False, "batch_size": 64} if setting.scale == "smoke" else {})
    )


def _fast(setting: Setting) -> dict[str, Any]:
    """What makes training on a CPU faster, at the scale ``small``."""
    return {"batch_size": 128, "precision": fast_precision(setting.device)} if setting.scale == "small" else {}


def _notes(setting: Setting, what: str) -> list[str]:
    if setting.scale == "paper":
        return ["Augmentation, and the epochs of Table I, are not printed: see the recipes."]
    data = "digits" if setting.scale == "smoke" else f"{_FEW:,} training images"
    return [f"Made smaller: {data}, {what}, few epochs. Only differences speak, not the numbers.", "Accuracies in %."]


EXPERIMENTS = (
    Experiment("p2-table1", "C4GAP: constant inputs and permuted layers", "paper 2, Table I", _table_1),
    Experiment("p2-table2", "VGG-16 and ResNet-110, gated", "paper 2, Table II", _table_2),
    Experiment("p2-table3", "Shallow features: depth of the value network", "paper 2, Table III", _table_3),
)
