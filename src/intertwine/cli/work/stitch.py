"""Work of ``intertwine stitch``."""

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, cast

from torch import nn

from ...features import layers
from ...features.batches import device_of
from ...features.points import choose
from ...lab.data import Batches
from ...lab.training.augment import Augmented
from ...stitching import RECIPES, Pair, Recipe, StitchingStudy, StitchOptions, stitch
from ...stitching.layers import takes
from ...stitching.networks.pair import At
from .._options import split_commas
from .._values import words
from ..commands.stitch import StitchOptions as Asked
from ..inputs.networks import data_facts
from ..inputs.pairs import open_group
from ..outputs.files import RESULTS, claim_folder
from ..outputs.results import present
from ..outputs.show import print_table, say

_FAMILIES = ("g_relu", "full", "rank-1", "rank-4", "lasso")


def run(asked: Asked) -> None:
    """Stitch networks: how much accuracy is lost when B goes on from A's features, through a map of one family."""
    claim_folder(asked.out, [*RESULTS, "results.safetensors"], asked.checkpoints)
    recipe, count = _recipe(asked), len(asked.checkpoints)
    specs = [asked.model, *[asked.model_b or asked.model] * (count - 1)]
    group = open_group(asked.checkpoints, specs, asked, "always", asked.device)
    assert group.data is not None
    group.data.need_labels("to score stitched networks")
    fit = replace(group.loader("train", asked.examples, recipe.batch_size), shuffle=True)
    train = Augmented(fit, asked.translate, asked.flip) if asked.translate or asked.flip else fit
    score = group.loader(asked.split, asked.examples, 250)
    state = asked.out / f"training-{hashlib.blake2b(asked.line.encode(), digest_size=6).hexdigest()}.pt"
    families, options = _families(asked)
    given: dict[str, Any] = {"loader": train, "eval_loader": score, "method": _methods(asked, recipe)}
    given["seeds"] = list(range(asked.seed, asked.seed + asked.seeds))
    at = split_commas(asked.layers, "--layers"), split_commas(asked.layers_b, "--layers-b")
    studies = []
    # of two checkpoints, A's early layers are meant
    for i, j in itertools.permutations(range(count), 2) if count > 2 else [(0, 1)]:
        a, b, names = group.models[i], group.models[j], (group.names[i], group.names[j])
        how = replace(options, names=names, state=state.with_stem(f"{state.stem}-{i}-{j}"))
        found = stitch(a, b, list(_layers(a, b, score, *at)), families, options=how, **given)
        studies.append(cast(StitchingStudy, found))
    settings = {
        **studies[0].settings,
        "networks": [network.facts for network in group.networks],
        "data": data_facts(group.data_spec, asked.split, group.data),
        "command": asked.line,
        "augmentation": {"translate": asked.translate, "flip": asked.flip},
        "notes": list(group.notes),
    }
    study = StitchingStudy.join(studies, settings)
    stitchings = [{**one.to_dict(), "penalty": one.penalty} for one in study.stitchings]
    present(study, asked.out, asked.as_json, _print, {**study.to_dict(), "stitchings": stitchings})
    for file in asked.out.glob(f"*{state.stem}*.pt"):
        file.unlink()


def _recipe(asked: Asked) -> Recipe:
    """The recipe of training, changed as was asked for."""
    chosen = replace(RECIPES[asked.recipe], keep=cast(Literal["best", "last"], asked.keep))
    if asked.epochs is not None:
        chosen = replace(chosen, epochs=asked.epochs, head_start=asked.epochs // 2)  # half of it, as in the paper
    return chosen if asked.learning_rate is None else replace(chosen, learning_rate=asked.learning_rate)


def _methods(asked: Asked, recipe: Recipe) -> list[str | Recipe]:
    return [recipe if word == "task_loss" else word for word in words([asked.method], "--method")]


def _families(asked: Asked) -> tuple[list[str], StitchOptions]:
    """Names of the families, and options for all of them."""
    wanted = list(dict.fromkeys(split_commas(asked.families, "--families") or _FAMILIES))
    pulled = any(takes(family, "alpha") for family in wanted)
    options = StitchOptions(
        skip=cast(Any, asked.skip),
        start=cast(Any, asked.start),
        tail_norm=cast(Any, asked.tail_norm),
        recalibration=asked.recalibrate,
        bias=asked.bias,
        settings={"alpha": "cv" if asked.alpha == "cv" else float(asked.alpha)} if pulled else {},
        progress=True,
    )
    return wanted, options


def _layers(a: nn.Module, b: nn.Module, loader: Batches, at: list[str] | None, at_b: list[str] | None) -> Sequence[At]:
    """Where to cut: the layers that were named, or all activations at which both can be cut."""
    inputs = loader.batch(slice(0, 2))[0]
    here = lambda model: inputs.to(device_of(model))
    chosen = [point.name for point in choose(layers(a, here(a)), at, a)]
    if at_b is not None:
        others = [point.name for point in choose(layers(b, here(b)), at_b, b)]
        if len(others) != len(chosen):
            raise ValueError(f"--layers-b must name as many layers as --layers. Got {len(others)} and {len(chosen)}.")
        return list(zip(chosen, others))
    if at is not None:
        return chosen
    usable = set(Pair(a, b, here(a)).layers())
    found = [name for name in chosen if name in usable]
    if not found:
        raise ValueError("--layers and --layers-b must be given where networks share no activation layers. Got none.")
    return found


def _print(study: StitchingStudy) -> None:
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
    columns = [
        "layer",
        "family",
        "method",
        "penalty",
        "interval",
        "over",
        "accuracy",
        "dimension",
        "as matched",
        "drift",
    ]
    print_table(
        columns,
        rows,
        f"Stitching penalties in points of accuracy (eq. 4.3), on {first.examples:,} examples",
    )
    if any(s.inside_block for s in study.stitchings):
        say("* inside a residual block: a skip connection crosses the cut too")
    say("as matched: share of live channels paired as by matching activations; drift: Fréchet distance to B's own")
    for note in dict.fromkeys([*study.settings["notes"], *(note for s in study.stitchings for note in s.notes)]):
        say(f"Note: {note}")
