"""Work of ``intertwine merge``."""

from __future__ import annotations

from typing import Any

from torch import nn

from ...features.evaluate import evaluate
from ...matching import Alignment, Solver, align
from ...merging import export, merge_many, transport
from ...merging import merge as merge_two
from ...merging.recalibrate import batch_norms
from .._options import split_commas
from .._outputs import claim_file, claim_folder, keep_beside, largest_shard
from .._pairs import Group, Use, card_of, open_group
from .._show import print_json, print_table, say, tell
from .._solvers import solver_of
from ..commands.merge import MergeOptions

__all__ = ["run"]

_LOOK_AT_DATA = ("activations", "mixed", "straight-through")


def run(asked: MergeOptions) -> None:
    """Merge networks of one architecture into one of the same size: align, average, repair."""
    _check(asked)
    solver = solver_of(asked.method, ("transport", "none"))
    reads = asked.method.partition(":")[0] in _LOOK_AT_DATA
    use: Use = "always" if reads or asked.repair not in ("auto", "none") else "of card"
    use = use if asked.repair != "none" or reads else "if given"
    specs = [asked.model, *[asked.model_b or asked.model] * (len(asked.checkpoints) - 1)]
    group = open_group(asked.checkpoints, specs, asked, use, asked.device)
    loader = group.loader("train", asked.examples, asked.batch_size) if group.data is not None else None
    merged, distances = _merged(asked, solver, group, loader)
    scores = _scores(group, merged, asked.examples, asked.batch_size)
    recipe = {
        "merged": group.names, "ratio": asked.ratio, "method": asked.method, "interpolation": asked.interpolation,
        "layers": asked.layers or "all", "repair": asked.repair, "seed": asked.seed, "command": asked.line,
    }  # fmt: skip
    metrics = {} if not scores else {"test_accuracy": scores[-1][2], "test_loss": scores[-1][1]}
    first = asked.checkpoints[0]
    written = keep_beside(first, export(merged, asked.out, card_of(group, recipe, metrics), largest_shard(first)))
    if asked.as_json:
        listed = [{"network": name, "loss": loss, "accuracy": accuracy} for name, loss, accuracy in scores]
        print_json({"merged": written, "scores": listed, "distances": distances, **recipe})
        return
    for what, value in distances.items():
        say(f"{what}: {value:.3g}")
    if scores:
        rows = [[name, loss, "" if accuracy is None else f"{accuracy:.1%}"] for name, loss, accuracy in scores]
        print_table(["network", "test loss", "test accuracy"], rows)
    tell(f"wrote {written}")


def _check(asked: MergeOptions) -> None:
    """Refuse what cannot work before anything is read.

    Raises:
        ValueError: If options do not exist or do not go together.
    """
    if len(asked.checkpoints) < 2:
        raise ValueError(f"at least two checkpoints must be given. Got {len(asked.checkpoints)}.")
    if len(asked.checkpoints) > 2 and (
        asked.ratio != 0.5 or asked.interpolation != "linear" or asked.layers or asked.method in ("transport", "none")
    ):
        raise ValueError(
            "--ratio, --interpolation, --layers and --method transport must be for two networks. "
            f"Got {len(asked.checkpoints)}, which are averaged."
        )
    if asked.out.suffix == ".safetensors":
        claim_file(asked.out, asked.checkpoints, [asked.out.with_suffix(".json")])
    elif asked.out.suffix or asked.out.is_file():
        raise ValueError(f"--out must end in .safetensors, or be a folder. Got {str(asked.out)!r}.")
    else:
        claim_folder(asked.out, ["."], asked.checkpoints)


def _repair(group: Group, repair: str) -> Any:
    """What ``merge`` calls it.

    Raises:
        ValueError: If a network with batch norms has neither data nor the word none.
    """
    if repair == "auto" and group.data is None and batch_norms(group.models[0]):
        raise ValueError(
            "--data must be given to repair a network with batch norms. Got none. Say --data digits, for example, or "
            "--repair none."
        )
    return {"auto": True, "none": False}.get(repair, repair)


def _merged(asked: MergeOptions, solver: str | Solver, group: Group, loader: Any) -> tuple[nn.Module, dict[str, float]]:
    """The merged network, and how far two aligned ones were apart."""
    example, seed, repair = group.example, asked.seed, _repair(group, asked.repair)
    if len(group.models) > 2:
        return merge_many(group.models, example, solver, repair=repair, loader=loader, seed=seed, progress=True), {}
    one, other = group.models
    found: Any = None
    if solver == "transport":
        found = transport(one, other, example)
    elif solver != "none":
        found = align(one, other, example, method=solver, loader=loader, seed=seed)
    merged = merge_two(
        one, other, found, asked.ratio, repair, loader=loader, interpolation=asked.interpolation,  # type: ignore[arg-type]
        layers=split_commas(asked.layers, "--layers"),
    )  # fmt: skip
    if not isinstance(found, Alignment):
        return merged, {}
    return merged, {"relative distance as they are": found.before, "relative distance aligned": found.after}


def _scores(group: Group, merged: nn.Module, examples: int, batch_size: int) -> list[tuple[str, float, float | None]]:
    """Loss and accuracy of all networks on the test split, the merged one last."""
    if group.data is None or not group.data.labelled:
        return []
    loader = group.loader("test", examples, batch_size)
    found = []
    for name, model in [*zip(group.names, group.models), ("merged", merged)]:
        result = evaluate(model, loader)
        found.append((name, result.loss, result.accuracy))
    return found
