"""Stitching penalties of independently trained networks (paper 1: v2 Figs 1, 6 and 7; v1 Figs 1, 8 and 9).

The figures are images: what is checked are their claims in words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ....stitching import RECIPES, StitchingStudy, StitchOptions, stitch
from ...data import load
from ...networks import fit_to
from ...training.augment import Augmented
from ..experiment import Experiment, Setting
from ..pairs import PairJob, checkpoints, names_of
from ..reproduction import Claim, Reproduction, provenance
from ..zoos import zoo_for
from .stitched_layers import activations, line

__all__ = ["EXPERIMENTS", "StitchedPair", "claims_of", "collect"]

FAMILIES = ("g_relu", "full", "rank-4", "rank-2", "rank-1")
RANDOM = "g_relu from a random start"

# layer -> family -> penalties, in the order of the pairs
Penalties = dict[str, dict[str, list[float]]]


class StitchedPair(PairJob):
    """One ordered pair of networks, stitched at all layers by all families.

    Attributes:
        examples: Training examples; all of them if ``None``.
        tested: Test examples; all of them if ``None``.
        layers: Where to stitch; every ReLU if empty.
        epochs: Of training maps; half of them are the head start.
        translate: Pixels by which training images move at most.
        flip: Whether they are mirrored.
        seed: Of starts and order.
    """

    examples: int | None
    tested: int | None
    layers: tuple[str, ...]
    epochs: int
    translate: int
    flip: bool
    seed: int

    def run(self, files: Path) -> dict[str, Any]:
        """Stitch, from closed-form starts and, for G_ReLU, from the paper's random one too.

        Returns:
            ``penalties`` by layer (``*`` inside residual blocks) and family, ``recovered`` shares of matched channels,
            and the accuracies of both networks.
        """
        data, (a, b) = load(self.data).first(self.examples), self.networks()
        recipe = replace(RECIPES["v1"], epochs=self.epochs, head_start=self.epochs // 2)
        train = Augmented(data.loader("train", recipe.batch_size, shuffle=True), self.translate, self.flip)
        test = data.loader("test", examples=self.tested)
        chosen = list(self.layers) or activations(a, data)
        penalties: dict[str, dict[str, float]] = {}
        recovered: dict[str, dict[str, float | None]] = {}
        accuracies = (0.0, 0.0)
        starts: tuple[tuple[Literal["direct", "random"], list[str]], ...]
        starts = (("direct", list(FAMILIES)), ("random", ["g_relu"]))
        for start, families in starts:
            study = stitch(
                a,
                b,
                chosen,
                families,
                loader=train,
                eval_loader=test,
                seeds=self.seed,
                method=recipe,
                options=StitchOptions(start=start, state=files / f"{start}.pt"),
            )
            for found in study.stitchings if isinstance(study, StitchingStudy) else [study]:
                name = found.family if start == "direct" else RANDOM
                penalties.setdefault(found.layer_name, {})[name] = found.penalty
                recovered.setdefault(found.layer_name, {})[name] = found.agreement
                accuracies = found.accuracy_a, found.accuracy_b
        return {"penalties": penalties, "recovered": recovered, "accuracies": list(accuracies)}


def collect(values: Sequence[dict[str, Any]]) -> Penalties:
    """The penalties of all pairs by layer and family.

    Args:
        values: What :class:`StitchedPair` returned.

    Returns:
        Penalties in the order of the pairs.

    Examples:
        >>> collect([{"penalties": {"relu1": {"full": 0.1}}}, {"penalties": {"relu1": {"full": 0.2}}}])
        {'relu1': {'full': [0.1, 0.2]}}
    """
    found: Penalties = {}
    for value in values:
        for layer, by_family in value["penalties"].items():
            for family, penalty in by_family.items():
                found.setdefault(layer, {}).setdefault(family, []).append(penalty)
    return found


def claims_of(penalties: Penalties, residual: bool) -> list[Claim]:
    """What the paper says in words of its figures, judged by mean penalties.

    Args:
        penalties: By layer and family.
        residual: Whether the networks are residual.
    """
    means = {layer: {f: sum(v) / len(v) for f, v in by.items()} for layer, by in penalties.items()}
    outside = {layer: by for layer, by in means.items() if not layer.endswith("*")}
    inside = {layer: by for layer, by in means.items() if layer.endswith("*")}
    claims = [
        _everywhere("full convolutions lose least, rank 1 more than rank 4", means,
                    lambda by: by["full"] <= by["rank-4"] <= by["rank-1"]),
        _everywhere("outside residual blocks G_ReLU loses less than rank 1", outside,
                    lambda by: by["g_relu"] < by["rank-1"]),
        _everywhere("and more than full convolutions", outside, lambda by: by["full"] <= by["g_relu"]),
    ]  # fmt: skip
    if residual:
        claims += [
            _everywhere("inside residual blocks G_ReLU loses more than rank 1", inside,
                        lambda by: by["g_relu"] > by["rank-1"]),
            _starred_are_worse(outside, inside),
        ]  # fmt: skip
        return claims
    worst = [by["g_relu"] for by in outside.values()]
    small = sum(value < 0.1 for value in worst)
    detail = ", ".join(f"{100 * value:.1f}" for value in worst)
    claims.append(Claim("G_ReLU comes within 10 points in all layers but one", small >= len(worst) - 1, detail))
    if len(worst) == 4:
        risen = worst[0] < worst[1] < worst[2] and worst[3] < worst[2]
        claims.append(Claim("penalties rise to the third ReLU, then fall", risen, detail))
    return claims


def _everywhere(text: str, means: dict[str, dict[str, float]], holds: Any) -> Claim:
    broken = [layer for layer, by in means.items() if not holds(by)]
    detail = f"not at {', '.join(broken)}" if broken else f"at all {len(means)} layers"
    return Claim(text, None if not means else not broken, detail if means else "no such layers")


def _starred_are_worse(outside: dict[str, dict[str, float]], inside: dict[str, dict[str, float]]) -> Claim:
    text = "layers inside residual blocks have higher penalties, with full convolutions too"
    if not outside or not inside:
        return Claim(text, None, "no such layers")
    mean = lambda group, family: sum(by[family] for by in group.values()) / len(group)
    pairs = {family: (mean(inside, family), mean(outside, family)) for family in ("full", "g_relu")}
    detail = "; ".join(f"{f}: {100 * i:.1f} inside, {100 * o:.1f} outside" for f, (i, o) in pairs.items())
    return Claim(text, all(i > o for i, o in pairs.values()), detail)


@dataclass(frozen=True)
class _Figure:
    """What one figure stitches at each scale: network, how many models and pairs, layers, epochs."""

    name: str
    title: str
    papers: str
    networks: tuple[str, str, str]
    layers: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
    pairs: int
    residual: bool

    def run(self, setting: Setting) -> Reproduction:
        """Train the networks, stitch the pairs, judge the claims."""
        data = load(setting.data_spec)
        network = fit_to(setting.by_scale(*self.networks), data.shape, len(data.classes))
        zoo = zoo_for(setting, network, setting.by_scale(3, 4, 100))
        pairs = zoo.pairs(setting.by_scale(3, 3, self.pairs), seed=setting.seed)
        drawn = names_of(pairs)
        values = setting.run([
            StitchedPair(
                **checkpoints(pair), data=setting.data_spec, examples=setting.by_scale(400, 5_000, None),
                tested=setting.by_scale(None, 2_000, None), layers=setting.by_scale(*self.layers),
                epochs=setting.by_scale(2, 2, 20), translate=setting.by_scale(0, 2, 2),
                flip=setting.by_scale(False, True, True), seed=setting.seed + i, device=setting.device,
            )
            for i, pair in enumerate(pairs)  # a pair that is drawn twice gets two seeds
        ])  # fmt: skip
        penalties = collect(values)
        families = dict.fromkeys(family for by in penalties.values() for family in by)
        by_layer = lambda f: {layer: by[f] for layer, by in penalties.items() if f in by}
        rows = [row for f in families for row in line(f, by_layer(f), drawn)]
        recovered = [v["recovered"][layer][RANDOM] for v in values for layer in v["recovered"]]
        known = [share for share in recovered if share is not None]
        accuracies = [x for v in values for x in v["accuracies"]]
        notes = [
            "Stitching penalties: accuracy lost, 0.01 is a point; one line for each family.",
            "Maps start at their closed-form solutions; the paper's random start is shown for G_ReLU, where it matches "
            f"{100 * sum(known) / max(len(known), 1):.0f} % of live channels as activations do.",
            "Batch norm is measured anew behind every family, the last epoch counts, nothing is chosen by test data.",
        ]
        if setting.scale != "paper":
            notes.append(f"Smaller than the paper: {network}, {len(zoo)} networks, {len(drawn)} pairs.")
        accuracy = round(sum(accuracies) / len(accuracies), 4)
        facts = {**provenance(), "network": network, "models": len(zoo), "pairs": len(drawn), "accuracy": accuracy}
        claims = claims_of(penalties, self.residual)
        return Reproduction(self.name, self.title, self.papers, setting.scale, rows, claims, notes=notes, facts=facts)


_FIGURES = (
    _Figure(
        "fig1-stitching-myrtle",
        "Stitching penalties of Myrtle CNNs",
        "v2 Fig. 1 (v1 Fig. 1)",
        ("digits_cnn", "myrtle_cnn:base=16", "myrtle_cnn"),
        ((), (), ()),
        32,
        False,
    ),
    _Figure(
        "fig6-stitching-resnet20",
        "Stitching penalties of ResNet20s",
        "v2 Fig. 6 (v1 Fig. 8)",
        ("resnet20:width=4", "resnet20:width=8", "resnet20"),
        (
            ("layer1.0.relu1", "layer2.2.relu2"),
            ("relu", "layer1.1.relu1", "layer1.2.relu2", "layer2.1.relu1", "layer2.2.relu2", "layer3.2.relu1"),
            (),
        ),
        16,
        True,
    ),
    _Figure(
        "fig7-stitching-resnet18",
        "Stitching penalties of ResNet18s",
        "v2 Fig. 7 (v1 Fig. 9)",
        ("resnet18:width=4", "resnet18:width=8", "resnet18"),
        (
            ("layer1.0.relu1", "layer2.1.relu2"),
            ("relu", "layer1.1.relu1", "layer2.1.relu2", "layer3.1.relu2", "layer4.1.relu1"),
            (),
        ),
        16,
        True,
    ),
)

EXPERIMENTS = tuple(Experiment(f.name, f.title, f.papers, f.run) for f in _FIGURES)
