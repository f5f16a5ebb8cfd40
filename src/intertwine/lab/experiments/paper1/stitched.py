"""Pairs of networks stitched at some layers by some families, as we prefer it and as the paper prints it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from ....features import layers
from ....stitching import RECIPES, StitchOptions, stitch
from ....stitching.layers.families import takes
from ...data import DataSplits, load
from ...training.augment import Augmented
from ..estimates import Estimate, of_pairs
from ..experiment import Setting
from ..pairs import PairJob, Pairs, checkpoints, names_of
from ..reproduction import Row
from ..verdicts import Claim

# layer -> family -> one number of each pair
Values = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, eq=False)
class Arm:
    """One way to train stitching layers.

    Attributes:
        name: In tables.
        recipe: Settings that differ from the stitching recipe ``v1``.
        options: Of ``StitchOptions``.
        crop: Networks and maps see random resized crops of at least this share of an image, not translations.
    """

    name: str
    recipe: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    crop: float = 0.0

    def words(self, **recipe: Any) -> str:
        """What was done, from the recipe that ran."""
        how, options = replace(RECIPES["v1"], **self.recipe, **recipe), StitchOptions(**self.options)
        start = "their closed-form solutions" if options.start == "direct" else "random maps"
        kept = (
            "the last epoch counts"
            if how.keep == "last"
            else "the best of the start and all epochs, on training data, counts"
        )
        return (
            f"{self.name}: maps start at {start}; {how.epochs} epochs at a rate of {how.learning_rate:g} with momentum "
            f"{how.momentum:g}, scales held for {how.head_start}; {kept}; batch norm of the tail in "
            f"{'training' if options.tail_norm == 'train' else 'evaluation'} mode, and measured anew before the test."
        )


OURS = Arm("ours")
_AS_PRINTED = {"start": "random", "tail_norm": "train", "settings": {"norm": "printed", "proximal": False}}
PRINTED = Arm("as printed in v2", {"keep": "last", "momentum": 0.0}, _AS_PRINTED)
PRINTED_V1 = Arm("as printed in v1", {"keep": "last", "momentum": 0.9}, _AS_PRINTED, crop=0.08)
ARMS = (OURS, PRINTED)


class StitchedLayers(PairJob):
    """One ordered pair of networks, stitched at some layers by some families.

    Attributes:
        examples: Training examples; all of them if ``None``.
        tested: Test examples; all of them if ``None``.
        layers: Where to stitch; every activation if empty.
        families: Of maps.
        recipe: Settings that differ from the stitching recipe ``v1``.
        options: Of ``StitchOptions``.
        translate: Pixels by which training images move at most.
        flip: Whether they are mirrored.
        crop: Least share of an image that a random resized crop keeps; 0 for none.
        seed: Of starts and of the order of examples.
    """

    examples: int | None
    tested: int | None
    layers: tuple[str, ...]
    families: tuple[str, ...]
    recipe: dict[str, Any]
    options: dict[str, Any] = {}  # noqa: RUF012 - pydantic copies it
    translate: int
    flip: bool
    crop: float = 0.0
    seed: int

    def run(self, files: Path) -> dict[str, Any]:
        """Stitch.

        Returns:
            ``penalties``, ``sparsities`` and ``recovered`` (shares of channels matched as activations are) by layer
            (``*`` inside residual blocks) and family.
        """
        data, (a, b) = load(self.data).first(self.examples), self.networks()
        recipe = replace(RECIPES["v1"], **self.recipe)
        train = data.loader("train", recipe.batch_size, shuffle=True)
        study = stitch(
            a,
            b,
            list(self.layers) or activations(a, data),
            list(self.families),
            loader=Augmented(train, self.translate, self.flip, self.crop),
            eval_loader=data.loader("test", examples=self.tested),
            seeds=self.seed,
            method=recipe,
            options=StitchOptions(**self.options, state=files / "training.pt"),
        )
        found: dict[str, dict[str, dict[str, Any]]] = {"penalties": {}, "sparsities": {}, "recovered": {}}
        for one in study.stitchings:  # type: ignore[union-attr]  # lists were given
            for what, number in zip(found, (one.penalty, one.sparsity, one.agreement)):
                found[what].setdefault(one.layer_name, {})[_full_name(one.family)] = number
        return found


def _full_name(family: str) -> str:
    return "lasso-0.001" if family == "lasso" else family


def stitch_jobs(
    setting: Setting, pairs: Pairs, arm: Arm, families: Sequence[str], layers: Sequence[str], **how: Any
) -> list[StitchedLayers]:
    """A job for each pair.

    Args:
        setting: Data, seed, device.
        pairs: Of networks; one that is drawn twice gets two seeds.
        arm: How maps are trained.
        families: Of maps.
        layers: Where to stitch; every activation if empty.
        how: ``examples``, ``tested``, and settings of the stitching recipe under ``recipe``.
    """
    recipe, options = dict(how.pop("recipe", {})), dict(arm.options)
    same: dict[str, Any] = {"data": setting.data_spec, "layers": tuple(layers), "families": tuple(families), **how}
    if settings := options.get("settings"):
        options["settings"] = {k: v for k, v in settings.items() if any(takes(f, k) for f in families)}
    moved = not setting.digits
    same |= {"translate": 2 if moved and not arm.crop else 0, "flip": moved, "crop": arm.crop if moved else 0}
    same["device"] = setting.device
    same |= {"recipe": {**arm.recipe, **recipe}, "options": options}
    return [StitchedLayers(**checkpoints(pair), **same, seed=setting.seed + k) for k, pair in enumerate(pairs)]


def activations(model: nn.Module, data: DataSplits) -> list[str]:
    """Names of a network's activations, in order."""
    example = data.loader("test", 2).batch(slice(0, 2))[0].to(next(model.parameters()).device)
    return [point.name for point in layers(model, example) if point.activation]


def series(values: Values, pairs: Pairs, what: str = "penalties", title: str = "") -> list[Row]:
    """A row for each family and layer: the mean over pairs, each network left out in turn.

    Args:
        values: What :class:`StitchedLayers` returned.
        pairs: The pairs, in their order.
        what: ``"penalties"``, ``"sparsities"`` or ``"recovered"``.
        title: What stands behind the comma of a group's name.
    """
    first = values[0][what]
    families = dict.fromkeys(f for by in first.values() for f in by)
    known = {(f, k): [v[what][k][f] for v in values] for f in families for k, by in first.items() if f in by}
    return [
        Row.of(layer, of_pairs(names_of(pairs), numbers), group=", ".join(filter(None, [family, title])))
        for (family, layer), numbers in known.items()
        if any(number is not None for number in numbers)
    ]


def contrast(values: Values, pairs: Pairs, more: str, less: str, title: str = "") -> list[Row]:
    """How much more one family loses than another, pair by pair, at each layer."""
    group = ", ".join(filter(None, [f"{more} - {less}", title]))
    found = [{layer: by[more] - by[less] for layer, by in v["penalties"].items()} for v in values]
    return [Row.of(k, of_pairs(names_of(pairs), [v[k] for v in found]), group=group) for k in found[0]]


def arm_claims(
    table: Mapping[str, Mapping[str, Estimate]], judge: Callable[[Mapping[str, Mapping[str, Estimate]]], list[Claim]]
) -> list[Claim]:
    """The same statements about every arm that was run, which stands in front of their words.

    Those of an arm whose maps did not train cannot be told: maps of its largest family that start at their closed form
    show what such maps reach.

    Args:
        table: Of the result.
        judge: Claims from the groups of one arm, by their names without it.
    """
    claims: list[Claim] = []
    for arm in (OURS, PRINTED, PRINTED_V1):
        suffix = "" if arm is OURS else f", {arm.name}"
        own = {g.removesuffix(suffix): by for g, by in table.items() if g.endswith(suffix) and (suffix or "," not in g)}
        if own:
            claims += [replace(_of_trained(c, own, table), text=f"{arm.name}: {c.text}") for c in judge(own)]
    return claims


def _of_trained(
    told: Claim, own: Mapping[str, Mapping[str, Estimate]], ours: Mapping[str, Mapping[str, Estimate]]
) -> Claim:
    """A claim about one arm; where its maps lose 10 points more than ours, it cannot be told, and why."""
    largest = next((f for f in ("full", "lasso-0.0001", "g_relu") if f in own and f in ours), None)
    if largest is None:
        return told
    lost, least = (sum(e.value for e in by[largest].values()) / len(by[largest]) for by in (own, ours))
    if lost - least <= 0.1:
        return told
    words = f"{100 * lost:.0f} points are lost by {largest}, {100 * least:.0f} from our start"
    measured = told.why.rpartition("; ")[2] or f"as measured it would {'hold' if told.held else 'not hold'}"
    return replace(told, held=None, why=f"maps not trained: {words}; {measured}")
