"""``intertwine stitch``: can network B read network A's features?"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..._words import check_known, read
from .._checks import words
from .._options import DataOptions, DeviceOptions, advanced, option
from . import Study, inputs, iw, torch

if TYPE_CHECKING:
    from ...stitching.pair import At

_FAMILIES = ("g_relu", "full", "rank-1", "rank-4", "lasso")


class Stitch(Study, DeviceOptions, DataOptions):
    """Stitch networks: measure how much accuracy is lost when B continues from A's features through a stitching map.

    The early layers of A are followed by a map of one family and the late layers of B; of more than two networks, every
    ordered pair is stitched. Maps are trained on the training split and scored on the test split (penalty: mean
    accuracy of A and B, minus that of the stitched network). Prints a table and writes results.json, results.parquet
    and report.html. A stopped run resumes when the same command is given again.

    Example:
      intertwine stitch a.safetensors b.safetensors --data digits
      intertwine stitch a.pt b.pt --model resnet20 --data cifar10:PATH --layers layer2.1.relu2 --families full,rank-4
      intertwine stitch seed*.safetensors --layers 'relu*' --families g_relu,full --method direct,task_loss
    """

    python = 'iw.stitch(a, b, "relu2", "g_relu", loader=train, eval_loader=test)'
    unlike = ("recipe",)
    writes = ("results.safetensors",)

    checkpoints: list[Path]
    model_b: str | None = None
    layers: list[str] | None = option("Layers, joined by commas; '*' matches any text. Default: all activations.")
    layers_b: list[str] | None = None
    families: list[str] | None = option(
        "Families of maps, joined by commas: identity, diagonal, permutation, signed_permutation, "
        "g_relu, monomial, softsort, orthogonal, full, rank-R, lasso-STRENGTH."
    )
    method: str = option("task_loss trains on B's task, direct matches activations; a comma joins both.", "task_loss")
    skip: str = advanced("Inside residual blocks, the skip connection: a (as A has it), mapped, or b (B's own).", "a")
    start: str = advanced("Where training starts: direct (closed form) or random (as in the paper).", "direct")
    recipe: str = advanced("v1 (SGD, momentum 0.9) or v2 (plain SGD).", "v1")
    epochs: int | None = option("Passes over the data. Default: the recipe's 20.", min=0)
    learning_rate: float | None = advanced("Learning rate. Default: the recipe's 0.001.", min=0)
    keep: str = advanced(
        "best: of the start and all epochs, the map with the lowest training loss once rounded; last: the "
        "last epoch's, as in the paper.",
        "best",
    )
    alpha: str = advanced("Weight of the pull to permutations; cv chooses it on a fifth of the training split.", "0.1")
    tail_norm: str = advanced(
        "Batch norms of B's part during training: eval (their own statistics) or train (the batch's).", "eval"
    )
    recalibrate: bool = advanced("Recalibrate batch norms before evaluation.", True)
    bias: bool = advanced("Give every map a bias; the paper's maps have none.", False)
    translate: int = advanced("Shift training images by at most this many pixels.", 0, min=0)
    flip: bool = advanced("Mirror every second training image.", False)
    seeds: int = advanced("Runs of each trained map, with consecutive seeds from --seed.", 1, min=1)
    split: str = advanced("Split to score on: test or validation.", "test")
    examples: int = 50000
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

    def find(self) -> iw.stitching.StitchingStudy:
        from ...lab.training import Augmented

        recipe, count = self._recipe(), len(self.checkpoints)
        group = inputs.open_group(self.checkpoints, self, "always")
        group.need_data().need_labels("to score stitched networks")
        fit = replace(group.loader("train", self.examples, recipe.batch_size), shuffle=True)
        train = Augmented(fit, self.translate, self.flip) if self.translate or self.flip else fit
        score = group.loader(self.split, self.examples, 250)
        families, options = self._families()
        methods = [recipe if method == "task_loss" else method for method in words([self.method], "--method")]
        given: dict[str, Any] = {"loader": train, "eval_loader": score, "method": methods}
        given["seeds"] = list(range(self.seed, self.seed + self.seeds))
        studies: list[Any] = []
        # with two checkpoints, only A's early layers come first
        for i, j in itertools.permutations(range(count), 2) if count > 2 else [(0, 1)]:
            a, b, names = group.models[i], group.models[j], (group.names[i], group.names[j])
            how = replace(options, names=names, state=self._state.with_stem(f"{self._state.stem}-{i}-{j}"))
            at = list(_layers(a, b, score, self.layers, self.layers_b))
            studies.append(iw.stitch(a, b, at, families, options=how, **given))
        augmentation = {"translate": self.translate, "flip": self.flip}
        settings = {**studies[0].settings, **group.facts(self.split), "command": self.line}
        settings |= {"augmentation": augmentation, "notes": list(group.notes)}
        return iw.stitching.StitchingStudy.join(studies, settings)

    def plain(self, found: iw.stitching.StitchingStudy) -> dict[str, Any]:
        stitchings = [{**one.to_dict(), "penalty": one.penalty} for one in found.stitchings]
        return {**found.to_dict(), "stitchings": stitchings}

    def write(self, found: iw.stitching.StitchingStudy) -> dict[str, Path]:
        files = super().write(found)
        for file in self.out.glob(f"*{self._state.stem}*.pt"):
            file.unlink()
        return files

    @property
    def _state(self) -> Path:
        """The file with the state of training, for a run that is stopped."""
        import hashlib  # openssl is not for help

        return self.out / f"training-{hashlib.blake2b(self.line.encode(), digest_size=6).hexdigest()}.pt"

    def _recipe(self) -> iw.stitching.Recipe:
        keep: Any = self.keep
        chosen = replace(iw.stitching.RECIPES[self.recipe], keep=keep)
        if self.epochs is not None:
            chosen = replace(chosen, epochs=self.epochs, head_start=self.epochs // 2)  # half of it, as in the paper
        return chosen if self.learning_rate is None else replace(chosen, learning_rate=self.learning_rate)

    def _families(self) -> tuple[list[str], iw.stitching.StitchOptions]:
        """Names of the families, and options for all of them."""
        from ...stitching.families import takes

        wanted = list(dict.fromkeys(self.families or _FAMILIES))
        pulled = any(takes(family, "alpha") for family in wanted)
        given: dict[str, Any] = {"skip": self.skip, "start": self.start, "tail_norm": self.tail_norm}
        given["settings"] = {"alpha": "cv" if self.alpha == "cv" else float(self.alpha)} if pulled else {}
        options = iw.stitching.StitchOptions(recalibration=self.recalibrate, bias=self.bias, progress=True, **given)
        return wanted, options


def _layers(
    a: torch.nn.Module, b: torch.nn.Module, loader: iw.lab.data.Batches, at: list[str] | None, at_b: list[str] | None
) -> Sequence[At]:
    """Where to cut: the layers that were named, or all activations at which both networks can be cut."""
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
