"""Alpha, the weight of ``-|P|_F``, chosen by cross-validation (paper 1, v2 D.5, Figs 13 and 14).

The figures are images: what is checked are their claims in words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from ....stitching import RECIPES, Pair, StitchOptions, evaluate, stitch, stream_moments
from ....stitching.training.alpha import choose_alpha
from ...data import load
from ..experiment import Experiment, Setting
from ..pairs import PairJob, checkpoints, names_of, pairs_at
from ..reproduction import Claim, Reproduction, Row, provenance
from ..zoos import recipe_at, zoo_for
from .stitched_layers import activations, line, mean

__all__ = ["EXPERIMENTS", "ChosenAlphas", "claims_of"]

Start = Literal["direct", "random"]

STARTS: dict[Start, str] = {"direct": "from closed forms", "random": "from random starts"}
_USUAL = 0.1  # alpha in the rest of the paper
_SIMILAR = 0.03  # 3 points


class ChosenAlphas(PairJob):
    """One ordered pair of networks: for every layer alpha by cross-validation, and what that changes.

    Attributes:
        examples: Training examples; all of them if ``None``.
        tested: Test examples; all of them if ``None``.
        layers: Where to stitch; every ReLU if empty.
        start: Where maps start: ``"direct"`` or, as in the paper, ``"random"``.
        epochs: Of training maps, without a head start.
        seed: Of the split, the starts and the order of examples.
    """

    examples: int | None
    tested: int | None
    layers: tuple[str, ...]
    start: Start
    epochs: int
    seed: int

    def run(self, files: Path) -> dict[str, dict[str, Any]]:
        """Choose and stitch.

        Returns:
            For each layer: ``alpha``, the ``held_out`` accuracy for every alpha that was tried (``None`` where training
            diverged), and the test penalties with the ``chosen`` alpha and the ``usual`` one.
        """
        data, (a, b) = load(self.data).first(self.examples), self.networks()
        recipe = replace(RECIPES["v1"], epochs=self.epochs, head_start=0)
        train = data.loader("train", recipe.batch_size, shuffle=True)
        test = data.loader("test", examples=self.tested)
        layers = list(self.layers) or activations(a, data)
        pair = Pair(a, b, data.loader("test", 2).batch(slice(0, 2))[0].to(next(a.parameters()).device))
        cuts = [pair.cut(layer) for layer in layers]
        moments = stream_moments(pair, cuts, train) if self.start == "direct" else [[None]] * len(cuts)
        choices = [
            choose_alpha(cut, "g_relu", train, recipe=recipe, moments=found[0], seed=self.seed)
            for cut, found in zip(cuts, moments)
        ]
        chosen = evaluate(pair, [choice.network for choice in choices], test).penalties
        usual = stitch(
            a,
            b,
            layers,
            "g_relu",
            loader=train,
            eval_loader=test,
            seeds=self.seed,
            method=recipe,
            options=StitchOptions(start=self.start, settings={"alpha": _USUAL}),
        )
        return {
            layer: {
                "alpha": choice.alpha,
                "held_out": {f"{alpha:g}": reached for alpha, reached in choice.accuracies.items()},
                "chosen": penalty,
                "usual": one.penalty,
            }
            for layer, choice, penalty, one in zip(layers, choices, chosen, usual.stitchings)  # type: ignore[union-attr]
        }


def claims_of(values: Sequence[Mapping[str, Mapping[str, Any]]]) -> list[Claim]:
    """What the paper says in words: penalties are those of alpha = 0.1, and the chosen alphas vary.

    Args:
        values: What :class:`ChosenAlphas` returned for the pairs of one start.
    """
    layers = list(values[0])
    gaps = {layer: mean([v[layer]["chosen"] - v[layer]["usual"] for v in values]) for layer in layers}
    chosen = {layer: sorted({v[layer]["alpha"] for v in values}) for layer in layers}
    several = [layer for layer, alphas in chosen.items() if len(alphas) > 1]
    reached = _held_out(values)
    lost = max(reached.values()) - min(reached.values())
    return [
        Claim("penalties with the chosen alpha are those with alpha = 0.1, within 3 points at every layer",
              max(map(abs, gaps.values())) <= _SIMILAR,
              ", ".join(f"{layer}: {100 * gap:+.1f}" for layer, gap in gaps.items())),
        Claim("the chosen alpha varies between pairs at all layers", len(several) == len(layers),
              "; ".join(f"{layer}: {', '.join(f'{a:g}' for a in alphas)}" for layer, alphas in chosen.items())),
        Claim("which alpha is taken is not essential: on average it changes held-out accuracy by less than 3 points",
              lost < _SIMILAR, ", ".join(f"{alpha}: {100 * value:.1f} %" for alpha, value in reached.items())),
    ]  # fmt: skip


def _held_out(values: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, float]:
    """For every alpha the held-out accuracy, averaged over layers and pairs; a diverged run has none."""
    found: dict[str, list[float]] = {}
    for value in values:
        for layer in value.values():
            for alpha, reached in layer["held_out"].items():
                found.setdefault(alpha, []).append(reached or 0.0)
    return {alpha: mean(reached) for alpha, reached in found.items()}


def _rows(title: str, values: Sequence[Mapping[str, Mapping[str, Any]]], drawn: Sequence[tuple[str, str]]) -> list[Row]:
    by_layer = lambda key: {layer: [v[layer][key] for v in values] for layer in values[0]}
    rows = line(f"alpha chosen, {title}", by_layer("chosen"), drawn)
    rows += line(f"alpha = {_USUAL:g}, {title}", by_layer("usual"), drawn)
    for layer, alphas in by_layer("alpha").items():
        powers = [math.log10(alpha) for alpha in alphas]
        group = f"log10 of the chosen alpha, {title}, from the lowest to the highest"
        rows.append(Row(layer, mean(powers), None, min(powers), max(powers), group=group))
    rows += [Row(f"alpha {a}", x, group=f"held-out accuracy, {title}") for a, x in _held_out(values).items()]
    return rows


def _figure(setting: Setting) -> Reproduction:

    network = setting.by_scale("digits_cnn:width=8", "myrtle_cnn:base=16", "myrtle_cnn")
    zoo = zoo_for(setting, network, setting.by_scale(3, 4, 100), recipe_at(setting))
    pairs = pairs_at(setting, zoo, setting.by_scale(2, 3, 0), 32)
    drawn = names_of(pairs)
    examples, epochs = setting.by_scale(100, 1500, None), setting.by_scale(1, 3, 5)
    jobs = [
        ChosenAlphas(
            **checkpoints(pair), data=setting.data_spec, examples=examples, tested=setting.by_scale(None, 2000, None),
            layers=(), start=start, epochs=epochs, seed=setting.seed + i, device=setting.device,
        )
        for start in STARTS
        for i, pair in enumerate(pairs)
    ]  # fmt: skip
    values = setting.run(jobs)
    found = {start: values[k * len(pairs) : (k + 1) * len(pairs)] for k, start in enumerate(STARTS)}
    claims = [
        replace(claim, text=f"{STARTS[start]}: {claim.text}") for start in STARTS for claim in claims_of(found[start])
    ]
    notes = [
        "Stitching penalties of G_ReLU: accuracy lost, 0.01 is a point. As in the paper, maps are trained on a random "
        f"80 % of the training data, without a head start (here: {epochs} epochs), once for each alpha, and the one "
        "with the best accuracy on the other 20 % is evaluated. Maps with alpha = 0.1 are trained on all of it.",
        "As printed, the term does nothing but divide the learning rate, because Sinkhorn undoes steps along P: then "
        "no alpha can matter, and which one wins is chance. Ours has the same value on the polytope and is effective.",
        "Images are neither moved nor mirrored here. The paper's maps start at random.",
    ]
    if setting.scale == "small":
        notes.append(
            f"Smaller than the paper: {network}, {len(zoo)} networks, {len(pairs)} pairs, {examples:,} images for maps."
        )
    return Reproduction(
        "fig13-alpha", "Alpha chosen by cross-validation", "v2 D.5, Figs 13, 14", setting.scale,
        [row for start, title in STARTS.items() for row in _rows(title, found[start], drawn)], claims, notes=notes,
        facts={**provenance(), "network": zoo.architecture, "models": len(zoo), "pairs": len(pairs),
               "accuracy": round(mean(zoo.accuracies), 4)},
    )  # fmt: skip


EXPERIMENTS = (Experiment("fig13-alpha", "Alpha chosen by cross-validation", "v2 D.5, Figs 13, 14", _figure),)
