"""Positive semi-definite kernels beside the max kernel. Paper 1 (v2, remark 5.5) calls its own CKA "rule-bending".

The theory of CKA is for positive semi-definite kernels, which the max kernel is not. How far is it from one on real
features? And do kernels of the same symmetry that are positive semi-definite tell the same?

Beside the Laplace kernel, which the paper names, a sum over channels of any positive semi-definite kernel of a single
channel has both. Cubes of the products ``<x_c, y_c>`` are one by Schur's product theorem, and a soft maximum: the
largest product outweighs the others.
"""

from collections.abc import Callable, Mapping, Sequence
from math import pi
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from ....features import collect
from ....similarity import kernel, prepare_gram
from ....similarity._sides import living_channels
from ...data import load
from ..estimates import exact, of_pairs
from ..experiment import Experiment, Measured, Setting
from ..over_models import over_models, spearman
from ..pairs import PairJob, all_pairs, checkpoints, names_of
from ..reproduction import Reproduction, Row
from ..verdicts import Claim, claim
from ..zoos import accuracy_rows, trained
from .shared import networks_note, open_zoo, relu_layers

CUT = "max without its negative part"
SUMS = ("cubes", "gaussians", "arc_cosine")  # over channels
KERNELS = ("max", CUT, "laplace", *SUMS, "channel_normalized", "rbf", "linear")
SYMMETRIC = ("laplace", *SUMS, "channel_normalized")  # positive semi-definite, with the max kernel's symmetry
_NEGATIVE = "max, negative share of the spectrum"
_RANKED = "Spearman with the max kernel, all pairs of layers"
_APART = "difference from the max kernel's CKA"
_WORST = "negative share of the spectrum"
_ROUNDING = 1e-6  # share of the spectrum that may be negative by rounding


def channel_gram(x: Tensor, kind: str) -> Tensor:
    """Gram matrix of a kernel of single channels, summed over channels; each is centred, and its mean square is 1.

    Args:
        x: Features ``(N, C, *S)``, no constant channel among them.
        kind: ``"cubes"`` for ``<x_c, y_c>^3``, ``"gaussians"`` for ``exp(-|x_c - y_c|^2 / 4)``, ``"arc_cosine"`` for
            the arc-cosine kernel of first order (Cho and Saul 2009).

    Returns:
        ``(N, N)`` in float64, positive semi-definite.

    Raises:
        ValueError: If there is no such kernel.

    Examples:
        >>> import torch
        >>> x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
        >>> bool(torch.linalg.eigvalsh(channel_gram(x, "gaussians")).min() > 0)
        True
    """
    if kind not in SUMS:
        raise ValueError(f"kind must be one of {', '.join(SUMS)}. Got {kind!r}.")
    total = torch.zeros(len(x), len(x), dtype=torch.float64, device=x.device)
    for c in range(x.shape[1]):
        z = x[:, c].double().reshape(len(x), -1)
        z = z - z.mean()
        products = (z @ z.T) / z.square().sum().clamp(min=1e-300) * len(z)  # 1 on average over the diagonal
        total += _SUMMANDS[kind](products)
    return total


def _gaussian(products: Tensor) -> Tensor:
    square = products.diagonal()
    return (-(square[:, None] + square - 2 * products).clamp(min=0) / 4).exp()


def _arc_cosine(products: Tensor) -> Tensor:
    norm = products.diagonal().clamp(min=0).sqrt()
    sizes = norm[:, None] * norm
    cosine = (products / sizes.clamp(min=1e-300)).clamp(-1, 1)
    return sizes / pi * ((1 - cosine.square()).clamp(min=0).sqrt() + (pi - cosine.acos()) * cosine)


_SUMMANDS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "cubes": lambda p: p**3,
    "gaussians": _gaussian,
    "arc_cosine": _arc_cosine,
}


def negative_mass(gram: Tensor) -> float:
    """Share of a symmetric matrix's spectrum that is negative: ``Σ max(-λ, 0) / Σ |λ|``.

    Examples:
        >>> import torch
        >>> negative_mass(torch.diag(torch.tensor([3.0, -1.0])))
        0.25
    """
    values = torch.linalg.eigvalsh(gram.double())
    return float(values.clamp(max=0).abs().sum() / values.abs().sum())


def without_negative_part(gram: Tensor) -> Tensor:
    """The nearest positive semi-definite matrix, in Frobenius norm: negative eigenvalues become 0.

    Examples:
        >>> import torch
        >>> without_negative_part(torch.diag(torch.tensor([3.0, -1.0]))).tolist()
        [[3.0, 0.0], [0.0, 0.0]]
    """
    values, vectors = torch.linalg.eigh(gram.double())
    return (vectors * values.clamp(min=0)) @ vectors.T


def _grams(x: Tensor) -> dict[str, Tensor]:
    """Gram matrices of all kernels, constant channels left out."""
    x, moments, _ = living_channels(x.double(), 1)  # rounding must not look like a negative part
    found = {name: kernel(name).gram(x, moments)[0] for name in KERNELS if name != CUT and name not in SUMS}
    found[CUT] = without_negative_part(found["max"])
    return found | {kind: channel_gram(x, kind) for kind in SUMS}


class KernelPair(PairJob):
    """One pair of networks by all kernels."""

    gpus: ClassVar[float] = 0.25

    layers: tuple[str, ...]  # Names of layers
    examples: int  # Test images

    def run(self, files: Path) -> dict[str, Any]:
        """Score every layer of A against every layer of B.

        Returns:
            By kernel, ``scores`` (unbiased CKA) and the ``negative`` mass of each layer's Gram matrices, A's and B's.
        """
        loader = load(self.data).loader("test", examples=self.examples)
        sides: list[dict[str, list[Any]]] = []
        negative: dict[str, list[list[float]]] = {name: [] for name in KERNELS}
        for model in self.networks():
            side, masses = dict[str, list[Any]](), dict[str, list[float]]()
            for layer in self.layers:
                for name, gram in _grams(collect(model, loader, [layer])[layer]).items():
                    side.setdefault(name, []).append(prepare_gram(gram))
                    masses.setdefault(name, []).append(negative_mass(gram))
            sides.append(side)
            for name in KERNELS:
                negative[name].append(masses[name])
        scores = {name: [[_inner(p, q) for q in sides[1][name]] for p in sides[0][name]] for name in KERNELS}
        return {"scores": scores, "negative": negative}


def _inner(a: Any, b: Any) -> float:
    return float((a.gram.double() * b.gram.double()).sum())


def _rows(layers: Sequence[str], names: Sequence[tuple[str, str]], values: Sequence[Mapping[str, Any]]) -> list[Row]:
    models = list(dict.fromkeys(name for pair in names for name in pair))
    rows = [
        Row.of(layer, of_pairs(names, [v["scores"][name][k][k] for v in values]), group=f"{name}, CKA")
        for name in KERNELS
        for k, layer in enumerate(layers)
    ]
    negative = {layer: of_pairs(names, [_mass(v, "max", k) for v in values]) for k, layer in enumerate(layers)}
    rows += [Row.of(layer, found.within(0, 1), group=_NEGATIVE) for layer, found in negative.items()]
    rank = {n: lambda kept, n=n: _agreement(n, names, values, kept) for n in KERNELS[1:]}
    rows += [Row.of(n, over_models(models, rank[n]).within(-1, 1), group=_RANKED) for n in KERNELS[1:]]
    nearer = over_models(models, lambda kept: rank["laplace"](kept) - rank["linear"](kept))
    rows.append(Row.of("laplace - linear", nearer, group=f"{_RANKED}: difference"))
    for name in KERNELS[1:]:
        apart = [
            sum(abs(p - q) for r, s in zip(v["scores"][name], v["scores"]["max"]) for p, q in zip(r, s))
            / len(layers) ** 2
            for v in values
        ]
        rows.append(Row.of(name, of_pairs(names, apart), group=_APART))
    worst = max(x for v in values for n in KERNELS if n != "max" for side in v["negative"][n] for x in side)
    return [*rows, Row.of("all but max, at most", exact(worst), group=_WORST)]


def _agreement(
    name: str, names: Sequence[tuple[str, str]], values: Sequence[Mapping[str, Any]], kept: frozenset[Any]
) -> float:
    chosen = [v for pair, v in zip(names, values) if kept.issuperset(pair)]
    return spearman([x for v in chosen for x in _cells(v, name)], [x for v in chosen for x in _cells(v, "max")])


def _mass(value: Mapping[str, Any], name: str, layer: int) -> float:
    """Mean of the two networks."""
    first, second = value["negative"][name]
    return float(first[layer] + second[layer]) / 2


def _cells(value: Mapping[str, Any], name: str) -> list[float]:
    return [score for row in value["scores"][name] for score in row]


def _judge(found: Reproduction) -> list[Claim]:
    table, networks = found.table, trained(found)
    ranked = table[_RANKED]
    closest = max(SYMMETRIC, key=lambda n: ranked[n].value)
    widened = ranked[closest].widened(len(SYMMETRIC)).within(-1, 1)
    nearer = table.get(f"{_RANKED}: difference") or {"laplace - linear": ranked["laplace"] - ranked["linear"]}
    return [
        claim("all kernels but the max kernel are positive semi-definite", table.get(_WORST, {}), below=_ROUNDING,
              check=True),
        claim("on real features the max kernel is not", table[_NEGATIVE], above=_ROUNDING, trained=networks),
        claim("what is negative does not matter: without it, scores change by less than 0.02",
              {CUT: table[_APART][CUT]}, below=0.02, trained=networks),
        claim("a positive semi-definite kernel with its symmetry ranks pairs of layers as it does, Spearman above 0.9 "
              f"(closest: {closest})", {f"{closest}, widened for the choice": widened}, above=0.9, trained=networks),
        claim("the Laplace kernel agrees with it better than linear CKA, which has another symmetry", nearer, above=0,
              trained=networks),
    ]  # fmt: skip


def _run(setting: Setting) -> Measured:
    zoo = open_zoo(setting)
    layers = relu_layers(zoo)
    pairs = all_pairs(zoo, ordered=False, most=setting.by_scale(6, 6, 32), seed=setting.seed)
    examples = setting.by_scale(128, 500, 2000)
    jobs = [
        KernelPair(**checkpoints(pair), layers=layers, data=setting.data_spec, examples=examples, device=setting.device)
        for pair in pairs
    ]
    values = setting.run(jobs)
    rows = accuracy_rows({"networks": zoo}) + _rows(layers, names_of(pairs), values)
    notes = [
        networks_note(zoo, f"{len(pairs)} pairs, {examples} test images, unbiased CKA"),
        f"{', '.join(SYMMETRIC)}: the max kernel's symmetry, and positive semi-definite. {', '.join(SUMS)}: sums over "
        "channels of kernels of one channel. rbf and linear: rotations, for comparison.",
    ]
    return Measured(rows, notes)


_NAME, _TITLE = "open-psd", "Positive semi-definite kernels beside the max kernel"
_PAPERS = "left open by v2 remark 5.5"

EXPERIMENTS = (Experiment(_NAME, _TITLE, _PAPERS, _run, _judge),)
