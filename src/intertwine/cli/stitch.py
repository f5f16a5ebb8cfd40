"""``intertwine stitch``: can network B read network A's features?"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from ._options import Data, Device, Json, Model, OutFolder, Seed, split_commas
from ._show import say

if TYPE_CHECKING:
    from torch import nn

    from ..lab.data import Batches
    from ..stitching import StitchingStudy
    from ..stitching.networks.pair import At

__all__ = ["stitch"]


def stitch(
    context: typer.Context,
    checkpoints: Annotated[
        list[Path],
        typer.Argument(
            metavar="A B [C ...]",
            help="Checkpoints, or Hugging Face directories: the early layers of A with the late layers of B. More than "
            "two: every ordered pair of them.",
        ),
    ],
    model: Model = None,
    model_b: Annotated[
        str | None, typer.Option("--model-b", metavar="MODEL", help="Model of B, where it is not that of A.")
    ] = None,
    data: Data = None,
    at: Annotated[
        list[str] | None,
        typer.Option(
            "--at", metavar="LAYERS", help="Layers, joined by commas; '*' matches any text. All activations otherwise."
        ),
    ] = None,
    at_b: Annotated[
        list[str] | None, typer.Option("--at-b", metavar="LAYERS", help="Layers of B, where they are not those of A.")
    ] = None,
    families: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMES",
            help="Families of maps, joined by commas: identity, diagonal, permutation, signed_permutation, g_relu, "
            "monomial, softsort, gumbel_sinkhorn, orthogonal, full, rank-R, lasso-STRENGTH.",
        ),
    ] = None,
    method: Annotated[
        str, typer.Option(help="task_loss trains on B's task, direct matches activations; both, joined by a comma.")
    ] = "task_loss",
    skip: Annotated[
        str, typer.Option(help="Inside residual blocks, the skip connection: a (as A has it), mapped, or b (B's own).")
    ] = "a",
    start: Annotated[
        str, typer.Option(help="Where training starts: direct (closed form) or random (as the paper has it).")
    ] = "direct",
    recipe: Annotated[str, typer.Option(help="v1 (SGD, momentum 0.9) or v2 (plain SGD).")] = "v1",
    epochs: Annotated[int | None, typer.Option(min=0, help="Passes over the data; the recipe's 20 otherwise.")] = None,
    learning_rate: Annotated[
        float | None, typer.Option("--lr", help="Learning rate; the recipe's 0.001 otherwise.")
    ] = None,
    keep: Annotated[
        str,
        typer.Option(
            help="best: of the start and all epochs, the map with the least training loss once rounded; last: the last "
            "epoch's, as the paper has it."
        ),
    ] = "best",
    alpha: Annotated[
        str, typer.Option(help="Weight of the pull to permutations, or cv: chosen on a fifth of the training split.")
    ] = "0.1",
    tail_norm: Annotated[
        str, typer.Option(help="Batch norm of B's part in training: eval (its own statistics) or train (the batch's).")
    ] = "eval",
    recalibration: Annotated[
        bool, typer.Option("--recalibrate/--no-recalibrate", help="Measure batch norms anew before evaluation.")
    ] = True,
    bias: Annotated[bool, typer.Option("--bias", help="Give every map a bias; the paper's have none.")] = False,
    translate: Annotated[int, typer.Option(min=0, help="Shift training images by so many pixels at most.")] = 0,
    flip: Annotated[bool, typer.Option("--flip", help="Mirror every second training image.")] = False,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each map that is trained, from --seed on.")] = 1,
    split: Annotated[str, typer.Option(help="Split to score on: test or validation.")] = "test",
    examples: Annotated[int, typer.Option(min=4, help="Use so many examples of each split at most.")] = 50000,
    seed: Seed = 0,
    device: Device = "auto",
    out: OutFolder = Path("stitching"),
    as_json: Json = False,
) -> None:
    """Stitch networks: how much accuracy is lost when B goes on from A's features, through a map of one family.

    Maps are trained on the training split and scored on the test split (penalty: mean accuracy of A and B, less that of
    the stitched network). Prints a table and writes results.json, results.parquet and report.html. A stopped run goes
    on where it stood when the same command is given again.

    Example:
      intertwine stitch a.safetensors b.safetensors --data digits
      intertwine stitch a.pt b.pt --model resnet20 --data cifar10:PATH --at layer2.1.relu2 --families g_relu,full,rank-4
      intertwine stitch seed*.safetensors --at 'relu*' --families g_relu,full --method direct,task_loss
    """  # noqa: DOC501
    from ..lab.training.augmented import Augmented
    from ..stitching import RECIPES, StitchingStudy, StitchOptions
    from ..stitching import stitch as run
    from ..stitching.layers import takes
    from ._networks import data_facts
    from ._outputs import RESULTS, claim_folder
    from ._pairs import open_group
    from ._show import print_json, tell

    if len(checkpoints) < 2:
        raise ValueError(f"at least two checkpoints must be given. Got {len(checkpoints)}.")
    if (model_b or at_b) and len(checkpoints) > 2:
        raise ValueError(f"--model-b and --at-b must go with two checkpoints. Got {len(checkpoints)}.")
    if split not in ("test", "validation"):
        raise ValueError(f"--split must be test or validation, never the data that maps are trained on. Got {split!r}.")
    if recipe not in RECIPES:
        raise ValueError(f"--recipe must be one of {', '.join(RECIPES)}. Got {recipe!r}.")
    if keep not in ("best", "last"):
        raise ValueError(f"--keep must be best or last. Got {keep!r}.")
    chosen = replace(RECIPES[recipe], keep=cast(Literal["best", "last"], keep))
    if epochs is not None:
        chosen = replace(chosen, epochs=epochs, head_start=epochs // 2)  # half of it, as in the paper
    if learning_rate is not None:
        chosen = replace(chosen, learning_rate=learning_rate)
    wanted = _families(families)
    pulled = any(takes(family, "alpha") for family in wanted)
    options = {"alpha": "cv" if alpha == "cv" else _alpha(alpha)} if pulled else {}
    methods = [chosen if word.strip() == "task_loss" else word.strip() for word in method.split(",")]
    common = StitchOptions(
        skip=cast(Any, skip),
        start=cast(Any, start),
        tail_norm=cast(Any, tail_norm),
        recalibration=recalibration,
        bias=bias,
        settings=options,
        progress=True,
    )
    claim_folder(out, [*RESULTS, "results.safetensors"], checkpoints)
    specs = [model, model_b or model] if len(checkpoints) == 2 else [model] * len(checkpoints)
    group = open_group(checkpoints, specs, data, None, None, "always", device)
    assert group.data is not None
    fit = replace(group.loader("train", examples, chosen.batch_size), shuffle=True)
    train = Augmented(fit, translate, flip) if translate or flip else fit
    score = group.loader(split, examples, 250)
    state = out / f"training-{hashlib.blake2b(context.obj.encode(), digest_size=6).hexdigest()}.pt"
    studies = []
    for i, j in itertools.permutations(range(len(checkpoints)), 2):
        if len(checkpoints) == 2 and i > j:
            continue  # of two checkpoints, A's early layers are meant
        a, b = group.models[i], group.models[j]
        layers = _layers(a, b, score, split_commas(at, "--at"), split_commas(at_b, "--at-b"))
        names, kept = (group.names[i], group.names[j]), state.with_stem(f"{state.stem}-{i}-{j}")
        how = replace(common, names=names, state=kept)
        given: dict[str, Any] = {"method": methods, "seeds": list(range(seed, seed + seeds)), "options": how}
        found = run(a, b, list(layers), wanted, loader=train, eval_loader=score, **given)
        studies.append(cast(StitchingStudy, found))
    settings = {
        **studies[0].settings,
        "networks": [network.facts for network in group.networks],
        "data": data_facts(group.data_spec, split, group.data),
        "command": context.obj,
        "augmentation": {"translate": translate, "flip": flip},
        "notes": list(group.notes),
    }
    study = StitchingStudy.join(studies, settings)
    paths = {name: study.save(out / name) for name in ("results.json", "results.parquet")}
    paths["report.html"] = study.to_html(out / "report.html")
    for file in out.glob(f"*{state.stem}*.pt"):
        file.unlink()
    if as_json:
        print_json({"kind": "StitchingStudy", **study.to_dict(), "files": paths})
        return
    _print(study)
    tell(f"wrote {', '.join(str(path) for path in paths.values())}")


def _families(given: list[str] | None) -> list[str]:
    from ..stitching import family_of

    chosen = split_commas(given, "--families") or ["g_relu", "full", "rank-1", "rank-4", "lasso"]
    for family in chosen:
        _, _, number = family.partition("-")
        width = int(number) if family.startswith("rank-") and number.isdigit() else 8
        family_of(family, max(width, 1), max(width, 1))  # an unknown name is said before long work
    return list(dict.fromkeys(chosen))


def _alpha(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"--alpha must be a number or cv. Got {text!r}.") from None


def _layers(a: nn.Module, b: nn.Module, loader: Batches, at: list[str] | None, at_b: list[str] | None) -> Sequence[At]:
    # Where to cut: the layers that were named, or all activations at which both can be cut.
    from ..features import layers
    from ..features.batches import device_of
    from ..features.points import choose
    from ..stitching import Pair

    inputs = loader.batch(slice(0, 2))[0]
    here = lambda model: inputs.to(device_of(model))
    chosen = [point.name for point in choose(layers(a, here(a)), at, a)]
    if at_b is not None:
        others = [point.name for point in choose(layers(b, here(b)), at_b, b)]
        if len(others) != len(chosen):
            raise ValueError(f"--at-b must name as many layers as --at. Got {len(others)} and {len(chosen)}.")
        return list(zip(chosen, others))
    if at is not None:
        return chosen
    usable = set(Pair(a, b, here(a)).layers())
    found = [name for name in chosen if name in usable]
    if not found:
        raise ValueError("--at must be given where the networks share no activation layers. Got none. See --at-b too.")
    return found


def _print(study: StitchingStudy) -> None:
    from ._show import print_table

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
    print_table(columns, rows, f"Stitching penalties in points of accuracy (eq. 4.3), on {first.examples:,} examples")
    if any(s.inside_block for s in study.stitchings):
        say("* inside a residual block: a skip connection crosses the cut too")
    say("as matched: share of live channels paired as by matching activations; drift: Fréchet distance to B's own")
    for note in dict.fromkeys(note for s in study.stitchings for note in s.notes):
        say(f"Note: {note}")
