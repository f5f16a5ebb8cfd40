"""``intertwine stitch``: can network B read network A's features?"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from .._checks import check_known
from .._options import DataOptions, Device, Json, Model, OutFolder, Seed, advanced
from .._values import number, words


@dataclass(frozen=True)
class StitchOptions(DataOptions):
    """Stitch networks: how much accuracy is lost when B goes on from A's features, through a map of one family.

    Maps are trained on the training split and scored on the test split (penalty: mean accuracy of A and B, less that of
    the stitched network). Prints a table and writes results.json, results.parquet and report.html. A stopped run goes
    on where it stood when the same command is given again.

    Example:
      intertwine stitch a.safetensors b.safetensors --data digits
      intertwine stitch a.pt b.pt --model resnet20 --data cifar10:PATH --layers layer2.1.relu2 --families full,rank-4
      intertwine stitch seed*.safetensors --layers 'relu*' --families g_relu,full --method direct,task_loss
    """

    unlike = ("recipe",)

    def check(self) -> None:
        """Refuse what cannot be right, before torch is imported.

        Raises:
            ValueError: If options do not exist or do not go together.
        """
        super().check()
        if len(self.checkpoints) < 2:
            raise ValueError(f"at least two checkpoints must be given. Got {len(self.checkpoints)}.")
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
            number("--alpha, where it is not cv,", self.alpha)

    checkpoints: Annotated[
        list[Path],
        typer.Argument(
            metavar="A B [C ...]",
            help="Checkpoints, or Hugging Face directories: the early layers of A with the late layers of B. More than "
            "two: every ordered pair of them.",
        ),
    ]
    model: Model = None
    model_b: Annotated[
        str | None, typer.Option("--model-b", metavar="MODEL", help="Model of B, where it is not that of A.")
    ] = None
    layers: Annotated[
        list[str] | None,
        typer.Option(
            "--layers", metavar="NAMES", help="Layers, joined by commas; '*' matches any. All activations otherwise."
        ),
    ] = None
    layers_b: Annotated[
        list[str] | None, advanced("--layers-b", metavar="NAMES", help="Layers of B, where they are not those of A.")
    ] = None
    families: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMES",
            help="Families of maps, joined by commas: identity, diagonal, permutation, signed_permutation, g_relu, "
            "monomial, softsort, orthogonal, full, rank-R, lasso-STRENGTH.",
        ),
    ] = None
    method: Annotated[
        str, typer.Option(help="task_loss trains on B's task, direct matches activations; both, joined by a comma.")
    ] = "task_loss"
    skip: Annotated[
        str, advanced(help="Inside residual blocks, the skip connection: a (as A has it), mapped, or b (B's own).")
    ] = "a"
    start: Annotated[
        str, advanced(help="Where training starts: direct (closed form) or random (as the paper has it).")
    ] = "direct"
    recipe: Annotated[str, advanced(help="v1 (SGD, momentum 0.9) or v2 (plain SGD).")] = "v1"
    epochs: Annotated[int | None, typer.Option(min=0, help="Passes over the data; the recipe's 20 otherwise.")] = None
    learning_rate: Annotated[float | None, advanced(min=0, help="Learning rate; the recipe's 0.001 otherwise.")] = None
    keep: Annotated[
        str,
        advanced(
            help="best: of the start and all epochs, the map with the least training loss once rounded; last: the last "
            "epoch's, as the paper has it."
        ),
    ] = "best"
    alpha: Annotated[
        str, advanced(help="Weight of the pull to permutations, or cv: chosen on a fifth of the training split.")
    ] = "0.1"
    tail_norm: Annotated[
        str, advanced(help="Batch norm of B's part in training: eval (its own statistics) or train (the batch's).")
    ] = "eval"
    recalibration: Annotated[
        bool, advanced("--recalibrate/--no-recalibrate", help="Measure batch norms anew before evaluation.")
    ] = True
    bias: Annotated[bool, advanced("--bias", help="Give every map a bias; the paper's have none.")] = False
    translate: Annotated[int, advanced(min=0, help="Shift training images by so many pixels at most.")] = 0
    flip: Annotated[bool, advanced("--flip", help="Mirror every second training image.")] = False
    seeds: Annotated[int, advanced(min=1, help="Runs of each map that is trained, from --seed on.")] = 1
    split: Annotated[str, advanced(help="Split to score on: test or validation.")] = "test"
    examples: Annotated[int, advanced(min=4, help="Use so many examples of each split at most.")] = 50000
    seed: Seed = 0
    device: Device = "auto"
    out: OutFolder = Path("stitching")
    as_json: Json = False
