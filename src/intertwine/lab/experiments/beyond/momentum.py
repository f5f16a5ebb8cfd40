"""Momentum when permutations are trained by projected gradient descent: paper 1 says both with and without.

Version 1 stitches with momentum 0.9. Version 2 says in D.2 "no momentum", because it "interacted in complicated ways"
with the projection, and in D.2.1 still 0.9. At a constant rate ``r``, momentum ``m`` takes steps that add up to
``r / (1 - m)``: momentum 0.9 is ten times the rate. So there is a third arm, ten times the rate without momentum:
where it does as well, it was the step, not the momentum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from ....stitching import RECIPES, StitchingStudy, StitchOptions, stitch
from ...data import load
from ..estimates import of_pairs
from ..experiment import Experiment, Measured, Setting
from ..pairs import PairJob, all_pairs, checkpoints, names_of, ring
from ..reproduction import Reproduction, Row
from ..verdicts import Claim, claim
from ..zoos import accuracy_rows, trained
from .shared import networks_note, open_zoo, relu_layers

__all__ = ["ARMS", "EXPERIMENTS", "Descended"]

PLAIN, MOMENTUM, FAST = "no momentum", "momentum 0.9", "ten times the rate"
ARMS: dict[str, tuple[float, float]] = {PLAIN: (1.0, 0.0), MOMENTUM: (1.0, 0.9), FAST: (10.0, 0.0)}
"""Factor of the learning rate, and momentum."""

_POINT = 0.01


class Descended(PairJob):
    """One ordered pair of networks, stitched through permutations and scales that each arm trains.

    Attributes:
        layers: Where to stitch.
        start: ``"random"``, the paper's, or ``"direct"``.
        examples: Training images; all of them if ``None``.
        tested: Test images; all of them if ``None``.
        epochs: Half of them are the head start of permutations.
        seed: Of starts and training order.
    """

    layers: tuple[str, ...]
    start: Literal["random", "direct"]
    examples: int | None
    tested: int | None
    epochs: int
    seed: int

    @property
    def label(self) -> str:
        """The two networks and the start."""
        return f"{super().label}, {self.start} start"

    def run(self, files: Path) -> dict[str, dict[str, list[float | None]]]:
        """Train every arm from the same start on the same batches.

        Returns:
            By arm, for each layer: ``penalty``, ``agreement`` with the matching of activations (share of live
            channels) and ``loss`` of the relaxed map in the last epoch.
        """
        data = load(self.data).first(self.examples)
        a, b = self.networks()
        test, found = data.loader("test", examples=self.tested), dict[str, dict[str, list[float | None]]]()
        for k, (arm, (faster, momentum)) in enumerate(ARMS.items()):
            recipe = replace(
                RECIPES["v2"], epochs=self.epochs, head_start=self.epochs // 2, momentum=momentum,
                learning_rate=faster * RECIPES["v2"].learning_rate, keep="last",
            )  # fmt: skip
            train = data.loader("train", recipe.batch_size, shuffle=True)
            study = stitch(
                a,
                b,
                list(self.layers),
                "g_relu",
                loader=train,
                eval_loader=test,
                seeds=self.seed,
                method=recipe,
                options=StitchOptions(start=self.start, state=files / f"{k}.pt"),
            )
            every = study.stitchings if isinstance(study, StitchingStudy) else [study]
            found[arm] = {
                "penalty": [one.penalty for one in every],
                "agreement": [one.agreement for one in every],
                "loss": [one.history[-1]["loss"] for one in every],
            }
        return found


_STARTS: dict[Literal["random", "direct"], str] = {"random": "random start", "direct": "closed-form start"}
_PARTS = {"penalty": "penalty", "agreement": "share matched as activations are", "loss": "last training loss"}

_RANGES, _ALL = {"agreement": (0, 1)}, (-math.inf, math.inf)
_MATCHED = "share matched as activations are, mean over layers from a random start"

_Found = dict[Literal["random", "direct"], Sequence[dict[str, dict[str, list[Any]]]]]


_GAPS = ((MOMENTUM, PLAIN, "momentum loses no more than a point more than none"),
         (FAST, MOMENTUM, "ten times the rate does within a point what momentum does"))  # fmt: skip


def _rows(layers: Sequence[str], names: Sequence[tuple[str, str]], found: _Found) -> list[Row]:
    rows = [
        Row.of(layer, of_pairs(names, [v[arm][part][k] for v in values]).within(*_RANGES.get(part, _ALL)),
               group=f"{arm}, {words} ({_STARTS[start]})")
        for part, words in _PARTS.items() for start, values in found.items() for arm in ARMS
        for k, layer in enumerate(layers)
    ]  # fmt: skip
    for start, values in found.items():
        for arm, than, _ in _GAPS:
            gaps = [_mean(v[arm]["penalty"]) - _mean(v[than]["penalty"]) for v in values]
            rows.append(Row.of(f"{arm} - {than}", of_pairs(names, gaps), group=f"penalty, {_STARTS[start]}"))
    for arm in ARMS:
        shares = [_mean([x for x in v[arm]["agreement"] if x is not None]) for v in found["random"]]
        rows.append(Row.of(arm, of_pairs(names, shares), group=_MATCHED))
    return rows


def _judge(found: Reproduction) -> list[Claim]:
    table, networks, claims = found.table, trained(found), []
    for words in _STARTS.values():
        gaps = table.get(f"penalty, {words}", {})
        for arm, than, text in _GAPS:
            gap = {k: e for k, e in gaps.items() if k == f"{arm} - {than}"}
            low = -_POINT if arm == FAST else -math.inf
            claims.append(claim(f"{words}: {text}", gap, above=low, below=_POINT, trained=networks))
    matched = table.get(_MATCHED, {})
    best = {k: matched[k].widened(len(matched)) for k in sorted(matched, key=lambda k: matched[k].value)[-1:]}
    text = "from a random start, some arm matches half of the channels as activations are"
    return [*claims, claim(text, best, above=0.5, trained=networks)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(len(values), 1)


def _run(setting: Setting) -> Measured:
    zoo = open_zoo(setting)
    layers = relu_layers(zoo)
    layers = setting.by_scale(layers[1:2], layers[2:3], layers)
    pairs = all_pairs(zoo, False, 16, setting.seed) if setting.scale == "paper" else ring(zoo)
    examples, epochs = setting.by_scale(400, 2000, None), setting.by_scale(2, 4, 20)
    values = setting.run([
        Descended(
            **checkpoints(pair), layers=layers, start=start, data=setting.data_spec, examples=examples,
            tested=setting.by_scale(None, 1000, None), epochs=epochs, seed=setting.seed, device=setting.device,
        )
        for start in _STARTS
        for pair in pairs
    ])  # fmt: skip
    found: _Found = {start: values[k * len(pairs) : (k + 1) * len(pairs)] for k, start in enumerate(_STARTS)}
    names = names_of(pairs)
    notes = [
        networks_note(zoo, f"{len(pairs)} pairs"),
        f"Permutations and scales (G_ReLU) at {', '.join(layers)}, trained {epochs} epochs on "
        f"{examples or 'all'} images; the last epoch counts. All arms begin alike and see the same batches.",
        "Penalties are accuracy lost, 0.01 is a point.",
    ]
    return Measured([*accuracy_rows({"networks": zoo}), *_rows(layers, names, found)], notes)


_NAME, _TITLE = "open-momentum", "Does momentum matter to projected gradient descent?"
_PAPERS = "left open by v2 D.2 and D.2.1, which disagree"

EXPERIMENTS = (Experiment(_NAME, _TITLE, _PAPERS, _run, _judge),)
