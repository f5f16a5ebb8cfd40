"""Similarity of the layers of independently trained networks: paper 1, section 5, D.3 and D.8."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from ....similarity import Resampling, compare
from ...data import load
from ...networks import build
from ..estimates import Estimate, decreases, mean_of, minus, of_pairs
from ..experiment import Experiment, Measured, Setting
from ..over_models import over_models, spearman
from ..pairs import PairJob, checkpoints, names_of, pairs_at
from ..printed import TABLE_2, TABLE_4, V1_FIG_5, Printed
from ..reproduction import Map, Reproduction, Row
from ..verdicts import Claim, Trained, claim
from ..zoos import accuracy_rows, recipe_at, trained, trained_words, zoo_for

# The figures' orthogonal CKA divides channels by their norm: the last measure, not linear CKA.
MEASURES = ("g_relu_procrustes", "orthogonal_procrustes", "g_relu_cka", "linear_cka", "channel_normalized_cka")
_CKA = MEASURES[2:]
_SHUFFLES = 20
_FEW = 6  # layers at smoke scale
_LAYER_70 = "layer4.1.relu1"  # of a ResNet18: see networks.paper_taps

Table = Mapping[str, Mapping[str, Estimate]]


class LayerSimilarity(PairJob):
    """Two networks of a zoo, layer by layer."""

    layers: tuple[str, ...]  # Names of layers
    examples: int  # Test images

    def run(self, files: Path) -> dict[str, Any]:
        """Compare.

        Returns:
            For each measure, scores of every layer of the first against every layer of the second, and the calibrated
            scores of equal layers.
        """
        a, b = self.networks()
        loader = load(self.data).loader("test", examples=self.examples)
        found = compare(
            a,
            b,
            loader,
            list(self.layers),
            MEASURES,
            resampling=Resampling(null=_SHUFFLES, bootstrap=0, untrained=0),
            exact=True,
        )
        calibrated = {m: c.diag().tolist() for m in MEASURES if (c := found.calibrated[m]) is not None}
        return {"scores": {m: found.scores[m].tolist() for m in MEASURES}, "calibrated": calibrated}


def map_numbers(layers: Sequence[str], scores: Sequence[Sequence[float]]) -> dict[str, float]:
    """What the text says of a map of one pair of networks, in numbers.

    Args:
        layers: Names.
        scores: Every layer of the first network against every layer of the second.

    Returns:
        How much more alike layers of equal depth are than others, the first third of layers than the last, and layers
        behind residual connections than those inside blocks; and how much similarity the last layer but one has lost
        since the first.

    Examples:
        >>> found = map_numbers(("relu1", "relu2"), [[1.0, 0.2], [0.4, 0.5]])
        >>> {name: round(value, 2) for name, value in found.items()}
        {'equal depth - other': 0.45, 'early - late': 0.5, 'lost by the last but one': 0.0}
    """
    n, third = len(layers), max(len(layers) // 3, 1)
    same = [scores[k][k] for k in range(n)]
    found = {
        "equal depth - other": mean(same) - mean(scores[i][j] for i in range(n) for j in range(n) if i != j),
        "early - late": mean(same[:third]) - mean(same[-third:]),
        "lost by the last but one": same[0] - same[-2],
    }
    inside = [s for layer, s in zip(layers, same) if layer.startswith("layer") and layer.endswith("relu1")]
    if inside:
        outside = [s for layer, s in zip(layers, same) if layer.endswith("relu2")]
        found["outside blocks - inside"] = mean(outside) - mean(inside)
    return found


def claims_of(table: Table, networks: Trained, constant_width: bool = False) -> list[Claim]:
    """What the text says of one table or figure.

    Args:
        table: Scores by measure and layer, and ``"MEASURE, map"`` for what was computed of whole maps.
        networks: Those that were compared.
        constant_width: Whether D.8 speaks of it: then only that it behaves as other networks do.
    """
    told = partial(claim, trained=networks)
    relu, rotated = table.get("g_relu_procrustes", {}), table.get("orthogonal_procrustes", {})
    layers = list(relu)
    falls, rises = dict[str, Estimate](), dict[str, Estimate]()
    for m, by in (("G_ReLU", relu), ("orthogonal", rotated)):
        *before, last = list(by)
        if len(before) <= 3:
            falls |= {f"{m}, {k}": e for k, e in decreases({k: by[k] for k in before}).items()}
        else:  # block structure goes up and down: thirds
            third = len(before) // 3
            falls[m] = mean_of(by[k] for k in before[:third]) - mean_of(by[k] for k in before[-third:])
        rises[m] = by[last] - by[before[-1]]
    claims = [] if constant_width else [
        told("distinct networks are less similar by G_ReLU- than by orthogonal Procrustes in every layer",
             minus(rotated, relu), above=0),
    ]  # fmt: skip
    claims.append(told("both Procrustes similarities fall with depth, up to the last layer but one", falls, above=0))
    if constant_width:  # its own Table 4 shows no rise by G_ReLU
        claims.append(
            told(
                "orthogonal Procrustes rises again in the last layer",
                {"orthogonal, last - last but one": rises["orthogonal"]},
                above=0,
            )
        )
    else:
        claims.append(told("and rise again in the last layer", rises, above=0))
    maps = {m: table[f"{m}, map"] for m in _CKA if f"{m}, map" in table}
    lost = {f"than {m}": maps["g_relu_cka"]["lost by the last but one"] - maps[m]["lost by the last but one"]
            for m in _CKA[1:] if m in maps}  # fmt: skip
    if not maps and "g_relu_cka" in table:  # without maps, from the layers themselves
        first, late = layers[0], layers[-2]
        kept = {m: table[m][first] - table[m][late] for m in _CKA if m in table}
        lost = {f"than {m}": kept["g_relu_cka"] - kept[m] for m in _CKA[1:] if m in kept}
    claims.append(told("CKA decays more with depth under G_ReLU than under rotations", lost, above=0))
    for name, text in (
        ("equal depth - other", "layers of equal depth are more alike than others"),
        ("early - late", "early layers are more alike than late ones"),
        ("outside blocks - inside", "layers inside residual blocks are less alike than those behind them"),
    ):
        chosen = {m: by[name] for m, by in maps.items() if name in by and (m != "linear_cka")}
        if chosen or (name != "outside blocks - inside" and maps):
            claims.append(told(f"CKA maps: {text}", chosen, above=0))
    if _LAYER_70 in relu:
        apart = lambda m: table[m][_LAYER_70] - mean_of(e for k, e in table[m].items() if k != _LAYER_70)
        cka = {f"layer 70 - others, {m}": apart(m) for m in _CKA if m in table and m != "linear_cka"}
        text = "layer 70 is more similar than the others by G_ReLU-Procrustes"
        claims.append(told(text, {"layer 70 - others": apart("g_relu_procrustes")}, above=0))
        claims.append(told("and less by CKA, in conflict with it", cka, below=0))
    if alike := table.get("Spearman over layers"):
        claims.append(told("the two Procrustes measures rank the layers alike", alike, above=0))
    return claims


@dataclass(frozen=True)
class _Comparison:
    """Layers of one architecture against each other."""

    name: str
    title: str
    papers: str
    networks: tuple[str, str, str]
    printed: Mapping[str, Mapping[str, Printed]] = field(default_factory=dict)
    also: Mapping[str, Mapping[str, Printed]] = field(default_factory=dict)
    constant_width: bool = False
    note: str = ""
    epochs: int | None = None  # of training at the scale small, where the usual ones do not reach 75 % of CIFAR-10

    def measure(self, setting: Setting) -> Measured:
        """Compare pairs of a zoo at all layers."""
        network = setting.by_scale(*self.networks)
        longer = {"epochs": self.epochs} if self.epochs and setting.scale == "small" and not setting.digits else {}
        zoo = zoo_for(setting, network, setting.by_scale(4, 6, 100), recipe_at(setting, network, **longer))
        layers = tuple(n for n, _ in build(network).named_modules() if n.rpartition(".")[2].startswith("relu"))
        if setting.scale == "smoke" and len(layers) > _FEW:
            layers = layers[:: -(-len(layers) // _FEW)]
        pairs = pairs_at(setting, zoo, setting.by_scale(4, 12, 0), 32)
        examples = setting.by_scale(128, 1000, 10_000)
        jobs = [
            LayerSimilarity(
                **checkpoints(pair), layers=layers, data=setting.data_spec, examples=examples, device=setting.device
            )
            for pair in pairs
        ]
        values, names = setting.run(jobs), names_of(pairs)
        rows = accuracy_rows({network.partition(":")[0]: zoo})
        maps = []
        for m in MEASURES:
            printed, known = self.printed.get(m, {}), [v["scores"][m] for v in values]
            for k, layer in enumerate(layers):
                score = of_pairs(names, [s[k][k] for s in known]).within(-1, 1)
                rows.append(Row.of(layer, score, printed.get(layer), m))
            rows += [
                Row.of(layer, of_pairs(names, [v["calibrated"][m][k] for v in values]).within(-9, 1),
                       group=f"{m}, chance taken out")
                for k, layer in enumerate(layers)
            ]  # fmt: skip
            found = [map_numbers(layers, s) for s in known]
            rows += [Row.of(name, of_pairs(names, [f[name] for f in found]), group=f"{m}, map") for name in found[0]]
            sums = [[mean(s[i][j] for s in known) for j in range(len(layers))] for i in range(len(layers))]
            maps.append(Map(m, layers, tuple(map(tuple, sums))))
        rows.append(_alike(layers, names, values))
        notes = [
            f"{trained_words(zoo)}; {len(pairs)} ordered pairs, {examples} test images; intervals leave out networks.",
            "channel_normalized_cka is the orthogonal CKA of the paper's figures: channels divided by their norm.",
            *filter(None, [self.note]),
        ]
        rows += [
            Row(k, None, n, group=f"{m}, v1 Fig. 5", spread=s)
            for m, by in self.also.items()
            for k, (n, s) in by.items()
        ]
        return Measured(rows, notes, {"network": network, "models": len(zoo), "pairs": len(pairs)}, maps)

    def judge(self, found: Reproduction) -> list[Claim]:
        """The claims of the text."""
        return claims_of(found.table, trained(found), self.constant_width)

    @property
    def experiment(self) -> Experiment:
        """As an experiment."""
        return Experiment(self.name, self.title, self.papers, self.measure, self.judge)


def _alike(layers: Sequence[str], names: Sequence[tuple[str, str]], values: Sequence[Mapping[str, Any]]) -> Row:
    """Spearman's rank correlation of the two Procrustes measures over layers, each a mean over pairs."""
    profile = lambda m, kept: [
        mean(v["scores"][m][k][k] for pair, v in zip(names, values) if kept.issuperset(pair))
        for k in range(len(layers))
    ]
    models = list(dict.fromkeys(name for pair in names for name in pair))
    rank = lambda kept: spearman(*(profile(m, kept) for m in MEASURES[:2]))
    return Row.of("G_ReLU with orthogonal", over_models(models, rank).within(-1, 1), group="Spearman over layers")


EXPERIMENTS = tuple(
    comparison.experiment
    for comparison in (
        _Comparison(
            "table2-dissimilarity", "Similarity of the layers of Myrtle CNNs", "v2 Table 2, Fig. 5 (v1 Figs 5, 6)",
            ("digits_cnn:width=8", "myrtle_cnn:base=16", "myrtle_cnn"), TABLE_2, V1_FIG_5,
        ),
        _Comparison(
            "table4-constant-width", "The same at constant width", "v2 Table 4, Fig. 16, D.8",
            ("mlp:widths=32-32-32-32", "myrtle_cnn:width=48", "myrtle_cnn:width=512"), TABLE_4, constant_width=True,
            epochs=6,
            note="The paper's table has G_ReLU-Procrustes above the orthogonal one in relu2 and relu3, and falling to "
            "the last layer: the two are normalised differently, neither bounds the other, and D.8 claims neither.",
        ),
        _Comparison(
            "fig9-resnet20", "Similarity of the layers of ResNet20s", "v2 Figs 2, 9 (v1 Figs 2, 11)",
            ("resnet20:width=4", "resnet20:width=8", "resnet20"),
        ),
        _Comparison(
            "fig10-resnet18", "Similarity of the layers of ResNet18s", "v2 Figs 10, 11 (v1 Figs 12, 13)",
            ("digits_cnn:width=16", "resnet18:width=8", "resnet18"),
            note="At smoke scale, a plain CNN twice as wide as that of table2-dissimilarity stands in for it.",
        ),
    )
)  # fmt: skip
