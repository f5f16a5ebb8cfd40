"""Work of ``intertwine merge``."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from ....features.evaluate import evaluate
from ....matching import Alignment, Solver, align, gather
from ....merging import Recipe, export, merge_moved, read_recipe, recalibrate_, transport
from ....merging import merge as merge_two
from ....merging.merge import check_repair
from ....merging.recalibrate import batch_norms
from ....merging.recipe import cast
from ..._options import split_commas
from ..._solvers import solver_of
from ...commands.merging.merge import MergeOptions
from ...inputs.pairs import Group, Use, card_of, open_group
from ...inputs.preparation import check_tokenizers
from ...outputs.files import claim, claim_file, claim_folder, keep_beside, largest_shard
from ...outputs.show import print_json, print_table, say, tell

_LOOK_AT_DATA = ("activations", "mixed", "straight-through")


@dataclass(frozen=True)
class _Merged:
    """What came out."""

    model: nn.Module  # The merged network
    plainly: nn.Module | None  # The same without alignment; ``None`` where nothing was aligned
    moved: Sequence[nn.Module]  # All networks in one basis
    distances: dict[str, float]  # How far they were apart, and are
    recipe: Recipe | None  # For mergekit
    repair: str | None  # What was done to the statistics


def run(asked: MergeOptions) -> None:
    """Merge networks of one architecture into one of the same size: align, average, repair."""
    recipe = _recipe(asked)
    paths = asked.checkpoints if recipe is None else [Path(place) for place in recipe.places]
    check_tokenizers(paths, "to be merged", "Rows of embeddings that stand for different tokens have no mean.")
    _claim(asked, paths)
    solver = solver_of(asked.method)
    reads = asked.method.partition(":")[0] in _LOOK_AT_DATA
    use: Use = "always" if reads or asked.repair not in ("auto", "none") else "of card"
    use = use if asked.repair != "none" or reads else "if given"
    specs = [asked.model, *[asked.model_b or asked.model] * (len(paths) - 1)]
    group = open_group(paths, specs, asked, use, asked.device)
    loader = group.loader("train", asked.examples, asked.batch_size) if group.data is not None else None
    if asked.dtype == "float32":
        for model in group.models:
            model.float()  # so that means are not rounded to what the networks are kept in
    found = (
        _merged(asked, solver, group, loader) if recipe is None else _by_recipe(asked, recipe, solver, group, loader)
    )
    if asked.dtype is not None:
        handed = None if found.recipe is None else _recipe_of_dtype(found.recipe, asked.dtype)
        found = replace(found, model=_of_dtype(found.model, asked.dtype), recipe=handed)
    scores = _scores(group, found, asked.examples, asked.batch_size)
    settings = {
        "merged": group.names, "ratio": asked.ratio, "method": asked.method, "interpolation": asked.interpolation,
        "layers": asked.layers or "all", "repair": found.repair or "none", "dtype": asked.dtype, "seed": asked.seed,
        "command": asked.line,
    }  # fmt: skip
    metrics = {} if not scores else {"test_accuracy": scores[-1][2], "test_loss": scores[-1][1]}
    written = {}
    if asked.out is not None:
        made = export(found.model, asked.out, card_of(group, settings, metrics), largest_shard(paths[0]))
        written["merged"] = keep_beside(paths[0], made)
    if asked.mergekit is not None:
        written |= _handed_over(asked.mergekit, group, found)
    if asked.as_json:
        listed = [{"network": name, "loss": loss, "accuracy": accuracy} for name, loss, accuracy in scores]
        print_json({**written, "scores": listed, "distances": found.distances, **settings})
        return
    if not (found.distances or scores):
        say(f"merged as they are: {', '.join(group.names)}")
    for what, value in found.distances.items():
        say(f"{what}: {value:.3g}")
    if scores:
        rows = [[name, loss, "" if accuracy is None else f"{accuracy:.1%}"] for name, loss, accuracy in scores]
        print_table(["network", "test loss", "test accuracy"], rows)
    if found.repair is not None:
        tell(
            f"Statistics of features were corrected on the training split ({found.repair}); --repair none does without."
        )
    tell(f"wrote {', '.join(str(path) for path in written.values())}")


def _recipe(asked: MergeOptions) -> Recipe | None:
    """The recipe of mergekit, if one is given in place of checkpoints."""
    found = None if asked.recipe is None else read_recipe(asked.recipe)
    return found if found is None or asked.dtype is None else _recipe_of_dtype(found, asked.dtype)


def _recipe_of_dtype(recipe: Recipe, dtype: str) -> Recipe:
    """The recipe with a result of another dtype; nothing is rounded on the way to the widest."""
    return replace(recipe, dtype=dtype if dtype == "float32" else recipe.dtype, out_dtype=dtype)


def _claim(asked: MergeOptions, paths: Sequence[Path]) -> None:
    """Refuse places that cannot be written, before anything is read."""
    if asked.mergekit is not None:
        claim_file(asked.mergekit, [*paths, *asked.checkpoints])
        claim_folder(asked.mergekit.with_suffix(""), ["."], paths)
    claim(asked.out, paths)


def _of_dtype(model: nn.Module, dtype: str) -> nn.Module:
    """The network in numbers of another kind.

    Raises:
        ValueError: If they are too few for its weights.
    """
    made = cast(model, dtype)
    for name, weight in made.named_parameters():
        if not weight.isfinite().all():
            raise ValueError(f"--dtype must hold all weights. Got {dtype}, in which {name} overflows. Say bfloat16.")
    return made


def _repair(group: Group, repair: str) -> Any:
    """What ``merge`` calls it."""
    if repair == "auto" and group.data is None and batch_norms(group.models[0]):
        raise ValueError(
            "--data must be given to repair a network with batch norms. Got none. Say --data digits, for example, or "
            "--repair none."
        )
    return {"auto": True, "none": False}.get(repair, repair)


def _merged(asked: MergeOptions, solver: str | Solver, group: Group, loader: Any) -> _Merged:
    """The mean of two networks or more, with and without alignment."""
    example, seed, repair = group.example, asked.seed, _repair(group, asked.repair)
    done = check_repair(group.models[0], repair, loader)
    places = [str(checkpoint.path) for checkpoint in group.checkpoints]
    if len(group.models) > 2:
        gathered = gather(group.models, example, solver, loader=loader, seed=seed, progress=True)
        moved = gathered.apply(group.models)
        merged = merge_moved(moved, repair, loader)
        plainly = merge_moved(group.models, repair, loader) if _scored(group) else None
        recipe = Recipe("linear", tuple((place, {"weight": 1.0}) for place in places), None, {})
        return _Merged(merged, plainly, moved, _distances(gathered.distances[0], gathered.distances[-1]), recipe, done)
    one, other = group.models
    found: Any = None
    if solver == "transport":
        found = transport(one, other, example)
    elif solver != "none":
        found = align(one, other, example, method=solver, loader=loader, seed=seed, chance=False)
    settings: Any = {"loader": loader, "interpolation": asked.interpolation}
    settings["layers"] = split_commas(asked.layers, "--layers")
    merged = merge_two(one, other, found, asked.ratio, repair, **settings)
    weights = [(places[0], {"weight": 1 - asked.ratio}), (places[1], {"weight": asked.ratio})]
    recipe = Recipe("linear", tuple(weights), None, {})
    if asked.interpolation == "spherical":
        recipe = Recipe("slerp", tuple((place, {}) for place in places), places[0], {"t": asked.ratio})
    if not isinstance(found, Alignment):
        return _Merged(merged, None, [one, other], {}, recipe, done)
    plainly = merge_two(one, other, None, asked.ratio, repair, **settings) if _scored(group) else None
    return _Merged(merged, plainly, [one, found.apply(other)], _distances(found.before, found.after), recipe, done)


def _by_recipe(asked: MergeOptions, recipe: Recipe, solver: str | Solver, group: Group, loader: Any) -> _Merged:
    """What a recipe says, after all networks were brought into the basis of the first."""
    first, *others = group.models
    repair = check_repair(first, _repair(group, asked.repair), loader)
    if repair not in (None, "recalibrate"):
        tell("Networks without batch norms are merged as the recipe says, without repair.")
    moved = [first]
    distances: dict[str, float] = {}
    for name, other in zip(group.names[1:], others):
        if solver == "none":
            moved.append(other)
            continue
        found = align(first, other, group.example, method=solver, loader=loader, seed=asked.seed, chance=False)
        closer = found.after < found.before
        moved.append(found.apply(other) if closer else other)
        distances |= {f"{name}, {what}": value for what, value in _distances(found.before, found.after).items()}

    def merged(models: Sequence[nn.Module]) -> nn.Module:
        made = recipe.apply(dict(zip(recipe.places, models)), asked.seed)
        return recalibrate_(made, loader) if repair == "recalibrate" else made

    plainly = merged(group.models) if solver != "none" and _scored(group) else None
    return _Merged(merged(moved), plainly, moved, distances, recipe, repair if repair == "recalibrate" else None)


def _scored(group: Group) -> bool:
    return group.data is not None and group.data.labelled


def _distances(before: float, after: float) -> dict[str, float]:
    return {"relative distance as they are": before, "relative distance aligned": after}


def _handed_over(path: Path, group: Group, found: _Merged) -> dict[str, Path]:
    """The recipe, and the networks in one basis beside it, which it names."""
    assert found.recipe is not None
    places = {}
    for k, (checkpoint, model) in enumerate(zip(group.checkpoints, found.moved)):
        folder = path.with_suffix("") / f"{k}-{checkpoint.path.name}"
        card = card_of(group, {"aligned": str(checkpoint.path)}, {})
        export(model, folder, card, largest_shard(checkpoint.path))
        places[str(checkpoint.path)] = str(keep_beside(checkpoint.path, folder).resolve())
    return {"mergekit": found.recipe.moved(places).write(path)}


def _scores(group: Group, found: _Merged, examples: int, batch_size: int) -> list[tuple[str, float, float | None]]:
    """Loss and accuracy of all networks on the test split, the merged one last."""
    if not _scored(group):
        return []
    loader = group.loader("test", examples, batch_size)
    rows = list(zip(group.names, group.models))
    if found.plainly is not None:
        rows.append(("merged as they are", found.plainly))
    rows.append(("merged" if found.plainly is None else "merged after alignment", found.model))
    scores = [(name, evaluate(model, loader)) for name, model in rows]
    return [(name, score.loss, score.accuracy) for name, score in scores]
