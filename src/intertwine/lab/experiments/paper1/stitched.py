"""Pairs of networks stitched at some layers by some families: in our way, and as the papers print it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...data import load
from ...statistics import Estimate, Sample
from ...training import Augmented
from ...zoo import draw_pairs
from ..experiment import Findings
from ..plan import Design, PairJob, Pairs, PlannedZoo, Setting, activations_of, cyclic_pairs, row
from ..values import Values

FLAT = 0.02  # nats: a flat training loss, mean over layers and pairs, changes by less in the last epoch
_APART = 0.1  # 10 points: maps that lose this much more than ours did not train
_FEWER = 6  # networks that printed arms stitch at the scale small
_LOSS = "training loss, "
_LARGEST = ("full", "lasso-0.0001", "g_relu")


@dataclass(frozen=True, eq=False)
class Arm:
    """One way to train stitching layers: settings that differ from the stitching recipe ``v1``, and ``StitchOptions``.

    With ``crop``, maps, and at scale paper networks, see random resized crops of at least this share of an image.
    """

    name: str
    recipe: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    crop: float = 0.0

    def words(self, **recipe: Any) -> str:
        """Description of the arm, from the recipe that ran."""
        from ....stitching import RECIPES, StitchOptions

        how, options = replace(RECIPES["v1"], **self.recipe, **recipe), StitchOptions(**self.options)
        start = "their closed-form solutions" if options.start == "direct" else "random maps"
        kept = "the last epoch" if how.keep == "last" else "the best of start and epochs by training data"
        mode = "training" if options.tail_norm == "train" else "evaluation"
        return (
            f"{self.name}: maps start at {start}; {how.epochs} epochs at learning rate {how.learning_rate:g} and "
            f"momentum {how.momentum:g}, with scales fixed for the first {how.head_start}; {kept} counts; batch norm "
            f"of the tail is in {mode} mode, and recalibrated before the test."
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
    translate: int = 0  # Most pixels by which training images are shifted
    flip: bool = False  # Whether they are mirrored
    crop: float = 0.0  # Least share of an image that a random resized crop keeps; 0 for none
    seed: int  # Of starts and of the order of examples

    def run(self, files: Path) -> list[dict[str, Any]]:
        """Rows by family and layer (``*`` inside residual blocks): penalty on all test images, sparsity and so on.

        ``agreement`` is the share of channels matched as in closed form, ``drift`` how far stitched features are from
        the tail's own. For training losses, ``draws`` holds the number of the epoch.
        """
        from ....stitching import RECIPES, StitchOptions, stitch

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
            for what, number in measured.items():
                if number is not None:
                    images = len(data.test) if what == "penalty" else 0
                    rows.append(row(f"{what}, {family}", number, layer=one.layer_name, images=images))
            rows += [row(_LOSS + family, e["loss"], layer=one.layer_name, draws=e["epoch"]) for e in one.history]
        return rows


def length_of(setting: Setting, arm: Arm) -> dict[str, Any]:
    """Training images and epochs; at the scale small printed arms take 3,000 of the paper's 31,000 steps."""
    ours, printed = {"epochs": 2, "head_start": 1, "judged": 512}, {"epochs": 8, "head_start": 4}
    small = (6400, ours) if arm is OURS else (12_000, printed)
    return dict(zip(("examples", "recipe"), setting.by_scale((96, {"epochs": 2, "head_start": 1}), small, (None, {}))))


def pairs_of(setting: Setting, zoo: PlannedZoo, arm: Arm = OURS, most: int = 32) -> Pairs:
    """Each network with the next, with fewer networks in printed arms; at the scale paper as the papers draw pairs."""
    members = zoo.members
    if setting.scale != "paper":
        return cyclic_pairs(zoo if arm is OURS else replace(zoo, seeds=zoo.seeds[:_FEWER]))
    if arm is PRINTED_V1:  # disjoint
        return list(zip(members[::2], members[1::2]))
    return list(dict.fromkeys((members[i], members[j]) for i, j in draw_pairs(len(members), most, setting.seed)))


def enter(
    plan: Design, zoo: PlannedZoo, arm: Arm, families: Sequence[str], layers: Sequence[str] = (), name: str = "",
    pairs: Pairs | None = None, most: int = 32, **how: Any,
) -> None:  # fmt: skip
    """Add a job for each pair of a zoo (or those given, at most ``most`` at the scale paper), and a note on the arm.

    All activations are stitched if no layers are given; ``how`` may hold ``examples`` and ``recipe``, which replace
    those of ``length_of``.
    """
    from ....stitching.families import takes

    s, options, how = plan.setting, dict(arm.options), {**length_of(plan.setting, arm), **how}
    if settings := options.get("settings"):
        options["settings"] = {k: v for k, v in settings.items() if any(takes(f, k) for f in families)}
    moved = not s.digits
    for k, pair in enumerate(pairs or pairs_of(s, zoo, arm, most)):
        plan.pair(
            StitchedLayers, pair, name or arm.name, examples=how["examples"], families=tuple(families), options=options,
            layers=tuple(layers) or activations_of(zoo.network), recipe={**arm.recipe, **how["recipe"]}, flip=moved,
            translate=2 if moved and not arm.crop else 0, crop=arm.crop if moved else 0.0, seed=s.seed + k,
        )  # fmt: skip
    if (note := arm.words(**how["recipe"])) not in plan.notes:
        plan.note(note)


def penalties(values: Values, arm: str = OURS.name) -> dict[str, dict[str, Sample]]:
    """Penalties by family and layer."""
    found = {family: values.by_layer(name, arm) for family, name in values.statistics("penalty, ").items()}
    return {family: by for family, by in found.items() if by}


def minus(a: Mapping[str, Sample], b: Mapping[str, Sample], name: str = "") -> dict[str, Sample]:
    """Differences ``a - b`` by network at the layers that both have, named ``name, layer``."""
    return {", ".join(filter(None, [name, k])): one - b[k] for k, one in a.items() if k in b}


def curves(values: Values, arm: str) -> dict[str, list[float]]:
    """Training losses by family, epoch by epoch: means over layers and pairs."""
    rows = values.frame[(values.frame["arm"] == arm) & values.frame["statistic"].str.startswith(_LOSS)]
    means = rows.groupby(["statistic", "draws"], sort=False)["value"].mean()
    return {str(name).removeprefix(_LOSS): own.tolist() for name, own in means.groupby("statistic", sort=False)}


def untrained(values: Values, arm: str, ours: str = OURS.name) -> str:
    """Why the maps of an arm count as untrained; empty if they are trained, or ours.

    They are if their loss is not flat, or the largest family loses 10 points more than ours, from closed-form starts.
    """
    ends = {f: losses[-1] - losses[-2] for f, losses in curves(values, arm).items() if len(losses) > 1}
    if arm != ours and (steep := {f: change for f, change in ends.items() if not abs(change) < FLAT}):
        listed = ", ".join(f"{f} {change:+.3f}" for f, change in steep.items())
        return f"maps not trained: their loss still changes in the last epoch, {listed} ({FLAT:g} would be flat)"
    for family in _LARGEST:
        lost, least = (values.averaged(f"penalty, {family}", one).mean for one in (arm, ours))
        if lost - least > _APART:
            return f"maps not trained: {100 * lost:.0f} points are lost by {family}, {100 * least:.0f} from our start"
        if lost == lost:  # only the largest family that was stitched
            break
    return ""


def telling(found: Findings, arm: str, networks: Sequence[str], kinds: Sequence[str] = ("",)) -> Callable[..., None]:
    """``found.state`` for one arm: its name begins every statement, and the guard requires trained maps too.

    If maps belong to several kinds of networks, names of arms begin with the kind.
    """
    reasons = [untrained(found.values, f"{kind}{arm}", f"{kind}{OURS.name}") for kind in kinds]
    guard = replace(found.guard(*networks), also=next(filter(None, reasons), ""))
    return lambda text, effects, **limits: found.state(f"{arm}: {text}", effects, guard=guard, **limits)


def show_arms(found: Findings, arms: Sequence[Arm] = ARMS) -> list[str]:
    """Show penalties and training losses of each arm that was run; returns the names of these arms."""
    names = [arm.name for arm in arms if penalties(found.values, arm.name)]
    for name in names:
        for family, by in penalties(found.values, name).items():
            found.show(family if name == OURS.name else f"{family}, {name}", by)
        show_losses(found, name)
    return names


def show_losses(found: Findings, arm: str) -> None:
    """Show training losses of an arm, epoch by epoch."""
    for family, by in curves(found.values, arm).items():
        numbers = {f"epoch {k}": Estimate(loss) for k, loss in enumerate(by, 1)}
        found.show(f"{family}, training loss {arm}", numbers)
