"""Momentum when permutations are trained by projected gradient descent: paper 1 says both with and without.

Version 1 stitches with momentum 0.9. Version 2 says in D.2 "no momentum", because it "interacted in complicated ways"
with the projection, and in D.2.1 still 0.9. At a constant rate ``r``, momentum ``m`` takes steps that add up to
``r / (1 - m)``: momentum 0.9 is ten times the rate. So there is a third arm, ten times the rate without momentum:
where it does as well, it was the step, not the momentum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from ...._zoo_intervals import pair_interval
from ....stitching import RECIPES, StitchingStudy, StitchOptions, stitch
from ...data import load
from ..experiment import Experiment, Setting
from ..pairs import PairJob, all_pairs, checkpoints, names_of, ring
from ..reproduction import Claim, Reproduction, Row
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

_Found = dict[Literal["random", "direct"], Sequence[dict[str, dict[str, list[Any]]]]]


def _rows(layers: Sequence[str], names: Sequence[tuple[str, str]], found: _Found) -> list[Row]:
    rows = []
    for part, words in _PARTS.items():
        for start, values in found.items():
            for arm in ARMS:
                for k, layer in enumerate(layers):
                    known = [(pair, x) for pair, v in zip(names, values) if (x := v[arm][part][k]) is not None]
                    group = f"{arm}, {words} ({_STARTS[start]})"
                    row = _row(layer, group, known)
                    rows.append(_share(row) if part == "agreement" else row)
    return rows


def _share(row: Row) -> Row:
    """No share is below 0 or above 1, whatever an interval of a mean says."""
    return row if row.low is None or row.high is None else replace(row, low=max(row.low, 0.0), high=min(row.high, 1.0))


def _row(what: str, group: str, known: Sequence[tuple[tuple[str, str], float]]) -> Row:
    pairs, values = [pair for pair, _ in known], [x for _, x in known]
    if not values:
        return Row(what, None, group=group)
    try:
        return Row.of(what, pair_interval(pairs, values), group=group)
    except ValueError:  # too few models left
        return Row(what, sum(values) / len(values), group=group)


def _claims(names: Sequence[tuple[str, str]], found: _Found) -> list[Claim]:
    claims = []
    for start, values in found.items():
        words = _STARTS[start]
        for arm, than, text in (
            (MOMENTUM, PLAIN, "momentum loses no more than none"),
            (FAST, MOMENTUM, "ten times the rate does within a point what momentum does"),
        ):
            gaps = [_mean(v[arm]["penalty"]) - _mean(v[than]["penalty"]) for v in values]
            interval = pair_interval(names, gaps)
            far = abs(interval.mean) if arm == FAST else interval.mean
            detail = f"{100 * interval.mean:+.1f} points, from {100 * interval.low:+.1f} to {100 * interval.high:+.1f}"
            claims.append(Claim(f"{words}: {text}", far <= _POINT, detail))
    matched = {arm: _mean([x for v in found["random"] for x in v[arm]["agreement"] if x is not None]) for arm in ARMS}
    claims.append(
        Claim("from a random start, some arm matches half of the channels as activations are",
              max(matched.values()) > 0.5, ", ".join(f"{arm}: {share:.0%}" for arm, share in matched.items()))
    )  # fmt: skip
    return claims


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(len(values), 1)


def _run(setting: Setting) -> Reproduction:
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
    return Reproduction(
        _NAME, _TITLE, _PAPERS, setting.scale, _rows(layers, names, found), _claims(names, found), notes=notes
    )


_NAME, _TITLE = "open-momentum", "Does momentum matter to projected gradient descent?"
_PAPERS = "left open by v2 D.2 and D.2.1, which disagree"

EXPERIMENTS = (Experiment(_NAME, _TITLE, _PAPERS, _run),)
