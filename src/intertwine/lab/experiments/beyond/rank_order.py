"""The order in which measures and stitching penalties rank networks and layers, which paper 1 does not compare.

A stitching penalty says by what it costs how different two layers are; a dissimilarity measure says it for far less
work. Where the two rank pairs of layers alike, the measure may stand in for the stitching. The rank correlations are
over all pairs of networks and all layers, which the trend with depth dominates, and within each layer, where only the
networks differ.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ....similarity import compare
from ....stitching import RECIPES, StitchOptions, stitch
from ...data import load
from ..estimates import of_pairs
from ..experiment import Experiment, Measured, Setting
from ..over_models import kendall, over_models, spearman
from ..pairs import PairJob, all_pairs, checkpoints, names_of, ring
from ..reproduction import Reproduction, Row
from ..verdicts import Claim, claim
from ..zoos import accuracy_rows, trained
from .shared import MEASURES, networks_note, open_zoo, relu_layers

FAMILIES = ("g_relu", "full")


class Ranked(PairJob):
    """One ordered pair of networks: stitched at all layers, and measured there."""

    layers: tuple[str, ...]  # Where
    examples: int | None  # Training images of the stitches
    tested: int | None  # Test images of the penalties
    measured: int  # Test images of the measures
    epochs: int  # Of training maps; half of them are the head start
    seed: int  # Of the training order

    @property
    def label(self) -> str:
        """The two networks."""
        return f"{Path(self.a).stem} into {Path(self.b).stem}"

    def run(self, files: Path) -> dict[str, Any]:
        """Stitch and measure. ``penalties`` by family and ``dissimilarities`` by measure, one number for each layer."""
        data = load(self.data).first(self.examples)
        a, b = self.networks()
        recipe = replace(RECIPES["v1"], epochs=self.epochs, head_start=self.epochs // 2, keep="last")
        study: Any = stitch(
            a,
            b,
            list(self.layers),
            list(FAMILIES),
            loader=data.loader("train", recipe.batch_size, shuffle=True),
            eval_loader=data.loader("test", examples=self.tested),
            seeds=self.seed,
            method=recipe,
            options=StitchOptions(state=files / "training.pt"),
        )
        lost = {(found.layer_name.rstrip("*"), found.family): found.penalty for found in study.stitchings}
        loader, scores = data.loader("test", examples=self.measured), dict[str, list[float]]()
        for layer in self.layers:
            found = compare(a, b, loader, [layer], list(MEASURES), resampling=None, exact=True)
            for m in MEASURES:
                scores.setdefault(m, []).append(1 - float(found.scores[m]))
        return {
            "penalties": {f: [lost[layer, f] for layer in self.layers] for f in FAMILIES},
            "dissimilarities": scores,
        }


def _statistic(
    names: Sequence[tuple[str, str]], values: Sequence[dict[str, Any]], m: str, family: str, how: str
) -> Any:
    """Rank correlation of dissimilarities and penalties among the models that are kept."""
    correlate = kendall if how == "Kendall" else spearman

    def of(kept: frozenset[Any]) -> float:
        chosen = [v for pair, v in zip(names, values) if kept.issuperset(pair)]
        if not chosen:
            return float("nan")
        one, two = ([v[kind][key] for v in chosen] for kind, key in (("dissimilarities", m), ("penalties", family)))
        if how != "within":
            return correlate([x for layer in one for x in layer], [x for layer in two for x in layer])
        found = [correlate(x, y) for x, y in zip(zip(*one), zip(*two))]
        known = [r for r in found if r == r]  # a layer without any penalty ranks nothing
        return sum(known) / len(known) if known else float("nan")

    return of


_ABOVE = "Spearman above that of its rival"
_RIVALS = (("g_relu_procrustes", "orthogonal_procrustes"), ("g_relu_cka", "linear_cka"))


def _judge(found: Reproduction) -> list[Claim]:
    table, networks = found.table, trained(found)
    claims = [
        claim(f"every measure ranks {family} penalties better than chance", table[_group(family, "Spearman")], above=0,
              trained=networks)
        for family in FAMILIES
    ]  # fmt: skip
    by = table[_group("g_relu", "Spearman")]
    for ours, theirs in _RIVALS:
        gap = table.get(_ABOVE, {}).get(ours) or by[ours] - by[theirs]
        claims.append(
            claim(
                f"{ours} ranks G_ReLU penalties better than {theirs}",
                {"difference of Spearman": gap},
                above=0,
                trained=networks,
            )
        )
    within = table[_group("g_relu", "within")]  # the best of many is good by chance: widened for all of them
    best = max(within, key=lambda m: within[m].value)
    text = f"some measure ranks G_ReLU penalties of networks at one and the same layer (best of {len(within)}: {best})"
    return [*claims, claim(text, {best: within[best].widened(len(within))}, above=0, trained=networks)]


def _group(family: str, how: str) -> str:
    return f"{family}, {'Spearman within layers' if how == 'within' else f'{how} over pairs and layers'}"


def _run(setting: Setting) -> Measured:
    zoo = open_zoo(setting)
    layers = relu_layers(zoo)
    smoke = setting.scale == "smoke"
    pairs = ring(zoo) if smoke else all_pairs(zoo, True, setting.by_scale(12, 12, 32), setting.seed)
    examples, measured = setting.by_scale(400, 1000, None), setting.by_scale(128, 400, 2000)
    epochs = setting.by_scale(1, 1, 20)
    values = setting.run([
        Ranked(
            **checkpoints(pair), layers=layers, data=setting.data_spec, examples=examples, measured=measured,
            tested=setting.by_scale(None, 1000, None), epochs=epochs, seed=setting.seed, device=setting.device,
        )
        for pair in pairs
    ])  # fmt: skip
    names = names_of(pairs)
    models = list(dict.fromkeys(name for pair in names for name in pair))
    over = lambda statistic: over_models(models, statistic)
    rows = accuracy_rows({"networks": zoo}) + [
        Row.of(m, over(_statistic(names, values, m, family, how)).within(-1, 1), group=_group(family, how))
        for how in ("Spearman", "Kendall", "within")
        for family in FAMILIES
        for m in MEASURES
    ]
    for ours, theirs in _RIVALS:
        a, b = (_statistic(names, values, m, "g_relu", "Spearman") for m in (ours, theirs))
        rows.append(Row.of(ours, over(lambda kept, a=a, b=b: a(kept) - b(kept)), group=_ABOVE))
    rows += [
        Row.of(layer, of_pairs(names, [v["penalties"][family][k] for v in values]), group=f"{family}, penalty")
        for family in FAMILIES
        for k, layer in enumerate(layers)
    ]
    what = f"{len(pairs)} ordered pairs, {len(layers)} layers, {measured} test images for the measures"
    notes = [
        networks_note(zoo, what),
        f"Stitches start at their closed-form solutions and are trained {epochs} epochs on "
        f"{examples or 'all'} images. Many measures cannot tell A into B from B into A, penalties can.",
    ]
    return Measured(rows, notes)


_NAME, _TITLE = "open-rank-order", "Do the measures rank as stitching penalties do?"
_PAPERS = "left open by v2 sections 4 and 5"

EXPERIMENTS = (Experiment(_NAME, _TITLE, _PAPERS, _run, _judge),)
