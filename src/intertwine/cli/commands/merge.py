"""``intertwine merge`` and ``barrier``: one network from several, and what lies between them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from .._options import DataOptions, DeviceOptions, ExampleOptions, advanced, option
from .._outputs import claim, claim_file, claim_folder, print_json, print_table, say, tell, tell_written, write_network
from . import Study, inputs, iw, looks_at_data, solver_of, torch

if TYPE_CHECKING:
    _Made: TypeAlias = Callable[[bool, str | None], torch.nn.Module]  # merges with or without alignment, and repair

_YAML = (".yml", ".yaml")
_REPAIRED = {None: "", "recalibrate": ", recalibrated", "repair": ", repaired", "rescale": ", rescaled"}


class Merge(DeviceOptions, ExampleOptions):
    """Merge networks of one architecture into one of the same size: align, average, repair.

    With data, statistics are repaired on the training split, and all networks are scored on the test split, merged
    ones with and without alignment and repair. Two networks are merged in the basis and with the widths of A; more of
    them around their common mean.

    Example:
      intertwine merge a.safetensors b.safetensors --data digits --out merged.safetensors
      intertwine merge seed*.safetensors --model resnet20 --data cifar10:PATH --out merged.safetensors
      intertwine merge vit_a vit_b --data images:photos --out merged
      intertwine merge llama_a llama_b --mergekit handover.yml
    """

    python = "iw.merge(a, b, iw.align(a, b, example_inputs))"
    suffixes = (".safetensors", "")
    methods = ("transport", "none")

    checkpoints: list[Path]
    out: Path | None = option("FILE.safetensors, or a folder for a model of transformers.", metavar="PATH")
    mergekit: Path | None = option(
        "Write a recipe for mergekit, whose method may be changed there, and the aligned networks that it names in a "
        "folder beside it.",
        metavar="FILE.yml",
    )
    model_b: str | None = None
    ratio: float = option("The share of B, for two networks.", 0.5, min=0, max=1)
    method: str = option(
        "How to align, see 'intertwine align --help'; none for networks in one basis already.", "weights"
    )
    interpolation: str = "linear"
    layers: list[str] | None = advanced("Merge only these, joined by commas: beginnings of tensor names or patterns.")
    repair: str = advanced("auto, none, recalibrate (batch norms), repair or rescale (networks without them).", "auto")
    dtype: str | None = advanced(
        "Kind of numbers of the merged weights: float32, bfloat16 or float16; those of A otherwise.", metavar="DTYPE"
    )
    examples: int = 5000
    batch_size: int = 250

    def __post_init__(self) -> None:
        super().__post_init__()
        changed = self.ratio != 0.5 or self.interpolation != "linear" or bool(self.layers)
        if len(self.checkpoints) > 2 and (changed or self.method in ("transport", "none")):
            raise ValueError(
                "--ratio, --interpolation, --layers and --method transport must be for two networks. "
                f"Got {len(self.checkpoints)}, which are averaged."
            )
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
        files = [str(path) for path in self.checkpoints if not path.is_dir()]
        if files:
            raise ValueError(f"--mergekit must be for Hugging Face directories. Got {files[0]!r}.")

    def __call__(self) -> None:
        paths = self.checkpoints
        inputs.check_tokenizers(
            paths, "to be merged", "Rows of embeddings that stand for different tokens have no mean."
        )
        if self.mergekit is not None:
            claim_file(self.mergekit, paths)
            claim_folder(self.mergekit.with_suffix(""), ["."], paths)
        claim(self.out, paths)
        reads = looks_at_data(self.method) or self.repair not in ("auto", "none")
        group = inputs.open_group(
            paths, self, "always" if reads else "of card" if self.repair == "auto" else "if given"
        )
        found = self._merged(group)
        scores = self._scores(group, found)
        settings = {
            "merged": group.names, "ratio": self.ratio, "method": self.method, "interpolation": self.interpolation,
            "layers": self.layers or "all", "repair": found.repair or "none", "dtype": self.dtype, "seed": self.seed,
            "command": self.line,
        }  # fmt: skip
        written = {}
        if self.out is not None:
            metrics = {} if not scores else {f"test_{key}": scores[-1][key] for key in ("accuracy", "loss")}
            written["merged"] = write_network(found.model, self.out, group.card(settings, metrics), paths[0])
        if self.mergekit is not None:
            written["mergekit"] = self._hand_over(self.mergekit, group, found)
        if self.as_json:
            return print_json({**written, "scores": scores, "distances": found.distances, **settings})
        if not (found.distances or scores):
            say(f"merged as they are: {', '.join(group.names)}")
        for what, value in found.distances.items():
            say(f"{what}: {value:.3g}")
        percent = lambda share: "" if share is None else f"{share:.1%}"
        titled = [("network", "network"), ("test loss", "loss"), ("test accuracy", "accuracy")]
        rows = [{t: percent(row[key]) if key == "accuracy" else row[key] for t, key in titled} for row in scores]
        if rows:
            print_table(rows)
        if found.repair is not None:
            done = f"Statistics of features were corrected on the training split ({found.repair})"
            tell(f"{done}; --repair none does without.")
        return tell_written(written)

    def _merged(self, group: inputs.Group) -> _Merged:
        """What came out, in the numbers that were asked for; an error if they are too few for its weights."""
        from ...merging.merge import check_repair
        from ...merging.repair import batch_norms

        loader = group.loader("train", self.examples, self.batch_size) if group.data is not None else None
        if self.dtype == "float32":
            for model in group.models:
                model.float()  # so that means are not rounded to what the networks are kept in
        if self.repair == "auto" and group.data is None and batch_norms(group.models[0]):
            raise ValueError(
                "--data must be given to repair a network with batch norms. Got none. Say --data digits, for example, "
                "or --repair none."
            )
        repair: Any = {"auto": True, "none": False}.get(self.repair, self.repair)
        done = check_repair(group.models[0], repair, loader)
        made, moved, distances = (self._of_two if len(group.models) == 2 else self._of_many)(group, loader)
        ways: list[tuple[bool, str | None]] = [(True, done)]
        if group.data is not None and group.data.labelled:  # what is written comes last
            ways = list(product((False, True) if distances else (True,), dict.fromkeys((None, done))))
        said = {False: "merged as they are", True: "merged after alignment" if distances else "merged"}
        *others, model = (made(*way) for way in ways)
        if self.dtype is not None:
            casts = {"float32": model.float, "float16": model.half, "bfloat16": model.bfloat16}
            model = casts[self.dtype]()  # ``model.to`` would halve complex numbers
            for name, weight in model.named_parameters():
                if not weight.isfinite().all():
                    raise ValueError(
                        f"--dtype must hold all weights. Got {self.dtype}, in which {name} overflows. Say bfloat16."
                    )
        scored = [(f"{said[aligned]}{_REPAIRED[how]}", x) for (aligned, how), x in zip(ways, [*others, model])]
        return _Merged(model, scored, moved, distances, done)

    def _of_many(self, group: inputs.Group, loader: Any) -> tuple[_Made, Any, dict[str, float]]:
        """The mean of more than two networks around their common basis."""
        found = iw.matching.gather(
            group.models, group.example, solver_of(self.method), loader=loader, seed=self.seed, progress=True
        )
        moved = found.apply(group.models)
        made = lambda aligned, how: iw.merging.merge_moved(moved if aligned else group.models, how or False, loader)
        return made, moved, _distances(found.distances[0], found.distances[-1])

    def _of_two(self, group: inputs.Group, loader: Any) -> tuple[_Made, Any, dict[str, float]]:
        """A network between two."""
        one, other = group.models
        found: Any = None
        if self.method == "transport":
            found = iw.merging.transport(one, other, group.example)
        elif self.method != "none":
            family = iw.merging.align_family(group.models, group.example, solver_of(self.method), loader, self.seed)
            (_, found) = family.elements
            if found is None:
                tell("They are relatives in place, or alignment comes no closer: they are merged as they are.")
            elif found.gauge is not None:
                for note in found.notes:
                    tell(f"Note: {note}.")
        where: Any = {"loader": loader, "interpolation": self.interpolation, "layers": self.layers}
        made = lambda aligned, how: iw.merge(one, other, found if aligned else None, self.ratio, how or False, **where)
        if not isinstance(found, iw.Alignment):
            return made, [one, other], {}
        return made, [found.folded(one), found.apply(other)], _distances(found.before, found.after)

    def _hand_over(self, path: Path, group: inputs.Group, found: _Merged) -> Path:
        """Write a recipe, as JSON, which is YAML too, and the networks in one basis beside it, which it names."""
        from ..._io import write_text

        places = []
        for k, (checkpoint, model) in enumerate(zip(group.checkpoints, found.moved)):
            card = group.card({"aligned": str(checkpoint.path)})
            folder = path.with_suffix("") / f"{k}-{checkpoint.path.name}"
            places.append(str(write_network(model, folder, card, checkpoint.path).resolve()))
        shares = [1 - self.ratio, self.ratio] if len(places) == 2 else [1.0] * len(places)
        models = [{"model": place, "parameters": {"weight": share}} for place, share in zip(places, shares)]
        said: dict[str, Any] = {"merge_method": "linear", "models": models}
        if self.interpolation == "spherical":
            said = {"merge_method": "slerp", "base_model": places[0], "models": [{"model": place} for place in places],
                    "parameters": {"t": self.ratio}}  # fmt: skip
        if self.dtype is not None:  # nothing is rounded on the way to the widest
            said |= {"out_dtype": self.dtype} | ({"dtype": self.dtype} if self.dtype == "float32" else {})
        return write_text(path, f"# Written by intertwine.\n{json.dumps(said, indent=2)}\n")

    def _scores(self, group: inputs.Group, found: _Merged) -> list[dict[str, Any]]:
        """Loss and accuracy of all networks on the test split, the merged one last."""
        from ...features.evaluate import evaluate

        if group.data is None or not group.data.labelled:
            return []
        rows = [*zip(group.names, group.models), *found.scored]
        loader = group.loader("test", self.examples, self.batch_size)
        scores = [(name, evaluate(model, loader)) for name, model in rows]
        return [{"network": name, "loss": one.loss, "accuracy": one.accuracy} for name, one in scores]


@dataclass(frozen=True)
class _Merged:
    """What came out."""

    model: torch.nn.Module  # The merged network
    scored: Sequence[tuple[str, torch.nn.Module]]  # It and, with labels, the same without alignment and repair, named
    moved: Sequence[torch.nn.Module]  # All networks in one basis
    distances: dict[str, float]  # How far they were apart, and are
    repair: str | None  # What was done to the statistics


def _distances(before: float, after: float) -> dict[str, float]:
    return {"relative distance as they are": before, "relative distance aligned": after}


class Barrier(Study, DeviceOptions, DataOptions):
    """Measure how much worse the networks between networks are, before and after alignment.

    The barrier is the largest excess of the loss over the straight line between the losses of both ends. With three
    networks or more every pair is measured, and the barrier comes with an interval, which leaves out networks and not
    pairs. Batch norms are recalibrated on as many examples of the training split as the networks are judged by. Points
    are scored from coarse to fine: Control-C ends early, and what was scored by then is written.

    Example:
      intertwine barrier a.safetensors b.safetensors --data digits
      intertwine barrier seed*.safetensors --model resnet20 --data cifar10:PATH --points 25 --examples 10000
    """

    python = "iw.barrier(a, b, loader)"
    methods = ("none",)

    checkpoints: list[Path]
    method: str = option("How to align, see 'intertwine align --help'; none for the direct path only.", "weights")
    points: int = option("Points of each path, the ends included.", 11, min=3)
    recalibrate: bool = advanced("Also with batch norms measured anew at every point.", True)
    interpolation: str = "linear"
    split: str = "test"
    examples: int = 2000
    batch_size: int = 250
    out: Path = Path("barrier")

    def find(self) -> iw.merging.Barrier:
        solver = None if self.method == "none" else solver_of(self.method)
        group = inputs.open_group(self.checkpoints, self, "always")
        group.need_data().need_labels("to measure losses")
        interpolation: Any = self.interpolation
        options = iw.merging.PathOptions(
            recalibrate=self.recalibrate, calibration=group.loader("train", self.examples, self.batch_size),
            interpolation=interpolation, example_inputs=group.example, seed=self.seed,
        )  # fmt: skip
        loader = group.loader(self.split, self.examples, self.batch_size)
        found = iw.merging.barriers(
            group.models, loader, self.points, alignments=solver, names=group.names, progress=True, options=options
        )
        settings = {**group.facts(self.split), "command": self.line, "seed": self.seed}
        return replace(found, settings=settings, notes=(*group.notes, *found.notes))
