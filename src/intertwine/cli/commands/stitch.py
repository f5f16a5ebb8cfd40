"""``intertwine stitch``: can network B read network A's features?"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from .._checks import check_known, read, words
from .._options import DataOptions, advanced, option
from .._outputs import RESULTS, claim_folder, present, print_table, say, say_notes
from . import inputs, iw, torch

if TYPE_CHECKING:
    from ...stitching.pair import At

_FAMILIES = ("g_relu", "full", "rank-1", "rank-4", "lasso")
_COLUMNS = (
    "layer", "family", "method", "penalty", "interval", "over", "accuracy", "dimension", "as matched", "drift",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Stitch(DataOptions):
    """Stitch networks: how much accuracy is lost when B goes on from A's features, through a map of one family.

    The early layers of A go before the late layers of B; of more than two networks, every ordered pair is stitched.
    Maps are trained on the training split and scored on the test split (penalty: mean accuracy of A and B, less that of
    the stitched network). Prints a table and writes results.json, results.parquet and report.html. A stopped run goes
    on where it stood when the same command is given again.

    Example:
      intertwine stitch a.safetensors b.safetensors --data digits
      intertwine stitch a.pt b.pt --model resnet20 --data cifar10:PATH --layers layer2.1.relu2 --families full,rank-4
      intertwine stitch seed*.safetensors --layers 'relu*' --families g_relu,full --method direct,task_loss
    """

    python = 'iw.stitch(a, b, "relu2", "g_relu", loader=train, eval_loader=test)'

    unlike = ("recipe",)

    checkpoints: list[Path]
    model: str | None = None
    model_b: str | None = None
    layers: list[str] | None = option(
        None, "Layers, joined by commas; '*' matches any. All activations otherwise.", metavar="NAMES"
    )
    layers_b: list[str] | None = None
    families: list[str] | None = option(
        None,
        "Families of maps, joined by commas: identity, diagonal, permutation, signed_permutation, "
        "g_relu, monomial, softsort, orthogonal, full, rank-R, lasso-STRENGTH.",
        metavar="NAMES",
    )
    method: str = option(
        "task_loss", "task_loss trains on B's task, direct matches activations; both, joined by a comma."
    )
    skip: str = advanced("a", "Inside residual blocks, the skip connection: a (as A has it), mapped, or b (B's own).")
    start: str = advanced("direct", "Where training starts: direct (closed form) or random (as the paper has it).")
    recipe: str = advanced("v1", "v1 (SGD, momentum 0.9) or v2 (plain SGD).")
    epochs: int | None = option(None, "Passes over the data; the recipe's 20 otherwise.", min=0)
    learning_rate: float | None = advanced(None, "Learning rate; the recipe's 0.001 otherwise.", min=0)
    keep: str = advanced(
        "best",
        "best: of the start and all epochs, the map with the least training loss once rounded; last: the "
        "last epoch's, as the paper has it.",
    )
    alpha: str = advanced("0.1", "Weight of the pull to permutations, or cv: chosen on a fifth of the training split.")
    tail_norm: str = advanced(
        "eval", "Batch norm of B's part in training: eval (its own statistics) or train (the batch's)."
    )
    recalibrate: bool = advanced(True, "Measure batch norms anew before evaluation.")
    bias: bool = advanced(False, "Give every map a bias; the paper's have none.")
    translate: int = advanced(0, "Shift training images by so many pixels at most.", min=0)
    flip: bool = advanced(False, "Mirror every second training image.")
    seeds: int = advanced(1, "Runs of each map that is trained, from --seed on.", min=1)
    split: str = advanced("test", "Split to score on: test or validation.")
    examples: int = 50000
    seed: int = 0
    device: str = "auto"
    out: Path = Path("stitching")

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.model_b or self.layers_b) and len(self.checkpoints) > 2:
            raise ValueError(f"--model-b and --layers-b must go with two checkpoints. Got {len(self.checkpoints)}.")
        if self.split not in ("test", "validation"):
            raise ValueError(
                f"--split must be test or validation, never the data that maps are trained on. Got {self.split!r}."
            )
        check_known("--recipe", self.recipe, ("v1", "v2"))
        for method in words([self.method], "--method"):
            check_known("--method", method, ("task_loss", "direct"))
        if self.alpha != "cv":
            read("number", "--alpha, where it is not cv,", self.alpha)

    def __call__(self) -> None:
        import hashlib  # openssl is not for help

        from ...lab.training import Augmented

        claim_folder(self.out, [*RESULTS, "results.safetensors"], self.checkpoints)
        recipe, count = _recipe(self), len(self.checkpoints)
        group = inputs.open_group(self.checkpoints, self, "always")
        group.need_data().need_labels("to score stitched networks")
        fit = replace(group.loader("train", self.examples, recipe.batch_size), shuffle=True)
        train = Augmented(fit, self.translate, self.flip) if self.translate or self.flip else fit
        score = group.loader(self.split, self.examples, 250)
        state = self.out / f"training-{hashlib.blake2b(self.line.encode(), digest_size=6).hexdigest()}.pt"
        families, options = _families(self)
        methods = [recipe if method == "task_loss" else method for method in words([self.method], "--method")]
        given: dict[str, Any] = {"loader": train, "eval_loader": score, "method": methods}
        given["seeds"] = list(range(self.seed, self.seed + self.seeds))
        at = self.layers, self.layers_b
        studies = []
        # of two checkpoints, A's early layers are meant
        for i, j in itertools.permutations(range(count), 2) if count > 2 else [(0, 1)]:
            a, b, names = group.models[i], group.models[j], (group.names[i], group.names[j])
            how = replace(options, names=names, state=state.with_stem(f"{state.stem}-{i}-{j}"))
            found = iw.stitch(a, b, list(_layers(a, b, score, *at)), families, options=how, **given)
            studies.append(cast("iw.stitching.StitchingStudy", found))
        augmentation = {"translate": self.translate, "flip": self.flip}
        settings = {**studies[0].settings, **group.facts(self.split), "command": self.line}
        settings |= {"augmentation": augmentation, "notes": list(group.notes)}
        study = iw.stitching.StitchingStudy.join(studies, settings)
        stitchings = [{**one.to_dict(), "penalty": one.penalty} for one in study.stitchings]
        present(study, self.out, self.as_json, _print, {**study.to_dict(), "stitchings": stitchings})
        for file in self.out.glob(f"*{state.stem}*.pt"):
            file.unlink()


def _recipe(asked: Stitch) -> iw.stitching.Recipe:
    """The recipe of training, changed as was asked for."""
    chosen = replace(iw.stitching.RECIPES[asked.recipe], keep=cast("Literal['best', 'last']", asked.keep))
    if asked.epochs is not None:
        chosen = replace(chosen, epochs=asked.epochs, head_start=asked.epochs // 2)  # half of it, as in the paper
    return chosen if asked.learning_rate is None else replace(chosen, learning_rate=asked.learning_rate)


def _families(asked: Stitch) -> tuple[list[str], iw.stitching.StitchOptions]:
    """Names of the families, and options for all of them."""
    from ...stitching.families import takes

    wanted = list(dict.fromkeys(asked.families or _FAMILIES))
    pulled = any(takes(family, "alpha") for family in wanted)
    options = iw.stitching.StitchOptions(
        skip=cast(Any, asked.skip),
        start=cast(Any, asked.start),
        tail_norm=cast(Any, asked.tail_norm),
        recalibration=asked.recalibrate,
        bias=asked.bias,
        settings={"alpha": "cv" if asked.alpha == "cv" else float(asked.alpha)} if pulled else {},
        progress=True,
    )
    return wanted, options


def _layers(
    a: torch.nn.Module, b: torch.nn.Module, loader: iw.lab.data.Batches, at: list[str] | None, at_b: list[str] | None
) -> Sequence[At]:
    """Where to cut: the layers that were named, or all activations at which both can be cut."""
    from ...features import layers
    from ...features.batches import device_of
    from ...features.points import choose

    x = loader.batch(slice(0, 2))[0]
    here = lambda model: x.to(device_of(model))
    chosen = [point.name for point in choose(layers(a, here(a)), at, a)]
    if at_b is not None:
        others = [point.name for point in choose(layers(b, here(b)), at_b, b)]
        if len(others) != len(chosen):
            raise ValueError(f"--layers-b must name as many layers as --layers. Got {len(others)} and {len(chosen)}.")
        return list(zip(chosen, others))
    if at is not None:
        return chosen
    usable = set(iw.stitching.Pair(a, b, here(a)).layers())
    found = [name for name in chosen if name in usable]
    if not found:
        raise ValueError("--layers and --layers-b must be given where networks share no activation layers. Got none.")
    return found


def _print(study: iw.stitching.StitchingStudy) -> None:
    first = study.stitchings[0]
    accuracies = {name: value for s in study.stitchings for name, value in zip(s.names, (s.accuracy_a, s.accuracy_b))}
    say(", ".join(f"{name}: {value:.2%}" for name, value in accuracies.items()))
    share = lambda value: "" if value is None or value != value else f"{value:.0%}"
    rows = [
        [
            row.layer, row.family, row.method.replace("_", " "), 100 * row.penalty,
            f"{100 * row.low:.2f} to {100 * row.high:.2f}", row.over, f"{row.accuracy:.2%}", row.dim,
            share(row.agreement), row.frechet,
        ]
        for row in study.table().itertuples()
    ]  # fmt: skip
    title = f"Stitching penalties in points of accuracy (eq. 4.3), on {first.examples:,} examples"
    print_table(_COLUMNS, rows, title)
    if any(s.inside_block for s in study.stitchings):
        say("* inside a residual block: a skip connection crosses the cut too")
    say("as matched: share of live channels paired as by matching activations; drift: Fréchet distance to B's own")
    say_notes(dict.fromkeys([*study.settings["notes"], *(note for s in study.stitchings for note in s.notes)]))
