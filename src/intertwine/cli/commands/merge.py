"""``intertwine merge`` and ``barrier``: one network from several, and the loss between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ..._progress import track
from ..._untrusted.checkpoints import check_checkpoint
from .._checks import check
from .._options import DataOptions, DeviceOptions, ExampleOptions, advanced, argument, option
from .._outputs import claim, claim_file, claim_folder, print_json, print_table, say, tell, tell_written, write_network
from . import Study, inputs, iw, looks_at_data, solver_of, torch

if TYPE_CHECKING:
    _Made: TypeAlias = Callable[[bool, str | None], torch.nn.Module]  # merges with or without alignment, and repair

_YAML = (".yml", ".yaml")
_REPAIRED = {None: "", "recalibrate": ", recalibrated", "repair": ", repaired", "rescale": ", rescaled"}


class Merge(DeviceOptions, ExampleOptions):
    """Merge networks of one architecture into one of the same size: align, average, repair.

    With data, feature statistics are repaired on the training split. All networks are then scored on the test split,
    the merged one with and without alignment and repair; the last in the table is written. Two networks are merged in
    A's basis and with A's widths. More are merged there too if some are relatives, otherwise around their common mean.

    Example:
      intertwine merge a.safetensors b.safetensors --data digits --out merged.safetensors
      intertwine merge seed*.safetensors --model resnet20 --data cifar10:PATH --out merged.safetensors
      intertwine merge vit_a vit_b --data images:photos --out merged
      intertwine merge ties.yml --out merged
      intertwine merge llama_a llama_b --mergekit handover.yml
    """

    python = "iw.merge(a, b, iw.align(a, b, example_inputs))"
    suffixes = (".safetensors", "")
    methods = ("transport", "none")
    unlike = ("checkpoints",)

    checkpoints: list[Path] = argument(
        "Checkpoints of one architecture, or Hugging Face directories; or a mergekit recipe that "
        "names them (linear, slerp, task_arithmetic, ties, dare_ties, dare_linear).",
        ...,
        metavar="A B [C ...] | RECIPE.yml",
    )
    out: Path | None = option("FILE.safetensors, or a folder for a model of transformers.", metavar="PATH")
    mergekit: Path | None = option(
        "Write the recipe for mergekit and, in a folder beside it, the aligned networks that it names.",
        metavar="FILE.yml",
    )
    model_b: str | None = None
    ratio: float = option("Share of B when two networks are merged.", 0.5, min=0, max=1)
    method: str = option(
        "How to align, see 'intertwine align --help'; none for networks already in one basis.", "weights"
    )
    interpolation: str = "linear"
    layers: list[str] | None = advanced("Merge only these, joined by commas: prefixes of tensor names, or patterns.")
    repair: str = advanced(
        "auto (with labels, keep the merged network with the smallest loss on the training split, with or without "
        "alignment and repair), none, recalibrate (batch norms), repair or rescale (networks without them).",
        "auto",
    )
    dtype: str | None = advanced(
        "Precision of the merged weights: float32, bfloat16 or float16. Default: that of A.", metavar="DTYPE"
    )
    examples: int = 5000
    batch_size: int = 250

    def __post_init__(self) -> None:
        super().__post_init__()
        recipe = self.recipe is not None
        for path in (path for path in self.checkpoints if len(self.checkpoints) > 1 and path.suffix in _YAML):
            raise ValueError(f"recipe must stand alone: it names its networks. Got {str(path)!r} beside others.")
        if recipe:
            check_checkpoint(self.checkpoints[0])
        else:
            check("checkpoints", self.checkpoints)
        changed = self.ratio != 0.5 or self.interpolation != "linear" or bool(self.layers)
        if (changed or self.method == "transport") and len(self.checkpoints) != 2:
            rule = f"left out with a recipe, which says them itself. Got {str(self.checkpoints[0])!r}."
            rule = rule if recipe else f"for two networks. Got {len(self.checkpoints)}, which are averaged."
            raise ValueError(f"--ratio, --interpolation, --layers and --method transport must be {rule}")
        if self.out is None and self.mergekit is None:
            raise ValueError("--out or --mergekit must be given. Got neither. Say --out merged, for example.")
        if self.mergekit is None:
            return
        if self.mergekit.suffix not in _YAML:
            raise ValueError(f"--mergekit must end in .yml or .yaml. Got {str(self.mergekit)!r}.")
        if self.layers or self.method == "transport":
            raise ValueError(
                "--layers and --method transport must be left out with --mergekit, which has no such thing."
            )
        files = [str(path) for path in self.checkpoints if not recipe and not path.is_dir()]
        if files:
            raise ValueError(f"--mergekit must be for Hugging Face directories. Got {files[0]!r}.")

    @property
    def recipe(self) -> Path | None:
        """The mergekit recipe, if one is given in place of checkpoints."""
        return self.checkpoints[0] if len(self.checkpoints) == 1 and self.checkpoints[0].suffix in _YAML else None

    def __call__(self) -> None:
        recipe = None if self.recipe is None else iw.merging.read_recipe(self.recipe)
        paths = self.checkpoints if recipe is None else [Path(place) for place in recipe.places]
        inputs.check_tokenizers(
            paths, "to be merged", "Rows of embeddings that stand for different tokens have no mean."
        )
        given = [Path(x).resolve() for x in (paths if recipe is None else [place for place, _ in recipe.models])]
        for path in (path for path in dict.fromkeys(given) if given.count(path) > 1):
            tell(f"Note: {path.name} is listed {given.count(path)} times, and counts that many times.")
        if self.mergekit is not None:
            claim_file(self.mergekit, [*paths, *self.checkpoints])
            claim_folder(self.mergekit.with_suffix(""), ["."], paths)
        claim(self.out, paths)
        reads = looks_at_data(self.method) or self.repair not in ("auto", "none")
        group = inputs.open_group(
            paths, self, "always" if reads else "of card" if self.repair == "auto" else "if given"
        )
        group = group if self.method == "transport" else _in_one_code(group)
        found = self._merged(recipe, group)
        rows = [*zip(group.names, group.models), *found.scored]
        scores = scored(group, rows, self.examples, self.batch_size)
        how: dict[str, Any] = {"ratio": self.ratio} if len(paths) == 2 else {"shares": f"1/{len(paths)} each"}
        how |= {"interpolation": self.interpolation, "layers": self.layers or "all"}
        settings = {
            "merged": group.names, **(how if recipe is None else {"recipe": asdict(found.recipe)}),
            "method": self.method, "result": found.scored[-1][0], "repair": found.repair or "none",
            "dtype": self.dtype, "seed": self.seed,
            "command": self.line, **({"notes": found.basis.notes} if found.basis.notes else {}),
        }  # fmt: skip
        written = {}
        if self.out is not None:
            metrics = {} if not scores else {f"test_{key}": scores[-1][key] for key in ("accuracy", "loss")}
            written["merged"] = write_network(found.model, self.out, group.card(settings, metrics), paths[0])
        if self.mergekit is not None:
            written["mergekit"] = _hand_over(self.mergekit, group, found)
        if self.as_json:
            return print_json({"files": written, "scores": scores, "distances": found.basis.distances, **settings})
        if not (found.basis.distances or scores):
            say(f"{found.scored[-1][0]}: {', '.join(group.names)}")
        for what, value in found.basis.distances.items():
            say(f"{what}: {value:.3g}")
        percent = lambda share: "" if share is None else f"{share:.1%}"
        titled = [("network", "network"), ("test loss", "loss"), ("test accuracy", "accuracy")]
        if scores:
            print_table(
                [{t: percent(row[key]) if key == "accuracy" else row[key] for t, key in titled} for row in scores]
            )
        if found.repair is not None:
            done = f"Statistics of features were corrected on the training split ({found.repair})"
            tell(f"{done}; --repair none does without.")
        return tell_written(written)

    def _merged(self, recipe: iw.merging.Recipe | None, group: inputs.Group) -> _Merged:
        """The merged result in the requested precision; an error if that cannot hold its weights."""
        from ...features.evaluate import evaluate
        from ...merging.merge import check_repair
        from ...merging.recipe import cast
        from ...merging.repair import batch_norms

        loader = group.loader("train", self.examples, self.batch_size) if group.data is not None else None
        for name, model in zip(group.names, group.models):
            if not any(x.any() for x in model.parameters()):
                tell(f"Note: all weights of {name} are zero.")
            if self.dtype == "float32":
                model.float()  # so that means are not rounded to the networks' own precision
        if self.repair == "auto" and group.data is None and batch_norms(group.models[0]):
            raise ValueError(
                "--data must be given to repair a network with batch norms. Got none. Say --data digits, for example, "
                "or --repair none."
            )
        repair: Any = {"auto": True, "none": False}.get(self.repair, self.repair)
        done = check_repair(group.models[0], repair, loader)
        if recipe is not None:
            if done not in (None, "recalibrate"):
                tell("Networks without batch norms are merged as the recipe says, without repair.")
                done = None
            made, basis = self._by_recipe(self._typed(recipe), group, loader)
        else:
            made, basis, recipe = (self._of_two if len(group.models) == 2 else self._of_many)(group, loader)
        for note in basis.notes:
            tell(f"Note: {note}.")
        ways: list[tuple[bool, str | None]] = [(True, done)]
        if group.data is not None and group.data.labelled:  # what is written comes last
            ways = list(product((False, True) if basis.distances else (True,), dict.fromkeys((None, done))))
        to = f"transport to the widths of {group.names[0]}" if self.method == "transport" else "alignment"
        changed = bool(basis.distances) or self.method == "transport"
        said = {False: "merged as they are", True: f"merged after {to}" if changed else "merged as they are"}
        models = [made(*way) for way in track(ways, "Merging and repairing", enabled=None)]
        names = [f"{said[aligned]}{_REPAIRED[how]}" for aligned, how in ways]
        if loader is not None and self.repair == "auto" and len(models) > 1:  # there are labels to judge by
            losses = [loss if (loss := evaluate(x, loader).loss) == loss else float("inf") for x in models]
            shown = lambda k: (round(losses[k], 3), ways[k][1] is not None)  # on a tie the plainer one
            best = min(reversed(range(len(models))), key=shown)
            told = "; ".join(f"{name}: {loss:.3f}" for name, loss in zip(names, losses))
            insist = "" if best == len(models) - 1 else f"; --repair {done or 'none'} insists on the last"
            tell(f"Loss on the training split: {told}. Written is the smallest, {names[best]}{insist}.")
            models, ways, names = ([*x[:best], *x[best + 1 :], x[best]] for x in (models, ways, names))
            done, basis = ways[-1][1], basis if ways[-1][0] else replace(basis, moved=group.models, notes=())
        *others, model = models
        model = cast(model, self.dtype)
        for name, weight in model.named_parameters():
            if not weight.isfinite().all():
                kind = str(weight.dtype).removeprefix("torch.")
                raise ValueError(f"dtype must hold all weights. Got {kind}, in which {name} overflows. Say bfloat16.")
        return _Merged(model, [*zip(names, [*others, model])], basis, self._typed(recipe), done)

    def _typed(self, recipe: iw.merging.Recipe) -> iw.merging.Recipe:
        """The recipe with a result of the dtype; nothing is rounded on the way to the widest."""
        dtype = self.dtype if self.dtype == "float32" else recipe.dtype
        return recipe if self.dtype is None else replace(recipe, dtype=dtype, out_dtype=self.dtype)

    def _of_many(self, group: inputs.Group, loader: Any) -> tuple[_Made, _Basis, Any]:
        """The mean of more than two networks, of strangers around their common basis."""
        basis = self._in_one_basis(group, loader, jointly=True)
        made = lambda moved, how: iw.merging.merge_moved(basis.moved if moved else group.models, how or False, loader)
        linear = tuple((str(checkpoint.path), {"weight": 1.0}) for checkpoint in group.checkpoints)
        return made, basis, iw.merging.Recipe("linear", linear, None, {})

    def _of_two(self, group: inputs.Group, loader: Any) -> tuple[_Made, _Basis, Any]:
        """A network between two."""
        one, other = group.models
        a, b = (str(checkpoint.path) for checkpoint in group.checkpoints)
        found: Any = None
        if self.method == "transport":
            found = iw.merging.transport(one, other, group.example)
        elif self.method != "none":
            family = iw.merging.align_family(group.models, group.example, solver_of(self.method), loader, self.seed)
            (_, found) = family.elements
            if found is None:
                tell("They are relatives in place, or alignment comes no closer: they are merged as they are.")
        where: Any = {"loader": loader, "interpolation": self.interpolation, "layers": self.layers}
        made = lambda aligned, how: iw.merge(one, other, found if aligned else None, self.ratio, how or False, **where)
        handed = iw.merging.Recipe("linear", ((a, {"weight": 1 - self.ratio}), (b, {"weight": self.ratio})), None, {})
        if self.interpolation == "spherical":
            handed = iw.merging.Recipe("slerp", ((a, {}), (b, {})), a, {"t": self.ratio})
        if not isinstance(found, iw.Alignment):
            return made, _Basis(group.models), handed
        distances, notes = _distances(found.before, found.after), found.notes if found.gauge is not None else ()
        return made, _Basis([found.folded(one), found.apply(other)], distances, notes), handed

    def _by_recipe(self, recipe: iw.merging.Recipe, group: inputs.Group, loader: Any) -> tuple[_Made, _Basis]:
        """What a recipe says, after all networks were brought into one basis."""
        recipe.check(group.models[0])
        basis = self._in_one_basis(group, loader)

        def made(aligned: bool, repair: str | None) -> torch.nn.Module:
            merged = recipe.apply(dict(zip(recipe.places, basis.moved if aligned else group.models)), self.seed)
            return iw.merging.recalibrate_(merged, loader) if repair else merged

        return made, basis

    def _in_one_basis(self, group: inputs.Group, loader: Any, jointly: bool = False) -> _Basis:
        """All networks in the basis of the first, relatives by one element; or strangers in a basis of them all."""
        from ...merging.relatives import are_relatives

        models, x, solver = group.models, group.example, solver_of(self.method)
        if self.method == "none":
            return _Basis(models)
        family = iw.merging.align_family(models, x, solver, loader, self.seed)
        moved, distances, notes = family.apply(models), dict[str, float](), dict[str, None]()
        strangers = jointly and not any(are_relatives(*pair) for pair in combinations(moved, 2))
        if strangers and any(found is not None for found in family.elements):
            joint = iw.matching.gather(models, x, solver, loader=loader, seed=self.seed, progress=True)
            said = () if joint.gauge is None else (joint.gauge.note("all"),)
            return _Basis(
                joint.apply(models),
                _distances(joint.distances[0], joint.distances[-1], "distance from their mean"),
                said,
            )
        for name, found, like in list(zip(group.names, family.elements, family.like))[1:]:
            if like is not None:
                tell(f"{name} is moved as {group.names[like]} is, to which it is close: what they differ by stays.")
            elif found is None:
                tell(f"{name} stays as it is: it is a relative of {group.names[0]}, or alignment comes no closer.")
            else:
                both = _distances(found.before, found.after)
                distances |= {f"{name}, {what}": value for what, value in both.items()}
                notes |= dict.fromkeys(found.notes if found.gauge is not None else ())
        return _Basis(moved, distances, tuple(notes))


def scored(
    group: inputs.Group, rows: Sequence[tuple[str, torch.nn.Module]], examples: int, batch_size: int
) -> list[dict[str, Any]]:
    """Loss and accuracy of named networks on the test split of a group's data; empty without labels."""
    from ...features.evaluate import evaluate

    if group.data is None or not group.data.labelled:
        return []
    loader = group.loader("test", examples, batch_size)
    scores = [(name, evaluate(model, loader)) for name, model in track(rows, "Scoring networks", enabled=None)]
    return [{"network": name, "loss": one.loss, "accuracy": one.accuracy} for name, one in scores]


def _in_one_code(group: inputs.Group) -> inputs.Group:
    """The group with all weights carried into the code of its first network."""
    from ...matching.correspondence.correspond import carrier_of

    first, *others = group.networks
    networks = [first]
    for network in others:
        carry = carrier_of(first.model, network.model, group.example)
        if carry is not None:
            tell(f"{network.name} is in other code: its weights are carried into that of {first.name}.")
        networks.append(network if carry is None else replace(network, model=carry(network.model)))
    return replace(group, networks=tuple(networks))


@dataclass(frozen=True)
class _Basis:
    """Networks in one basis."""

    moved: Sequence[torch.nn.Module]  # All of them
    distances: Mapping[str, float] = field(default_factory=dict)  # How far apart they were before and are after
    notes: tuple[str, ...] = ()  # What was folded for it


@dataclass(frozen=True)
class _Merged:
    """The result of a merge."""

    model: torch.nn.Module  # The merged network
    scored: Sequence[tuple[str, torch.nn.Module]]  # It, named, and with labels the same without alignment and repair
    basis: _Basis  # The basis it is in
    recipe: iw.merging.Recipe  # For mergekit
    repair: str | None  # How feature statistics were repaired


def _distances(before: float, after: float, what: str = "relative distance") -> dict[str, float]:
    return {f"{what} as they are": before, f"{what} aligned": after}


def _hand_over(path: Path, group: inputs.Group, found: _Merged) -> Path:
    """Write the recipe and, beside it, the networks in one basis that it names."""
    places = {}
    for k, (checkpoint, model) in enumerate(zip(group.checkpoints, found.basis.moved)):
        card = group.card({"aligned": str(checkpoint.path)})
        folder = write_network(model, path.with_suffix("") / f"{k}-{checkpoint.path.name}", card, checkpoint.path)
        places[str(checkpoint.path)] = str(folder.resolve())
    return found.recipe.moved(places).write(path)


class Barrier(Study, DeviceOptions, DataOptions):
    """Measure the loss barrier between networks, before and after alignment.

    The barrier is the largest excess of the loss over the straight line between the losses of both ends. With three
    or more networks, every pair is measured, and the barrier comes with an interval from leaving out networks rather
    than pairs. Batch norms are recalibrated on as many training examples as are used to score the networks. Points are
    scored from coarse to fine, so that Ctrl-C can end the scan early and still write the points scored by then.

    Example:
      intertwine barrier a.safetensors b.safetensors --data digits
      intertwine barrier seed*.safetensors --model resnet20 --data cifar10:PATH --points 25 --examples 10000
    """

    python = "iw.barrier(a, b, loader)"
    methods = ("none",)

    checkpoints: list[Path]
    method: str = option("How to align, see 'intertwine align --help'; none for the direct path only.", "weights")
    points: int = option("Points on each path, including its ends.", 11, min=3)
    recalibrate: bool = advanced("Also score every point with recalibrated batch norms.", True)
    interpolation: str = "linear"
    split: str = "test"
    examples: int = 2000
    batch_size: int = 250
    out: Path = Path("barrier")

    def find(self) -> iw.merging.Barrier:
        solver = None if self.method == "none" else solver_of(self.method)
        group = inputs.open_group(self.checkpoints, self, "always")
        splits = group.need_data()
        splits.need_labels("to measure losses")
        interpolation: Any = self.interpolation
        options = iw.merging.PathOptions(
            recalibrate=self.recalibrate, calibration=group.loader("train", self.examples, self.batch_size),
            interpolation=interpolation, example_inputs=group.example, seed=self.seed,
        )  # fmt: skip
        loader, notes = inputs.batches(splits, self.split, self.examples, self.batch_size, group.networks)
        found = iw.merging.barriers(
            group.models, loader, self.points, alignments=solver, names=group.names, progress=True, options=options
        )
        settings = {**group.facts(self.split), "command": self.line, "seed": self.seed}
        return replace(found, settings=settings, notes=(*notes, *found.notes))
