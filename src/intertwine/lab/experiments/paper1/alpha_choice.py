"""Alpha, the weight of ``-|P|_F``, chosen by cross-validation (paper 1, v2 D.5, Figs 13 and 14).

The figures are images: what is checked are their claims in words.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from ....stitching import RECIPES, Pair, StitchOptions, evaluate, stitch, stream_moments
from ....stitching.training.alpha import choose_alpha
from ...data import load
from ...training.augment import Augmented
from ..estimates import Estimate, exact, mean_of, minus, of_pairs
from ..experiment import Experiment, Measured, Setting
from ..pairs import PairJob, Pairs, checkpoints, names_of, pairs_at
from ..reproduction import Reproduction, Row
from ..verdicts import Claim, Trained, claim
from ..zoos import accuracy_rows, trained, trained_words, zoo_for
from .stitched import activations

Start = Literal["direct", "random"]

STARTS: dict[Start, str] = {"direct": "from closed forms", "random": "from random starts"}
_USUAL = 0.1  # alpha in the rest of the paper
_CHOSEN, _USUAL_WORDS = "alpha chosen", "alpha = 0.1"
_SIMILAR = 0.03  # 3 points


class ChosenAlphas(PairJob):
    """One ordered pair of networks: for every layer alpha by cross-validation, and what that changes."""

    examples: int | None  # Training examples; all of them if ``None``
    tested: int | None  # Test examples; all of them if ``None``
    layers: tuple[str, ...]  # Where to stitch; every ReLU if empty
    start: Start  # Where maps start: ``"direct"`` or, as in the paper, ``"random"``
    epochs: int  # Of training maps, without a head start
    seed: int  # Of the split, the starts and the order of examples
    translate: int = 0  # Pixels by which training images move at most
    flip: bool = False  # Whether they are mirrored

    def run(self, files: Path) -> dict[str, dict[str, Any]]:
        """Choose and stitch.

        Returns:
            For each layer: ``alpha``, the ``held_out`` accuracy for every alpha that was tried (``None`` where training
            diverged), and the test penalties with the ``chosen`` alpha and the ``usual`` one.
        """
        data, (a, b) = load(self.data).first(self.examples), self.networks()
        printed = self.start == "random"
        recipe = replace(RECIPES["v1"], epochs=self.epochs, head_start=0, keep="last" if printed else "best")
        train = Augmented(data.loader("train", recipe.batch_size, shuffle=True), self.translate, self.flip)
        options = StitchOptions(start=self.start, tail_norm="train" if printed else "eval", settings={"alpha": _USUAL})
        test = data.loader("test", examples=self.tested)
        layers = list(self.layers) or activations(a, data)
        pair = Pair(a, b, data.loader("test", 2).batch(slice(0, 2))[0].to(next(a.parameters()).device))
        cuts = [pair.cut(layer) for layer in layers]
        moments = stream_moments(pair, cuts, train) if self.start == "direct" else [[None]] * len(cuts)
        choices = [
            choose_alpha(
                cut,
                "g_relu",
                train,
                recipe=recipe,
                moments=found[0],
                seed=self.seed,
                options=replace(options, settings={}),
            )
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
            options=options,
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


def claims_of(table: Mapping[str, Mapping[str, Estimate]], start: str, networks: Trained) -> list[Claim]:
    """What the paper says in words: penalties are those of alpha = 0.1, and the chosen alphas vary."""
    gaps = table.get(f"{_CHOSEN} - {_USUAL_WORDS}, {start}") or minus(
        table[f"{_CHOSEN}, {start}"], table[f"{_USUAL_WORDS}, {start}"]
    )
    counted = table.get(f"distinct alphas among pairs, {start}", {})
    # A count of these pairs is exact, and no number for others.
    distinct = {layer: Estimate(e.value) if e.low == e.high else e for layer, e in counted.items()}
    held_out = table[f"held-out accuracy, {start}"]
    level = mean_of(held_out.values())
    told = partial(claim, trained=networks)
    return [
        told(f"{start}: penalties with the chosen alpha are those with alpha = 0.1, within 3 points at every layer",
             gaps, above=-_SIMILAR, below=_SIMILAR),
        told(f"{start}: the chosen alpha varies between pairs at all layers", distinct, above=1),
        told(f"{start}: which alpha is taken is not essential: each is within 3 points of the mean held-out accuracy",
             {alpha: e - level for alpha, e in held_out.items()}, above=-_SIMILAR, below=_SIMILAR),
    ]  # fmt: skip


def _rows(start: str, values: Sequence[Mapping[str, Mapping[str, Any]]], pairs: Pairs) -> list[Row]:
    layers, names = list(values[0]), names_of(pairs)
    of = lambda key: {k: [v[k][key] for v in values] for k in layers}
    chosen, usual, alphas = of("chosen"), of("usual"), of("alpha")
    lines = {_CHOSEN: chosen, _USUAL_WORDS: usual,
             f"{_CHOSEN} - {_USUAL_WORDS}": {k: [a - b for a, b in zip(chosen[k], usual[k])] for k in layers},
             "log10 of the chosen alpha": {k: [math.log10(a) for a in alphas[k]] for k in layers}}  # fmt: skip
    rows = [Row.of(k, of_pairs(names, by[k]), group=f"{g}, {start}") for g, by in lines.items() for k in layers]
    rows += [Row.of(k, exact(len(set(alphas[k]))), group=f"distinct alphas among pairs, {start}") for k in layers]
    for alpha in values[0][layers[0]]["held_out"]:
        reached = [
            sum(v[k]["held_out"][alpha] or 0.0 for k in layers) / len(layers) for v in values
        ]  # 0 if it diverged
        rows.append(Row.of(f"alpha {alpha}", of_pairs(names, reached), group=f"held-out accuracy, {start}"))
    return rows


def _measure(setting: Setting) -> Measured:
    network = setting.fitted("digits_cnn:width=8", "digits_cnn:width=16", "myrtle_cnn")
    zoo = zoo_for(setting, network, setting.by_scale(3, 6, 100))
    pairs = pairs_at(setting, zoo, setting.by_scale(3, 6, 0), 32)
    examples, epochs = setting.by_scale(100, None, None), setting.by_scale(1, 10, 5)
    arms = dict.fromkeys(STARTS, (0, False) if setting.digits else (2, True))
    jobs = [
        ChosenAlphas(
            **checkpoints(pair), data=setting.data_spec, examples=examples, tested=None,
            layers=(), start=start, epochs=epochs, seed=setting.seed + i, device=setting.device, translate=translate,
            flip=flip,
        )
        for start, (translate, flip) in arms.items()
        for i, pair in enumerate(pairs)
    ]  # fmt: skip
    values = iter(setting.run(jobs))
    rows = accuracy_rows({network.partition(":")[0]: zoo})
    for words in STARTS.values():
        rows += _rows(words, [next(values) for _ in pairs], pairs)
    notes = [
        f"Stitching penalties of G_ReLU: accuracy lost, 0.01 is a point. {trained_words(zoo)}; {len(pairs)} ordered "
        "pairs. As in the paper, maps are trained on a random 80 % of the training data, without a head start (here: "
        f"{epochs} epochs of {examples or 'all'} images, moved once), once for each alpha, and the one with the best "
        "accuracy on the other 20 % is evaluated. Maps with alpha = 0.1 are trained on all of it.",
        f"{STARTS['random']}: as printed, maps start at random, the last epoch counts, and batch norm of the tail is "
        "in training mode; the norm is ours, because as printed it does nothing but divide the learning rate (Sinkhorn "
        "undoes steps along P): then no alpha can matter, and which one wins is chance.",
    ]
    return Measured(rows, notes, {"network": network, "models": len(zoo), "pairs": len(pairs)})


def _judge(found: Reproduction) -> list[Claim]:
    networks = trained(found)
    return [c for start in STARTS.values() for c in claims_of(found.table, start, networks)]


EXPERIMENTS = (
    Experiment("fig13-alpha", "Alpha chosen by cross-validation", "v2 D.5, Figs 13, 14", _measure, _judge,
               digits=("smoke", "small")),
)  # fmt: skip
