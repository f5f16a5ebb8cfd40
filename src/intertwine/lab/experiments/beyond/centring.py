"""Centring and the measures. Paper 1 writes centred features in the text, and its figures use uncentred ones.

Behind a ReLU every channel has a positive mean, and uncentred features of unrelated networks point the same way: the
chance level is high before anything agrees. Centring takes that away, and with it what the means tell.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from ....features import collect
from ....similarity import Comparison, Resampling, compare
from ....similarity.comparison.inference import calibrate
from ....similarity.kernels.maximum import max_gram
from ...data import load
from ..estimates import minus, of_pairs
from ..experiment import Experiment, Measured, Setting
from ..pairs import PairJob, all_pairs, checkpoints, names_of
from ..reproduction import Reproduction, Row
from ..verdicts import Claim, claim
from ..zoos import accuracy_rows, trained
from .shared import networks_note, open_zoo, relu_layers

KINDS = ("orthogonal", "g_relu", "permutation")
TWINS = {
    **{f"{kind}_procrustes": f"{kind}_procrustes_centered" for kind in KINDS},
    "linear_alignment": "linear_cka",
    "g_relu_alignment": "g_relu_cka",
}
"""Uncentred measures and their centred twins; an *alignment* is a CKA without its C."""


def alignment(x: Tensor, y: Tensor, kernel: str = "linear") -> float:
    """Cosine of two Gram matrices of uncentred features: a CKA in which nothing is centred.

    Args:
        x: Features ``(N, C, *S)``.
        y: Features ``(N, C', *S')`` of the same examples.
        kernel: ``"linear"``, or ``"max"`` of channels divided by their norm.

    Examples:
        >>> import torch
        >>> x = torch.rand(50, 8, generator=torch.Generator().manual_seed(0))
        >>> y = torch.rand(50, 8, generator=torch.Generator().manual_seed(1))
        >>> alignment(x, y) > 0.8  # unrelated, but positive
        True
    """
    return float((_unit_gram(x, kernel) * _unit_gram(y, kernel)).sum())


def _unit_gram(x: Tensor, kernel: str) -> Tensor:
    """Gram matrix ``(N, N)`` at Frobenius norm 1."""
    if kernel == "linear":
        gram = x.flatten(1) @ x.flatten(1).T
    else:
        norm = x.double().square().sum([d for d in range(x.ndim) if d != 1]).sqrt()
        gram = max_gram(x[:, norm > 0], scale=1 / norm[norm > 0])
    gram = gram.double()
    return gram / gram.norm()


class Centred(PairJob):
    """One pair of networks, by measures with and without centring."""

    gpus: ClassVar[float] = 0.25

    layers: tuple[str, ...]  # Names of layers
    examples: int  # Test images
    shuffles: int  # Of the examples, for the chance level
    seed: int  # Of the shuffles

    def run(self, files: Path) -> dict[str, dict[str, list[float]]]:
        """Score equal layers. By measure, ``score``, ``chance`` and ``calibrated`` score of each layer."""
        a, b = self.networks()
        loader = load(self.data).loader("test", examples=self.examples)
        names = [m for m in (*TWINS, *TWINS.values()) if not m.endswith("_alignment")]
        found: dict[str, dict[str, list[float]]] = {}
        for layer in self.layers:
            drawn = Resampling(null=self.shuffles, bootstrap=0, seed=self.seed)
            compared = compare(a, b, loader, [layer], names, resampling=drawn, exact=True)
            for m in names:
                for what, matrices in _parts(compared).items():
                    found.setdefault(m, {}).setdefault(what, []).append(float(matrices[m]))
            x, y = (collect(model, loader, [layer])[layer] for model in (a, b))
            for m, kernel in (("linear_alignment", "linear"), ("g_relu_alignment", "max")):
                for what, value in self._aligned(x, y, kernel).items():
                    found.setdefault(m, {}).setdefault(what, []).append(value)
        return found

    def _aligned(self, x: Tensor, y: Tensor, kernel: str) -> dict[str, float]:

        one, two = _unit_gram(x, kernel), _unit_gram(y, kernel)
        generator = torch.Generator().manual_seed(self.seed)
        orders = [torch.randperm(len(two), generator=generator) for _ in range(self.shuffles)]
        null = torch.stack([(one * two[order][:, order]).sum() for order in orders])
        score = float((one * two).sum())
        return {"score": score, "chance": float(null.mean()), "calibrated": calibrate(score, null)}


def _parts(compared: Comparison) -> dict[str, Mapping[str, Any]]:
    return {"score": compared.scores, "chance": compared.chance, "calibrated": compared.calibrated}


# By measure, score, chance level and calibrated score of each layer.
_Found = Mapping[str, Mapping[str, Sequence[float]]]

_WORDS = {"score": "score", "chance": "chance level", "calibrated": "chance taken out"}


def _rows(
    layers: Sequence[str],
    names: Sequence[tuple[str, str]],
    values: Sequence[Mapping[str, Mapping[str, Sequence[float]]]],
) -> list[Row]:
    return [
        Row.of(layer, of_pairs(names, [v[m][what][k] for v in values]), group=f"{m}, {words}")
        for what, words in _WORDS.items()
        for m in (*TWINS, *TWINS.values())
        for k, layer in enumerate(layers)
    ]


_GAP = "difference of uncentred and centred twins"


def _gaps(names: Sequence[tuple[str, str]], values: Sequence[Mapping[str, Mapping[str, Sequence[float]]]]) -> list[Row]:
    """How far twins differ, mean over twins and layers, in raw scores, with chance taken out, and by how much more."""
    mean = lambda v, what: [abs(a - b) for p, c in TWINS.items() for a, b in zip(v[p][what], v[c][what])]
    each = {what: [sum(g := mean(v, what)) / len(g) for v in values] for what in ("score", "calibrated")}
    each["raw minus calibrated"] = [a - b for a, b in zip(*each.values())]
    return [Row.of(_WORDS.get(what, what), of_pairs(names, listed), group=_GAP) for what, listed in each.items()]


def _judge(found: Reproduction) -> list[Claim]:
    table, networks = found.table, trained(found)
    chance = {m: table[f"{m}, {_WORDS['chance']}"] for m in (*TWINS, *TWINS.values())}
    claims = [
        claim(f"centring lowers the chance level of {plain} in every layer", minus(chance[plain], chance[centred]),
              above=0, trained=networks)
        for plain, centred in TWINS.items()
    ]  # fmt: skip
    more = {k: e for k, e in table.get(_GAP, {}).items() if k == "raw minus calibrated"}
    floors = {f"{m}, {layer}": e for m in ("linear_cka", "g_relu_cka") for layer, e in chance[m].items()}
    return [
        *claims,
        claim("with chance taken out, centring matters less than in raw scores", more, above=0, trained=networks),
        claim("unbiased CKA needs no calibration: its chance level is within 0.05 of 0", floors, above=-0.05,
              below=0.05, trained=networks),
    ]  # fmt: skip


def _run(setting: Setting) -> Measured:
    zoo = open_zoo(setting)
    layers = relu_layers(zoo)
    pairs = all_pairs(zoo, ordered=False, most=setting.by_scale(6, 6, 32), seed=setting.seed)
    examples, shuffles = setting.by_scale(128, 500, 2000), setting.by_scale(5, 5, 20)
    values = setting.run([
        Centred(
            **checkpoints(pair), layers=layers, data=setting.data_spec, examples=examples, shuffles=shuffles,
            seed=setting.seed, device=setting.device,
        )
        for pair in pairs
    ])  # fmt: skip
    rows = accuracy_rows({"networks": zoo}) + _rows(layers, names_of(pairs), values) + _gaps(names_of(pairs), values)
    notes = [
        networks_note(zoo, f"{len(pairs)} pairs, {examples} test images"),
        "An alignment is the cosine of two uncentred Gram matrices: a CKA without its C, of features that are not "
        f"centred either. Chance: mean of {shuffles} shuffles of the examples of one side.",
    ]
    return Measured(rows, notes)


_NAME, _TITLE, _PAPERS = "open-centring", "What centring does to the measures", "left open by v2 section 5 and D.7"

EXPERIMENTS = (Experiment(_NAME, _TITLE, _PAPERS, _run, _judge),)
