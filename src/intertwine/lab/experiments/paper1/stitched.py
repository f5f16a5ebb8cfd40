"""Pairs of networks stitched at some layers by some families: as we prefer it, and as the papers print it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...statistics import Sample
from ..experiment import Findings
from ..plan import Member, PairJob, Plan, Zoo, activations_of, cyclic_pairs
from ..setting import Setting
from ..statements import Guard
from ..values import Values

FLAT = 0.02  # nats: the training loss changes by less in the last epoch, as a mean over layers and pairs
_APART = 0.1  # 10 points: maps that lose so much more than ours did not train
_FEWER = 6  # networks that printed arms stitch at the scale small
_LOSS = "training loss, "
_LARGEST = ("full", "lasso-0.0001", "g_relu")


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
        from ....stitching import RECIPES, StitchOptions

        how, options = replace(RECIPES["v1"], **self.recipe, **recipe), StitchOptions(**self.options)
        start = "their closed-form solutions" if options.start == "direct" else "random maps"
        best = "the best of the start and all epochs, on training data, counts"
        return (
            f"{self.name}: maps start at {start}; {how.epochs} epochs at a rate of {how.learning_rate:g} with momentum "
            f"{how.momentum:g}, scales held for {how.head_start}; "
            f"{'the last epoch counts' if how.keep == 'last' else best}; batch norm of the tail in "
            f"{'training' if options.tail_norm == 'train' else 'evaluation'} mode, and measured anew before the test."
        )


OURS = Arm("ours")
_AS_PRINTED = {"start": "random", "tail_norm": "train", "settings": {"norm": "printed", "proximal": False}}
PRINTED = Arm("as printed in v2", {"keep": "last", "momentum": 0.0}, _AS_PRINTED)
PRINTED_V1 = Arm("as printed in v1", {"keep": "last", "momentum": 0.9}, _AS_PRINTED, crop=0.08)
ARMS = (OURS, PRINTED)


class StitchedLayers(PairJob):
    """One ordered pair of networks, stitched at some layers by some families."""

    examples: int | None  # Training examples; all of them if ``None``
    layers: tuple[str, ...]  # Where to stitch
    families: tuple[str, ...]  # Of maps
    recipe: dict[str, Any]  # Settings that differ from the stitching recipe ``v1``
    options: dict[str, Any] = {}  # noqa: RUF012 - pydantic copies it
    translate: int = 0  # Pixels by which training images move at most
    flip: bool = False  # Whether they are mirrored
    crop: float = 0.0  # Least share of an image that a random resized crop keeps; 0 for none
    seed: int  # Of starts and of the order of examples

    def run(self, files: Path) -> list[dict[str, Any]]:
        """Stitch.

        Returns:
            By family and layer (``*`` inside residual blocks): penalty on all test images, sparsity, share of channels
            matched as in closed form, distance of stitched features from the tail's own, and the training loss of every
            epoch, whose number stands under ``draws``.
        """
        from ....stitching import RECIPES, StitchOptions, stitch
        from ...data import load
        from ...training.augment import Augmented

        data, (a, b) = load(self.data).first(self.examples), self.networks()
        recipe = replace(RECIPES["v1"], **self.recipe)
        train = data.loader("train", recipe.batch_size, shuffle=True)
        study = stitch(
            a, b, list(self.layers), list(self.families), loader=Augmented(train, self.translate, self.flip, self.crop),
            eval_loader=data.loader("test"), seeds=self.seed, method=recipe,
            options=StitchOptions(**self.options, state=files / "training.pt"),
        )  # fmt: skip
        rows = []
        for one in study.stitchings:  # type: ignore[union-attr]  # lists were given
            measured = {"penalty": one.penalty, "sparsity": one.sparsity, "agreement": one.agreement,
                        "drift": one.drift.residual if one.drift else None}  # fmt: skip
            family = "lasso-0.001" if one.family == "lasso" else one.family
            rows += [
                {"statistic": f"{what}, {family}", "layer": one.layer_name, "value": number,
                 "images": len(data.test) if what == "penalty" else 0}
                for what, number in measured.items() if number is not None
            ]  # fmt: skip
            rows += [
                {"statistic": _LOSS + family, "layer": one.layer_name, "value": e["loss"], "draws": e["epoch"]}
                for e in one.history
            ]
        return rows


def length_of(setting: Setting, arm: Arm) -> dict[str, Any]:
    """Training images and epochs: as printed, at the scale small 3,000 steps of the 31,000 that the paper takes."""
    ours, printed = {"epochs": 2, "head_start": 1, "judged": 512}, {"epochs": 6, "head_start": 3}
    small = (6400, ours) if arm is OURS else (16_000, printed)
    return dict(zip(("examples", "recipe"), setting.by_scale((96, {"epochs": 2, "head_start": 1}), small, (None, {}))))


def pairs_of(setting: Setting, zoo: Zoo, arm: Arm, most: int) -> list[tuple[Member, Member]]:
    """Each network with the next, fewer where maps are trained longer; at the scale paper disjoint pairs."""
    if setting.scale == "paper":
        return list(zip(zoo.members[::2], zoo.members[1::2]))[:most]
    return cyclic_pairs(zoo if arm is OURS else replace(zoo, seeds=zoo.seeds[:_FEWER]))


def enter(
    plan: Plan, pairs: Sequence[tuple[Member, Member]], zoo: Zoo, arm: Arm, families: Sequence[str],
    layers: Sequence[str] = (), name: str = "", **how: Any,
) -> None:  # fmt: skip
    """A job for each pair, and a note on the arm.

    Args:
        plan: To be filled.
        pairs: Of networks.
        zoo: Theirs.
        arm: How maps are trained.
        families: Of maps.
        layers: Where to stitch; every activation if empty.
        name: In the table of values; the arm's if empty.
        how: ``examples`` and settings of the recipe under ``recipe``, where they are not those of ``length_of``.
    """
    s, options = plan.setting, dict(arm.options)
    if settings := options.get("settings"):
        from ....stitching.layers.families import takes

        options["settings"] = {k: v for k, v in settings.items() if any(takes(f, k) for f in families)}
    how = {**length_of(s, arm), **how}
    recipe = {**arm.recipe, **how["recipe"]}
    moved = not s.digits
    for k, pair in enumerate(pairs):
        plan.pair(
            StitchedLayers, pair, name or arm.name, examples=how["examples"], families=tuple(families), recipe=recipe,
            layers=tuple(layers) or activations_of(zoo.network), options=options, seed=s.seed + k, flip=moved,
            translate=2 if moved and not arm.crop else 0, crop=arm.crop if moved else 0.0,
        )  # fmt: skip
    if (note := arm.words(**how["recipe"])) not in plan.notes:
        plan.note(note)


def penalties(values: Values, arm: str = OURS.name) -> dict[str, dict[str, Sample]]:
    """Penalties by family and layer."""
    names = [n for n in values.frame["statistic"].unique() if n.startswith("penalty, ")]
    found = {name.removeprefix("penalty, "): values.by_layer(name, arm) for name in names}
    return {family: by for family, by in found.items() if by}


def minus(a: Mapping[str, Sample], b: Mapping[str, Sample], name: str = "") -> dict[str, Sample]:
    """Differences by network at the layers that both have, named ``name, layer``."""
    return {", ".join(filter(None, [name, k])): one - b[k] for k, one in a.items() if k in b}


def losses(values: Values, arm: str) -> dict[str, list[Sample]]:
    """Training losses of every epoch by family: a mean over layers for each pair."""
    rows = values.frame[(values.frame["arm"] == arm) & values.frame["statistic"].str.startswith(_LOSS)]
    means = rows.groupby(["statistic", "draws", "network", "partner"])["value"].mean()
    return {
        name.removeprefix(_LOSS): [
            Sample.of(of_epoch.droplevel(["statistic", "draws"]).to_dict()) for _, of_epoch in own.groupby("draws")
        ]
        for name, own in means.groupby("statistic")
    }


def untrained(values: Values, arm: str, ours: str = OURS.name) -> str:
    """Why the maps of an arm are not trained: its loss is not flat, or its largest maps lose 10 points more than ours.

    Maps that start at their closed form show what the family reaches. Empty where the arm is trained, or is ours.
    """
    if arm == ours:
        return ""
    if steep := {
        f: by[-1].mean - by[-2].mean
        for f, by in losses(values, arm).items()
        if len(by) > 1 and abs(by[-1].mean - by[-2].mean) >= FLAT
    }:
        listed = ", ".join(f"{f} {change:+.3f}" for f, change in steep.items())
        return f"maps not trained: their loss still changes in the last epoch, {listed} ({FLAT:g} would be flat)"
    for largest in (f"penalty, {f}" for f in _LARGEST):
        lost, least = (values.averaged(largest, one).mean for one in (arm, ours))
        if lost == lost and least == least:  # both are known
            words = f"{100 * lost:.0f} points are lost by {largest[9:]}, {100 * least:.0f} from our start"
            return f"maps not trained: {words}" if lost - least > _APART else ""
    return ""


@dataclass(frozen=True)
class MapGuard(Guard):
    """A guard that also asks whether the maps are trained.

    Attributes:
        maps: Why they are not; empty where they are.
    """

    maps: str = ""

    @property
    def why(self) -> str:
        """Why the task cannot tell; empty where it can."""
        return super().why or self.maps


def telling(found: Findings, arm: str, networks: Sequence[str], kinds: Sequence[str] = ("",)) -> Callable[..., None]:
    """``found.state`` for one arm: its name stands before every statement, and its guard asks for trained maps too.

    Args:
        found: To be filled.
        arm: Name of the arm.
        networks: Arms of networks that must be trained.
        kinds: What stands before the arm's name in the table of values, where several kinds of networks were stitched.
    """
    own, values = found.guard(*networks), found.values
    maps = next(filter(None, (untrained(values, f"{k}{arm}", f"{k}{OURS.name}") for k in kinds)), "")
    guard = MapGuard(own.reached, own.floor, own.ceiling, own.least, maps)
    return lambda text, effects, **limits: found.state(f"{arm}: {text}", effects, guard=guard, **limits)


def show_arms(found: Findings, arms: Sequence[Arm] = ARMS) -> list[str]:
    """Penalties of each arm that was run, and how far its training loss is from flat; their names."""
    names = [arm.name for arm in arms if penalties(found.values, arm.name)]
    for name in names:
        for family, by in penalties(found.values, name).items():
            found.show(family if name == OURS.name else f"{family}, {name}", by)
        show_losses(found, name)
    return names


def show_losses(found: Findings, arm: str) -> dict[str, float]:
    """Training losses of an arm, epoch by epoch; how much each family's changes in the last one."""
    curves = losses(found.values, arm)
    for family, by in curves.items():
        found.show(f"{family}, training loss {arm}", {f"epoch {k}": sample for k, sample in enumerate(by, 1)})
    return {family: by[-1].mean - by[-2].mean for family, by in curves.items() if len(by) > 1}
