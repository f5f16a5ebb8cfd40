"""Training of permutations: paper 1 swept none of its settings (v1 D.1.1), and says both with and without momentum.

Momentum: version 1 stitches with 0.9, version 2 says in D.2 "no momentum", because it "interacted in complicated ways"
with the projection, and in D.2.1 still 0.9. At a constant rate ``r``, momentum ``m`` takes steps that add up to
``r / (1 - m)``: momentum 0.9 is ten times the rate. So there is an arm with ten times the rate and no momentum: where
it does as well, it was the step, not the momentum.

Settings: the rate, the number ``T`` of Sinkhorn steps, the head start of permutations, and SoftSort instead of
projected gradients, "comparable" and "more than 10 x" slower (D.2.1). These run on digits, at a rate for which rate
times steps is the paper's.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ....stitching import RECIPES, StitchOptions, stitch
from ...data import load
from ...training import RECIPES as TRAINING
from ..estimates import Estimate, of_pairs
from ..experiment import Experiment, Measured, Setting
from ..pairs import PairJob, Pairs, all_pairs, checkpoints, names_of, ring
from ..reproduction import Reproduction, Row
from ..verdicts import Claim, claim
from ..zoos import accuracy_rows, trained, zoo_for
from .shared import networks_note, open_zoo, relu_layers

Start = Literal["random", "direct"]


@dataclass(frozen=True)
class _Way:
    """One way to train permutations and scales."""

    rate: float = 1.0  # Factor of the learning rate
    recipe: Mapping[str, Any] = field(default_factory=dict)  # Other settings of the stitching recipe
    settings: Mapping[str, Any] = field(default_factory=dict)  # Of the family
    family: str = "g_relu"  # ``g_relu`` is the paper's relaxation


PLAIN, MOMENTUM, FAST = "no momentum", "momentum 0.9", "ten times the rate"
SLOW, NO_HEAD_START, SOFT_SORT = "a tenth of the rate", "no head start", "SoftSort"
ARMS: dict[str, _Way] = {
    PLAIN: _Way(),
    MOMENTUM: _Way(recipe={"momentum": 0.9}),
    FAST: _Way(10.0),
    SLOW: _Way(0.1),
    "T = 4": _Way(settings={"sinkhorn_steps": 4}),
    "T = 64": _Way(settings={"sinkhorn_steps": 64}),
    NO_HEAD_START: _Way(recipe={"head_start": 0}),
    SOFT_SORT: _Way(family="softsort"),
}
_SWEPT = (PLAIN, FAST, SLOW, "T = 4", "T = 64", NO_HEAD_START, SOFT_SORT)

_POINT, _SIMILAR, _SLOWER = 0.01, 0.03, 10.0
_TRAVEL = 20 * 50_000 / 32 * RECIPES["v2"].learning_rate  # the paper's rate times its steps
_HIGHEST = 0.08  # of a few steps; more diverges


class Descended(PairJob):
    """One ordered pair of networks, stitched through permutations and scales that each arm trains."""

    layers: tuple[str, ...]  # Where to stitch
    start: Start  # ``"random"``, the paper's, or ``"direct"``
    examples: int | None  # Training images; all of them if ``None``
    tested: int | None  # Test images; all of them if ``None``
    epochs: int  # Half of them are the head start of permutations
    rate: float  # Learning rate that the arms start from
    arms: tuple[str, ...]  # Names among ``ARMS``
    seed: int  # Of starts and training order

    @property
    def label(self) -> str:
        """The two networks and the start."""
        return f"{super().label}, {self.start} start"

    def run(self, files: Path) -> dict[str, dict[str, Any]]:
        """Train every arm from the same start on the same batches.

        Returns:
            By arm, for each layer: ``penalty``, ``agreement`` with the matching of activations (share of live
            channels) and ``loss`` of the relaxed map in the last epoch; and ``seconds`` of processor time in all.
        """
        data = load(self.data).first(self.examples)
        a, b = self.networks()
        test, found = data.loader("test", examples=self.tested), dict[str, dict[str, Any]]()
        base = replace(RECIPES["v2"], epochs=self.epochs, head_start=self.epochs // 2, keep="last")
        for k, name in enumerate(self.arms):
            arm, began = ARMS[name], time.process_time()
            recipe = replace(base, learning_rate=arm.rate * self.rate, **arm.recipe)
            study = stitch(
                a,
                b,
                list(self.layers),
                [arm.family],
                loader=data.loader("train", recipe.batch_size, shuffle=True),
                eval_loader=test,
                seeds=self.seed,
                method=recipe,
                options=StitchOptions(start=self.start, settings=arm.settings, state=files / f"{k}.pt"),
            )
            every = study.stitchings  # type: ignore[union-attr]  # lists were given
            found[name] = {
                "penalty": [one.penalty for one in every],
                "agreement": [one.agreement for one in every],
                "loss": [one.history[-1]["loss"] for one in every],
                "seconds": time.process_time() - began,
            }
        return found


_STARTS: dict[Start, str] = {"random": "random start", "direct": "closed-form start"}
_PARTS = {"penalty": "penalty", "agreement": "share matched as activations are", "loss": "last training loss"}
_RANGES, _ALL = {"agreement": (0, 1)}, (-math.inf, math.inf)
_MATCHED = "share matched as activations are, mean over layers from a random start"
_TIMES = "processor time, as a multiple"

_Found = Mapping[str, Mapping[str, Any]]


def _rows(layers: Sequence[str], pairs: Pairs, values: Sequence[_Found], start: str, than: str) -> list[Row]:
    """Each arm at each layer, and its penalty above another arm's, mean over layers."""
    names, arms = names_of(pairs), list(values[0])
    rows = [
        Row.of(layer, of_pairs(names, [v[arm][part][k] for v in values]).within(*_RANGES.get(part, _ALL)),
               group=f"{arm}, {words} ({start})")
        for part, words in _PARTS.items() for arm in arms for k, layer in enumerate(layers)
    ]  # fmt: skip
    for arm in arms:
        if arm != than:
            gaps = [_mean(v[arm]["penalty"]) - _mean(v[than]["penalty"]) for v in values]
            rows.append(Row.of(f"{arm} - {than}", of_pairs(names, gaps), group=f"penalty, {start}"))
    return rows


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(len(values), 1)


def _jobs(setting: Setting, pairs: Pairs, layers: Sequence[str], **how: Any) -> list[Descended]:
    return [
        Descended(
            **checkpoints(pair),
            layers=tuple(layers),
            data=setting.data_spec,
            seed=setting.seed,
            device=setting.device,
            **how,
        )
        for pair in pairs
    ]  # fmt: skip


def _momentum(setting: Setting) -> Measured:
    zoo = open_zoo(setting)
    layers = relu_layers(zoo)
    layers = setting.by_scale(layers[1:2], layers[2:3], layers)
    pairs = all_pairs(zoo, False, 16, setting.seed) if setting.scale == "paper" else ring(zoo)
    how: dict[str, Any] = {
        "examples": setting.by_scale(200, 2000, None), "tested": setting.by_scale(None, 1000, None),
        "epochs": setting.by_scale(2, 4, 20), "rate": RECIPES["v2"].learning_rate, "arms": (PLAIN, MOMENTUM, FAST),
    }  # fmt: skip
    values = iter(setting.run([job for start in _STARTS for job in _jobs(setting, pairs, layers, start=start, **how)]))
    rows = accuracy_rows({"networks": zoo})
    for start, words in _STARTS.items():
        found = [next(values) for _ in pairs]
        rows += _rows(layers, pairs, found, words, PLAIN)
        gaps = [_mean(v[FAST]["penalty"]) - _mean(v[MOMENTUM]["penalty"]) for v in found]
        rows.append(Row.of(f"{FAST} - {MOMENTUM}", of_pairs(names_of(pairs), gaps), group=f"penalty, {words}"))
        if start == "random":
            for arm in how["arms"]:
                shares = [_mean([x for x in v[arm]["agreement"] if x is not None]) for v in found]
                rows.append(Row.of(arm, of_pairs(names_of(pairs), shares), group=_MATCHED))
    return Measured(rows, [networks_note(zoo, f"{len(pairs)} pairs"), *_notes(layers, **how)])


def _notes(layers: Sequence[str], epochs: int, examples: int | None, rate: float, **_: Any) -> list[str]:
    return [
        f"Permutations and scales (G_ReLU) at {', '.join(layers)}, trained {epochs} epochs on {examples or 'all'} "
        f"images at a rate of {rate:.3g}; the last epoch counts. All arms begin alike and see the same batches.",
        "Penalties are accuracy lost, 0.01 is a point.",
    ]


def _judge_momentum(found: Reproduction) -> list[Claim]:
    table, networks, claims = found.table, trained(found), []
    for words in _STARTS.values():
        gaps = table.get(f"penalty, {words}", {})
        only = lambda arm, than, gaps=gaps: {k: e for k, e in gaps.items() if k == f"{arm} - {than}"}
        claims += [
            claim(f"{words}: momentum loses no more than a point more than none", only(MOMENTUM, PLAIN), below=_POINT,
                  trained=networks),
            claim(f"{words}: ten times the rate does within a point what momentum does", only(FAST, MOMENTUM),
                  above=-_POINT, below=_POINT, trained=networks),
        ]  # fmt: skip
    matched = table.get(_MATCHED, {})
    best = {k: matched[k].widened(len(matched)) for k in sorted(matched, key=lambda k: matched[k].value)[-1:]}
    text = "from a random start, some arm matches half of the channels as activations are"
    return [*claims, claim(text, best, above=0.5, trained=networks)]


def _swept(setting: Setting) -> Measured:
    setting = replace(setting, data="digits")
    recipe = TRAINING["digits"].but(epochs=10, batch_size=64)
    zoo = zoo_for(setting, "digits_cnn:width=8", setting.by_scale(4, 6, 6), recipe)
    layers = relu_layers(zoo)
    layers = setting.by_scale(layers[:1], layers[1:2], layers)
    examples, epochs = setting.by_scale(96, 1295, 1295), setting.by_scale(2, 10, 10)
    rate = min(_TRAVEL / (epochs * math.ceil(examples / 32)), _HIGHEST)
    how: dict[str, Any] = {"examples": examples, "tested": None, "epochs": epochs, "start": "random", "rate": rate,
                           "arms": _SWEPT}  # fmt: skip
    pairs = ring(zoo)
    values = setting.run(_jobs(setting, pairs, layers, **how))
    rows = accuracy_rows({"networks": zoo}) + _rows(layers, pairs, values, _STARTS["random"], PLAIN)
    ratios = [v[SOFT_SORT]["seconds"] / v[PLAIN]["seconds"] for v in values]
    rows.append(Row.of(f"{SOFT_SORT} / {PLAIN}", of_pairs(names_of(pairs), ratios), group=_TIMES))
    note = "SoftSort's time is of equally many epochs; the paper does not say how long it trained with it."
    notes = [networks_note(zoo, f"{len(pairs)} pairs"), *_notes(layers, **how), note]
    return Measured(rows, notes, {"data": "digits"})


def _judge_swept(found: Reproduction) -> list[Claim]:
    networks = trained(found)
    gaps = {k.removesuffix(f" - {PLAIN}"): e for k, e in found.table[f"penalty, {_STARTS['random']}"].items()}
    within = lambda text, chosen: claim(
        f"{text}: within 3 points of the paper's settings", chosen, above=-_SIMILAR, below=_SIMILAR, trained=networks
    )
    rates: dict[str, Estimate] = {k: gaps[k] for k in (SLOW, FAST)}
    return [
        within("the learning rate does not matter, a tenth or ten times of it", rates),
        claim("the paper's rate is the best of the three", rates, above=0, trained=networks),
        within("the number of Sinkhorn steps does not matter, 4 or 64", {k: gaps[k] for k in ("T = 4", "T = 64")}),
        within("the head start of permutations is not essential", {NO_HEAD_START: gaps[NO_HEAD_START]}),
        within("SoftSort is comparable", {SOFT_SORT: gaps[SOFT_SORT]}),
        claim("SoftSort takes more than ten times as long", found.table[_TIMES], above=_SLOWER, trained=networks),
    ]


_MOMENTUM_PAPERS, _SWEPT_PAPERS = "left open by v2 D.2 and D.2.1, which disagree", "left open by v1 D.1.1, v2 D.2.1"

EXPERIMENTS = (
    Experiment("open-momentum", "Does momentum matter to projected gradient descent?", _MOMENTUM_PAPERS, _momentum,
               _judge_momentum),
    Experiment("open-birkhoff", "Rate, Sinkhorn steps, head start, and SoftSort", _SWEPT_PAPERS, _swept, _judge_swept,
               data=False),
)  # fmt: skip
