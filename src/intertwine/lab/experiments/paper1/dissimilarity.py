"""Similarity of the layers of independently trained networks: paper 1, section 5, D.3 and D.8."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from ...data import load
from ...statistics import Sample, jackknife, mean_of, spearman
from ..experiment import Experiment, Findings
from ..plan import Design, PairJob, activations_of, row, unordered_pairs
from ..reproduction import TABLE_2, TABLE_4, V1_FIG_5, Map, Printed, Row
from .stitched import pairs_of

# The figures' orthogonal CKA divides channels by their norm: the last measure, not linear CKA.
MEASURES = ("g_relu_procrustes", "orthogonal_procrustes", "g_relu_cka", "linear_cka", "channel_normalized_cka")
_RELU, _ROTATED, *_CKA = MEASURES
_CHANCE = ", chance taken out"
_SHUFFLES = 20
_FEW = 6  # layers at smoke scale
_MANY = 24  # networks: beyond, each is compared with the next, since the numbers vary among networks, not pairs
_LAYER_70 = "layer4.1.relu1"  # of a ResNet18: see networks.paper_taps
_LOST = "lost by the last but one"
_OF_MAPS = {
    "equal depth - other": "layers of equal depth are more alike than others",
    "early - late": "early layers are more alike than late ones",
    "outside blocks - inside": "layers inside residual blocks are less alike than those behind them",
}


class LayerSimilarity(PairJob):
    """Similarity of two networks of a zoo, layer by layer."""

    layers: tuple[str, ...]  # Names of layers
    examples: int  # Number of test images

    def run(self, files: Path) -> list[dict[str, Any]]:
        """Rows of exact scores of every layer of the first network against every layer of the second, by measure.

        Scores of equal layers are also given with chance (20 shuffles) taken out.
        """
        from ....similarity import Resampling, compare

        a, b = self.networks()
        loader, layers = load(self.data).loader("test", examples=self.examples), list(self.layers)
        drawn = Resampling(null=_SHUFFLES, bootstrap=0, untrained=0)
        found = compare(a, b, loader, layers, MEASURES, resampling=drawn, exact=True)
        rows = []
        for m in MEASURES:
            for one, line in zip(layers, found.scores[m].tolist()):
                rows += [row(m, score, layer=one, partner_layer=two) for two, score in zip(layers, line)]
            if (calibrated := found.calibrated[m]) is not None:
                rows += [row(f"{m}{_CHANCE}", score, layer=layer, draws=_SHUFFLES)
                         for layer, score in zip(layers, calibrated.diag().tolist())]  # fmt: skip
        return rows


def map_numbers(layers: Sequence[str], scores: Mapping[tuple[str, str], Sample]) -> dict[str, Sample]:
    """Numbers behind the text's claims about maps, pair by pair, from scores by layer of the first and second network.

    How much more alike layers of equal depth are than others, the first third of the layers than the last third, and
    layers after residual connections than those inside blocks; and how much similarity is lost from the first layer to
    the last but one.
    """
    third, same = max(len(layers) // 3, 1), [scores[k, k] for k in layers]
    found = {
        "equal depth - other": mean_of(same) - mean_of(s for (one, two), s in scores.items() if one != two),
        "early - late": mean_of(same[:third]) - mean_of(same[-third:]),
        _LOST: same[0] - same[-2],
    }
    inside = [s for layer, s in zip(layers, same) if layer.startswith("layer") and layer.endswith("relu1")]
    if inside:
        behind = [s for layer, s in zip(layers, same) if layer.endswith("relu2")]
        found["outside blocks - inside"] = mean_of(behind) - mean_of(inside)
    return found


@dataclass(frozen=True)
class _Comparison:
    """Layers of one architecture, compared between independently trained networks."""

    networks: tuple[str, str, str]
    printed: Mapping[str, Mapping[str, Printed]] = field(default_factory=dict)
    also: Mapping[str, Mapping[str, Printed]] = field(default_factory=dict)
    constant_width: bool = False  # D.8 says only that such networks behave like others
    note: str = ""
    epochs: int = 0  # of training at the scale small, if not the usual number
    seeds: tuple[int, int] = (0, 8)  # at the scale small: the first seed, and how many

    def plan(self, plan: Design) -> None:
        """Compare pairs of a zoo at all layers."""
        s = plan.setting
        plan.baseline()
        network, longer = s.by_scale(*self.networks), {"epochs": self.epochs} if self.epochs else {}
        recipe = s.recipe(network, **s.by_scale({}, longer, {}))
        first, count = s.by_scale((0, 4), self.seeds, (0, 100))
        zoo = plan.zoo(self.networks[-1], network, count, recipe, first=first)
        layers, examples = activations_of(zoo.network), s.by_scale(128, 1000, 10_000)
        if s.scale == "smoke" and len(layers) > _FEW:
            layers = layers[:: -(-len(layers) // _FEW)]
        for pair in pairs_of(s, zoo) if count > _MANY else unordered_pairs(zoo):
            plan.pair(LayerSimilarity, pair, layers=layers, examples=examples)
        said = "channel_normalized_cka is the orthogonal CKA of the paper's figures: channels divided by their norm."
        plan.note(f"{examples} test images; {said}", *filter(None, [self.note]))

    def analyse(self, found: Findings) -> None:
        """Show scores of equal layers and maps, and state the claims of the text."""
        values, maps = found.values, dict[str, dict[str, Sample]]()
        table = {m: values.by_layer(m, diagonal=True) for m in MEASURES}
        layers = tuple(table[_RELU])
        for m in MEASURES:
            scores = {(a, b): values.sample(m, "", a, b) for a in layers for b in layers}
            found.show(m, table[m], self.printed.get(m))
            found.show(f"{m}{_CHANCE}", values.by_layer(f"{m}{_CHANCE}"))
            maps[m] = map_numbers(layers, scores)
            found.show(f"{m}, map", maps[m])
            found.maps.append(Map(m, layers, tuple(tuple(scores[a, b].mean for b in layers) for a in layers)))
            found.rows += [Row(k, None, n, group=f"{m}, v1 Fig. 5", spread=spread)
                           for k, (n, spread) in self.also.get(m, {}).items()]  # fmt: skip
        self._state(found, layers, table, maps)
        found.accuracies()

    def _state(self, found: Findings, layers: Sequence[str], table: Mapping[str, Mapping[str, Sample]],
               maps: Mapping[str, Mapping[str, Sample]]) -> None:  # fmt: skip
        guard = found.guard(self.networks[-1])
        state = lambda text, effects, **limits: found.state(text, effects, guard=guard, **limits)
        relu, rotated = table[_RELU], table[_ROTATED]
        falls, rises = dict[str, Sample](), dict[str, Sample]()
        for m, by in (("G_ReLU", relu), ("orthogonal", rotated)):
            *before, last = layers
            if len(before) <= 3:
                falls |= {f"{m}, {two}": by[one] - by[two] for one, two in pairwise(before)}
            else:  # similarity goes up and down with the blocks: compare thirds
                third = len(before) // 3
                falls[m] = mean_of(by[k] for k in before[:third]) - mean_of(by[k] for k in before[-third:])
            rises[m] = by[last] - by[before[-1]]
        if not self.constant_width:
            state("distinct networks are less similar by G_ReLU- than by orthogonal Procrustes in every layer",
                  {k: rotated[k] - relu[k] for k in layers}, above=0)  # fmt: skip
        state("both Procrustes similarities fall with depth, up to the last layer but one", falls, above=0)
        if self.constant_width:  # the paper's own Table 4 shows no rise by G_ReLU
            state("orthogonal Procrustes rises again in the last layer",
                  {"orthogonal, last - last but one": rises["orthogonal"]}, above=0)  # fmt: skip
        else:
            state("and rise again in the last layer", rises, above=0)
        state("CKA decays more with depth under G_ReLU than under rotations",
              {f"than {m}": maps[_CKA[0]][_LOST] - maps[m][_LOST] for m in _CKA[1:]}, above=0)  # fmt: skip
        for name, text in _OF_MAPS.items():
            if chosen := {m: maps[m][name] for m in (_CKA[0], _CKA[2]) if name in maps[m]}:
                state(f"CKA maps: {text}", chosen, above=0)
        if _LAYER_70 in layers:
            others = [k for k in layers if k != _LAYER_70]
            apart = {m: by[_LAYER_70] - mean_of(by[k] for k in others) for m, by in table.items()}
            state("layer 70 is more similar than the others by G_ReLU-Procrustes", {"layer 70 - others": apart[_RELU]},
                  above=0)  # fmt: skip
            cka = {f"layer 70 - others, {m}": apart[m] for m in (_CKA[0], _CKA[2])}
            state("and less by CKA, in conflict with it", cka, below=0)
        profile = lambda m, kept: [
            fmean([v for key, v in table[m][k].means.items() if kept.issuperset(key)]) for k in layers
        ]
        rank = lambda kept: spearman(profile(_RELU, kept), profile(_ROTATED, kept))
        correlation = replace(jackknife(relu[layers[0]].networks, rank), limits=(-1.0, 1.0))
        alike = {"G_ReLU with orthogonal": correlation}
        found.show("Spearman over layers", alike)
        state("the two Procrustes measures rank the layers alike", alike, above=0)


_COMPARISONS = {
    ("table2-dissimilarity", "Similarity of the layers of Myrtle CNNs", "v2 Table 2, Fig. 5 (v1 Figs 5, 6)"):
    _Comparison(("digits_cnn:width=8", "myrtle_cnn:base=16", "myrtle_cnn"), TABLE_2, V1_FIG_5),
    ("table4-constant-width", "The same at constant width", "v2 Table 4, Fig. 16, D.8"): _Comparison(
        ("mlp:widths=32-32-32-32", "myrtle_cnn:width=48", "myrtle_cnn:width=512"), TABLE_4, constant_width=True,
        epochs=8, seeds=(8, 16),
        note="In the paper's table G_ReLU-Procrustes is above the orthogonal one in relu2 and relu3, and falls to the "
        "last layer. The two are normalised differently, so neither bounds the other; D.8 claims neither.",
    ),
    ("fig9-resnet20", "Similarity of the layers of ResNet20s", "v2 Figs 2, 9 (v1 Figs 2, 11)"):
    _Comparison(("resnet20:width=4", "resnet20:width=8", "resnet20")),
    ("fig10-resnet18", "Similarity of the layers of ResNet18s", "v2 Figs 10, 11 (v1 Figs 12, 13)"): _Comparison(
        ("digits_cnn:width=16", "resnet18:width=8", "resnet18"), seeds=(8, 45),
        note="At smoke scale, a plain CNN twice as wide as that of table2-dissimilarity replaces the ResNet18. At "
        "scale small a first attempt with 8 networks left two statements open; these 45 are others.",
    ),
}  # fmt: skip
EXPERIMENTS = tuple(Experiment(*said, c.plan, c.analyse) for said, c in _COMPARISONS.items())
